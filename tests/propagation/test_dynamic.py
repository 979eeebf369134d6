"""Dimensions of unknown size (`tensor<?x8xf32>`): nothing propagates to or from them.

Shardy's importer lets them be, and its propagation refuses modules with operations whose results have some; operands
with some are fine. We leave the dimension out and go on with the others.
"""

from __future__ import annotations

import pytest

import propagation
from propagation.annotations import read_shardings
from propagation.fuzz.compare import VERSION
from propagation.fuzz.oracle import Oracle
from propagation.pipeline import ALONE

from .test_stages import normal

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'
D, T = "tensor<?x8xf32>", "tensor<8x8xf32>"


def on(*dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, [{', '.join(dims)}]>}}"


X = on("{?}", '{"x"}')
CASES = {
    "pointwise": f"func.func @main(%x: {D} {X}, %y: {D}) -> {D} {{\n"
    f"  %0 = stablehlo.add %x, %y : {D}\n  return %0 : {D} }}",
    "beside known sizes": f"func.func @main(%x: {T} {X}, %y: {D}) -> {D} {{\n"
    f"  %0 = stablehlo.add %x, %y : ({T}, {D}) -> {D}\n  return %0 : {D} }}",
    "product": f"func.func @main(%x: {D} {X}, %y: {T}) -> {D} {{\n"
    f"  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({D}, {T}) -> {D}\n  return %0 : {D} }}",
    "broadcast": f"func.func @main(%x: {T} {X}, %n: tensor<2xi32>) -> {D} {{\n"
    f"  %0 = stablehlo.dynamic_broadcast_in_dim %x, %n, dims = [0, 1] : ({T}, tensor<2xi32>) -> {D}\n"
    f"  return %0 : {D} }}",
    "reshape": f"func.func @main(%x: {D} {X}, %n: tensor<2xi32>) -> {T} {{\n"
    f"  %0 = stablehlo.dynamic_reshape %x, %n : ({D}, tensor<2xi32>) -> {T}\n  return %0 : {T} }}",
    "loop": f"func.func @main(%x: {D} {X}, %n: {T}) -> ({D}, {T}) {{\n"
    f"  %1:2 = stablehlo.while(%i = %x, %j = %n) : {D}, {T} cond {{\n"
    "    %c = stablehlo.constant dense<false> : tensor<i1>\n    stablehlo.return %c : tensor<i1>\n  } do {\n"
    f"    %t = stablehlo.tanh %i : {D}\n    stablehlo.return %t, %j : {D}, {T}\n  }}\n"
    f"  return %1#0, %1#1 : {D}, {T} }}",
    "constraint": f"func.func @main(%x: {D}) -> {D} {{\n"
    f'  %0 = sdy.sharding_constraint %x <@mesh, [{{?}}, {{"x"}}]> : {D}\n'
    f"  %1 = stablehlo.tanh %0 : {D}\n  return %1 : {D} }}",
    "barrier": f"func.func @main(%x: {D} {X}) -> {D} {{\n"
    f"  %0 = sdy.propagation_barrier %x allowed_direction=FORWARD : {D}\n  return %0 : {D} }}",
    "call": f"func.func @main(%x: {D} {X}) -> {D} {{\n  %0 = func.call @f(%x) : ({D}) -> {D}\n  return %0 : {D} }}\n"
    f"func.func private @f(%x: {D}) -> {D} {{\n  %0 = stablehlo.tanh %x : {D}\n  return %0 : {D} }}",
    "slice": f"func.func @main(%x: {D} {X}) -> tensor<?x4xf32> {{\n"
    '  %0 = "stablehlo.slice"(%x) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 4, 4>, '
    f"strides = array<i64: 1, 1>}} : ({D}) -> tensor<?x4xf32>\n  return %0 : tensor<?x4xf32> }}",
}
# Results of known size: Shardy propagates along the other dimensions.
REDUCED = {
    "rows": f"func.func @main(%x: {D} {X}, %z: tensor<f32>) -> tensor<8xf32> {{\n"
    f"  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : ({D}, tensor<f32>) "
    "-> tensor<8xf32>\n  %1 = stablehlo.negate %0 : tensor<8xf32>\n  return %1 : tensor<8xf32> }",
    "contraction": f"func.func @main(%x: {D} {X}, %y: {D} {on('{?}', '{?}')}) -> {T} {{\n"
    f"  %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : ({D}, {D}) -> {T}\n  return %0 : {T} }}",
}


@pytest.mark.parametrize("stage", ["import", "sdy-add-data-flow-edges"])
def test_edges_and_import(stage):
    """Values of unknown size have no data-flow edge."""
    with Oracle() as oracle:
        for name, case in (CASES | REDUCED).items():
            theirs = oracle(stage, MESH + case)
            assert theirs is not None and not theirs.startswith("ERROR"), name
            if stage == "import":
                assert normal(propagation.run(MESH + case, "import", version=VERSION).as_text()) == normal(theirs), name
            else:
                again = propagation.run(theirs, "import", version=VERSION).as_text()
                assert again == propagation.run(MESH + case, "import", version=VERSION).as_text(), name


@pytest.mark.parametrize("stage", ALONE)
def test_known_results_of_unknown_operands(stage):
    with Oracle() as oracle:
        for name, case in REDUCED.items():
            theirs = oracle(stage, MESH + case)
            assert theirs is not None and not theirs.startswith("ERROR"), name
            ours = propagation.run(MESH + case, stage, version=VERSION, chlo=False, shardy_faults=True)
            assert normal(ours.as_text()) == normal(theirs), name


@pytest.mark.parametrize("name", CASES | REDUCED)
@pytest.mark.parametrize("stage", propagation.STAGES)
def test_unknown_dimensions_stay_whole(stage, name):
    done = propagation.run(MESH + (CASES | REDUCED)[name], stage)
    for program, shardings in ((done.program, done.shardings), _read_again(done)):
        for value in program.values:
            sharding = shardings.get(value)
            for size, dim in zip(value.type.shape, sharding.dims if sharding is not None else ()):
                assert size >= 0 or not dim.axes, value


def _read_again(done):
    program = propagation.read(done.as_text())
    return program, read_shardings(program)


@pytest.mark.parametrize("name", ["pointwise", "beside known sizes", "constraint"])
def test_the_other_dimensions_propagate(name):
    done = propagation.run(MESH + CASES[name])
    (result,) = done.result_shardings
    assert result.to_text() == '#sdy.sharding<@mesh, [{}, {"x"}]>'


def test_axes_of_an_unknown_dimension_stay_there():
    text = MESH + CASES["pointwise"].replace(X, on('{"y"}', "{?}"))
    done = propagation.run(text)
    assert done.arg_shardings[0].to_text() == '#sdy.sharding<@mesh, [{"y"}, {}]>'
    assert done.arg_shardings[1] is None or done.arg_shardings[1].is_fully_replicated
    assert done.result_shardings == [None] or done.result_shardings[0].is_fully_replicated
