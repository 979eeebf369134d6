"""The gamma distribution and those made of it, against jax.random: samples, derivatives, vmap, errors."""

import math
import re

import jax
import jax.random as jr
import numpy as np
import pytest

import meshrt
import meshrt.random as mr
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

A = np.array([0.01, 0.3, 1.0, 2.5, 100.0], np.float32)
ODD = np.array([-1.0, 0.0, np.nan, np.inf], np.float32)
CASES = {
    "gamma": lambda r, k: r.gamma(k, np.concatenate([A, ODD])),
    "gamma of a half": lambda r, k: r.gamma(k, 2.5, (2, 2), "bfloat16"),
    "gamma of nothing": lambda r, k: r.gamma(k, A[:0]),
    "loggamma": lambda r, k: r.loggamma(k, A, (2, 5)),
    "beta": lambda r, k: r.beta(k, A, 2.0),
    "dirichlet": lambda r, k: r.dirichlet(k, A, (3,)),
    "chisquare": lambda r, k: r.chisquare(k, 3, (4,)),
    "f": lambda r, k: r.f(k, A, 3.0),
    "t": lambda r, k: r.t(k, 3.0, (2, 2)),
    "ball": lambda r, k: r.ball(k, 3, 1.5, shape=(4,)),
}


def alike(got, want, name):
    assert got.shape == want.shape and got.dtype == want.dtype, (name, got.aval, want.aval)
    assert got.aval.weak_type == want.aval.weak_type, name
    got, want = (np.asarray(x, np.float32) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_samples(name):
    alike(CASES[name](mr, mr.key(3)), CASES[name](jr, jr.key(3)), name)


DERIVATIVES = {
    "gamma": lambda r, k, a: r.gamma(k, a),
    "loggamma": lambda r, k, a: r.loggamma(k, a, (2, 4)),
    "dirichlet": lambda r, k, a: r.dirichlet(k, a) ** 2,
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name):
    """By implicit reparameterisation."""
    a = np.array([0.3, 1.0, 2.5, 20.0], np.float32)
    slope = lambda l: l.grad(lambda a: DERIVATIVES[name](l.random, l.random.key(1), a).sum())(a)
    np.testing.assert_allclose(slope(meshrt), slope(jax), rtol=2e-3, atol=1e-5)


def test_mapped():
    """Every element of a mapped dimension gets the numbers that it gets alone."""

    def mapped(l):
        keys = l.random.split(l.random.key(5), 2)
        a = np.stack([A, A + 1])
        return {
            "parameters": l.vmap(lambda a: l.random.gamma(keys[0], a), 1)(a),
            "twice": l.vmap(l.vmap(l.random.gamma, (None, 0)))(keys, a),
        }

    ours, theirs = mapped(meshrt), mapped(jax)
    for name, got in ours.items():
        alike(got, theirs[name], name)


def test_the_primitive_takes_a_key_for_every_row():
    def drawn(r):
        return r.random_gamma_p.bind(r.split(r.key(4)), np.stack([A, A + 1]), log_space=True)

    alike(drawn(mr), drawn(jr), "rows")


def test_of_one_sequence():
    with meshrt.threefry_partitionable(False), jax.threefry_partitionable(False):
        alike(mr.gamma(mr.key(3), A), jr.gamma(jr.key(3), A), "one sequence")


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda r: r.gamma(r.key(0), 1.0, dtype="int32"), "dtype argument to `gamma` must be a float dtype, got int32"),
        (lambda r: r.gamma(r.key(0), A, (3,)), "(?i)do not broadcast|incompatible shapes"),
        (lambda r: r.dirichlet(r.key(0), 1.0), "dirichlet requires alpha.ndim >= 1"),
        (
            lambda r: r.beta(r.key(0), A, 1.0, dtype="bfloat16"),
            r"In arguments to beta, cannot safely cast",
        ),
        (lambda r: r.t(r.split(r.key(0)), 1.0), "accepts a single key"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call(mr)
    with pytest.raises(ValueError):
        call(jr)


def test_no_device_makes_more_than_its_part():
    sharding = NamedSharding(meshrt.make_mesh((4, 2), ("x", "y"), AxisType.Auto), P("x", "y"))
    sample = meshrt.jit(lambda k: mr.gamma(k, 0.7, (16, 24)), out_shardings=sharding)
    partitioned = sample.trace(mr.key(0)).lower().partition()
    made = [math.prod(map(int, d[:-1].split("x"))) for d in re.findall(r"tensor<((?:\d+x)+)", partitioned.as_text())]
    # Keys are pairs of words, and at most three are made of each.
    assert max(made) <= 16 * 24 // 8 * 2 * 3
    whole = mr.gamma(mr.key(0), 0.7, (16, 24))
    np.testing.assert_allclose(sample(mr.key(0)), whole, rtol=1e-5)


def test_over_explicit_axes():
    mesh = meshrt.make_mesh((4, 2), ("x", "y"), AxisType.Explicit)
    a = np.linspace(0.2, 9, 32, dtype=np.float32).reshape(8, 4)
    with meshrt.set_mesh(mesh):
        split = mr.gamma(mr.key(0), meshrt.device_put(a, P("x", "y")))
        asked = mr.gamma(mr.key(0), 2.0, (8, 4), out_sharding=P("x"))
    assert split.sharding.spec == P("x", "y") and asked.sharding.spec == P("x", None)
    np.testing.assert_allclose(split, mr.gamma(mr.key(0), a), rtol=1e-5)
    np.testing.assert_allclose(asked, mr.gamma(mr.key(0), 2.0, (8, 4)), rtol=1e-5)
