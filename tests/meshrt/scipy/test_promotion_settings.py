"""What users ask of promotions in their own code does not concern what the library computes inside."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.scipy import fft, linalg, signal, sparse, special, stats
from meshrt.scipy.spatial.transform import Rotation, Slerp
from tests.meshrt.beside import assert_alike

X = jnp.asarray(np.random.RandomState(0).uniform(0.1, 0.9, (4, 5)).astype(np.float32))
WAVE = jnp.sin(jnp.arange(32, dtype=jnp.float32))
POSITIVE = X[:, :4] @ X[:, :4].T + 4 * jnp.eye(4)
STACK = jnp.stack([POSITIVE, POSITIVE + 1])

CALLS = {
    "dct": lambda: [f(X, norm=n) for f in (fft.dct, fft.idct, fft.dctn, fft.idctn) for n in (None, "ortho")],
    "spectra": lambda: [signal.stft(WAVE, nperseg=8), signal.welch(WAVE, nperseg=8), signal.csd(WAVE, WAVE, nperseg=8)],
    "istft": lambda: signal.istft(signal.stft(WAVE, nperseg=8)[2], nperseg=8),
    "kde": lambda: [
        (g := stats.gaussian_kde(X)).evaluate(X), g.logpdf(X), g.resample(meshrt.random.key(0), (3,)),
        stats.gaussian_kde(X, weights=X[0]).evaluate(X),
    ],
    "rankdata": lambda: [stats.rankdata(X, method=m, axis=0) for m in ("average", "min", "max", "dense", "ordinal")],
    "mode": lambda: stats.mode(X, axis=0),
    "multigammaln": lambda: special.multigammaln(X + 3, 2),
    "fresnel": lambda: special.fresnel(X),
    "expn": lambda: special.expn(jnp.int32(2), X),
    "bessel_jn": lambda: special.bessel_jn(X, v=2),
    "sph_harm_y": lambda: special.sph_harm_y(jnp.array([2]), jnp.array([1]), X[0, :1], X[1, :1], n_max=3),
    "eigh_tridiagonal": lambda: linalg.eigh_tridiagonal(X[0], X[1, :4], eigvals_only=True),
    "solve_sylvester": lambda: linalg.solve_sylvester(POSITIVE, POSITIVE, X[:, :4]),
    "hilbert": lambda: linalg.hilbert(3),
    "funm": lambda: linalg.funm(POSITIVE, jnp.sin),
    "gmres": lambda: [
        sparse.linalg.gmres(POSITIVE, X[:, 0], solve_method=m)[0] for m in ("batched", "incremental")
    ],
    "slerp": lambda: Slerp.init(jnp.array([0.0, 1.0]), Rotation.from_rotvec(X[:2, :3]))(jnp.float32(0.5)).as_quat(),
    "stacks of matrices": lambda: [f(STACK) for f in (jnp.linalg.inv, jnp.linalg.slogdet, linalg.lu, linalg.inv)],
    "matrices of integers": lambda: [
        f(jnp.arange(9).reshape(3, 3) % 5)
        for f in (linalg.eigh, linalg.expm, linalg.lu, linalg.qr, linalg.svd)
    ],
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CALLS)
def test_inside_of_the_library(name):
    with meshrt.numpy_rank_promotion("raise"), meshrt.numpy_dtype_promotion("strict"):
        got = CALLS[name]()
    for a, b in zip(meshrt.tree.leaves(got), meshrt.tree.leaves(CALLS[name]())):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-5, 1e-6)
        assert a.dtype == b.dtype


@pytest.mark.parametrize("base", [np.float32([2, 3]), np.int32([2, 3]), np.uint8([3]), 2, 2.0])
def test_powers_of_known_bools_are_no_promotion(base):
    def program(l):
        with l.numpy_dtype_promotion("strict"):
            return [l.numpy.power(base, True), l.numpy.power(base, False)]

    assert_alike(program)
