"""Judge a generated function by its hidden cases, without ever running it as Python.

    verify(task, task.prompt + completion).status

A model trained on a reward tries whatever might earn it. So generated text is never compiled. It is read as a sentence
of a small language, one `return` of an expression, and what that language has no rule for is invalid. It has no
attributes, so there is nothing to reach. It has no loops or definitions, so no part of an expression is worked out
twice in a case. Nothing in it changes a value, so the hidden cases stay as they are. And no value may be larger than
LIMIT. That bounds time and memory without a clock or a second process. What is allowed means exactly what it means in
Python.
"""

import ast
import operator
import re
from collections.abc import Callable
from reprlib import repr as elided
from typing import Any, Literal, NamedTuple, TypeAlias

from minimoe.coding.tasks import Task
from minimoe.errors import InputError

REWARDS = {"passed": 1.0, "failed": 0.0, "invalid": -0.1}

MAX_CHARACTERS = 1000  # of the source
MAX_BRACKETS = 32      # opened in the source, so no more are nested
MAX_NODES = 100        # of the syntax tree
LIMIT = 256            # on the size of any value, as `size` counts it

# Characters that no task needs; a backslash, whose unknown escapes make Python's parser warn; and a number with a
# letter right after it, as in `1if`, which warns too, or 1j, 0xff and 1e999.
STRANGE = re.compile(r"[^\t\r\n -~]|\\|\b\d[\d_]*\.?[A-Za-z]")

Function: TypeAlias = Callable[..., Any]
Expression: TypeAlias = Callable[[Any], Any]  # the value of an expression, given the argument of the function


class Verdict(NamedTuple):
    """What became of a source."""

    status: Literal["passed", "failed", "invalid"]
    passed: int  # cases
    total: int
    reason: str  # one short line, for people: the first case that went wrong, or what is not allowed; empty if none


class NotAllowed(Exception):
    """Python would go on here; this language does not."""


def verify(task: Task, source: str) -> Verdict:
    """Judge `source`, a whole function: the task's prompt and a completion.

    "invalid" if it is not in the language, "passed" if every case gives the expected value with the expected type, and
    otherwise "failed". No source makes it raise, print, warn, or take more than 0.1 s or 64 MB. Raises `InputError` for
    a task without cases, which anything would pass.
    """
    total = len(task.cases)
    if not total:
        raise InputError(f"task {task.name} has no cases; nothing can be judged by it")
    try:
        function = build(read(task, source), task.argument)
    except NotAllowed as refusal:
        return Verdict("invalid", 0, total, str(refusal))
    wrong = []
    for arguments, expected in task.cases:
        try:
            value = function(*arguments)
        except Exception as error:
            value = error
        if not same(value, expected):
            wrong.append((arguments, value, expected))
    if not wrong:
        return Verdict("passed", total, total, "")
    arguments, value, expected = wrong[0]
    call = f"{task.name}({', '.join(map(short, arguments))})"
    if isinstance(value, NotAllowed):
        outcome = "went beyond what is allowed"
    elif isinstance(value, Exception):
        outcome = f"raised {type(value).__name__}"
    else:
        outcome = f"gave {short(value)}, not {short(expected)}"
    return Verdict("failed", total - len(wrong), total, f"{len(wrong)} of {total} cases wrong, first {call} {outcome}")


def short(value: object) -> str:
    """Return the value as Python writes it, cut to 60 characters."""
    return f"{elided(value):.60}"


