"""The public face: results, explanations, errors, the command line."""

from __future__ import annotations

import doctest
import io
import itertools
import json
import pickle
import sys

import pytest

import propagation
from propagation import __main__ as cli
from propagation import errors
from propagation.fuzz import generator
from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding

MLP = """
sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func public @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
    %w: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
    %v: tensor<32x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = stablehlo.tanh %0 : tensor<8x32xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
       : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
"""


@pytest.mark.smoke
@pytest.mark.parametrize(
    "name",
    ["propagation", "propagation.model", "propagation.program", "propagation.annotations", "propagation.rules.parse"],
)
def test_docstrings(name):
    __import__(name)
    result = doctest.testmod(sys.modules[name])
    assert result.attempted and not result.failed


@pytest.mark.smoke
def test_shardings_of_a_small_network():
    result = propagation.run(MLP)
    assert [s.to_text() for s in result.arg_shardings] == [
        '#sdy.sharding<@mesh, [{"data"}, {}]>',
        '#sdy.sharding<@mesh, [{}, {"model"}]>',
        '#sdy.sharding<@mesh, [{"model"}, {}]>',
    ]
    assert [s.to_text() for s in result.result_shardings] == ['#sdy.sharding<@mesh, [{"data"}, {}]>']
    again = propagation.run(result.as_text(), "closed")
    assert again.as_text() == result.as_text()
    assert again.fingerprint == result.fingerprint
    assert "sharded" in repr(result)


def test_values_are_interned_and_pickle():
    mesh = Mesh("m", (("a", 2), ("b", 4)))
    sharding = TensorSharding(mesh, (DimSharding((AxisRef("b", 1, 2),)), DimSharding((), True)), (mesh.axis("a"),))
    assert pickle.loads(pickle.dumps(sharding)) is sharding
    assert sharding.to_text() == '#sdy.sharding<@m, [{"b":(1)2}, {?}], replicated={"a"}>'
    assert sharding.shard_shape((5, 3)) == (3, 3)
    with pytest.raises(AttributeError, match="immutable"):
        sharding.mesh = None


def _replay(result):
    """Every step of every explanation names a value that has the axis, and ends at an annotation."""
    checked = 0
    for value in result.program.values:
        sharding = result.sharding(value)
        for dim in range(0 if sharding is None else len(sharding.dims)):
            for chain in result.explain(value, dim):
                assert chain[-1].op is None, chain
                for step, following in itertools.pairwise(chain):
                    assert step.source is following.value and step.source_dim == following.dim
                checked += 1
    return checked


def test_explanations_end_at_annotations():
    assert _replay(propagation.run(MLP)) >= 6
    assert sum(_replay(propagation.run(generator.module(s, features=False), "propagated")) for s in range(30)) > 50


def test_explanation_names_source_lines():
    result = propagation.run(MLP.replace("sdy.mesh @mesh", "\nsdy.mesh @mesh", 1))
    chain = result.explain(result.program.main.args[2], 0)[0]
    assert [s.op.name for s in chain[:-1]] == ["stablehlo.dot_general", "stablehlo.tanh", "stablehlo.dot_general"]
    assert all(s.where.startswith("-:") for s in chain[:-1])


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("func.func @main(", errors.ModuleParseError, "-:1"),
        (b"ML\xefR\x00", errors.ModuleParseError, "parse"),
        (MLP.replace('[{"data"}', '[{"date"}'), errors.UnknownAxisError, '"date"; use an axis'),
        (MLP.replace('@mesh, [{"data"}', '@other, [{"data"}'), errors.UnknownMeshError, "@other; define it"),
        (
            MLP.replace('[{"data"}, {}]', '[{"data"}, {"data"}]'),
            errors.AxisReuseError,
            '"data"; an axis may be used once',
        ),
        (MLP.replace('[{"data"}, {}]', '[{"data"}]'), errors.RankMismatchError, "1 != 2; write one"),
        (MLP.replace('[{"data"}', '[{"data":(3)2}'), errors.SubAxisError, "divide"),
        (MLP.replace('[{"data"}', '[{"data":(1)2, "data":(2)2}'), errors.OverlappingAxesError, "write them as one"),
        (
            "func.func @f() { return }\nfunc.func @g() { return }",
            errors.UnsupportedModuleError,
            "name the entry function main",
        ),
    ],
)
def test_bad_modules(text, error, message):
    with pytest.raises(error, match=message):
        propagation.run(text)


