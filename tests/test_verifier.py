import ast
import re
import time
import tracemalloc
import warnings
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import product
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimoe.coding.tasks import FAMILIES, fixed_tasks, make_task
from minimoe.coding.verifier import (
    BINARY, BUILTINS, COMPARISONS, MAX_BRACKETS, MAX_CHARACTERS, MAX_NODES, REWARDS, UNARY, same, short, verify)
from minimoe.errors import InputError
from tests.attacks import ATTACKS, RETURNED, WHOLE


def task_of(family):
    return replace(make_task(family, 0x9F3C), name="f", prompt='def f(x):\n    """Say."""\n')


TASKS = {family: task_of(family) for family in FAMILIES}
OTHER = object()  # equal to nothing that a source can return


def judge(family, expression):
    return verify(TASKS[family], f"{TASKS[family].prompt}    return {expression}\n")


def outcome(expression, x=None, expected=OTHER):
    """What the language makes of an expression: the end of the reason, empty if it gives exactly what is expected."""
    task = replace(TASKS["double"], cases=(((x,), expected),))
    status, _, _, reason = verify(task, f"def f(x): return {expression}")
    return reason if status == "invalid" else reason.partition(f"first {task.name}({short(x)}) ")[2]


def python(expression, x=None):
    """Python's own (value, name of its exception or None)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return eval(expression, {"x": deepcopy(x)}), None
        except Exception as error:
            return None, type(error).__name__


def agrees(expression, x=None):
    """Compare with Python: value, type, exception. Return "value", "error", or "guard" where a guard tripped."""
    ours = outcome(expression, x)
    if ours == "went beyond what is allowed":
        return "guard"
    value, error = python(expression, x)
    if error:
        assert ours == f"raised {error}", (expression, x)
        return "error"
    assert ours.startswith("gave ") and outcome(expression, x, value) == "", (expression, x, value)
    return "value"


@pytest.mark.parametrize("task", fixed_tasks("confirm", 2), ids=lambda task: task.name)
def test_canonical_solution_passes(task):
    assert verify(task, task.prompt + task.solution) == ("passed", 16, 16, "")
    assert REWARDS[verify(task, task.prompt + task.solution).status] == 1


@pytest.mark.parametrize("family, expression", [
    ("increment", "1 + x"), ("increment", "x - -1"), ("increment", "sum([x, 1])"), ("increment", "-~x"),
    ("increment", "int(x) + True"), ("increment", "(x\n+ 1)"), ("double", "2 * x"), ("double", "x + x"),
    ("double", "x << 1"), ("double", "sum((x, x))"), ("even", "not x % 2"), ("even", "x % 2 < 1"),
    ("even", "x & 1 == 0 or x % 2 != 1"), ("even", "x // 2 * 2 == x"), ("even", "True if x % 2 == 0 else False"),
    ("even", "bool(1 - x % 2)"), ("even", "x % 2 not in [1]"), ("even", "str(x)[-1] in '02468'"), ("square", "x ** 2"),
    ("square", "pow(x, 2)"), ("square", "abs(x) * abs(x)"), ("is_positive", "0 < x"), ("is_positive", "not x <= 0"),
    ("is_positive", "0 != x >= 0"), ("is_positive", "x >= 1"), ("absolute", "x if x > 0 else -x"),
    ("absolute", "max(x, -x)"), ("absolute", "-min(x, -x)"), ("absolute", "x * (1 - 2 * (x < 0))"),
    ("reverse", "x[-1::-1]"), ("reverse", "x[len(x)::-1]"), ("reverse", "str(x)[::-1]"), ("total", "sum(x, 0)"),
    ("total", "sum(x[::-1])"), ("total", "sum(sorted(x))"), ("total", "sum(list(x)) if len(x) else 0"),
])
def test_other_right_spellings_pass(family, expression):
    assert judge(family, expression) == ("passed", 16, 16, "")


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_answers_fail(family):
    wrong = [row.expression for name, row in FAMILIES.items() if name != family] + ["x", "None", "[x]"]
    for expression in wrong + [repr(expected) for _, expected in TASKS[family].cases]:
        status, passed, total, reason = judge(family, expression)
        assert (status, total) == ("failed", 16) and passed < 16
        assert reason.startswith(f"{16 - passed} of 16 cases wrong, first f(")
        assert REWARDS[status] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_of_three_cases_fails_by_as_many_as_it_leaves_out(family):
    cases = TASKS[family].cases
    for _, default in cases:
        listed = [(x, expected) for (x,), expected in cases if expected != default][:3]
        table = " else ".join(f"{expected!r} if x == {x!r}" for x, expected in listed) + f" else {default!r}"
        by_default = sum(expected == default for _, expected in cases)
        assert judge(family, table)[:2] == ("failed", by_default + len(listed))


@pytest.mark.parametrize("family, expression", [
    ("even", "1 - x % 2"), ("is_positive", "int(x > 0)"), ("increment", "x + 1.0"), ("double", "x / 0.5"),
    ("absolute", "abs(x) / 1"), ("total", "sum(x, 0.0)"), ("reverse", "list(x)[::-1]"), ("reverse", "(x[::-1],)")])
def test_an_equal_value_of_another_type_fails(family, expression):
    assert judge(family, expression)[:2] == ("failed", 0)


def test_same_looks_at_types_all_the_way_down():
    assert same([1, (2.0, "a", None, [])], [1, (2.0, "a", None, [])])
    nan = float("nan")
    for value, expected in [
        (1, True), (0, False), (1.0, 1), ("1", 1), (None, False), ([1], [True]), ((1,), (True,)), ([1], (1,)),
        ([(1, 2)], [[1, 2]]), ([1], [1, 2]), ([], [[]]), (nan, nan), ([nan], [nan]),
    ]:
        assert not same(value, expected) and not same(expected, value), (value, expected)
    infinity = "10.0 ** 308 * 10"
    assert outcome(f"[{infinity} - {infinity}]", expected=[nan]) == "gave [nan], not [nan]"


def test_a_layout_is_pythons_to_judge():
    task = TASKS["increment"]
    text = task.prompt + task.solution
    for source in [
        text.rstrip("\n"), text + "\n  \n\t", text + "# done", text.replace("1\n", "1  # ( one\n"),
        text.replace("\n", "\r\n"), text.replace("\n", "\r"), text.replace("\n", "  \n"), text.replace("\n", "\n\n"),
        text.replace("    ", "\t"), text.replace("    ", " "), "def f(x): return x + 1", "def f(x):\n  return(x)+1;",
        "def f(x):\n 'a' 'b'; return 1+x",
    ]:
        assert verify(task, source).status == "passed", source


@pytest.mark.parametrize("source", [
    "", "x + 1", "return x + 1", "def g(x): return x + 1", "def f(y): return y + 1", "def f(x, y): return x + 1",
    "def f(x, y=1): return x + 1", "def f(x=0): return x + 1", "def f(x: int): return x + 1",
    "def f(x) -> int: return x + 1", "def f(x): x + 1", "def f(x):\n    'Say.'", "def f(x): return",
    "def f(x): pass; return x + 1", "def f(x):\n    return x + 1\n    return x",
    "def f(x):\n    y = x + 1\n    return y", "def f(x):\n    1\n    return x + 1",
    "def f(x):\n    'a'\n    'b'\n    return x + 1", "def f(x):\n    if x: return x + 1",
    "def f(x):\n    return x + 1\nf(1)", "def f(x):\n    return x + 1\n'Say.'", "def f(x):\n    return x + 1\n  x",
    " def f(x): return x + 1", "#\ndef f(x): return x + 1", "def f(x):\nreturn x + 1", "def f(x):\n    return x +",
    "def f(x):\n    return x + 1)", "def f(x):\n    '''Say.\n    return x + 1", "def f(x):\n    return x + \\\n    1",
] + ["def f(x): return " + expression for expression in [
    "x + 1 # é", "x + 1\0", "x + '\ud800'", "x + 1\x0c", "x + 1if x else 1", "x + 1.if x else 1", "x + 0x1", "x + 1j",
    "'\\d'", "x + y", "f", "abs", "x(1)", "abs(x)(1)", "print(x)", "sum(x, start=1)", "max(*x)", "max(**x)", "x.real",
    "pow(x, 2, 3)", "pow(x, -1, True)", "x is 1", "x is not None", "1 < x is 1", "x @ x", "lambda: x", "[x for x in x]", "(y := x)", "f'{x}'", "{x}",
    "{x: x}", "[*x]", "b'a'", "...", "x[*x]", "(yield)", "await x", "'" + "a" * 257 + "'", "9" * 90,
    "9" * 900 + "z",
]], ids=ascii)
def test_what_is_not_in_the_language_is_invalid(source):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # made an error, one would hide: the parser turns it into a SyntaxError
        status, passed, total, reason = verify(TASKS["increment"], source)
    assert (status, passed, total) == ("invalid", 0, 16) and REWARDS[status] == -0.1
    assert reason.isascii() and reason.isprintable() and len(reason) < 150
    assert not caught


def test_limits_on_the_source_are_sharp():
    spaces, terms = " " * (MAX_CHARACTERS - len("def f(x): return x")), " or x" * ((MAX_NODES - 9) // 2)
    for inside, outside, reason in [
        ("x" + spaces, "x " + spaces, "longer than 1000 characters"),
        ("(" * 31 + "x" + ")" * 31, "(" * 32 + "x" + ")" * 32, "more than 32 brackets"),
        ("x" + terms, "-x" + terms, "more than 100 nodes"),
    ]:
        assert outcome(inside, 3, 3) == ""
        assert outcome(outside, 3, -3) == reason


@pytest.mark.parametrize("error", [MemoryError, RecursionError("too deep"), ValueError("null bytes")])
def test_a_parser_that_gives_up_makes_a_source_invalid(error):
    with patch("ast.parse", side_effect=error):
        status, _, _, reason = judge("double", "x * 2")
    assert status == "invalid" and "Error: " in reason


def test_reason_says_what_went_wrong_and_stays_short():
    assert judge("double", "x * 3").reason == "15 of 16 cases wrong, first f(1) gave 3, not 2"
    assert judge("double", "x * x // x").reason == "16 of 16 cases wrong, first f(0) raised ZeroDivisionError"
    assert judge("even", "x % 2").reason == "16 of 16 cases wrong, first f(0) gave 0, not True"
    assert judge("double", "x.real").reason == "Attribute is not allowed, line 3, column 12"
    assert judge("double", "x +").reason == "SyntaxError: invalid syntax (<source>, line 3)"
    for long in "9" * 70, "'" + "ab" * 100 + "'", "[" + "x, " * 50 + "]", "[[[0] * 5] * 5] * 5":
        task = replace(TASKS["double"], cases=((("a" * 10**6,), "b" * 10**6),))
        assert len(verify(task, f"def f(x): return {long}").reason) < 250


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_passes_or_does_harm(name, capfd):
    for family in FAMILIES:
        task = TASKS[family]
        cases = deepcopy(task.cases)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tracemalloc.start()
            try:
                status, passed, _, reason = verify(task, ATTACKS[name])
                memory = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert status in ("failed", "invalid") and passed < 16 and len(reason) < 250
        assert memory < 2**26 and not caught
        assert seconds(task, ATTACKS[name]) < 0.1
        assert task.cases == cases
    assert capfd.readouterr() == ("", "")


def seconds(task, source):
    """The best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        verify(task, source)
        times.append(time.perf_counter() - start)
    return min(times)