def same(value: Any, expected: Any) -> bool:
    """Say whether two values are equal and of one type, items too: True is not 1, nor is 1.0, and NaN is not NaN."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)):
        return len(value) == len(expected) and all(map(same, value, expected))
    return value == expected


def read(task: Task, source: str) -> ast.expr:
    """Return the expression that the source returns. Raises `NotAllowed` unless that is all that it does."""
    if len(source) > MAX_CHARACTERS:
        raise NotAllowed(f"longer than {MAX_CHARACTERS} characters")
    if found := STRANGE.search(source):
        raise NotAllowed(f"{ascii(found[0][:20])} is not allowed")
    if sum(map(source.count, "([{")) > MAX_BRACKETS:
        raise NotAllowed(f"more than {MAX_BRACKETS} brackets")
    # Compared as text, because the model does not write it: no decorator, default or second argument gets by.
    if not source.startswith(header := f"def {task.name}({task.argument}):"):
        raise NotAllowed(f"does not begin with {header}")
    try:
        tree = ast.parse(source, "<source>")
    except Exception as error:  # SyntaxError, or MemoryError or RecursionError when the parser has no room
        raise NotAllowed(f"{type(error).__name__}: {error}") from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise NotAllowed(f"more than {MAX_NODES} nodes")
    match tree.body:
        case [ast.FunctionDef(body=[ast.Return(ast.expr() as result)])]:
            return result
        case [ast.FunctionDef(body=[ast.Expr(ast.Constant(str())), ast.Return(ast.expr() as result)])]:
            return result
    raise NotAllowed("not one function of one return, after a docstring or none")


def build(node: ast.expr, argument: str) -> Expression:
    """Return the expression as a function of the argument. Raises `NotAllowed` for what has no rule here.

    `node` is looked at once, here; the closures that are returned call each other, in Python's order, for every case.
    """

    def each(nodes: list[ast.expr]) -> list[Expression]:
        return [build(node, argument) for node in nodes]

    match node:
        case ast.Constant(value) if type(value) in CONSTANTS and size(value) <= LIMIT:
            return lambda x: value

        case ast.Name(name) if name == argument:
            return lambda x: x

        case ast.UnaryOp(op, operand) if type(op) in UNARY:
            apply, [a] = UNARY[type(op)], each([operand])
            return lambda x: apply(a(x))

        case ast.BinOp(left, op, right) if type(op) in BINARY:
            apply, [a, b] = BINARY[type(op)], each([left, right])
            return lambda x: bounded(apply(a(x), b(x)))

        case ast.Compare(left, ops, others) if all(type(op) in COMPARISONS for op in ops):
            first, *rest = each([left, *others])
            steps = [(COMPARISONS[type(op)], b) for op, b in zip(ops, rest)]

            def compare(x):
                a = first(x)
                for holds, other in steps:
                    b = other(x)
                    if not holds(a, b):
                        return False
                    a = b
                return True

            return compare

        case ast.BoolOp(op, operands):
            parts, decisive = each(operands), isinstance(op, ast.Or)  # the truth value that ends it early

            def combine(x):
                for part in parts:
                    value = part(x)
                    if bool(value) is decisive:
                        break
                return value

            return combine

        case ast.IfExp(test, body, orelse):
            condition, yes, no = each([test, body, orelse])
            return lambda x: yes(x) if condition(x) else no(x)

        case ast.Call(ast.Name("pow"), [_, _, _], []):                    # three numbers can be slow
            raise NotAllowed("pow of three is not allowed")

        case ast.Call(ast.Name(name), operands, []) if name in BUILTINS:
            apply, parts = BUILTINS[name], each(operands)
            return lambda x: bounded(apply(*[part(x) for part in parts]))

        case ast.Subscript(value, index):
            a, i = each([value, index])
            return lambda x: a(x)[i(x)]

        case ast.Slice(lower, upper, step):
            ends = each([end or ast.Constant(None) for end in (lower, upper, step)])
            return lambda x: slice(*[end(x) for end in ends])

        case ast.List(items):
            parts = each(items)
            return lambda x: bounded([part(x) for part in parts])

        case ast.Tuple(items):
            parts = each(items)
            return lambda x: bounded(tuple([part(x) for part in parts]))

    raise NotAllowed(f"{type(node).__name__} is not allowed, line {node.lineno}, column {node.col_offset + 1}")


def size(value: object) -> int:
    """Return the bits of an integer, the characters of a string, and of a list or tuple each item's size and one more.

    An item counts as often as it occurs: a list that holds one list a thousand times is as large as it looks.
    """
    if isinstance(value, int):
        return value.bit_length()
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (list, tuple)):
        return len(value) + sum(map(size, value))
    return 1


def bounded(value: Any) -> Any:
    """Return the value. Raises `NotAllowed` if it is larger than LIMIT."""
    if size(value) > LIMIT:
        raise NotAllowed
    return value


# Most operators give a value hardly larger than both operands together, so that `bounded` may look at what they gave.
# Those below do not, or do something else that is better not done: they look at their operands first.


def multiply(a: Any, b: Any) -> Any:
    for items, times in (a, b), (b, a):
        if isinstance(items, (str, list, tuple)) and isinstance(times, int) and size(items) * times > LIMIT:
            raise NotAllowed
    return a * b


def power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and (size(a) - 1) * b > LIMIT:  # abs(a) >= 2 ** (size(a) - 1)
        raise NotAllowed
    return a**b


def shift_left(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and size(a) + b > LIMIT:
        raise NotAllowed
    return a << b


def modulo(a: Any, b: Any) -> Any:
    if isinstance(a, str):  # "%999999999d" % x is a language of its own
        raise NotAllowed
    return a % b


def invert(a: Any) -> Any:
    if isinstance(a, bool):  # warns since Python 3.12
        raise NotAllowed
    return ~a


CONSTANTS = {int, float, bool, str, type(None)}

UNARY: dict[type[ast.unaryop], Function] = {
    ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_, ast.Invert: invert,
}

BINARY: dict[type[ast.operator], Function] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: multiply, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: modulo, ast.Pow: power,
    ast.LShift: shift_left, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}

# Not `is`: which equal numbers are one object is up to the interpreter.
COMPARISONS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}

# What a right answer to some task may call. Each takes time and room nearly in proportion to its arguments, and none
# gives an iterator, which `size` could not see into.
BUILTINS: dict[str, Function] = {
    "abs": abs, "bool": bool, "int": int, "len": len, "list": list, "max": max, "min": min, "pow": power,
    "sorted": sorted, "str": str, "sum": sum,
}