def test_bad_options():
    with pytest.raises(errors.BadOptionError, match="unknown stage 'clsed'"):
        propagation.run(MLP, "clsed")
    with pytest.raises(errors.BadOptionError, match="unknown strategy"):
        propagation.run(MLP, strategy="greedy")


@pytest.mark.parametrize(
    "options",
    [{"foo": 1}, {"strategy": ["a"]}, {"strategy": None}, {"version": "0.5"}, {"version": 3}, {"version": "0.x"},
     {"conservative": "no"}, {"chlo": 1}, {"edges": None}],
)  # fmt: skip
def test_options_and_values_that_do_not_exist(options):
    with pytest.raises(errors.BadOptionError, match=next(iter(options))):
        propagation.run(MLP, **options)


def test_command_line(tmp_path, capsys, monkeypatch):
    file = tmp_path / "m.mlir"
    file.write_text(MLP)
    assert cli.main(["closed", str(file)]) == 0
    assert '"model"}, {}' in capsys.readouterr().out
    assert cli.main(["closed", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["main"]["ops"][0]["op"] == "stablehlo.dot_general"
    assert cli.main(["closed", str(file), "--explain"]) == 0
    assert "@main argument 2 (%arg2), dimension 0, axis 'model':" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00")))
    assert cli.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["closed", str(tmp_path / "none")]) == 2


UNKNOWN = """
sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x16xf32> {
  %0 = call @f(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.custom_call @what(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32> }
func.func private @f(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x : tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }
"""


@pytest.mark.smoke
def test_command_line_explains_values(tmp_path, capsys):
    file = tmp_path / "m.mlir"
    file.write_text(UNKNOWN)

    def said(*args: str) -> str:
        assert cli.main(["closed", str(file), *args]) == 0
        return capsys.readouterr().out

    whole = said("--explain")
    assert "@main argument 0 (%arg0), dimension 0, axis 'a':" in whole and "is annotated with axis 'a' by" in whole
    assert "@main %1 stayed replicated:" in whole and "no sharding rule" in whole
    assert said("--value", "%0:0").startswith("@main %0, dimension 0, axis 'a':")
    assert "stayed replicated" in said("--value", "1")
    assert "through stablehlo.tanh" in said("--function", "f", "--value", "%0:0")
    found = json.loads(said("--json", "--value", "%0:0", "--value", "%1"))
    (chain,) = found["explained"]
    assert chain["value"] == "%0" and chain["steps"][-1]["operation"] is None
    assert found["missing"][0]["operation"] == "stablehlo.custom_call" and found["missing"][0]["reasons"]
    for wrong in (["%7"], ["%1:2"], ["%1:x"], ["%1", "--function", "g"]):
        assert cli.main(["closed", str(file), "--value", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.smoke
def test_text_bytecode_and_modules_are_alike():
    text = propagation.run(MLP).as_text()
    module = propagation.parsing.parse(MLP)
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    assert propagation.run(bytecode.getvalue()).as_text() == text
    result = propagation.run(module)
    assert result.as_text() == text
    value = result.program.main.args[2]
    assert result.shardings[value] is result.sharding(value)
    assert "sdy.sharding" not in str(module.body.operations[1].body.blocks[0].operations[0])


def test_command_line_of_reshards_and_debug_attributes(tmp_path, capsys):
    file = tmp_path / "m.mlir"
    file.write_text(MLP)
    assert cli.main(["pipeline", str(file)]) == 0
    assert "sdy.mesh" in capsys.readouterr().out
    assert cli.main(["closed", str(file), "--origins", "--edges"]) == 0
    out = capsys.readouterr().out
    assert 'sdy.sharding_origins = {data = "self"}' in out and "step-0 = " in out
    file.write_text(propagation.run(MLP).as_text())
    assert cli.main(["insert_reshards", str(file)]) == 0
    assert 'sdy.all_reduce {"model"}' in capsys.readouterr().out
    assert cli.main(["rules", str(file)]) == 0
    assert "reduction={k}" in capsys.readouterr().out
