"""Poisson, binomial and multinomial numbers against jax.random."""

import jax
import jax.random as jr
import numpy as np
import pytest

import meshrt
import meshrt.random as mr
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

NAN, INF = np.nan, np.inf
RATES = np.array([0.0, 0.3, 9.9, 10, 50, 1e6, NAN], np.float32)
TRIALS = np.array([3, 10, 1000, 1e6, -1, NAN, INF, 30, 20, 20, 20, 9.5], np.float32)
CHANCES = np.array([0.3, 0.9, 0.4, 0.77, 0.5, 0.5, 0.5, 1, -0.1, NAN, 2, 0], np.float32)
THREE = np.array([0.1, 0.2, 0.7], np.float32)

CASES = {
    "poisson": lambda r, k: r.poisson(k, RATES),
    "poisson of a shape": lambda r, k: r.poisson(k, 4, (2, 2), "int16"),
    "binomial": lambda r, k: r.binomial(k, TRIALS, CHANCES),
    "binomial of a shape": lambda r, k: r.binomial(k, 40, 0.5, (3,), "float16"),
    "multinomial": lambda r, k: r.multinomial(k, np.array([100, 5], np.int32), THREE, shape=(2, 3)),
    "multinomial of certainty": lambda r, k: r.multinomial(k, 10, np.array([1.0, 0.0], np.float32), dtype="int32"),
}


def alike(got, want):
    assert got.shape == want.shape and got.dtype == want.dtype and got.aval.weak_type == want.aval.weak_type
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_samples(name):
    alike(CASES[name](mr, mr.key(3)), CASES[name](jr, jr.key(3)))


def test_mapped():
    def mapped(l):
        return l.vmap(lambda k, r: l.random.poisson(k, r, (3,)))(l.random.split(l.random.key(2)), RATES[1:5:2])

    alike(mapped(meshrt), mapped(jax))


def test_over_a_mesh():
    sharding = NamedSharding(meshrt.make_mesh((4, 2), ("x", "y"), AxisType.Auto), P("x", "y"))
    sample = lambda k: mr.poisson(k, 4.0, (8, 6))
    split = meshrt.jit(sample, out_shardings=sharding)(mr.key(0))
    np.testing.assert_array_equal(split, sample(mr.key(0)))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda r: r.poisson(r.key(0), RATES, (3,)), ValueError, "(?i)do not broadcast|incompatible shapes"),
        (lambda r: r.binomial(r.key(0), 3, 0.5, dtype="int32"), ValueError, "dtype argument to `binomial`"),
        (lambda r: r.binomial(r.key(0), TRIALS, 0.5, (2,)), ValueError, "(?i)do not broadcast|incompatible shapes"),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(mr)
    with pytest.raises(error):
        call(jr)
