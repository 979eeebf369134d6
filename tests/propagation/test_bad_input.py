"""Malformed and hostile input ends in a typed error, never in a crash of the process or an error of MLIR or Python."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys

import pytest

import propagation
from propagation import errors, limits, parsing
from propagation.fuzz import module
from propagation.rules import RuleCache

CHILD = """
import random, re, sys
import propagation
from propagation.fuzz import module

token = re.compile(r'\\s+|"[^"\\n]*"|[%@#!^]?[A-Za-z_][\\w.$]*|%\\w+(?:#\\d+)?|\\d+|->|\\S')
rng = random.Random(int(sys.argv[1]))
texts = [token.findall(module(s)) for s in range(40)]
words = sorted({w for t in texts for w in t})
numbers = ["0", "1", "-1", "7", "1024", "99999999999", "18446744073709551616", "2147483648"]


def mutated():
    t = list(rng.choice(texts))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        p, q, kind, n = rng.randrange(len(t)), rng.randrange(len(t)), rng.randrange(7), rng.randrange(1, 30)
        if kind == 0:
            del t[p]
        elif kind == 1:
            t.insert(p, t[p])
        elif kind == 2:
            t[p] = rng.choice(words)
        elif kind == 3:
            t[p], t[q] = t[q], t[p]
        elif kind == 4:
            del t[p : p + n]
        elif kind == 5:
            t[p:p] = t[p : p + n]
        else:
            t[rng.choice([i for i, x in enumerate(t) if x.isdigit()])] = rng.choice(numbers)
    return "".join(t)


outcomes = {"decided": 0}
for _ in range(int(sys.argv[2])):
    try:
        propagation.run(mutated()).as_text()
        outcomes["decided"] += 1
    except propagation.errors.PropagationError as e:
        outcomes[type(e).__name__] = outcomes.get(type(e).__name__, 0) + 1
