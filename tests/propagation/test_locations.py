"""Where the user wrote what: locations of every kind, library functions without a file, files and pipes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import propagation
from propagation import __main__ as cli
from propagation.locations import CallSites, lines, scope, source
from propagation.program import read

MODULE = """sdy.mesh @mesh = <["a"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x : tensor<8x16xf32> LOC
  return %0 : tensor<8x16xf32>
}
"""
LIBRARY = '"/usr/lib/python3.11/site-packages/optax/update.py":9:1'


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ('"f.py":3:1', "f.py:3"),
        ('callsite("g.py":7:1 at "f.py":3:1)', "g.py:7"),
        (f'callsite({LIBRARY} at "f.py":3:1)', "f.py:3"),
        (f'callsite({LIBRARY} at callsite("g.py":5:1 at "f.py":3:1))', "g.py:5"),
        ('"jit(f)/tanh"(callsite("f"("f.py":3:1) at "main"("m.py":1:1)))', "f.py:3"),
        (f"{LIBRARY}", "/usr/lib/python3.11/site-packages/optax/update.py:9"),
        ('fused["sort", "f.py":3:1]', "f.py:3"),
    ],
)
def test_the_innermost_line_of_the_users_own(location, expected):
    (op, _) = read(MODULE.replace("LOC", f"loc({location})")).main.body.ops
    assert source(op) == expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ('"f.py":3:1', ""),
        ('"tanh"("f.py":3:1)', ""),
        ('"jvp(layer0)/mlp/tanh"("f.py":3:1)', "jvp(layer0)/mlp"),
        ('"jit(f)/jit(main)/tanh"(callsite("f"("f.py":3:1) at "main"("m.py":1:1)))', "jit(f)/jit(main)"),
        ('callsite("a/tanh"("f.py":3:1) at "b/call"("m.py":1:1))', "a"),
        ('fused["f.py":3:1, "a/b/tanh"]', "a/b"),
    ],
)
def test_scopes_are_told_by_the_outermost_name(location, expected):
    (op, _) = read(MODULE.replace("LOC", f"loc({location})")).main.body.ops
    assert scope(op) == expected


def test_operations_of_library_functions_stand_for_the_call():
    text = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = func.call @sort(%x) : (tensor<8xf32>) -> tensor<8xf32> loc("jit(f)/sort"("f.py":3:1))
      return %0 : tensor<8xf32> }
    func.func private @sort(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.tanh %x : tensor<8xf32> loc("sort")
      return %0 : tensor<8xf32> } loc(unknown)"""
    for program in (read(text), propagation.run(text).program):
        assert [source(op) for op in program.ops() if op.name == "stablehlo.tanh"] == ["f.py:3"]
    alone = read(
        'func.func @main(%x: tensor<8xf32>) { %0 = stablehlo.tanh %x : tensor<8xf32> loc("t") return } loc("m")'
    )
    assert source(alone.main.body.ops[0]) == "t"


def test_lines_of_jax_library_functions():
    jax = pytest.importorskip("jax")

    def f(x):
        return jax.numpy.sort(x * 2)

    text = jax.jit(f).lower(jax.ShapeDtypeStruct((8,), "float32")).as_text(debug_info=True)
    line = f.__code__.co_firstlineno + 1
    (op,) = [op for op in propagation.run(text).program.ops() if op.name == "stablehlo.sort"]
    assert source(op) == f"{__file__}:{line}"


def test_a_pipe_keeps_the_lines_of_a_file(tmp_path):
    path = tmp_path / "hand.mlir"
    path.write_text(MODULE.replace("LOC", ""))
    command = [sys.executable, "-m", "propagation", "closed", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    program = read(text)
    assert source(program.main.body.ops[0]) == f"{path}:3"
    assert propagation.run(text).explain("arg[0]:0")[0][-1].where == f"{path}:2"
    bare = subprocess.run([*command, "--no-locations"], capture_output=True, text=True, check=True).stdout
    assert "loc(" not in bare and bare.rstrip() == propagation.run(MODULE.replace("LOC", "")).as_text().rstrip()
    for name in ("closed", "basic"):
        assert cli.main([str(path), "--json"]) == cli.main([name, "--json", str(path)]) == 0


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "hand.mlir"
    path.write_text(MODULE.replace("LOC", "oops"))
    with pytest.raises(propagation.errors.ModuleParseError, match=r"hand\.mlir:3"):
        propagation.run(path.read_text(), file=str(path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--json", "--locations"], "--locations is about the module's text"),
        (["--explain", "--origins"], "--origins is about the module's text"),
        (["clsed"], "is no file and no stage"),
        (["clsed", "-"], "unknown stage 'clsed'"),
        (["closed", "-", "more"], "3 words"),
    ],
)
def test_flags_and_words_that_do_not_go_together(arguments, said, capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(arguments)
    assert e.value.code == 2 and said in capsys.readouterr().err


def test_output_that_cannot_be_written_is_one_line(tmp_path):
    path = tmp_path / "hand.mlir"
    path.write_text(MODULE.replace("LOC", ""))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "propagation", str(path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "cannot write" in done.stderr


def test_what_calls_a_line_tells_its_operations_apart():
    """Two helpers deep, where the nearest caller is the same; reached without it; called once."""
    stacks = [("h:5", "h:9", "t:1"), ("h:5", "h:9", "t:2"), ("h:5", "t:3", "t:8"), ("h:7", "t:3"), ("h:8",), ()]
    assert list(map(CallSites(stacks).caller, stacks)) == ["t:1", "t:2", "t:3", None, None, None]
    shorter = [("h:5", "t:1"), ("h:5", "t:1", "m:1")]  # one ends where another goes on
    assert list(map(CallSites(shorter).caller, shorter)) == ["t:1", "m:1"]


def test_the_lines_of_a_stack_are_the_users_own():
    stack = f'callsite("g.py":7:1 at callsite({LIBRARY} at "f.py":3:1))'
    (op, _) = read(MODULE.replace("LOC", f"loc({stack})")).main.body.ops
    assert lines(op) == ("g.py:7", "f.py:3") and source(op) == "g.py:7"
