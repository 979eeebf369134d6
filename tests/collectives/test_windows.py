"""Windows over split dimensions and their gradients: equal to one device, no more than the borders moved."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from . import harness
from .jax_side import Case, check


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pooling(window, strides, padding, kind):
    start, combine = (-jnp.inf, jax.lax.max) if kind == "max" else (0.0, jax.lax.add)
    return lambda x: jax.lax.reduce_window(x, start, combine, window, strides, padding)


POOLS = {
    "overlapping": ((3, 3), (2, 2), "SAME"),
    "disjoint": ((2, 2), (2, 2), "VALID"),
    "dense": ((3, 1), (1, 1), "SAME"),
    "lopsided": ((3, 2), (3, 1), ((1, 2), (0, 0))),
    "wide": ((5, 3), (2, 2), ((2, 2), (1, 1))),
}


@pytest.mark.parametrize("kind", ["max", "add"])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("axes, spec, n", [({"x": 8}, P("x"), 32), ({"a": 3, "b": 2}, P("b", "a"), 24)])
def test_pooling_and_its_gradient(name, kind, axes, spec, n):
    f = pooling(*POOLS[name], kind)
    x = np.random.default_rng(0).integers(-2, 3, (n, 12)).astype(np.float32)
    if kind == "max":
        x[5:9] = -np.inf
    shape = jax.eval_shape(f, x).shape

    def build(constrain):
        def both(x, ct):
            y, back = jax.vjp(f, x)
            return y, back(ct)[0]

        return both

    check(Case(axes, build, (x, normal(*shape)), (spec, P())), above_xla=True)


def test_the_gradient_of_max_pooling_sends_two_rows():
    def build(constrain):
        def both(x, ct):
            y, back = jax.vjp(pooling((1, 3, 3, 1), (1, 2, 2, 1), "SAME", "max"), x)
            return y, back(ct)[0]

        return both

    spec = P(None, "x")
    args = (normal(2, 32, 16, 4), normal(2, 16, 8, 4, seed=1))
    case = Case({"x": 8}, build, args, (spec, spec), (spec, spec))
    result, sent = check(case)
    assert result.plan.counts == {"collective_permute": 2}
    assert sent == 2 * 16 * 4 * 4 + 2 * 17 * 4 * 4  # a row of x forward, a (padded) row of contributions back


@pytest.mark.parametrize("size, patch", [(32, 4), (64, 8), (32, 8)])
def test_patches_may_have_more_positions_than_there_are_patches(size, patch):
    def build(constrain):
        def f(x, w, ct):
            conv = lambda x, w: jax.lax.conv_general_dilated(x, w, (patch, patch), "VALID", dimension_numbers=dims)
            y, back = jax.vjp(conv, x, w)
            return y, back(ct)[1]

        dims = ("NHWC", "HWIO", "NHWC")
        return f

    n, spec = size // patch, P(None, "x")
    args = (normal(2, size, size, 2), normal(patch, patch, 2, 16), normal(2, n, n, 16, seed=1))
    result, sent = check(Case({"x": 4}, build, args, (spec, P(), spec), (spec, P())))
    assert result.plan.counts == {"all_reduce": 1} and not result.findings
    assert sent == 2 * 3 / 4 * patch * patch * 2 * 16 * 4  # the kernel's gradient


def test_one_border_serves_both_gradients_of_a_convolution():
    def build(constrain):
        def f(x, w, ct):
            dims = ("NHWC", "HWIO", "NHWC")
            conv = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)
            return jax.vjp(conv, x, w)[1](ct)

        return f

    spec = P(None, "x")
    args = (normal(2, 16, 8, 4), normal(3, 3, 4, 4), normal(2, 16, 8, 4, seed=1))
    result, _ = check(Case({"x": 8}, build, args, (spec, P(), spec), (spec, P())))
    assert result.plan.counts == {"collective_permute": 2, "all_reduce": 1}


CONVOLUTIONS = [
    # mesh, split by, size, taps, stride, input dilation, kernel dilation, padding, groups
    ({"x": 5}, "x", 15, 2, 2, 1, 1, (0, 1), 2),
    ({"a": 3, "b": 2}, "a", 18, 1, 2, 1, 2, (2, 0), 1),
    ({"a": 4, "b": 2}, ("a", "b"), 16, 3, 1, 2, 1, (1, 1), 1),
    ({"x": 8}, "x", 16, 3, 1, 1, 2, (2, 1), 1),
    ({"a": 2, "b": 2, "c": 2}, ("a", "b", "c"), 16, 4, 3, 1, 1, (0, 2), 1),
]


@pytest.mark.parametrize("axes, split, n, taps, stride, base, spread, padding, groups", CONVOLUTIONS)
def test_convolutions_and_their_gradients(axes, split, n, taps, stride, base, spread, padding, groups):
    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (stride, 1), (padding, (1, 1)), (base, 1), (spread, 1), ("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )  # fmt: skip

    def build(constrain):
        def f(x, w, ct):
            y, back = jax.vjp(conv, x, w)
            return y, back(ct)

        return f

    x, w = normal(2, n, 4, 2 * groups), normal(taps, 3, 2, 4)
    ct = normal(*jax.eval_shape(conv, x, w).shape)
    check(Case(axes, build, (x, w, ct), (P(None, split), P(), P())), above_xla=True)


@pytest.mark.parametrize("axes, n", [({"x": 8}, 32), ({"x": 5}, 35)])
def test_associative_scans_written_as_slices_keep_their_split(axes, n):
    def build(constrain):
        def f(a, b):
            return jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (a, b), axis=0)

        return f

    args = (normal(n, 4), normal(n, 4, seed=1))
    result, _ = check(Case(axes, build, args, (P("x"), P("x")), (P("x"), P("x"))), rtol=1e-4)
    assert not result.findings and set(result.plan.counts) == {"collective_permute"}


PADS = {
    "chain": lambda x: jnp.pad(jnp.pad(x, ((1, 2), (0, 1)))[1:-1], ((3, 0), (0, 0)), constant_values=1.0)[2:15],
    "shared": lambda x: (lambda y: (y[:16] + y[1:17] + y[2:], y * 2))(jnp.pad(x, ((1, 1), (0, 0)))),
    "interior": lambda x: jax.lax.pad(x, 0.5, ((2, 3, 2), (0, 0, 1))),
    "interior_cut": lambda x: jax.lax.pad(x, 0.5, ((-1, -2, 1), (1, 0, 1))) * 2,
    "interior_uneven": lambda x: jax.lax.pad(jnp.pad(x, ((0, 3), (0, 0))) * 1.5, 0.25, ((1, 1, 3), (0, 0, 0))) + 1,
}


@pytest.mark.parametrize("name", PADS)
def test_pads_along_a_split_dimension(name):
    check(Case({"x": 8}, lambda constrain: PADS[name], (normal(16, 4),), (P("x"),)), rtol=1e-6, above_xla=True)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_running_totals_from_any_start(start):
    def f(x):
        return jax.lax.reduce_window(x, start, jax.lax.add, (32, 1), (1, 1), ((31, 0), (0, 0)))

    result, _ = check(Case({"x": 8}, lambda constrain: f, (normal(32, 4),), (P("x"),), P("x")))
    assert start or result.plan.counts == {"collective_permute": 3}


KERNELS = [
    # input, taps, stride, input dilation, kernel dilation, padding: a kernel with more positions than the input
    ((6, 5), (9, 5), (1, 1), (1, 1), (1, 1), ((4, 3), (2, 0))),
    ((4, 6), (7, 6), (2, 1), (2, 1), (1, 1), ((3, 2), (1, 1))),
    ((5, 3), (4, 7), (1, 3), (1, 2), (2, 1), ((2, 5), (6, 4))),
    ((8, 4), (9, 4), (1, 1), (1, 1), (1, 1), ((0, 2), (-1, 1))),
]


@pytest.mark.parametrize("size, taps, stride, base, spread, padding", KERNELS)
def test_kernels_larger_than_their_input_trade_places_with_it(size, taps, stride, base, spread, padding):
    def conv(x, w):
        dims = ("NCHW", "HWIO", "HWNC")
        return jax.lax.conv_general_dilated(x, w, stride, padding, base, spread, dimension_numbers=dims)

    x, w = normal(8, 3, *size), normal(*taps, 3, 4, seed=1)
    case = Case({"x": 8}, lambda constrain: conv, (x, w), (P("x"), P()))
    result, _ = check(case)
    (line,) = [line for line in result.as_text().splitlines() if "stablehlo.convolution" in line]
    assert line.index("x".join(map(str, (*taps, 3, 4)))) < line.index("x".join(map(str, (1, 3, *size))))


def test_local_convolutions_reverse_no_windows():
    """The weight gradient of an image convolution is one whose kernel, with its borders, is larger than its input."""

    def build(constrain):
        def f(x, w, ct):
            conv = lambda x, w: jax.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jax.vjp(conv, x, w)[1](ct)

        return f

    spec = P(None, "x")
    args = (normal(2, 32, 16, 4), normal(3, 3, 4, 4), normal(2, 32, 16, 4, seed=1))
    result, _ = check(Case({"x": 8}, build, args, (spec, P(), spec), (spec, P())))
    optimised = harness.Compiled(result.as_text(), 8).hlo()
    assert "convolution(" in optimised and "rhs_reversal" not in optimised


def test_borders_between_pieces_of_equal_size_are_concatenated():
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    spec = P(None, "x")
    result, _ = check(Case({"x": 8}, lambda constrain: conv, (normal(2, 32, 4), normal(3, 4, 4)), (spec, P()), spec))
    text = result.as_text()
    assert "stablehlo.concatenate" in text and "stablehlo.select" not in text and "dynamic_slice" not in text


MOVES = {
    "where nobody sends there is the pad's number": lambda x: jnp.pad(x, ((2, 1), (0, 0)), constant_values=3.0) * 2,
    "and negative zero is not zero": lambda x: 1 / jnp.pad(x, ((2, 3), (0, 0)), constant_values=-0.0),
    "pieces of two tensors": lambda x: jnp.concatenate([x[3:], -x, x[:5]], axis=0),
    "longer than a piece": lambda x: jnp.roll(x, 7, axis=0) + x,
    "along the innermost dimension": lambda x: jnp.roll(x.T, 5, axis=1) * jnp.flip(x.T, 1),
    "wide windows": lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (9, 1), (1, 1), "SAME"),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("axes, n", [({"x": 8}, 32), ({"a": 3, "b": 2}, 20), ({"x": 5}, 18)])
def test_pieces_arrive_in_their_places(name, axes, n):
    def build(constrain):
        return lambda x: constrain(MOVES[name](constrain(x, tuple(axes))), None)

    check(Case(axes, build, (normal(n, 3) + 5,), (P(),)), above_xla=True)


EXTREMES = {
    "everywhere": (lambda x: (x.max(axis=0), x.min(axis=0)), P()),
    "split": (lambda x: (x.max(axis=0), x.min(axis=0)), P("x")),  # by a reduce-scatter
    "pooled": (lambda x: (jax.lax.cummax(x, axis=0)[-1:], jax.lax.cummin(x, axis=0)), None),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_over_devices_keep_nan(name, dtype):
    """XLA's own collectives on CPUs lose NaN here, so the judge is one device."""
    f, spec = EXTREMES[name]
    x = normal(16, 8)
    x[3, 1], x[0, 2], x[15, 3], x[7, 4], x[9, 5] = np.nan, np.nan, -np.nan, np.inf, -np.inf
    x[:, 6], x[:, 7] = -np.inf, np.abs(x[:, 7])
    case = Case({"x": 8}, lambda constrain: f, (jnp.asarray(x, dtype),), (P("x"),), spec and (spec, spec))
    check(case, rtol=0, above_xla=True)