print(outcomes)
"""


@pytest.mark.parametrize(("seed", "count"), [(0, 400), pytest.param(1, 20000, marks=pytest.mark.slow)])
def test_mutated_modules(seed, count):
    command = [sys.executable, "-c", CHILD, str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = eval(done.stdout)
    assert outcomes["decided"] and outcomes["ModuleParseError"]


def _func(attribute: str) -> str:
    return f"func.func @main() attributes {{a = {attribute}}} {{ return }}"


DEEP = {
    "regions": "func.func @main() {" + '"a.b"() ({' * 20000 + "}) : () -> ()" * 20000 + " return }",
    "arrays": _func("[" * 20000 + "]" * 20000),
    "dictionaries": _func("{a=" * 20000 + "1" + "}" * 20000),
    "types": f"func.func @main(%x: {'tuple<' * 100000}i1{'>' * 100000}) {{ return }}",
    "strings cannot hide brackets": _func("[" * 20000 + '"' + "]" * 20000 + '"' + "]" * 20000),
    "affine expressions": _func("affine_map<(d0) -> (" + "-" * 20000 + "d0)>"),
    "aliases": "".join(f"#a{i} = [{f'#a{i - 1}' if i else ''}]\n" for i in range(20000)) + _func("#a19999"),
    "numbers": _func("9" * 100000 + " : i64"),
    "rank": f"func.func @main(%x: tensor<{'1x' * 1000}f32>) {{ return }}",
    "results": "func.func @main(%a: i1) { %b = arith.addi %a, %c#99999999999 : i1 return }",
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_and_large_text(name):
    with pytest.raises(errors.LimitError):
        propagation.run(DEEP[name])


def test_limits_leave_real_programs_alone():
    text = module(5)
    limits.check_text(text)
    limits.check_text(parsing.parse(text).operation.get_asm(enable_debug_info=True))


def _chain(count: int, calls: int = 1, last: str = "return %x : tensor<4xf32>") -> str:
    t = "tensor<4xf32>"
    lines = [f"func.func public @main(%x: {t}) -> {t} {{ %0 = func.call @f0(%x) : ({t}) -> {t}\nreturn %0 : {t} }}"]
    for i in range(count):
        body = "".join(f"%{k} = func.call @f{i + 1}(%x) : ({t}) -> {t}\n" for k in range(calls))
        lines.append(f"func.func private @f{i}(%x: {t}) -> {t} {{ {body} return %0 : {t} }}")
    lines.append(f"func.func private @f{count}(%x: {t}) -> {t} {{ {last} }}")
    return "\n".join(lines)


def test_calls():
    propagation.run(_chain(20))
    with pytest.raises(errors.LimitError, match="calls are nested"):
        propagation.run(_chain(2000))
    with pytest.raises(errors.LimitError, match="with its calls inlined"):
        propagation.run(_chain(30, calls=2))
    with pytest.raises(errors.LimitError, match=r"of 57 that are written.*Write what repeats as a loop"):
        propagation.read(_chain(18, calls=2))
    propagation.read(_chain(10, calls=2))
    propagation.read(_chain(2, calls=200))
    loop = "%0 = func.call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>"
    with pytest.raises(errors.UnsupportedModuleError, match="calls itself"):
        propagation.run(_chain(3, last=loop))


def _bytecode(text: str) -> bytes:
    out = io.BytesIO()
    parsing.parse(text).operation.write_bytecode(out)
    return out.getvalue()


def test_bytecode_decides_like_text():
    text = module(4)
    assert propagation.run(_bytecode(text)).fingerprint == propagation.run(text).fingerprint


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.slow)])
def test_mutated_bytecode(seeds):
    """MLIR's reader may end its process; that is a child's. Some changes leave a module, most do not."""
    original = _bytecode(module(3))
    decided, refused = 0, 0
    for seed in seeds:
        rng = random.Random(seed)
        data = bytearray(original)
        for _ in range(rng.choice([1, 2, 4])):
            data[rng.randrange(4, len(data))] ^= 1 << rng.randrange(8)
        try:
            text = propagation.run(bytes(data)).as_text()
        except errors.PropagationError as e:
            assert str(e)
            refused += 1
        else:
            assert propagation.read(text).main
            decided += 1
    assert decided + refused == len(seeds) and refused > 0


def test_bytecode_that_kills_the_reader(monkeypatch):
    from propagation import bytecode

    dead = subprocess.CompletedProcess([], -6, b"", b"")
    monkeypatch.setattr(bytecode.subprocess, "run", lambda *a, **k: dead)
    with pytest.raises(errors.ModuleParseError, match="ended with code -6"):
        propagation.run(b"ML\xefR" + bytes(50))


def test_the_reader_of_bytecode_has_bounded_memory():
    child = """from propagation.bytecode_child import _bound_memory
_bound_memory(100 << 20)
kept = bytes(50 << 20)
try:
    bytes(100 << 20)
except MemoryError:
    print("bounded")"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "bounded"


def test_names_that_are_not_text():
    with pytest.raises(errors.ModuleParseError, match="UTF-8"):
        propagation.run('func.func @"a\\FF"() { return }')


def test_unknown_operations_stop_propagation():
    """An operation nobody knows is a barrier, and the log says so."""
    text = """sdy.mesh @mesh = <["a"=2]>
    func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> tensor<4xf32> {
      %0 = "my.op"(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> }"""
    result = propagation.run(text)
    assert result.result_shardings[0] is None
    assert "my.op" in str(result.missing()[0])


def _main(t: str, body: str) -> str:
    """A module whose function takes %x0, split over its first dimension, and returns a tensor like it."""
    argument = f'%x0: {t} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}'
    return f'sdy.mesh @mesh = <["x"=2]>\nfunc.func @main({argument}) -> {t} {{\n{body} : {t} }}'


def test_attributes_with_defaults_may_be_missing():
    t = "tensor<8x4xf32>"
    body = f"""%0 = "stablehlo.sort"(%x0) ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1> }}) : ({t}) -> {t}
        return %0"""
    result = propagation.run(_main(t, body))
    assert result.result_shardings[0].to_text() == '#sdy.sharding<@mesh, [{"x"}, {}]>'


