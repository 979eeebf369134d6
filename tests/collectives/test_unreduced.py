"""Values declared unreduced: what enters, what leaves, functions, loops and manual computations between."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from . import harness

MESH = 'sdy.mesh @mesh = <["a"=4, "b"=2]>\n'
TYPE = "tensor<8x16xf32>"
SPLIT = '[{}, {"b"}], unreduced={"a"}'
WHOLE = '[{}, {}], unreduced={"a"}'


def attr(sharding: str | None) -> str:
    return "" if sharding is None else f" {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"


def program(body: str, argument: str, result: str | None = None, more: str = "") -> str:
    """A function of %x, declared as `argument`, whose body ends with what it returns as `result`."""
    head = f"func.func @main(%x: {TYPE}{attr(argument)}) -> ({TYPE}{attr(result)})"
    return f"{MESH}{head} {{ {body} : {TYPE} }} {more}"


def addends(seed: int = 0) -> list[np.ndarray]:
    """One tensor for each position along `a`; integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-9, 9, (8, 16)).astype(np.float32) for _ in range(4)]


def run(partitioned, parts):
    """Runs a program of one argument; the sum over `a` of its result if that is unreduced."""
    (given,), (returned,) = partitioned.arg_shardings, partitioned.result_shardings
    shards = [harness.pieces(parts[d // 2], given)[d] for d in range(8)]
    (out,) = harness.Compiled(partitioned.as_text(), 8)([shards])
    if not returned.unreduced:
        return harness.unshard(out, (8, 16), returned)
    assert [a.name for a in returned.unreduced] == ["a"]
    sums = [sum(out[2 * a + d % 2] for a in range(4)) for d in range(8)]
    return harness.unshard(sums, (8, 16), returned)


def partition(text: str, propagate: bool = True, **options):
    return collectives.partition(propagation.run(text) if propagate else text, **options)


ADD = f"""%0 = stablehlo.add %x, %x : {TYPE}
  %1 = stablehlo.negate %0 : {TYPE}
  return %1"""
NEGATE = f"%0 = stablehlo.negate %x : {TYPE} return %0"
SQUARE = f"%0 = stablehlo.multiply %x, %x : {TYPE} return %0"
EXPONENTIAL = f"%0 = stablehlo.exponential %x : {TYPE} return %0"
CALL = f"%0 = func.call @square(%x) : ({TYPE}) -> {TYPE} return %0"
CALLED = (
    f"func.func private @square(%x: {TYPE}) -> {TYPE} {{ %0 = stablehlo.multiply %x, %x : {TYPE} return %0 : {TYPE} }}"
)
LOOP = f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, {TYPE}
   cond {{ %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1> }}
   do {{ %j = stablehlo.add %i, %one : tensor<i32> %w = stablehlo.abs %v : {TYPE}
        stablehlo.return %j, %w : tensor<i32>, {TYPE} }}
  return %r#1"""


@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("argument", [WHOLE, SPLIT])
@pytest.mark.parametrize(
    "body, judge",
    [
        (EXPONENTIAL, np.exp),
        (SQUARE, np.square),
        (ADD, lambda x: -2 * x),
        (CALL, np.square),
        (LOOP, np.abs),
    ],
    ids=["exponential", "square", "add", "call", "loop"],
)
def test_arguments_are_summed_before_they_are_used(body, judge, argument, propagate):
    parts = addends()
    more = CALLED if body is CALL else ""
    got = run(partition(program(body, argument, "[{}, {}]", more), propagate), parts)
    np.testing.assert_allclose(got, judge(sum(parts)), rtol=1e-6)


@pytest.mark.smoke
def test_a_sum_needed_in_parts_is_scattered():
    parts = addends(1)
    result = partition(program("return %x", WHOLE, '[{"a"}, {}]'))
    assert result.plan.counts == {"reduce_scatter": 1}
    np.testing.assert_array_equal(run(result, parts), sum(parts))


@pytest.mark.parametrize("target", ['[{"a"}, {"b"}]', '[{"a", "b"}, {}]', '[{"b", "a"}, {}]', '[{}, {"a", "b"}]'])
def test_what_can_be_sliced_is_sliced_before_it_is_scattered(target):
    """Over `b` all devices hold the same addends: each reduces only the half that it needs."""
    parts = addends(7)
    result = partition(program("return %x", WHOLE, target))
    assert result.plan.counts == {"reduce_scatter": 1}
    assert result.plan.bytes == 3 / 4 * (8 * 16 * 4 / 2)
    np.testing.assert_array_equal(run(result, parts), sum(parts))


@pytest.mark.parametrize("target", ['[{"a", "b"}, {}]', '[{"b", "a"}, {}]', '[{"b"}, {"a"}]'])
def test_pieces_that_do_not_divide_are_sliced_before_they_are_scattered(target):
    x = "tensor<13x7xf32>"
    text = f"""{MESH}func.func @main(%x: {x}{attr(WHOLE)}) -> ({x}{attr("[{}, {}]")}) {{
      %0 = sdy.sharding_constraint %x <@mesh, {target}> : {x}
      return %0 : {x} }}"""
    parts = [np.random.default_rng(i).integers(-9, 9, (13, 7)).astype(np.float32) for i in range(4)]
    (out,) = harness.Compiled(partition(text, False).as_text(), 8)([[parts[d // 2] for d in range(8)]])
    for got in out:
        np.testing.assert_array_equal(got, sum(parts))


@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("body", [NEGATE, SQUARE, "return %x"], ids=["linear", "square", "identity"])
def test_results_declared_unreduced_leave_as_addends(body, propagate):
    parts = addends(2)
    total = sum(parts)
    result = partition(program(body, SPLIT, SPLIT), propagate, unreduced_results=True)
    expected = {NEGATE: -total, SQUARE: total**2}.get(body, total)
    np.testing.assert_array_equal(run(result, parts), expected)
    assert result.result_shardings[0].unreduced
    if body is not SQUARE:
        assert not result.plan.counts  # sums that are linear in the argument stay to be taken


def test_whole_values_declared_unreduced_are_counted_once():
    x = addends(3)[0]
    text = program("return %x", "[{}, {}]", WHOLE)
    np.testing.assert_array_equal(run(partition(text, unreduced_results=True), [x] * 4), x)


@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("body, made", [(NEGATE, "made by stablehlo.negate"), ("return %x", "argument 0")])
def test_addends_that_nobody_adds_up_are_refused(body, made, propagate):
    wanted = rf"result 0 of @main \(f32\[8,16@b\], {made}\) is declared unreduced over a: each of 4 devices "
    with pytest.raises(collectives.errors.UnreducedResultError, match=wanted) as found:
        partition(program(body, SPLIT, SPLIT), propagate)
    assert found.value.where
    with pytest.raises(collectives.errors.UnreducedResultError):  # a value that is whole is no sum of what devices hold
        partition(program(body, "[{}, {}]", WHOLE), propagate)


@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("argument", [SPLIT, WHOLE])
@pytest.mark.parametrize("declared", [None, "[{}, {}]", '[{"b"}, {?}]'])
@pytest.mark.parametrize("body", ["return %x", NEGATE], ids=["identity", "negate"])
def test_results_that_nobody_declares_unreduced_are_summed(body, declared, argument, propagate):
    """Also where propagation passes on that the returned value is unreduced, as it does for whole arguments."""
    if not propagate and declared is not None and "?" in declared:
        declared = '[{"b"}, {}]'
    parts = addends(4)
    result = partition(program(body, argument, declared), propagate)
    assert not result.result_shardings[0].unreduced
    np.testing.assert_array_equal(run(result, parts), sum(parts) if body is not NEGATE else -sum(parts))


def test_manual_computations_take_and_return_addends():
    body = f"""
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {SPLIT}>] out_shardings=[<@mesh, {SPLIT}>]
    manual_axes={{"a", "b"}} (%z: tensor<8x8xf32>) {{
    %1 = stablehlo.negate %z : tensor<8x8xf32>
    sdy.return %1 : tensor<8x8xf32> }} : ({TYPE}) -> {TYPE}
  return %0"""
    parts = addends(5)
    result = partition(program(body, SPLIT, '[{}, {"b"}]'))
    assert result.plan.counts == {"all_reduce": 1}  # behind, not in front of the computation
    np.testing.assert_array_equal(run(result, parts), -sum(parts))
    whole = partition(program(body, "[{}, {}]", '[{}, {"b"}]'))
    np.testing.assert_array_equal(run(whole, [parts[0]] * 4), -parts[0])


def test_what_jax_writes_for_an_unreduced_argument():
    mesh = jax.sharding.AbstractMesh((4, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P(None, None, unreduced={"a"})))
    with jax.sharding.use_abstract_mesh(mesh):
        lowered = jax.jit(lambda x: jnp.exp(jax.reshard(x, P(None, None)))).trace(x).lower(lowering_platforms=("cpu",))
    parts = addends(6)
    result = partition(lowered.as_text())
    assert result.plan.counts == {"all_reduce": 1}
    np.testing.assert_allclose(run(result, parts), np.exp(sum(parts)), rtol=1e-6)
