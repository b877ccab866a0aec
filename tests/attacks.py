"""Sources that want a reward, a crash or the machine: `ATTACKS` maps a name to a source for a task called f.

None may pass, whatever f should do. Nor may any take long, take much memory, print, raise, or change a hidden case.
"""

# What stands after `def f(x): return `
RETURNED = {
    # a number too large to work out
    "pow_tower": "9**9**9",
    "pow_neg_mod": "pow(7, 10**9)",
    "shift_rt": "1 << (x+10**10)",
    "int_digits_nolimit": 'int("9"*10**6, 16) ** 50',
    "repr_bigint_result": "1 << 200000",
    "round_big": "round(1, -10**9)",
    "int_from_bytes": 'int.from_bytes(b"a"*10**8, "big")',
    "complex": "(1e308+1j)**1e308",
    # a string too long to hold
    "str_rep": '"a"*10**10',
    "const_fold2": '((("a"*4096)*4096)*4096)',
    "ljust": '"a".ljust(10**11)',
    "expandtabs": r'"\t".expandtabs(10**10)',
    "percent_lit": '"%99999999999d" % 1',
    "fstr_width": 'f"{x:>2147483646}"',
    "replace_bomb": '("a"*10**5).replace("a","a"*10**5)',
    "bytes_ctor": "bytes(10**11)",
    # a list too long to hold, or to look through
    "nested_rep": '["a"*10**6]*10**6',
    "range_list": "list(range(10**10))",
    "range_in": "1.5 in range(10**12)",
    "max_range": "max(range(10**10))",
    "comp_bomb": "[a for a in range(9999) for b in range(9999) for c in range(9999)]",
    "split_bomb": '("a "*10**7).split()',
    "zip_enum": "list(zip(*[range(10**6)]*100))",
    "reversed": "list(reversed(range(10**9)))",
    # no end
    "recursion": "f(x)",
    "ycomb": "(lambda g: g(g))(lambda g: g(g))",
    "iter_inf": "list(iter(int, 1))",
    # a value that is small in memory and endless to look at
    "walrus_double": '(s := "a"*1000, [s := s+s for _ in range(40)])',
    "shared_dag": "(l := [1], [l := [l, l] for _ in range(40)], l)[2]",
    "deep_tuple": "(l := (), [l := (l,) for _ in range(100000)], l)[2]",
    # more depth than a parser's stack
    "parens_201": "(" * 201 + "x" + ")" * 201,
    "brackets_100k": "[" * 100000 + "x" + "]" * 100000,
    "unary_100k": "-" * 100000 + "x",
    "tilde_3k": "~" * 3000 + "x",
    "plus_3k": "x" + "+1" * 3000,
    "plus_200k": "x" + "+1" * 209644,
    "pow_chain_10k": "x" + "**x" * 10000,
    "lambda_chain": "lambda: " * 2000 + "0",
    "call_chain": "x" + "()" * 50000,
    "and_chain": "x" + " and x" * 100000,
    "comp_nest": "[" * 60 + "0" + " for a in x]" * 60,
    # more text than a parser should see
    "dict_display": "{" + ",".join(f"{i}:{i}" for i in range(100000)) + "}",
    "long_hex_lit": "0x" + "f" * 200000,
    "big_string_lit": '"' + "a" * 10**7 + '"',
    # a way out, through attributes
    "format_attr": '"{0.__class__.__mro__}".format(x)',
    "chained_str": "x.__class__.__base__.__subclasses__()",
    "nfkc_attr": "x.__ｃlass__",
    "dunder_debug": "__debug__",
    # an end to the process, or to the loop that judges
    "exit": "exit(0)",
    "generator_throw": "(_ for _ in ()).throw(KeyboardInterrupt)",
    "genexpr": "(a for a in [1])",
    # a value that equals what it should not
    "eq_class": 'type("E",(),{"__eq__":lambda s,o:True})()',
    "nan": 'float("nan")',
    "inf_lit": "1e999",
    # a hidden case that fits the answer
    "mutate": "x.append(1)",
    "dict_update": '{**{"a":1}}',
    # a warning, or text that cannot be printed
    "is_literal_warn": "x is 1",
    "surrogate_esc": r'"\ud800"',
}

# Whole sources: what stands around the expression is the attack
WHOLE = {
    # a definition that runs something
    "default_pow": "def f(x, y=9**9**9): return x",
    "annot_ret": 'def f(x) -> print("LEAK-annot"): return x',
    "decorator": "@print\ndef f(x): return x",
    "typeparam_bound": 'def f[T: print("LEAK-tp")](x): return x',
    # another definition than was asked for
    "async": "async def f(x): return x",
    "star_args": "def f(*x, **k): return x",
    "posonly": "def f(x, /): return x",
    "many_params": "def f(" + ",".join(f"a{i}" for i in range(5000)) + "): return 1",
    # something beside the one return
    "semicolon": "def f(x): return 1; import os",
    "two_defs": "def f(x): return 1\ndef f(x): return 2",
    "global": "def f(x):\n global len; return 1",
    # text that parsers and people read differently
    "bom": "\ufeffdef f(x): return x",
    "formfeed_mid": "def f(x):\x0c return x",
    "coding_unk": "# coding: foo\ndef f(x): return x",
    "type_ignore": "def f(x): return 1 # type: ignore",
}

ATTACKS = {name: f"def f(x): return {expression}" for name, expression in RETURNED.items()} | WHOLE
