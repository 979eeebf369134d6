"""Pointwise operations on slices along a split dimension are computed where most of the slices lie already."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check

ROWS, ROW = 64, 6 * 4  # rows of a field over 8 devices; the bytes of one


def fields(count: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(-4, 5, (ROWS, 6)).astype(np.float32) for _ in range(count))


def run(f, *xs, bound: float | None = None):
    """Compares with one device, and what is sent with `bound` rows."""
    specs = (P("x"),) * len(xs)
    result, sent = check(Case({"x": 8}, lambda constrain: f, xs, specs, P("x")), exact=True)
    assert bound is None or sent <= bound * ROW, result.plan.as_text()
    return sent


def test_an_update_of_the_inside_moves_the_one_slice_that_lies_elsewhere():
    curl = lambda u, h, g: u.at[1:-1].add(h[1:-1] - h[:-2] - 2 * g[1:-1])
    run(curl, *fields(3), bound=1)


def test_slices_are_put_into_a_concatenation_where_they_lie():
    middle = lambda u, g: jnp.concatenate([u[:1], u[1:-1] * g[1:-1], u[-1:]])
    run(middle, *fields(2), bound=2)


def test_numbers_known_when_the_program_runs_are_the_same_everywhere():
    def f(u, g):
        step = jnp.sum(g) / 8
        return u.at[2:-2].add(step * (g[2:-2] - u[2:-2]) + jax.lax.max(u[1:-3], u[3:-1]))

    run(f, *fields(2), bound=4)


def test_what_is_not_written_may_be_anything():
    u, g = fields(2)
    g[0], g[-1] = np.inf, np.nan

    def f(u, g):
        return u.at[1:-1].add(u[1:-1] / g[1:-1] + jnp.log(jnp.abs(u[1:-1]) + 1) * 0)

    run(f, u, np.where(g == 0, 1, g).astype(np.float32), bound=0)


def test_slices_of_tensors_of_several_sizes_lie_by_their_own_positions():
    f = lambda u, g: u.at[1:-1].add(g[1:-1] - jnp.pad(g, ((4, 4), (0, 0)))[5:-5])
    run(f, *fields(2))


def test_a_result_that_is_cut_again_lies_where_it_was_cut_from():
    f = lambda u, g: u.at[2:-2].set((u[1:-1] + g[1:-1])[1:-1] - g[2:-2])
    run(f, *fields(2), bound=3)


@pytest.mark.parametrize("seed", range(4))
def test_random_stencils(seed):
    """Slices of any starts of two fields, joined at random and written somewhere: as one device computes it."""
    rng = np.random.default_rng(seed)
    length = int(ROWS - rng.integers(1, 12))
    starts = rng.integers(0, ROWS - length + 1, 6)
    names = rng.integers(0, 2, 5)
    ways = rng.integers(0, 4, 4)

    def f(u, g):
        cut = [(u, g)[k][s : s + length] for k, s in zip(names, starts)]
        out = cut[0]
        for x, way in zip(cut[1:], ways):
            out = (out + x, out - x, jnp.maximum(out, x), jnp.where(out > x, x, 2 * out))[way]
        at = int(starts[5])
        return u.at[at : at + length].add(out), jax.lax.pad(out, 0.0, ((at, ROWS - at - length, 0), (0, 0, 0)))

    case = Case({"x": 8}, lambda constrain: f, fields(2, seed), (P("x"), P("x")), (P("x"), P("x")))
    check(case, exact=True)