def test_values_with_very_many_users():
    """One constant with thousands of users, thousands of dead operations on one value: uses are bookkept rightly."""
    t, n = "tensor<64x128xf32>", 2000
    users = "\n".join(f"%x{k + 1} = stablehlo.multiply %x{k}, %c : {t}" for k in range(n))
    result = propagation.run(_main(t, f"%c = stablehlo.constant dense<1.5> : {t}\n{users}\nreturn %x{n}"))
    assert result.result_shardings[0].to_text() == '#sdy.sharding<@mesh, [{"x"}, {}]>'
    dead = "\n".join(f"%y{k + 1} = stablehlo.multiply %y{k}, %x0 : {t}" for k in range(n))
    result = propagation.run(_main(t, f"%y0 = stablehlo.tanh %x0 : {t}\n{dead}\nreturn %x0"))
    assert [op.name for op in result.program.main.body.ops] == ["func.return"]
    assert [u.op.name for u in result.program.main.args[0].uses] == ["func.return"]


NOT_UTF8 = {
    "an operation's name": '"stab.t\\E0y"() : () -> ()',
    "an attribute's name": '"a.b"() {"s\\E0y" = 1 : i32} : () -> ()',
    "a unit attribute's name": '"a.b"() {a, "s\\E0y"} : () -> ()',
    "a target": '%0 = "stablehlo.custom_call"() {call_target_name = "f\\E0y"} : () -> tensor<4xf32>',
    "a file": '"a.b"() : () -> () loc("f\\E0y":3:1)',
    "a place": '"a.b"() : () -> () loc("f\\E0y")',
    "a caller": '"a.b"() : () -> () loc(callsite("f"("x":1:1) at "g\\E0y"("y":2:1)))',
}


@pytest.mark.parametrize("name", NOT_UTF8)
def test_names_that_are_not_utf8(name):
    with pytest.raises(errors.ModuleParseError, match="not UTF-8"):
        propagation.run(f"func.func @main() {{ {NOT_UTF8[name]}\nreturn }}")


def test_names_of_modules_and_texts_that_are_not_utf8():
    for text in ('module @"m\\E0y" {}', 'module attributes {"s\\E0y" = 1 : i32} {}', "\ud800"):
        with pytest.raises(errors.ModuleParseError):
            propagation.run(text)


def test_names_and_files_may_be_any_text():
    name = "\u00e9\u4e2d.py"
    for text in (f'"{name}":3:1', f'"{name}"("{name}":3:1)'):
        propagation.run(f'func.func @main() {{ "a.b"() : () -> () loc({text})\nreturn }}')


SOMETHING_ELSE = """func.func @main(%x: tensor<8x4x4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @NAME(%y, %x) : (tensor<4xf32>, tensor<8x4x4xf32>) -> tensor<8x4x4xf32>
      return %y : tensor<4xf32> }"""


@pytest.mark.parametrize("name", ["annotate_device_placement", "Qr", "Eigh", "X64Combine"])
@pytest.mark.parametrize("stage", ["rules", "closed"])
def test_a_custom_call_of_a_known_name_that_takes_something_else(name, stage):
    said = re.escape(f"a custom call of @{name} from (tensor<4xf32>, tensor<8x4x4xf32>) to")
    with pytest.raises(errors.BadRuleError, match=said) as e:
        propagation.run(SOMETHING_ELSE.replace("NAME", name), stage)
    assert e.value.where == "-:2"


@pytest.mark.parametrize(
    "name", ["ApproxTopK", "PartialReduce", "mhlo.topk", "ProductOfElementaryHouseholderReflectors"]
)
def test_a_custom_call_whose_rule_covers_what_it_takes(name):
    """Dimensions that the name has no meaning for stand alone."""
    program = propagation.read(SOMETHING_ELSE.replace("NAME", name))
    rule = RuleCache().rule_for(program.main.body.ops[0])
    assert [[len(dim) > 0 for dim in tensor] for tensor in (*rule.operands, *rule.results)] == [
        [True], [True] * 3, [True] * 3
    ]  # fmt: skip
    assert propagation.run(SOMETHING_ELSE.replace("NAME", name)).result_shardings == [None]


def test_values_may_hold_any_bytes():
    text = 'func.func @main() { "a.b"() {a = "\\E0y\\FF", b = "\\\\E0"} : () -> ()\nreturn }'
    assert '"\\E0y\\FF"' in propagation.run(text).as_text()
