"""Schur and Hessenberg form, functions of matrices, Sylvester's equation, tridiagonal matrices: beside JAX's."""

import jax
import jax.scipy.linalg as theirs
import numpy as np
import pytest
import scipy.linalg

import meshrt
import meshrt.scipy.linalg as ours

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(4, 4)), RNG.normal(size=(2, 3, 3))
C = A + 1j * A[::-1]
TALL, WIDE = RNG.normal(size=(4, 2)), RNG.normal(size=(2, 4))
D, E = RNG.normal(size=6), RNG.normal(size=5)
FORM = tuple(np.asarray(x) for x in scipy.linalg.schur(A))

CASES = {
    "schur": lambda m, t: m.schur(t(A)), "schur complex": lambda m, t: m.schur(t(B), "complex"),
    "rsf2csf": lambda m, t: m.rsf2csf(*map(t, FORM)), "rsf2csf one": lambda m, t: m.rsf2csf(t(A[:1, :1]), t(A[:1, :1])),
    "hessenberg": lambda m, t: m.hessenberg(t(B)), "hessenberg q": lambda m, t: m.hessenberg(t(C), calc_q=True),
    "hessenberg one": lambda m, t: m.hessenberg(t(A[:1, :1]), calc_q=True),
    "hessenberg none": lambda m, t: m.hessenberg(t(A[:0, :0])), "sqrtm": lambda m, t: m.sqrtm(t(A)),
    "sqrtm singular": lambda m, t: m.sqrtm(t(np.diag([4.0, 0, 0]))), "funm": lambda m, t: m.funm(t(A), np.cos),
    "funm repeated": lambda m, t: m.funm(t(np.eye(3)), np.exp, disp=False),
    "sylvester": lambda m, t: m.solve_sylvester(t(A), t(B[0]), t(A[:, :3])),
    "sylvester by vectors": lambda m, t: m.solve_sylvester(t(C), t(B), t(A[:, :3]), method="eigen"),
    "sylvester singular": lambda m, t: m.solve_sylvester(t(A), t(-A), t(A), tol=1e-2),
    "tridiagonal": lambda m, t: m.eigh_tridiagonal(t(D), t(E), eigvals_only=True),
    "tridiagonal range": lambda m, t: m.eigh_tridiagonal(t(D), t(E), eigvals_only=True, select="i",
                                                         select_range=(1, 2)),
    "tridiagonal one": lambda m, t: m.eigh_tridiagonal(t(D[:1]), t(E[:0])),
    "qr_multiply": lambda m, t: m.qr_multiply(t(TALL), t(A)),
    "qr_multiply vector": lambda m, t: m.qr_multiply(t(C), t(D[:4])),
    "qr_multiply left": lambda m, t: m.qr_multiply(t(TALL), t(WIDE), "left", pivoting=True),
    "qr_multiply conjugate": lambda m, t: m.qr_multiply(t(C), t(C), "left", conjugate=True),
    "polar": lambda m, t: m.polar(t(TALL)), "polar left": lambda m, t: m.polar(t(np.stack([WIDE, -WIDE])), "left"),
}  # fmt: skip


def single(x):
    return x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", CASES)
def test_values_and_dtypes_are_those_of_jax(name):
    with jax.enable_x64(True), meshrt.enable_x64(True):
        for convert, tolerance in ((single, 2e-3), (lambda x: x, 1e-8)):
            got = meshrt.tree.leaves(CASES[name](ours, convert))
            wanted = jax.tree.leaves(CASES[name](theirs, convert))
            for a, b in zip(got, wanted, strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, tolerance, tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_eigenvectors_of_tridiagonal_matrices(dtype):
    e = (E * (1 + 1j)).astype(dtype) if dtype == np.complex64 else E.astype(dtype)
    matrix = np.diag(D).astype(dtype) + np.diag(e, 1) + np.diag(np.conj(e), -1)
    values, vectors = ours.eigh_tridiagonal(D.astype(dtype), e, select="i", select_range=(2, 4))
    assert vectors.shape == (6, 3) and vectors.dtype == dtype
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[2:5], atol=1e-5)
    np.testing.assert_allclose(matrix @ np.asarray(vectors), np.asarray(vectors) * np.asarray(values), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda m: m.schur(A, "half"), ValueError), (lambda m: m.schur(TALL), ValueError),
        (lambda m: m.rsf2csf(TALL, A), ValueError), (lambda m: m.sqrtm(A, 2), NotImplementedError),
        (lambda m: m.funm(TALL, np.cos), ValueError), (lambda m: m.solve_sylvester(A, A, TALL), ValueError),
        (lambda m: m.solve_sylvester(A, A, A, method="best"), ValueError),
        (lambda m: m.eigh_tridiagonal(D, E.astype(complex)), TypeError),
        (lambda m: m.eigh_tridiagonal(D, E, select="v"), NotImplementedError),
        (lambda m: m.eigh_tridiagonal(D, E, select="i"), ValueError), (lambda m: m.qr_multiply(A, TALL), ValueError),
        (lambda m: m.qr_multiply(A, A, "up"), ValueError), (lambda m: m.polar(WIDE), NotImplementedError),
    ],
)  # fmt: skip
def test_what_jax_refuses_is_refused_alike(call, kind):
    for module in (theirs, ours):
        with pytest.raises(kind):
            call(module)
