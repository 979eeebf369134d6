"""Minima, linear systems by products, codes: meshrt beside JAX and SciPy."""

import jax.scipy.cluster.vq
import jax.scipy.optimize
import jax.scipy.sparse.linalg
import numpy as np
import pytest
import scipy.optimize

import meshrt
import meshrt.numpy as jnp
import meshrt.scipy as ours
from tests.meshrt.beside import assert_alike

RNG = np.random.default_rng(0)
N = 6
B = RNG.normal(size=N).astype(np.float32)
A = RNG.normal(size=(N, N)).astype(np.float32)
A = A @ A.T + N * np.eye(N, dtype=np.float32)
HERMITIAN = (A + 1j * np.tril(A, -1) - 1j * np.triu(A, 1)).astype(np.complex64)
METHODS = ("BFGS", "l-bfgs-experimental-do-not-rely-on-this")


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def himmelblau(p):
    return (p[0] ** 2 + p[1] - 11) ** 2 + (p[0] + p[1] ** 2 - 7) ** 2


@pytest.mark.sweep(2)
@pytest.mark.parametrize("method", METHODS)
def test_minima_are_those_of_scipy(method):
    with meshrt.enable_x64(True):
        for f, start in ((rosenbrock, np.zeros(2)), (rosenbrock, np.zeros(5)), (himmelblau, np.zeros(2))):
            found = ours.optimize.minimize(f, start, method=method)
            wanted = scipy.optimize.minimize(f, start, method="BFGS")
            np.testing.assert_allclose(np.asarray(found.x), wanted.x, 1e-4, 1e-4)
            assert found.success or found.status == 4  # no more to be gained
            assert int(found.nfev) == int(found.njev) >= int(found.nit) > 0


@pytest.mark.sweep(2)
@pytest.mark.parametrize("method", METHODS)
def test_minimisation_is_a_program(method):
    shifted = shifted_of(meshrt)

    def minimum(by):
        return ours.optimize.minimize(shifted, jnp.zeros(4), args=(by,), method=method).x

    found = meshrt.jit(meshrt.vmap(minimum))(np.arange(3.0))
    np.testing.assert_allclose(np.asarray(found), np.arange(3.0)[:, None] * np.ones(4), 1e-4, 1e-5)
    options = {"method": method, "options": {"maxiter": 1}}
    got = ours.optimize.minimize(shifted, jnp.zeros(4), (1.0,), **options)
    wanted = jax.scipy.optimize.minimize(shifted_of(jax), jax.numpy.zeros(4), (1.0,), **options)
    for mine, theirs in zip(meshrt.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (str(mine.dtype), mine.shape) == (str(theirs.dtype), theirs.shape)


def shifted_of(lib):
    return lambda x, by: ((x - by) ** 2 * lib.numpy.arange(1.0, 5.0)).sum()


def test_refused_minima():
    for options in ({"method": "Newton"}, {"method": "BFGS", "args": [1]}):
        assert_alike(lambda lib, o=options: lib.scipy.optimize.minimize(lambda x: x.sum(), lib.numpy.zeros(2), **o))


SOLVERS = [("cg", {}), ("bicgstab", {}), ("gmres", {}), ("gmres", {"solve_method": "incremental"})]


@pytest.mark.parametrize(
    ("name", "options"),
    [SOLVERS[0], SOLVERS[1], *(pytest.param(*each, marks=pytest.mark.slow) for each in SOLVERS[2:])],
)
def test_systems(name, options):
    def program(lib):
        def solve(a, b, **more):
            return getattr(lib.scipy.sparse.linalg, name)(a, b, **options, **more)[0]

        def halves(x):
            return {"a": A @ x["a"], "b": 2 * x["b"]}

        return [
            solve(A, B), solve(A, B, x0=np.ones(N, np.float32), M=np.diag(1 / np.diag(A)), tol=1e-6),
            solve(HERMITIAN, B + 1j), solve(halves, {"a": B, "b": np.ones((2, 2), np.float32)}), solve(A, 0 * B),
            lib.grad(lambda a, b: solve(a, b).sum(), argnums=(0, 1))(A, B), lib.vmap(lambda b: solve(A, b))(A),
            lib.jvp(solve, (A, B), (A, B))[1], solve(A, B, maxiter=0),
        ]  # fmt: skip

    assert_alike(program, 2e-3)


@pytest.mark.parametrize("name", ["cg", "bicgstab", "gmres"])
@pytest.mark.parametrize("arguments", [(A[:3], B), ("x", B), (A, B, B[:3]), (A, B, [B])])
def test_refused_systems(name, arguments):
    assert_alike(lambda lib: getattr(lib.scipy.sparse.linalg, name)(*arguments))


def test_residuals_restarted():
    with meshrt.enable_x64(True):
        a = RNG.normal(size=(40, 40)) + 12 * np.eye(40)
        b = RNG.normal(size=40)
        for way in ("batched", "incremental"):
            x, info = ours.sparse.linalg.gmres(a, b, tol=1e-10, restart=5, solve_method=way)
            np.testing.assert_allclose(a @ np.asarray(x), b, 1e-8, 1e-8)
            assert info == 0


def test_codes():
    x = RNG.normal(size=(5, 4)).astype(np.float32)
    for obs, book in ((x, x[:2] + 1), (x[0], x[1, :2]), (x, x[0]), (x[None], x[None])):
        assert_alike(lambda lib, o=obs, b=book: lib.scipy.cluster.vq.vq(o, b), 1e-4)
