"""Devices that hold the same values hold the same bits, whatever compilers make of the code around.

XLA's CPU compiler contracts `a * b + c` to one rounding where it finds both in one block, so values that reach some
devices by another way through the code come to differ in the last bit once arithmetic follows.
"""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from .harness import run_partitioned
from .jax_side import Case

LAYOUTS = {
    "rows by both": P(("b", "a"), None, None),
    "rows the other way round": P(("a", "b"), None, None),
    "columns": P(None, None, "b"),
    "rows and columns": P("b", None, "a"),
    "rows": P("a", None, None),
    "whole": P(None, None, None),
}


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(axes, build, args, ins, out, **options):
    """`run_partitioned` compares the bits of copies; the values are compared with one device's."""
    case = Case(axes, build, args, ins, out)
    result = collectives.partition(propagation.run(case.text), **options)
    expected = case.expected()
    got, _ = run_partitioned(result, args, [e.shape for e in expected])
    for g, e in zip(got, expected):
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-5)
    return result


def added(constrain, source, target):
    """Values that are moved, and sums of products around them."""

    def f(x, y, z, w):
        moved = constrain(constrain(x * y, *source), *target)
        return moved + (z * w + z[:1, :1]) + w[:1, :1]

    return f


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(LAYOUTS, 2)))
def test_copies_of_what_was_moved_are_equal(source, target):
    source, target = LAYOUTS[source], LAYOUTS[target]
    args = tuple(random(i, 6, 24, 18) for i in range(4))
    build = lambda constrain: added(constrain, source, target)
    check({"a": 3, "b": 2}, build, args, (source, source, target, target), target)


@pytest.mark.smoke
def test_pieces_of_which_devices_keep_some():
    source, target = P(("b", "a"), None, None), P(None, None, "b")
    args = tuple(random(i, 6, 24, 18) for i in range(4))
    build = lambda constrain: added(constrain, source, target)
    result = check({"a": 3, "b": 2}, build, args, (source, source, target, target), target)
    assert {e.kind for e in result.plan} == {"collective_permute"}
    assert "stablehlo.scatter" in result.as_text()


@pytest.mark.parametrize("axes", [{"a": 4, "b": 2}, {"a": 8}])
def test_a_contraction_in_a_ring(axes):
    def build(constrain):
        def f(x, y, z, w):
            return constrain(x, None, None) @ y + (z * w + z[:1]) + w[:1]

        return f

    args = (random(0, 16, 8), random(1, 8, 24), random(2, 16, 24), random(3, 16, 24))
    out = P(None, "b" if "b" in axes else None)
    result = check(axes, build, args, (P("a"), out, out, out), out, collective_matmul=True)
    assert {e.kind for e in result.plan} == {"collective_permute"}


def test_carries_that_are_moved_in_a_loop():
    source, target = P(("b", "a"), None), P(None, "b")

    def build(constrain):
        def f(x, y, z):
            for _ in range(2):
                x = constrain(x * y, *source)
                x = constrain(x, *target) + (z * z + z[:1]) + jnp.tanh(z[:1])
            return x

        return f

    args = tuple(random(i, 36, 48) for i in range(3))
    check({"a": 3, "b": 2}, build, args, (target, source, target), target)
