"""Sorting and selecting along a split dimension: exactly what one device gives, equals in their order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from . import harness
from .jax_side import Case, check


def integers(high, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def numbers(*shape):
    """With NaN, infinities and equals among them."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32).round(1)
    x.flat[3], x.flat[7], x.flat[11] = np.nan, np.inf, -np.inf
    x.flat[20:24] = -np.inf
    return x


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("make", [numbers, lambda *shape: integers(4, *shape)])
@pytest.mark.parametrize("axes, spec", [({"x": 8}, P(None, "x")), ({"a": 4, "b": 2}, P("b", "a"))])
def test_top_k(k, make, axes, spec):
    case = Case(axes, lambda constrain: lambda x: jax.lax.top_k(x, k), (make(8, 64),), (spec,))
    check(case, rtol=0, above_xla=k == 9)


def test_top_k_of_an_uneven_dimension():
    f = lambda x: jax.lax.top_k(jnp.pad(x, ((0, 0), (0, 3)), constant_values=-np.inf) * 2, 30)
    check(Case({"x": 8}, lambda constrain: f, (numbers(6, 64),), (P(None, "x"),)), rtol=0)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_padding_is_not_selected_before_what_comes_after_minus_infinity(dtype):
    """In the total order, NaNs whose sign is set come last; x86 makes such of inf - inf."""
    x = np.full((2, 408), -np.inf, dtype)
    x[0] = np.copysign(np.array(np.nan, dtype), np.array(-1, dtype))

    def build(constrain):
        return lambda x: jax.lax.top_k(constrain(x[:, :401], None, "x"), 5)

    result, _ = check(Case({"x": 8}, build, (x,), (P(None, "x"),)), rtol=0, above_xla=True)
    assert "candidates" in result.plan.as_text()


def test_only_candidates_of_a_top_k_meet():
    spec = P(None, "x")
    f = lambda x: tuple(jax.lax.top_k(x, 4))
    _, sent = check(Case({"x": 8}, lambda constrain: f, (integers(99, 64, 1024),), (spec,), (P(), P())))
    assert sent == 2 * 2 * 7 / 8 * 64 * 4 * 4


SORTS = {
    "values": lambda x: jnp.sort(x),
    "positions": lambda x: jnp.argsort(x),
    "descending": lambda x: -jnp.sort(-x),
    "pairs": lambda x: jax.lax.sort((x % 7, x), num_keys=1),
    "keys": lambda x: jax.lax.sort((x % 7, x), num_keys=2, is_stable=False),
}


@pytest.mark.parametrize("name", SORTS)
@pytest.mark.parametrize("axes, n", [({"x": 8}, 1600), ({"a": 4}, 96), ({"x": 5}, 200)])
def test_columnsort(name, axes, n):
    spec = P(next(iter(axes)))
    outs = jax.tree.map(lambda _: spec, jax.eval_shape(SORTS[name], integers(50, n)))
    result, _ = check(Case(axes, lambda constrain: SORTS[name], (integers(50, n),), (spec,), outs), rtol=0)
    assert n < 1000 or not result.findings


def test_sort_of_floats_with_special_values():
    check(Case({"x": 8}, lambda constrain: jnp.sort, (numbers(1600),), (P("x"),), P("x")), rtol=0)