def test_attacks_that_are_in_the_language_are_stopped_by_its_guards():
    """The others never get that far. A list that grows lets something in, one that shrinks shuts something out."""
    assert len(ATTACKS) == 73
    assert {name for name, source in ATTACKS.items() if verify(TASKS["double"], source).status == "failed"} == {
        "pow_tower", "pow_neg_mod", "shift_rt", "str_rep", "nested_rep", "int_digits_nolimit", "repr_bigint_result",
        "const_fold2", "type_ignore"}


@pytest.mark.parametrize("unit", [
    "-", "~", "not ", "x**", "x+", "x<", "x and ", "x if x else ", "lambda:", "lambda x=", "x,", "x;", "x ", "await ",
    "f'{", "print ", "x.", "(", "[", "{", "x(", "x[", "{**", "(x if ", "(lambda:(",
])
def test_a_chain_that_fills_the_source_is_judged_in_time(unit):
    brackets = sum(map(unit.count, "([{"))
    chain = unit * min(950 // len(unit), MAX_BRACKETS // brackets if brackets else 950)
    for end in "x", "x x", "x" + "".join({"(": ")", "[": "]", "{": "}"}.get(c, "") for c in reversed(chain)):
        assert seconds(TASKS["double"], f"def f(x): return {chain}{end}"[:MAX_CHARACTERS]) < 0.1


@pytest.mark.parametrize("chain", [
    "[0]*256" + "*1" * 28, "sorted(" * 14 + "[1,0]*64" + ")" * 14, " or ".join(["list([0]*256)==0"] * 7),
    " or ".join(["sum([[0]*9]*25,[])==0"] * 4), " or ".join(["sorted([[0]*9]*25)==0"] * 5),
    " or ".join(["str(3**161)==0"] * 8),
], ids=lambda chain: chain[:9])
def test_the_slowest_expressions_are_judged_in_time(chain):
    assert outcome(chain, 3).startswith("gave ")  # no guard cuts it short
    assert seconds(TASKS["double"], f"def f(x): return {chain}") < 0.1


@pytest.mark.parametrize("inside, outside", [
    ("2 ** 255", "2 ** 256"), ("pow(2, 255)", "pow(2, 10 ** 70)"), ("3 ** 161", "3 ** 162"), ("1 << 255", "1 << 256"),
    ("2 ** 254 + 2 ** 254", "2 ** 255 + 2 ** 255"), ("2 ** 127 * 2 ** 128", "2 ** 128 * 2 ** 128"),
    ("'ab' * 128", "'ab' * 129"), ("256 * 'a'", "257 * 'a'"), ("[0] * 256", "[0] * 257"), ("128 * (1,)", "129 * (1,)"),
    ("[[], 'ab'] * 64", "[[], 'ab'] * 65"), ("'a' * 200 + 'a' * 56", "'a' * 200 + 'a' * 57"),
    ("[1] * 64 + [1] * 64", "[1] * 64 + [1] * 65"), ("list('a' * 128)", "list('a' * 129)"),
    ("sum([[0] * 63] * 4, [])", "sum([[0] * 127] * 2, [0] * 3)"), ("['a' * 254]", "['a' * 256]"),
    ("('a' * 99, 'a' * 99)", "('a' * 128, 'a' * 128)"), ("int('9' * 77)", "int('9' * 78)"),
    ("str([1] * 85)", "str([1] * 86)"), ("2.0 ** 1000", "2 ** 1000"), ("2 ** -9999", "2 ** 9999"),
    ("'' * 10 ** 70", "'a' * 10 ** 70"), ("1 >> 10 ** 70", "1 << 10 ** 70"), ("10 ** 70 * []", "10 ** 70 * [0]"),
    ("() * 10 ** 70", "(0,) * 10 ** 70"), ("'%' + '1'", "'%d' % 1"), ("~1", "~True"),
])
def test_guards_trip_where_a_value_would_be_larger_than_the_limit(inside, outside):
    assert agrees(inside) != "guard"
    assert outcome(outside) == "went beyond what is allowed"


A, B = ast.Name("a"), ast.Name("b")
UNARY_SYMBOLS = [ast.unparse(ast.UnaryOp(op(), A))[:-1] for op in UNARY]
BINARY_SYMBOLS = [ast.unparse(ast.BinOp(A, op(), B))[2:-2] for op in BINARY]
COMPARISON_SYMBOLS = [ast.unparse(ast.Compare(A, [op()], [B]))[2:-2] for op in COMPARISONS]
SMALL = ["0", "1", "-2", "7", "True", "False", "None", "0.0", "-1.5", "''", "'7'", "'a%'", "[]", "[3, 1]", "['b', '']",
         "(2,)"]


def test_operators_do_what_pythons_do_and_no_guard_trips_for_small_operands():
    for symbol, a in product(UNARY_SYMBOLS, SMALL):
        assert (agrees(f"{symbol} ({a})") == "guard") == (symbol == "~" and a in ("True", "False"))
    for symbol, a, b in product(BINARY_SYMBOLS, SMALL, SMALL):
        assert (agrees(f"({a}) {symbol} ({b})") == "guard") == (symbol == "%" and a[0] == "'")
    for symbol, a, b in product(COMPARISON_SYMBOLS + ["and", "or"], SMALL, SMALL):
        assert agrees(f"({a}) {symbol} ({b})") != "guard"


def test_subscripts_and_slices_are_pythons():
    numbers = ["", "0", "1", "-2", "True", "'a'"]
    for items, i in product(SMALL, [*SMALL, "5", "0, 1", "1:2, 0"]):
        assert agrees(f"({items})[{i}]") != "guard"
    for items, start, stop, step in product(["'abcd'", "[1, 2, 3]", "(1, 2)"], numbers, numbers, numbers):
        assert agrees(f"{items}[{start}:{stop}:{step}]") != "guard"


@pytest.mark.parametrize("name", BUILTINS)
def test_builtins_are_pythons(name):
    for count in range(4 if name != "pow" else 3):
        for arguments in product(SMALL if count < 3 else SMALL[1::3], repeat=count):
            assert agrees(f"{name}({', '.join(arguments)})") != "guard"


@pytest.mark.parametrize("expression", [
    "1 // 0 + (1 + '')", "(1 + '') + 1 // 0", "(1 // 0)[1 + '']", "[1 // 0, 1 + '']", "(1 + '', 1 // 0)",
    "max(1 // 0, 1 + '')", "min(1 + '', 1 // 0)", "''[1 // 0:1 + '']", "''[1 + '':1 // 0]", "0 and 1 // 0",
    "1 or 1 // 0", "1 and 1 // 0", "0 or 1 // 0", "1 // 0 if 0 else 2", "2 if 1 else 1 // 0",
    "1 // 0 if 1 // 0 else 1 + ''", "(1 + '') if 1 else 1 // 0", "1 < 0 < 1 // 0", "1 < 2 < 1 // 0", "1 // 0 < 1 + ''",
    "1 + '' < 1 // 0", "3 > 2 > 1", "3 > 2 == 2 > 1", "1 < 3 < 2", "1 < 1 in [True]", "1 in [1] == True",
    "'' or 0 or []", "1 and 'a' and 2.5", "0 or '' and 1 or 3", "not 1 == 1.0", "1 if [] else 2 if '' else 3",
    "-2 ** 2", "2 ** -1 ** 2", "2 ** 3 ** 2", "1 - 2 - 3", "True + True", "[[1, 2], [3]][0][::-1]", "'abc'[1:][0]",
    "(1, [2, ('a',)])", "(-8) ** 0.5", "9.0 ** 9 ** 3", "int(0.5 / 1) / 0.0", "max()", "sum([[1]], [])",
    "sorted([[2], [1]])", "str([1.5, None, 'a', (True,)])", "()", "[]",
])
def test_order_short_circuits_and_precedence_are_pythons(expression):
    assert agrees(expression) in ("value", "error")


INPUTS = {"int": [0, 1, -3, 8, 255], "str": ["", "a", "noon", "12", " %d x"],
          "list": [[], [5], [3, -1, 3], list(range(8))], "bool": [False, True]}
CONSTANTS = {"int": ["0", "1", "2", "3", "10"], "str": ["''", "'a'", "'12'", "'ab' 'c'"],
             "list": ["[]", "[1, 2]", "['b', 'a']"], "bool": ["True", "False"]}


def program(rng, kind, of, depth=3):
    """An expression that gives a `kind`, more often than not, when x is an `of`."""
    def one(*choices):
        return rng.choice(choices)

    def part(*kinds):
        return f"({program(rng, one(*kinds) if rng.random() < 0.95 else one(*INPUTS), of, depth - 1)})"

    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.1:
            return one("None", "2.5", "(3, 1)", "1 // 0", "''[0]", "int('')", "[0][5]")
        if kind == of and rng.random() < 0.7:
            return "x"
        return one(*CONSTANTS[kind])
    if rng.random() < 0.1:
        return f"{part(kind)} if {part(*INPUTS)} else {part(kind)}"
    if rng.random() < 0.1:
        return f"{part(kind)} {one('and', 'or')} {part(kind)} {one('and', 'or')} {part(kind)}"
    a, b = part("int"), part("int")
    if kind == "int":
        return one(
            f"{a} {one(*BINARY_SYMBOLS)} {b}", f"{a} {one('+', '-', '*', '%')} x", f"{one(*UNARY_SYMBOLS)} {a}",
            f"{one('abs', 'int', 'bool')}({part('int', 'bool')})", f"{one('pow', 'min', 'max')}({a}, {b})",
            f"{one('sum', 'min', 'max')}({part('list')})", f"sum([{a}, {b}], x)", f"len({part('str', 'list')})",
            f"int({part('str')})", f"{part('list')}[{a}]")
    if kind == "bool":
        kind = one("int", "str", "list")
        chain = "".join(f" {one(*COMPARISON_SYMBOLS)} {part(kind)}" for _ in range(one(1, 1, 2, 3)))
        return one(part(kind) + chain, f"not {part(*INPUTS)}", f"bool({part(*INPUTS)})", f"{a} in {part('list')}",
                   f"{part('str')} not in {part('str')}")
    items = part(kind)
    slices = f"{one('', a)}:{one('', b)}{one('', ':', ':-1', ':x')}"
    both = [f"{items}[{slices}]", f"{items} + {part(kind)}", f"{items} * {a}"]
    if kind == "str":
        return one(*both, f"{b} * {items}", f"{items}[{a}]", f"str({part(*INPUTS)})", f"{one('min', 'max')}({items})",
                   f"{one('min', 'max')}({items}, {part('str')})")
    return one(*both, f"[{a}, {b}]", f"({part(*INPUTS)}, {b})", f"[{items}]", f"sum([{items}], [])",
               f"{one('list', 'sorted')}({part('list', 'str')})")


def test_programs_do_what_python_does():
    rng, outcomes = Random(0), Counter()
    while outcomes.total() < 8000:
        of = rng.choice(list(INPUTS))
        expression = program(rng, rng.choice(list(INPUTS)), of)
        if expression.count("(") + expression.count("[") < MAX_BRACKETS:
            for x in INPUTS[of]:
                before = deepcopy(x)
                outcomes[agrees(expression, x)] += 1
                assert x == before
    assert outcomes["value"] > 4000 and outcomes["error"] > 1000 and outcomes["guard"] < 400, outcomes


FRAGMENTS = r"""
x x f 0 1 2 9 'a' "b" ( ) ( ) [ ] { } , : ; . ... + - * ** / // % @ & | ^ ~ << >> < > <= >= == != = := -> ! $ ? ` is
in not and or if else for while def return lambda yield await async class del try except with as import from global
assert raise pass match case type True False None __debug__ __class__ __import__ print exit open eval exec abs sum len
max min sorted str int list range 1if 1e999 1j 0x f' f" b' rb' ''' '{x}' # \ x.append x.__class__ 9**9 *10**10
<<10**10
""".split()
FRAGMENTS += ['"""', "\t", "\r", "\n", "\n    ", "\x0c", "\0", "\xa0", "é", "ｃ", "\ud800", "\ufeff"]
STARTS = ["def f(x): return ", 'def f(x):\n    """Say."""\n    return ', "def f(x):\n    ", ""]


def test_token_soup_never_passes_by_accident(capfd):
    rng, statuses = Random(0), Counter()
    for _ in range(3000):
        family = rng.choice(list(FAMILIES))
        words = re.findall(r"\w+|\W", rng.choice([FAMILIES[family].expression, program(rng, "int", "int")]))
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 6])):
            at = rng.randrange(len(words) + 1)
            words[at:at + rng.randrange(2)] = [rng.choice(FRAGMENTS)]
        source = rng.choice(STARTS) + rng.choice(["", " "]).join(words)
        statuses[harmless(family, source)] += 1
    assert capfd.readouterr() == ("", "")
    assert min(statuses[status] for status in REWARDS) > 60, statuses


