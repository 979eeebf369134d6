"""Dimensions of fewer positions than the devices they are split over: they stay split, and what was whole is whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check

FEWER = {
    "sort": (lambda x: jax.lax.sort(x, dimension=1), 0),
    "sum of the others": (lambda x: x.sum(1), 0),
    "window": (lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 3), (1, 2), "SAME"), 0),
    "product": (lambda x: jnp.einsum("ij,ik->ijk", x, x[:, :3]), 0),
    "maximum": (lambda x: x.max(0), 2 * 7 / 8 * 6 * 4),
    "of two reductions the one that is used": (
        lambda x: jax.lax.reduce(
            (x, x), (0.0, 0.0), lambda a, b: (a[0] + b[0], jax.lax.max(a[1], b[1])), (0,)
        )[0],
        2 * 7 / 8 * 6 * 4,
    ),
    "depthwise": (
        lambda x: jax.vjp(
            lambda w: jax.lax.conv_general_dilated(
                x[None], w, (1,), "SAME", dimension_numbers=("NCH", "OIH", "NCH"), feature_group_count=5
            ),
            x[:, None, :3],
        )[1](x[None])[0],
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FEWER)
def test_a_dimension_of_fewer_positions_than_devices_stays_split(name):
    f, bound = FEWER[name]

    def build(constrain):
        def run(x):
            y = f(constrain(x[:5], "x"))
            if y.shape[0] != 5:
                return y
            y = constrain(y, "x")
            return constrain(jnp.pad(y, ((0, 3), *((0, 0),) * (y.ndim - 1))), "x")

        return run

    x = np.random.default_rng(0).integers(-4, 5, (8, 6)).astype(np.float32)
    x[3, 2] = -np.inf if name in ("maximum", "sort", "window") else 1.0
    _, sent = check(Case({"x": 8}, build, (x,), (P("x"),)))
    assert sent <= bound


def test_what_was_only_cut_is_whole_already():
    def build(constrain):
        def f(x, i, u):
            return constrain(x, None, "x").at[i].max(u)

        return f

    args = np.ones((30, 4), np.float32), np.arange(6, dtype=np.int32), np.full((6, 4), 2.0, np.float32)
    _, sent = check(Case({"x": 8}, build, args, (P(), P(), P()), P()))
    assert sent == 0


def test_what_an_annotation_moved_is_still_where_it_came_from():
    """A transform takes its pieces from the layout from which they have to go the shorter way."""
    build = lambda constrain: lambda x: jnp.fft.irfftn(jnp.fft.rfftn(constrain(x, "x")) * 2)
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    case = Case({"x": 4, "y": 2}, build, (x,), (P("y"),))
    _, sent = check(case)
    _, there = check(Case({"x": 4, "y": 2}, lambda constrain: build(lambda x, spec: x), (x,), (P("y"),)))
    assert sent == there
