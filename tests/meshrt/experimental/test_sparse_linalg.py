"""`experimental.sparse.linalg`: the largest eigenvalues by LOBPCG, and SciPy's direct solver within programs."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import meshrt
from meshrt.experimental.sparse import linalg

N, K = 100, 10


def _ring():
    first = np.zeros(N)
    first[1] = 1
    around = scipy.linalg.toeplitz(first)
    return np.diag(around.sum(1)) - around, 2 * (1 - np.cos(np.pi * np.arange(N) / N))


SPECTRA = {"wide": np.logspace(0, 5, N), "half a cluster": [1000] * 5 + [1] * 95}


@pytest.mark.parametrize("name", [*SPECTRA, "ring"])
def test_largest_eigenvalues(name):
    matrix, values = _ring() if name == "ring" else (np.diag(SPECTRA[name]), SPECTRA[name])
    matrix, values = matrix.astype(np.float32), np.sort(values)[::-1][:K]
    limit = 60 if name == "ring" else 20
    start = np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)
    tol = 2e-6 if "cluster" in name else None
    with meshrt.numpy_rank_promotion("raise"), meshrt.debug_nans(True):
        theta, vectors, i = map(np.asarray, linalg.lobpcg_standard(matrix, start, limit, tol))
    assert theta.dtype == vectors.dtype == np.float32 and i < limit and (theta[:-1] >= theta[1:]).all()
    np.testing.assert_allclose(theta, values, rtol=10 * np.sqrt(tol or 1.2e-7))
    left = np.linalg.norm(matrix @ vectors - theta * vectors, axis=0)
    allowed = 20 * N * (tol or 1.2e-7) * theta
    assert (left <= allowed).all(), (left, allowed)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(K), atol=1e-5)


def test_a_function_as_the_matrix_in_64_bits():
    values = np.logspace(0, 3, N)
    with meshrt.enable_x64(True):
        start = np.random.default_rng(0).standard_normal((N, K))
        theta, _, i = linalg.lobpcg_standard(lambda x: values[:, None] * x, start, 60, tol=0.0)
    assert theta.dtype == np.float64 and i == 60  # no tolerance: as many as may be
    np.testing.assert_allclose(theta, values[::-1][:K], rtol=1e-10)


X, UNIT = np.ones((N, K), np.float32), np.eye(N, dtype=np.float32)
BAD = [
    ((UNIT, X[:, :0]), "search dim > 0"),
    ((lambda x: x.astype(np.float16), X), "A, X must have same dtypes"),
    ((UNIT[:60], X), r"A must be \(100, 100\)"),
    ((UNIT[:50, :50], X[:50]), r"search dim \* 5 < matrix dim"),
    ((UNIT, X[0]), r"X must be \(n, k\)"),
]


@pytest.mark.parametrize("l", ["meshrt", "jax"])
@pytest.mark.parametrize("arguments, message", BAD[:4])
def test_what_does_not_fit_is_refused(l, arguments, message):
    with pytest.raises(ValueError, match=message):
        importlib.import_module(f"{l}.experimental.sparse.linalg").lobpcg_standard(*arguments)


def test_spsolve_and_its_derivatives_are_those_of_jax():
    matrix = scipy.sparse.random(12, 12, 0.3, random_state=0, dtype=np.float32) + 3 * scipy.sparse.eye(12)
    matrix, b = scipy.sparse.csr_matrix(matrix, dtype=np.float32), np.arange(12, dtype=np.float32)

    def found(l):
        solve = importlib.import_module(f"{l.__name__}.experimental.sparse.linalg").spsolve
        f = lambda data, b: solve(data, matrix.indices, matrix.indptr, b)
        by_both = l.grad(lambda data, b: (f(data, b) ** 2).sum(), (0, 1))(matrix.data, b)
        return [np.asarray(x) for x in (f(matrix.data, b), l.jit(f)(matrix.data, b), *by_both)]

    jax = importlib.import_module("jax")
    for ours, theirs in zip(found(meshrt), found(jax)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"indptr of shape \(n \+ 1,\)"):
        linalg.spsolve(matrix.data, matrix.indices, matrix.indptr[1:], b)
