"""When operations are visited, in which direction, and what user priorities hold back."""

from __future__ import annotations

import itertools

import pytest

import propagation
from propagation.factors import BACKWARD, BOTH, FORWARD, NONE
from propagation.model import AxisRef, DimSharding, FactorType, Mesh, OpRule, TensorSharding
from propagation.schedule import (
    ALL,
    ROUNDS,
    adds_unit_dimensions,
    direction,
    directions,
    is_elementwise,
    kind_of,
    restore_priority,
    split_priorities,
)

MODULE = """
func.func @main(%x: tensor<8x4xf32>, %s: tensor<f32>, %i: tensor<i32>, %u: tensor<4x8xf32>) -> tensor<8x4xf32> {
  %add = stablehlo.add %x, %x : tensor<8x4xf32>
  %cast = stablehlo.bitcast_convert %s : (tensor<f32>) -> tensor<i32>
  %bytes = stablehlo.bitcast_convert %s : (tensor<f32>) -> tensor<4xi8>
  %flat = stablehlo.reshape %u : (tensor<4x8xf32>) -> tensor<32xf32>
  %unit = stablehlo.broadcast_in_dim %flat, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
  %same = stablehlo.broadcast_in_dim %unit, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x1xf32>
  %wide = stablehlo.broadcast_in_dim %same, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x2xf32>
  %one = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<1xf32>
  %cut = stablehlo.dynamic_slice %wide, %i, %i, sizes = [4, 2]
         : (tensor<32x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2xf32>
  %dot = stablehlo.dot_general %add, %cut, contracting_dims = [1] x [0]
         : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
  %neg = stablehlo.negate %s : tensor<f32>
  %call = stablehlo.custom_call @of_test(%dot) : (tensor<8x2xf32>) -> tensor<8x2xf32>
  %move = stablehlo.custom_call @MoveToHost(%call) : (tensor<8x2xf32>) -> tensor<8x2xf32>
  return %add : tensor<8x4xf32> }
"""
# Operation by operation: kind, whether pointwise, whether only units are added, the direction in round 0.
FORWARDS = (FORWARD, FORWARD)
NOTHING = (NONE, NONE)
KINDS = {
    "add": ("passing", True, False, NOTHING),  # %x has two uses
    "cast": ("passing", True, False, ALL),  # scalars may have any number of uses
    "bytes": ("other", False, False, NOTHING),
    "flat": ("passing", False, False, ALL),
    "unit": ("broadcast", False, True, NOTHING),
    "same": ("broadcast", False, True, NOTHING),
    "wide": ("broadcast", False, False, NOTHING),
    "one": ("broadcast", False, False, NOTHING),
    "cut": ("dynamic", False, False, FORWARDS),
    "dot": ("other", False, False, NOTHING),
    "neg": ("passing", True, False, ALL),
    "call": ("other", False, False, NOTHING),
    "move": ("passing", False, False, ALL),
}


@pytest.fixture(scope="module")
def ops():
    body = propagation.read(MODULE).main.body
    return dict(zip(KINDS, body.ops, strict=False))


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_operations(ops, name):
    op, (kind, pointwise, units, first) = ops[name], KINDS[name]
    assert (kind_of(op), is_elementwise(op), adds_unit_dimensions(op)) == (kind, pointwise, units)
    assert kind_of(op, as_xla=True) == ("passing" if units else kind)
    assert direction(op, 0) == first == direction(op, 0, kind)


def test_every_round_allows_what_the_one_before_did(ops):
    """And the last one everything."""
    allows = {NONE: set(), FORWARD: {FORWARD}, BACKWARD: {BACKWARD}, BOTH: {FORWARD, BACKWARD}}
    for op in ops.values():
        modes = [direction(op, round_) for round_ in range(ROUNDS)]
        assert modes[-1] == ALL
        for before, after in itertools.pairwise(modes):
            assert all(allows[a] <= allows[b] for a, b in zip(before, after)), (op.name, modes)
    table = [direction(ops["wide"], r) for r in range(ROUNDS)]
    assert table == [NOTHING, NOTHING, (NONE, BACKWARD), (BACKWARD, BACKWARD), ALL]
    assert [direction(ops["dot"], r) for r in range(4)] == [NOTHING, NOTHING, (NONE, BOTH), ALL]
    assert [direction(ops["cut"], r) for r in range(4)] == [FORWARDS, FORWARDS, (FORWARD, BOTH), ALL]


def test_directions_of_the_factors_of_a_rule():
    types = (FactorType.PASS_THROUGH, FactorType.REDUCTION, FactorType.NEED_REPLICATION, FactorType.PASS_THROUGH)
    rule = OpRule((2, 2, 2, 2), (((0,), (1,), (2,), (3,)),), (((0,), (3,)),), types, (3,))
    assert directions(rule, (FORWARD, BOTH)) == (BOTH, FORWARD, FORWARD, NONE)


def test_user_priorities_hold_axes_back_and_give_them_again():
    mesh = Mesh("m", (("a", 2), ("b", 2), ("c", 2), ("d", 2)))
    a, b, c, d = (mesh.axis(n) for n in "abcd")
    dims = [DimSharding((c,), True, 2), DimSharding((b,), False, 0), DimSharding((a,), False, 1), DimSharding((), True)]
    given = TensorSharding(mesh, dims, (d,))
    first, held = split_priorities(given)
    assert held == (1, 2) and first.replicated == (a, c, d)
    assert first.dims == (DimSharding(), DimSharding((b,)), DimSharding(), DimSharding((), True))
    grown = first.with_dims([*first.dims[:3], DimSharding((AxisRef("e", 1, 2),), True)])
    second = restore_priority(grown, given, 1)
    assert second.replicated == (c, d) and second.dims[2] is DimSharding((a,)) and second.dims[3] is grown.dims[3]
    third = restore_priority(second, given, 2)
    assert third.replicated == (d,) and third.dims[0] is DimSharding((c,), True) and third.dims[2] is DimSharding((a,))
    assert restore_priority(first, given, 3) is first and split_priorities(first) == (first, ())