WEAPONS = [expression for expression in RETURNED.values() if len(expression) < 100]
WHOLES = [source for source in WHOLE.values() if len(source) < 100]


def hostile(rng, depth=2):
    """An expression of the kinds that ATTACKS has: parts of them put together anew, made larger, cut or repeated."""
    text = rng.choice(WEAPONS) if rng.random() < 0.8 else program(rng, rng.choice(list(INPUTS)), "int", 2)
    for _ in range(rng.randrange(3)):
        parts = re.split(r"(\bx\b|\d+|'[^']*'|\"[^\"]*\")", text)       # every odd part is an operand
        at = rng.randrange(len(parts)) // 2 * 2 + 1
        if at < len(parts) and depth:
            parts[at] = f"({hostile(rng, depth - 1)})" if rng.random() < 0.7 else str(10 ** rng.randrange(20))
        text = "".join(parts)
    change = rng.randrange(8)
    if change == 0:
        text = f"{rng.choice(list(BUILTINS))}({text})"
    elif change == 1:
        text = f"{text} {rng.choice(['+', '*', '**', '<<', 'or', 'if x else', '==', 'in', ','])} {rng.choice(WEAPONS)}"
    elif change == 2:
        text = rng.choice(["-", "not ", "[", "(", "x if x else ", "x and ", "x**", "[x]*"]) * rng.randrange(60) + text
    elif change == 3:
        cut = rng.randrange(len(text) + 1)
        text = text[:cut] + rng.choice(FRAGMENTS) + text[cut + rng.randrange(3):]
    return text


