"""Linear algebra beside JAX's and SciPy's."""

import jax
import jax.scipy.linalg as theirs
import numpy as np
import pytest
import scipy.linalg

import meshrt
import meshrt.scipy.linalg as ours

RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 4)).astype(np.float32)
POSITIVE = (A @ A.T + 4 * np.eye(4)).astype(np.float32)
B, V = RNG.normal(size=(4, 2)).astype(np.float32), RNG.normal(size=4).astype(np.float32)
WIDE = RNG.normal(size=(3, 5)).astype(np.float32)
STACK = np.stack([POSITIVE, POSITIVE + np.eye(4, dtype=np.float32)])
C = (A + 1j * A[::-1]).astype(np.complex64)
L = np.tril(POSITIVE)

CASES = {
    "cholesky": lambda m: m.cholesky(POSITIVE), "cholesky lower": lambda m: m.cholesky(POSITIVE, lower=True),
    "cholesky stack": lambda m: m.cholesky(STACK), "cho_solve": lambda m: m.cho_solve(m.cho_factor(POSITIVE), B),
    "cho_solve lower": lambda m: m.cho_solve(m.cho_factor(POSITIVE, True), V), "det": lambda m: m.det(A),
    "inv": lambda m: m.inv(A), "eigh": lambda m: m.eigh(POSITIVE, eigvals_only=True), "lu": lambda m: m.lu(A),
    "lu wide": lambda m: m.lu(WIDE), "lu tall": lambda m: m.lu(WIDE.T, permute_l=True),
    "lu_factor": lambda m: m.lu_factor(A), "lu_solve": lambda m: m.lu_solve(m.lu_factor(A), B),
    "lu_solve T": lambda m: m.lu_solve(m.lu_factor(A), V, trans=1),
    "lu_solve H": lambda m: m.lu_solve(m.lu_factor(C), B.astype(np.complex64), trans=2),
    "qr r": lambda m: [abs(x) for x in m.qr(A, mode="r")], "solve": lambda m: m.solve(A, B),
    "solve pos": lambda m: m.solve(POSITIVE, V, assume_a="pos"),
    "triangle": lambda m: m.solve_triangular(L, B, lower=True),
    "triangle T": lambda m: m.solve_triangular(L, V, trans="T", lower=True),
    "triangle H": lambda m: m.solve_triangular(np.triu(C), V, trans=2, unit_diagonal=True),
    "svd": lambda m: m.svd(WIDE, compute_uv=False), "expm": lambda m: m.expm(A), "expm large": lambda m: m.expm(4 * A),
    "expm stack": lambda m: m.expm(np.stack([A, A / 9])), "expm complex": lambda m: m.expm(C),
    "expm triangle": lambda m: m.expm(np.triu(A), upper_triangular=True),
    "expm none": lambda m: m.expm(99 * A, max_squarings=2),
    "expm_frechet": lambda m: m.expm_frechet(A, POSITIVE), "polar": lambda m: m.polar(A, method="svd"),
    "polar left": lambda m: m.polar(A, "left", method="svd"), "block_diag": lambda m: m.block_diag(A, 2, V, WIDE),
    "block_diag ints": lambda m: m.block_diag(np.eye(2, dtype=int), np.ones((1, 3), int)),
    "no blocks": lambda m: m.block_diag(),
    "toeplitz": lambda m: m.toeplitz(V), "toeplitz rows": lambda m: m.toeplitz(V, WIDE[0]),
    "toeplitz complex": lambda m: m.toeplitz(C[0]), "toeplitz stack": lambda m: m.toeplitz(A, WIDE[0]),
    "hankel": lambda m: m.hankel(V), "hankel rows": lambda m: m.hankel(V, WIDE[0]),
    "circulant": lambda m: m.circulant(V),
    "leslie": lambda m: m.leslie(V, V[1:]), "companion": lambda m: m.companion(V), "fiedler": lambda m: m.fiedler(V),
    **{f"fiedler_companion {n}": lambda m, n=n: m.fiedler_companion(np.arange(1.0, n + 1))
       for n in (1, 2, 3, 4, 5, 6, 7)},
    **{f"convolution_matrix {mode} {n}": lambda m, mode=mode, n=n: m.convolution_matrix(V, n, mode)
       for mode in ("full", "same", "valid") for n in (2, 3, 6)},
    "hilbert": lambda m: m.hilbert(5), "invhilbert": lambda m: m.invhilbert(5), "pascal": lambda m: m.pascal(5),
    "pascal lower": lambda m: m.pascal(4, "lower"), "invpascal": lambda m: m.invpascal(4),
    "invpascal upper": lambda m: m.invpascal(4, "upper"), "helmert": lambda m: m.helmert(4),
    "helmert full": lambda m: m.helmert(4, full=True), "hadamard": lambda m: m.hadamard(8),
    "hadamard 1": lambda m: m.hadamard(1, np.float32),
    "expm empty": lambda m: m.expm(STACK[:, :0, :0]), "lu list": lambda m: m.lu(A.tolist()),
    "eigh list": lambda m: m.eigh(POSITIVE.tolist())[0],
    "dft": lambda m: m.dft(5), "dft root": lambda m: m.dft(4,
    "sqrtn"),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_values_and_dtypes_are_those_of_jax(name):
    call = CASES[name]
    got, wanted = meshrt.tree.leaves(call(ours)), jax.tree.leaves(call(theirs))
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        assert np.asarray(a).shape == b.shape and np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), 2e-3, 2e-4)