def indistinct(dtype, n=1600, seed=0):
    """Few different values, with zeros of both signs, NaNs of many bits, infinities and subnormals among them."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "c":
        real = np.dtype(dtype).type(0).real.dtype
        return np.stack([indistinct(real, n, seed), indistinct(real, n, seed + 1)], 1).view(dtype)[:, 0]
    x = rng.integers(-3, 4, n).astype(dtype)
    x[rng.integers(0, n, n // 8)] = np.asarray(-0.0, dtype)
    x[rng.integers(0, n, n // 16)] = np.asarray(-np.inf, dtype)
    bits = x.view(f"u{x.itemsize}")
    low = rng.integers(1, 50, n // 16).astype(bits.dtype)
    bits[rng.integers(0, n, n // 16)] = np.asarray(np.nan, dtype).view(bits.dtype) | low
    bits[rng.integers(0, n, n // 16)] = low | (low << (8 * x.itemsize - 1))
    return x


STABLE = {
    "values": jnp.sort,
    "descending": lambda x: jnp.sort(x, descending=True),
    "carried": lambda x: jax.lax.sort((jnp.round(x), x), num_keys=1),
    "positions": lambda x: jnp.argsort(x, descending=True),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", STABLE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_stable_sort_keeps_equals_in_their_order_to_the_last_bit(name, dtype):
    x = indistinct(jnp.dtype(dtype))
    if name == "descending":  # the reversal behind the sort may travel as wider floats, which have one NaN
        x[np.isnan(x.astype(np.float32))] = np.nan
    outs = jax.tree.map(lambda _: P("x"), jax.eval_shape(STABLE[name], x))
    result, _ = check(Case({"x": 8}, lambda constrain: STABLE[name], (x,), (P("x"),), outs), exact=True)
    gathered = name == "positions" and x.itemsize == 2  # as gathering halves sends less than sorting pairs
    assert bool(result.findings) == gathered


@pytest.mark.parametrize("dtype", ["complex64", "float32"])
def test_a_stable_sort_of_columns_carries_several_operands(dtype):
    x = np.stack([indistinct(np.dtype(dtype), 200, seed) for seed in range(2)], 1)
    f = lambda x, y: jax.lax.sort((x, y, -y), dimension=0, num_keys=1)
    args = (x, integers(9, 200, 2).astype(np.int8))
    case = Case({"x": 5}, lambda constrain: f, args, (P("x"), P("x")), (P("x"),) * 3)
    result, _ = check(case, exact=True)
    assert not result.findings


def test_places_travel_only_where_equals_differ():
    sent = [
        check(Case({"x": 8}, lambda constrain: jnp.sort, (x,), (P("x"),), P("x")), exact=True)[1]
        for x in (integers(50, 1600), indistinct(np.float32))
    ]
    assert sent == [200 * 4 * (2 * 7 / 8 + 1), 200 * (4 * (2 * 7 / 8 + 1) + 2 * (7 / 8 + 1 / 2))]


def test_an_approximate_top_k_of_whole_rows_keeps_its_comparator():
    f = lambda x: jax.lax.approx_max_k(x, 3)
    check(Case({"x": 8}, lambda constrain: f, (numbers(8, 64),), (P("x", None),)), rtol=0)


@pytest.mark.parametrize("select", [jax.lax.approx_max_k, jax.lax.approx_min_k])
@pytest.mark.parametrize("axes, spec", [({"x": 8}, P(None, "x")), ({"a": 4, "b": 2}, P("b", "a"))])
def test_only_candidates_of_an_approximate_top_k_meet(select, axes, spec):
    f = lambda x: tuple(select(x, 4))
    x = np.random.default_rng(0).standard_normal((8, 1024)).astype(np.float32)
    result, sent = check(Case(axes, lambda constrain: f, (x,), (spec,), (P(), P())), rtol=0)
    assert not result.findings and sent < 8 * 1024 * 4 / 8


def test_positions_that_nobody_wants_are_not_sent():
    """Neither in the plan nor in what is compiled."""
    x = np.random.default_rng(0).standard_normal((8, 1024)).astype(np.float32)
    case = lambda f: Case({"x": 8}, lambda constrain: f, (x,), (P(None, "x"),), P())
    values, sent = check(case(lambda x: jax.lax.approx_max_k(x, 4)[0]), rtol=0)
    both, _ = check(case(lambda x: tuple(jax.lax.approx_max_k(x, 4))), rtol=0)
    assert values.plan.bytes == sent == both.plan.bytes / 2


def test_an_approximate_top_k_takes_the_first_of_equals():
    x = integers(50, 8, 1024).astype(np.float32)
    f = lambda x: tuple(jax.lax.approx_max_k(x, 100))
    result = collectives.partition(propagation.run(Case({"x": 8}, lambda constrain: f, (x,), (P(None, "x"),)).text))
    got, _ = harness.run_partitioned(result, [x], [(8, 100)] * 2)
    order = np.argsort(-x, axis=1, kind="stable")[:, :100]
    np.testing.assert_array_equal(got[1], order)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, order, 1))


def test_an_approximate_top_k_along_the_first_dimension():
    f = lambda x: jax.lax.approx_max_k(x, 5, reduction_dimension=0)
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    result, _ = check(Case({"x": 8}, lambda constrain: f, (x,), (P("x"),)), rtol=0)
    assert not result.findings


BY_SIZE = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<1600xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> (tensor<1600xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %y = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %c = stablehlo.abs %a : tensor<i32>
    %d = stablehlo.abs %b : tensor<i32>
    %e = stablehlo.compare LT, %c, %d : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %e : tensor<i1>
  }) : (tensor<1600xi32>) -> tensor<1600xi32>
  return %y : tensor<1600xi32>
}
"""


def test_different_numbers_that_compare_as_equal_keep_their_order():
    x = integers(99, 1600) - 49
    result = collectives.partition(propagation.run(BY_SIZE))
    assert not result.findings
    got, _ = harness.run_partitioned(result, [x], [(1600,)])
    np.testing.assert_array_equal(got[0], x[np.argsort(abs(x), kind="stable")])


@pytest.mark.parametrize("k", [4, 20])
def test_selections_in_front_of_an_exchange_stay_selections(k):
    """XLA on CPUs has a fast selection for what it recognises as one; a sort of a row takes fifty times as long."""
    f = lambda x: tuple(jax.lax.top_k(x, k))
    result, _ = check(Case({"x": 8}, lambda constrain: f, (numbers(64, 1024),), (P(None, "x"),), (P(), P())), rtol=0)
    optimised = harness.Compiled(result.as_text(), 8).hlo()
    assert " sort(" not in optimised and optimised.count('custom_call_target="TopK"') == 2
