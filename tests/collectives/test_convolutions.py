"""Convolutions in their rarer forms: batches and reversed kernels along a split spatial dimension."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from . import harness
from .jax_side import Case, check
from .text_side import MESH, check_text, over


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reversed_kernel(x, w, low, out):
    """A program with windows that meet inputs with their last tap first, over eight devices."""
    n, taps = x.shape[1], w.shape[0]
    high = out - 1 + taps - n - low
    return (
        MESH
        + f"""
func.func @main(%x: tensor<2x{n}x4xf32> {over("", "x", "")}, %w: tensor<{taps}x4x4xf32> {over("x", "", "")})
    -> (tensor<2x{out}x4xf32> {over("", "", "")}) {{
  %0 = "stablehlo.convolution"(%x, %w) {{dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
    window_strides = array<i64: 1>, padding = dense<[[{low}, {high}]]> : tensor<1x2xi64>,
    lhs_dilation = array<i64: 1>, rhs_dilation = array<i64: 1>, window_reversal = array<i1: true>,
    batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<2x{n}x4xf32>, tensor<{taps}x4x4xf32>) -> tensor<2x{out}x4xf32>
  return %0 : tensor<2x{out}x4xf32>
}}"""
    )


@pytest.mark.parametrize("n, low, out", [(16, 0, 1), (16, 1, 3), (32, 2, 3), (24, 0, 3)])
def test_a_reversed_kernel_as_large_as_its_input_leaves_a_sum(n, low, out):
    x, w = normal(2, n, 4), normal(n, 4, 4, seed=1)
    partitioned = check_text(reversed_kernel(x, w, low, out), [x, w], rtol=1e-4)
    assert all("interval moves" in row.cause for row in partitioned.plan.entries if row.kind == "all_gather")
    assert "partial sum" in partitioned.plan.as_text()


@pytest.mark.parametrize("n, axes", [(16, {"x": 8}), (12, {"x": 8}), (6, {"x": 3, "y": 2})])
@pytest.mark.parametrize("spread", [1, 2])
def test_matrices_multiplied_as_a_convolution_stay_where_they_are(n, axes, spread):
    """Output position t is made of input t and tap t: with a step of n - 1 and inputs n apart, nothing else meets."""
    base = n * (2 if spread == 2 else 1) + (1 if spread == 2 else 0)

    def build(constrain):
        def f(x, w):
            x, w = constrain(x[:n], "x", None, None), constrain(w[:n], "x", None, None)
            y = jax.lax.conv_general_dilated(
                x, w, (base - spread,), ((0, 0),), (base,), (spread,), ("WNC", "WIO", "WNC")
            )  # fmt: skip
            y = constrain(y, "x", None, None)
            return jax.lax.pad(y, 0.0, ((0, full - n, 0), (0, 0, 0), (0, 0, 0)))

        return f

    full = -(-n // axes["x"]) * axes["x"]
    case = Case(axes, build, (normal(full, 3, 4), normal(full, 4, 5, seed=1)), (P("x"), P("x")), P("x"))
    _, sent = check(case, rtol=1e-5, above_xla=True)
    assert sent == 0


def test_a_convolution_along_a_batch_dimension_and_a_border():
    def build(constrain):
        def f(x, w):
            return jax.lax.conv_general_dilated(
                x, w, (7, 1), ((0, 0), (1, 1)), (8, 1), (1, 1), ("HWNC", "HWIO", "HWNC")
            )  # fmt: skip

        return f

    args = normal(8, 12, 2, 4), normal(8, 3, 4, 5, seed=1)
    case = Case({"x": 4, "y": 2}, build, args, (P("x", "y"), P("x")), P("x", "y"))
    _, sent = check(case, rtol=1e-5)
    assert sent == 2 * 1 * 2 * 4 * 4  # one column of two rows of the input


def test_windows_that_no_device_owns_are_not_fetched():
    """Five windows over four devices: the gradient of their maxima sends only what some window touches."""

    def build(constrain):
        def f(x, ct):
            ct = constrain(ct[:5], "x", None)
            window = lambda v: jax.lax.reduce_window(v, -np.inf, jax.lax.max, (2, 1), (3, 1), "VALID")
            return jax.vjp(window, x)[1](ct)[0]

        return f

    args = normal(16, 3), normal(8, 3, seed=1)
    case = Case({"x": 4, "y": 2}, build, args, (P("x", None), P("x", None)), P("x", None))
    check(case)


@pytest.mark.parametrize("init", [0.0, 2.0])
def test_a_running_total_beside_another_window_is_made_whole_alone(init):
    def build(constrain):
        def f(x):
            return jax.lax.reduce_window(x, init, jax.lax.max, (3, 16), (1, 1), ((1, 1), (15, 0)))

        return f

    x = np.random.default_rng(0).integers(-3, 4, (16, 16)).astype(np.float32)
    _, sent = check(Case({"x": 4, "y": 2}, build, (x,), (P("x", "y"),), P("x", None)), exact=True)
    assert sent <= 4 * 8 * 4 + 2 * 16 * 4


def test_a_running_minimum_from_a_number_that_counts():
    def build(constrain):
        return lambda x: jax.lax.reduce_window(x, 2.0, jax.lax.min, (16,), (1,), ((0, 15),))

    x = np.random.default_rng(0).integers(-3, 6, (16,)).astype(np.float32)
    _, sent = check(Case({"x": 8}, build, (x,), (P("x"),), P("x")), exact=True, above_xla=True)
    assert sent <= 3 * 4


@pytest.mark.parametrize("kind", ["window", "convolution"])
def test_a_window_over_a_padded_tensor_fetches_of_what_was_padded(kind):
    """The gradient of an average: interior padding, which moves nothing of its own, and one border."""

    def build(constrain):
        def f(x, w):
            y = jax.lax.pad(x, 0.0, ((1, 1, 1), (0, 0, 0), (0, 0, 0)))
            if kind == "window":
                return jax.lax.reduce_window(y, 0.0, jax.lax.add, (2, 1, 1), (1, 1, 1), "VALID")
            return jax.lax.conv_general_dilated(y, w, (1,), "VALID", dimension_numbers=("WNC", "WIO", "WNC"))

        return f

    args = normal(16, 4, 3), normal(2, 3, 3, seed=1)
    case = Case({"x": 4, "y": 2}, build, args, (P("x"), P()), P("x"))
    _, sent = check(case)
    assert sent <= 4 * 3 * 4


# size, taps, padding, devices: pieces that are whole or padding (28 over 8), and such as are partly padding
CONTRACTED = [(28, 3, (1, 1), 8), (30, 3, (1, 1), 8), (14, 5, (3, 1), 4), (14, 4, (0, 3), 4), (16, 3, (1, 1), 4)]


@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize("n, taps, padding, devices", CONTRACTED)
def test_padding_of_a_contracted_dimension_meets_no_number(n, taps, padding, devices, number):
    """What is not finite at the ends of pieces is multiplied with no zero that one device does not have."""
    out = n + sum(padding) - taps + 1

    def build(constrain):
        def f(x, ct):
            x, ct = constrain(x[:, :n], None, "x", None), constrain(ct[:, :out], None, "x", None)
            conv = lambda w: jax.lax.conv_general_dilated(
                x, w, (1,), (padding,), dimension_numbers=("NWC", "WIO", "NWC")
            )
            return jax.vjp(conv, jax.numpy.zeros((taps, 4, 5), np.float32))[1](ct)[0]

        return f

    def full(size):
        return -(-size // devices) * devices

    x, ct = normal(2, full(n), 4), normal(2, full(out), 5, seed=1)
    case = Case({"x": devices}, build, (x, ct), (P(None, "x"), P(None, "x")), P())
    result, _ = check(case, rtol=1e-4)
    assert "all_gather" not in result.plan.as_text()
    compiled = harness.Compiled(result.as_text(), devices)
    piece = -(-n // devices)
    for at in (0, piece - 1, n // piece * piece - 1, n - 2, n - 1):
        x = normal(2, full(n), 4)
        x[1, at, 2] = number
        expected = np.asarray(case.one(x, ct))
        for got in compiled([np.split(x, devices, 1), np.split(ct, devices, 1)])[0]:
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=f"position {at}")


@pytest.mark.parametrize("step, features, borders", [(1, 5, 2), (1, 4, 2), (2, 8, 1)])
def test_inputs_of_a_contracted_dimension_meet_no_zeros_beyond_the_kernel(step, features, borders):
    """One border of the cotangent serves both gradients: at the ends the input's pieces meet what lies beyond it."""

    def build(constrain):
        def f(x, w, ct):
            conv = lambda x, w: jax.lax.conv_general_dilated(
                x, w, (step,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
            return jax.vjp(conv, x, w)[1](ct)

        return f

    x, w, ct = normal(2, 32, 4), normal(3, 4, features), normal(2, 32 // step, features, seed=1)
    case = Case({"x": 8}, build, (x, w, ct), (P(None, "x"), P(), P(None, "x")), (P(None, "x"), P()))
    result, _ = check(case, rtol=1e-4)
    assert result.plan.counts == {"collective_permute": borders, "all_reduce": 1}
    compiled = harness.Compiled(result.as_text(), 8)
    for at in (0, 3, 4, 31):
        x = normal(2, 32, 4)
        x[1, at, 2] = np.inf
        expected = np.asarray(case.one(x, w, ct)[1])
        for got in compiled([np.split(x, 8, 1), [w] * 8, np.split(ct, 8, 1)])[1]:
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=f"position {at}")
