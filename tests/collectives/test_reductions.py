"""Reductions over devices give what one device gives, whatever the runtime's collectives can do."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import shard_map
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from . import harness
from .jax_side import Case, jax_mesh

DTYPES = {
    "i1": bool, "i8": np.int8, "ui8": np.uint8, "i16": np.int16, "ui16": np.uint16, "i32": np.int32,
    "ui32": np.uint32, "i64": np.int64, "ui64": np.uint64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f32": np.float32, "f64": np.float64, "complex<f32>": np.complex64, "complex<f64>": np.complex128,
}  # fmt: skip
NEUTRAL = {"or": "0", "xor": "0", "and": "-1", "multiply": "1", "add": "0"}


def reduction(kind: str, dtype: str, rows: int, columns: int, start: str, scattered: bool) -> str:
    out = '[{"x"}]' if scattered else "[{}]"
    return f"""sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<{rows}x{columns}x{dtype}> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> (tensor<{columns}x{dtype}> {{sdy.sharding = #sdy.sharding<@mesh, {out}>}}) {{
  %c = stablehlo.constant dense<{start}> : tensor<{dtype}>
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.{kind} across dimensions = [0]
    : (tensor<{rows}x{columns}x{dtype}>, tensor<{dtype}>) -> tensor<{columns}x{dtype}>
  return %0 : tensor<{columns}x{dtype}> }}"""


def agree(text: str, x, kinds: set[str] | None = None):
    """The partitioned program gives what one device gives."""
    result = collectives.partition(propagation.run(text))
    if kinds is not None:
        assert set(result.plan.counts) == kinds
    (want,) = harness.one_device(text, [x])
    (got,), _ = harness.run_partitioned(result, [x], [want.shape])
    np.testing.assert_array_equal(harness.comparable(got), harness.comparable(want))
    return result


def floats(dtype: str, columns: int) -> np.ndarray:
    """Numbers, infinities, zeros of both signs, and NaNs of both signs, in some columns and rows."""
    x = np.random.default_rng(0).normal(size=(16, columns)).astype(DTYPES[dtype])
    x[3, 0], x[7, 1], x[0, 2] = np.nan, -np.float32(np.nan), np.nan
    x[5, 2], x[6, 3], x[7, 4], x[:, 5] = np.inf, np.inf, -np.inf, -np.inf
    x[:, 6], x[:, 7] = np.inf, np.nan
    return x


@pytest.mark.parametrize("scattered", [False, True], ids=["whole", "scattered"])
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_maxima_keep_nans(dtype, kind, scattered):
    start = {"f16": "0xFC00", "bf16": "0xFF80", "f32": "0xFF800000", "f64": "0xFFF0000000000000"}[dtype]
    if kind == "minimum":
        start = {"f16": "0x7C00", "bf16": "0x7F80", "f32": "0x7F800000", "f64": "0x7FF0000000000000"}[dtype]
    text = reduction(kind, dtype, 16, 16, start, scattered)
    result = agree(text, floats(dtype, 16), {"reduce_scatter" if scattered else "all_reduce"})
    width = np.dtype(DTYPES[dtype]).itemsize
    assert result.plan.bytes == (7 / 8 if scattered else 7 / 4) * 16 * width


def test_tpus_take_maxima_as_they_are():
    text = reduction("maximum", "f32", 16, 16, "0xFF800000", False)
    there = collectives.partition(propagation.run(text), topology="v5e:2x4").as_text()
    here = collectives.partition(propagation.run(text)).as_text()
    assert "bitcast_convert" in here and "bitcast_convert" not in there


@pytest.mark.parametrize("kind", ["and", "or", "xor"])
@pytest.mark.parametrize("dtype", ["i1", "i8", "ui16", "i32", "ui64"])
def test_bits(dtype, kind):
    rng = np.random.default_rng(1)
    start = {"0": "false", "-1": "true"}[NEUTRAL[kind]] if dtype == "i1" else NEUTRAL[kind]
    if dtype.startswith("ui") and kind == "and":
        start = str(2 ** int(dtype[2:]) - 1)
    columns, scattered = {"i8": (8, False), "i32": (1000, True)}.get(dtype, (1000, False))
    high = 2 if dtype == "i1" else 100
    x = rng.integers(0, high, (16, columns)).astype(DTYPES[dtype])
    if kind == "and":
        x = x | rng.integers(0, high, (1, columns)).astype(DTYPES[dtype])
    agree(reduction(kind, dtype, 16, columns, start, scattered), x)


@pytest.mark.smoke
def test_an_exchange_sends_what_an_all_reduce_would():
    text = reduction("xor", "i32", 16, 1024, "0", False)
    result = collectives.partition(propagation.run(text))
    assert result.plan.counts == {"all_to_all": 1, "all_gather": 1}
    assert result.plan.bytes == 2 * 7 / 8 * 1024 * 4


@pytest.mark.parametrize("kind", ["add", "multiply"])
@pytest.mark.parametrize("dtype", ["i1", "i8", "ui16", "i64", "complex<f32>", "complex<f64>"])
def test_sums_and_products(dtype, kind):
    start = NEUTRAL[kind]
    if dtype == "i1":
        start = "true" if start == "1" else "false"
    if dtype.startswith("complex"):
        start = f"({start}.0, 0.0)"
    x = np.random.default_rng(2).integers(0 if dtype[0] in "u" else -1, 2, (16, 24)).astype(DTYPES[dtype])
    agree(reduction(kind, dtype, 16, 24, start, False), x)


@pytest.mark.parametrize("function", ["max", "min", "argmax"])
def test_nans_of_numpy_programs(function):
    x = floats("f32", 16)
    case = Case({"x": 8}, lambda _: lambda x: getattr(jnp, function)(x, 0), (x,), (P("x", None),), P())
    result = collectives.partition(propagation.run(case.text))
    (want,) = case.expected()
    (got,), _ = harness.run_partitioned(result, [x], [want.shape])
    np.testing.assert_array_equal(got, want)


def test_collectives_that_a_program_writes():
    mesh = jax_mesh({"x": 8})
    x = floats("f32", 16)
    map_ = functools.partial(shard_map, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
    lowered = jax.jit(map_(lambda x: jax.lax.pmax(x, "x"))).lower(x)
    result = collectives.partition(propagation.run(lowered.as_text()))
    assert result.plan.counts == {"all_reduce": 1} and result.plan.entries[0].axes == "x"
    (got,), _ = harness.run_partitioned(result, [x], [(2, 16)])
    np.testing.assert_array_equal(got, x.reshape(8, 2, 16).max(0))


@pytest.mark.parametrize(("to", "limit"), [("f32", 224), ("bf16", 3584)])
def test_conversions_carry_sums_on_to_the_same_type_only(to, limit):
    text = f"""sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<16x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}},
                %y: tensor<64x32xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> (tensor<32x{to}> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}]>}}) {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
    : (tensor<16x64xf32>, tensor<64x32xf32>) -> tensor<16x32xf32>
  %1 = stablehlo.convert %0 : (tensor<16x32xf32>) -> tensor<16x32x{to}>
  %c = stablehlo.constant dense<0.0> : tensor<{to}>
  %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [0]
    : (tensor<16x32x{to}>, tensor<{to}>) -> tensor<32x{to}>
  return %2 : tensor<32x{to}> }}"""
    result = collectives.partition(propagation.run(text))
    (entry,) = result.plan.entries
    assert entry.kind == "all_reduce" and entry.cause.startswith("stablehlo.dot_general") and entry.bytes == limit
    x, y = (np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate([(16, 64), (64, 32)]))
    (got,), _ = harness.run_partitioned(result, [x, y], [(32,)])
    near = {"f32": 1e-4, "bf16": 0.3}[to]
    np.testing.assert_allclose(got.astype(np.float32), (x @ y).sum(0), atol=near, rtol=near / 10)


@pytest.mark.parametrize(
    ("mesh", "spec", "out", "n", "gathered"),
    [
        ({"x": 8}, P(None, "x"), P(), 8, True),
        ({"x": 8}, P(None, "x"), P("x"), 8, False),
        ({"x": 2, "y": 4}, P("x", "y"), P("x"), 4, True),
        ({"x": 2, "y": 4}, P("x", "y"), P(("x", "y")), 4, False),
        ({"x": 4, "y": 2}, P(None, ("y", "x")), P(), 8, True),
    ],
)
def test_argmax_exchanges_candidates(mesh, spec, out, n, gathered):
    """Ties go to the first position, NaN wins; each device combines its part, and only chosen positions are whole."""
    x = np.random.default_rng(0).integers(0, 9, (256, 64)).astype(np.float32)
    x[3, 40:44], x[5, ::2] = np.nan, np.inf
    case = Case(mesh, lambda _: lambda x: jnp.argmax(x, axis=1), (x,), (spec,), out)
    result = collectives.partition(propagation.run(case.text))
    (got,), _ = harness.run_partitioned(result, [x], [(256,)])
    np.testing.assert_array_equal(got, np.argmax(x, axis=1))
    rows = 256 * n // 8
    assert result.plan.bytes == (n - 1) / n * rows * (8 + 4 * gathered), result.plan.as_text()


def test_devices_results_are_combined_in_their_order():
    """Of a body that is associative, but does not commute: affine functions, one after the other."""
    factor, offset = (np.random.default_rng(i).normal(size=(64, 64)).astype(np.float32) for i in range(2))

    def chain(a, b):
        join = lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1])
        return jax.lax.reduce((a, b), (jnp.float32(1), jnp.float32(0)), join, (0,))

    for out in (P(), P("x")):
        case = Case({"x": 8}, lambda _: chain, (factor, offset), (P("x"), P("x")), (out, out))
        result = collectives.partition(propagation.run(case.text))
        got, _ = harness.run_partitioned(result, [factor, offset], [(64,), (64,)])
        total = np.zeros(64), np.ones(64)
        for f, o in zip(factor.astype(np.float64), offset):
            total = total[0] * f + o, total[1] * f
        np.testing.assert_allclose(got[1], total[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[0], total[1], rtol=1e-4)
        assert "all_to_all" in result.plan.counts
