"""The judge's own tests: bounds hold for other orders of summation, and small elements are checked as closely."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from . import rounding
from .jax_side import agree


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_moved_elements_have_no_tolerance():
    x = random(8, 6)
    (bound,) = rounding.bounds(lambda x: jnp.roll(x.T[::2], 1, axis=1), (x,), 1.0)
    assert not bound.any()
    (none,) = rounding.bounds(lambda x: jnp.argmax(x, 1), (x,), 1.0)
    assert none is None


@pytest.mark.parametrize("n", [16, 1000, 20000])
def test_sums_in_any_order_are_within_their_bounds(n):
    x, order = random(4, n), np.random.default_rng(1).permutation(n)
    (bound,) = rounding.bounds(lambda x: jnp.sum(x, 1), (x,), 0.0)
    exact = x.astype(np.float64).sum(1)
    for y in (x, x[:, order], np.sort(x, 1)):
        total = np.cumsum(y, axis=1, dtype=np.float32)[:, -1]  # one after the other: the worst order
        assert (np.abs(total - exact) <= bound).all()
    assert (bound <= 8e-7 * np.sqrt(n) * np.abs(x).sum(1)).all()


def test_bounds_are_those_of_the_elements_own_sum():
    """A row of small numbers beside a row of large ones: the tolerance of the largest would pass anything there."""
    x = random(2, 64) * np.array([[1e4], [1e-4]], np.float32)
    w = random(64, 3, seed=1)
    f = lambda x, w: jnp.tanh(x @ w * 1e-4) * 1e4
    expected = np.asarray(f(x, w))
    (bound,) = rounding.bounds(f, (x, w), 0.0)
    agree(expected * np.float32(1 + 1e-7), expected, 1e-4, bound=bound)
    wrong = expected.copy()
    wrong[1, 2] *= 1.01
    agree(wrong, expected, 1e-4)  # as it was: nothing is seen
    with pytest.raises(AssertionError, match=r"element \(1, 2\) is .*, not "):
        agree(wrong, expected, 1e-4, bound=bound)


def test_errors_grow_through_loops_and_what_cancels():
    x = np.float32(1.0) + random(64) * np.float32(1e-3)
    (cancelled,) = rounding.bounds(lambda x: (x * 3 - 3) * 1e3, (x,), 0.0)
    assert (cancelled > 1e3 * 2**-24).all()  # what 3 x lost is all that is left of the digits

    def repeated(x):
        for _ in range(10):
            x = jnp.cos(x) * 2
        return x

    short, long = rounding.bounds(lambda x: (jnp.cos(x) * 2, repeated(x)), (x,), 0.0)
    assert long.mean() > 5 * short.mean()