def hostile_source(rng):
    """A whole source, of the name f."""
    if rng.random() < 0.1:
        whole = rng.choice(WHOLES)
        return whole.replace(rng.choice(["x", "1", "return", "f"]), hostile(rng, 1), rng.randrange(2))
    return rng.choice(STARTS) + hostile(rng)


def test_hostile_sources_do_no_harm(capfd):
    """A million of them: python -m tests.drills verifier"""
    rng, statuses = Random(0), Counter()
    for _ in range(4000):
        statuses[harmless(rng.choice(list(FAMILIES)), hostile_source(rng))] += 1
    assert capfd.readouterr() == ("", "")
    assert statuses["invalid"] > 500 and statuses["failed"] > 200, statuses


@given(st.sampled_from(list(FAMILIES)), st.sampled_from(STARTS), st.text(st.characters(exclude_categories=())))
def test_any_text_gets_a_verdict(family, start, text):
    harmless(family, start + text)


def harmless(family, source):
    """The status of a source; it passes only where Python agrees."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        status, _, total, _ = verify(TASKS[family], source)
    assert not caught and total == 16
    if status == "passed":
        namespace = {}
        exec(source, namespace)
        assert all(same(namespace["f"](x), expected) for (x,), expected in TASKS[family].cases), source
    return status


def test_a_task_without_cases_is_refused():
    with pytest.raises(InputError, match="task f has no cases"):
        verify(replace(TASKS["double"], cases=()), "def f(x): return x * 2")