def larger(a, b):
    return jax.lax.select(a > b, a, b)


def odds(a, b):
    return a * b + a + b


RUNNING = {
    "log of sum of exponentials": lambda x, **k: jax.lax.cumlogsumexp(x, axis=1, **k),
    "a function without a name": lambda x, reverse=False: whole_window(x, -np.inf, larger, reverse),
}


def whole_window(x, start, function, reverse):
    n = x.shape[1]
    padding = ((0, 0), (0, n - 1) if reverse else (n - 1, 0))
    return jax.lax.reduce_window(x, np.float32(start), function, (1, n), (1, 1), padding)


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("axes", "n"), [({"x": 8}, 40), ({"a": 3, "b": 2}, 40), ({"x": 5}, 15)])
def test_running_totals_by_other_functions_send_totals_only(name, reverse, axes, n):
    x = np.random.default_rng(0).standard_normal((4, n)).astype(np.float32) * 0.3
    x[0, 3], x[1, 7] = -np.inf, 5.0
    names = tuple(axes) if len(axes) > 1 else "x"

    def build(constrain):
        return lambda x: RUNNING[name](constrain(x, None, names), reverse=reverse)

    # Without alternatives: the whole result is made from the whole operand for fewer bytes.
    result, _ = check(Case(axes, build, (x,), (P(),), P()), rtol=1e-5, above_xla=True, compare=False)
    totals = [e for e in result.plan if e.kind == "collective_permute"]
    assert len(totals) == 3 and all(e.bytes == 16 for e in totals)


@pytest.mark.parametrize(("start", "function"), [(5.0, odds), (0.0, jnp.hypot)])
def test_running_totals_that_a_start_would_change_are_made_whole(start, function):
    """Numbers that are not neutral, or not known to be: of functions that call others."""
    x = np.abs(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))

    def build(constrain):
        return lambda x: whole_window(x, start, function, False)

    result, _ = check(Case({"x": 8}, build, (x,), (P(None, "x"),), P(None, "x")), above_xla=True)
    assert {e.kind for e in result.plan} == {"all_to_all"}


def test_a_window_moves_over_the_dimension_that_is_whole():
    """Borders are sent as well: where the result is wanted split along another dimension, the operand moves first."""
    x = np.random.default_rng(0).standard_normal((5, 10, 10)).astype(np.float32)

    def build(constrain):
        return lambda x: jax.lax.reduce_window(x + 1, -jnp.inf, jax.lax.max, (1, 1, 2), (1, 1, 1), "SAME")

    result, sent = check(Case({"x": 5}, build, (x,), (P(None, None, "x"),), P(None, "x")))
    assert [e.kind for e in result.plan] == ["all_to_all"] and sent == 320