def test_factors_multiply_to_the_matrix():
    p, low, up = (np.asarray(x) for x in ours.lu(A))
    np.testing.assert_allclose(p @ low @ up, A, 1e-4, 1e-5)
    q, r = (np.asarray(x) for x in ours.qr(WIDE, mode="economic"))
    np.testing.assert_allclose(q @ r, WIDE, 1e-4, 1e-5)
    values, vectors = (np.asarray(x) for x in ours.eigh(POSITIVE))
    np.testing.assert_allclose(vectors * values @ vectors.T, POSITIVE, 1e-4, 1e-4)
    unitary, rest = (np.asarray(x) for x in ours.polar(C))
    np.testing.assert_allclose(unitary @ rest, C, 1e-3, 1e-4)
    with meshrt.enable_x64(True):
        for scale in (1e-3, 0.3, 3.0, 40.0):
            matrix = scale * A.astype(np.float64)
            np.testing.assert_allclose(np.asarray(ours.expm(matrix)), scipy.linalg.expm(matrix), 1e-9)


def test_derivatives():
    for f in (lambda m: lambda a: m.expm(a / 4).sum(),
    lambda m: lambda a: m.solve(a @ a.T + 4 * np.eye(4), V, assume_a="pos").sum(),
              lambda m: lambda a: m.lu_solve(m.lu_factor(a), V).sum(),
              lambda m: lambda a: m.cholesky(a @ a.T + 4 * np.eye(4)).sum(),
              lambda m: lambda a: m.toeplitz(a[0]).sum() + m.det(a)):  # fmt: skip
        got, wanted = meshrt.grad(f(ours))(A), jax.grad(f(theirs))(A)
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), 5e-3, 5e-4)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda m: m.eigh(POSITIVE, POSITIVE), NotImplementedError),
        (lambda m: m.lu_solve(m.lu_factor(A), B, 3), ValueError),
        (lambda m: m.qr(A, mode="best"), ValueError), (lambda m: m.solve(A, B, assume_a="nice"), ValueError),
        (lambda m: m.solve_triangular(L, B, trans=5), ValueError), (lambda m: m.polar(A, side="up"), ValueError),
        (lambda m: m.polar(V), ValueError), (lambda m: m.expm(WIDE), ValueError),
        (lambda m: m.expm(A.astype(np.float16)), TypeError),
        (lambda m: m.expm_frechet(A, WIDE), ValueError), (lambda m: m.block_diag(STACK), ValueError),
        (lambda m: m.hankel(2.0), ValueError), (lambda m: m.leslie(V, V), ValueError),
        (lambda m: m.companion(V[:1]), ValueError),
        (lambda m: m.convolution_matrix(V, 0), ValueError), (lambda m: m.convolution_matrix(V, 2, "most"), ValueError),
        (lambda m: m.pascal(3, "middle"), ValueError), (lambda m: m.helmert(0), ValueError),
        (lambda m: m.hadamard(3), ValueError),
        (lambda m: m.dft(3, "half"), ValueError), (lambda m: m.dft(3, dtype=np.float32), ValueError),
        (lambda m: m.fiedler([1.0]), TypeError), (lambda m: m.eigh(WIDE), TypeError), (lambda m: m.lu(V), TypeError),
        (lambda m: m.det(A.tolist()), TypeError), (lambda m: m.inv(WIDE), ValueError),
    ],
)  # fmt: skip
def test_what_jax_refuses_is_refused_alike(call, kind):
    for module in (theirs, ours):
        with pytest.raises(kind):
            call(module)
