"""Incomplete gamma and beta, Bessel and zeta functions at the borders of their domains; SciPy and JAX judge."""

import jax
import numpy as np
import pytest
import scipy.special

import meshrt
from meshrt import errors
from meshrt.primitives import incomplete
from meshrt.sharding import AxisType, NamedSharding, make_mesh
from meshrt.sharding import PartitionSpec as P

EDGES = [0, 1e-30, 1e-10, 1e-3, 0.1, 0.5, 1, 1.5, 2, 5, 10, 30, 100, np.inf, -1, np.nan]
# Relative and absolute: complements of numbers near 1 have no more digits.
CLOSE = {np.float32: (4e-5, 2e-6), np.float64: (1e-12, 1e-14)}


def grid(dtype, *axes):
    return [a.ravel() for a in np.meshgrid(*(np.array(axis, dtype) for axis in axes))]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("name", "judge"), [("igamma", "gammainc"), ("igammac", "gammaincc"), ("betainc", "betainc")])
def test_edges_are_those_of_scipy(name, judge, dtype):
    axes = [EDGES] * 2 if name != "betainc" else [[0.1, 0.5, 1, 3, 30, np.inf, -1], [0.2, 1, 4], [0, 0.1, 0.5, 1, 1.1]]
    with meshrt.enable_x64(True):
        args = grid(dtype, *axes)
        ours = np.asarray(getattr(meshrt.lax, name)(*args))
    with np.errstate(all="ignore"):
        wanted = getattr(scipy.special, judge)(*[a.astype(np.float64) for a in args])
    # Where all of the mass is at both ends SciPy takes one side.
    sure = ~((args[0] == np.inf) & (args[1] == np.inf))
    np.testing.assert_allclose(ours[sure], wanted[sure], *CLOSE[dtype])


@pytest.mark.parametrize("name", ["igamma_grad_a", "random_gamma_grad"])
def test_slopes_in_a_are_those_of_jax(name):
    args = grid(np.float32, [0, 0.1, 0.5, 1, 2.5, 10, 100, -1, np.nan], [0, 0.05, 0.5, 1, 3, 20, 110, -1])
    ours, theirs = (np.asarray(getattr(lib.lax, name)(*args)) for lib in (meshrt, jax))
    np.testing.assert_allclose(ours, theirs, 2e-5, 1e-12)


@pytest.mark.parametrize("dtype", CLOSE)
def test_bessel_functions_are_those_of_scipy(dtype):
    x = np.concatenate([np.linspace(-40, 40, 801), [1e5, 1e10, np.inf, -np.inf, np.nan]]).astype(dtype)
    with meshrt.enable_x64(True):
        for name in ("i0e", "i1e"):
            ours = np.asarray(getattr(meshrt.lax, f"bessel_{name}")(x))
            np.testing.assert_allclose(ours, getattr(scipy.special, name)(x), 20 * np.finfo(dtype).eps)


def test_derivatives_that_are_not_known_are_refused():
    x = np.full(3, 0.5, np.float32)
    for f in (lambda a: meshrt.lax.betainc(a, x, x), lambda a: meshrt.lax.betainc(x, a, x),
              lambda a: meshrt.lax.polygamma(a, x), lambda a: meshrt.lax.zeta(a, x),
              meshrt.grad(lambda a: meshrt.lax.igamma(a, x).sum())):  # fmt: skip
        with pytest.raises(errors.DifferentiationError, match="with respect to"):
            meshrt.grad(lambda a, f=f: f(a).sum())(x + 1)


def test_sharded_elements_iterate_where_they_are():
    x = np.linspace(0.1, 8, 32, dtype=np.float32).reshape(8, 4)
    wanted = np.asarray(jax.lax.igamma(x, x + 1))
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = make_mesh((4, 2), ("x", "y"), (kind,) * 2)
        a = meshrt.device_put(x, NamedSharding(mesh, P("x", "y")))
        out = meshrt.jit(meshrt.lax.igamma)(a, a + 1)
        assert out.sharding.spec == P("x", "y")
        np.testing.assert_allclose(np.asarray(out), wanted, 1e-5)


def test_incomplete_gamma_functions_stop_late_enough(monkeypatch):
    """Where float32 barely tells a from a + 1 their series converge last: with more steps they give the same."""
    drawn = np.random.default_rng(0)
    a = np.float32(10 ** drawn.uniform(5, 7.2, 200))
    x = np.float32(a * (1 + drawn.normal(size=200) * 3 / np.sqrt(a)))

    def values():
        found = meshrt.jit(lambda a, x: (incomplete.igamma(a, x), incomplete.igamma_grad_a(a, x)))(a, x)
        return [np.asarray(v) for v in found]

    ours = values()
    monkeypatch.setattr(incomplete, "_most_steps", lambda eps: 1 << 17)
    for got, wanted in zip(ours, values()):
        np.testing.assert_array_equal(got, wanted)
    monkeypatch.setattr(incomplete, "_most_steps", lambda eps: 1 << 10)  # (the setting does reach them)
    assert not np.array_equal(ours[0], values()[0])
