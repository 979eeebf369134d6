"""Decompositions and systems as programs for TPUs compute them, without kernels, on CPUs against those of LAPACK."""

from __future__ import annotations

import functools

import jax
import jax.export
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export, lax
from meshrt.primitives.svd_by_polar import svd_by_polar
from meshrt.primitives.tridiagonal import by_elimination


def matrices(shape, dtype, rank=None, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else 0)
    if rank is not None:
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        x = u[..., :rank] * s[..., None, :rank] @ vt[..., :rank, :]
    return x.astype(dtype)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("shape", "dtype", "rank"), [
    ((5, 3), np.float32, None), ((3, 5), np.complex64, None), ((4, 4), np.float32, 2), ((6, 3), np.float32, 0),
    ((2, 3, 4, 2), np.float32, None), ((3, 4, 4), np.complex64, 3), ((1, 1), np.float32, None),
])  # fmt: skip
def test_factors(shape, dtype, rank, full):
    x = matrices(shape, dtype, rank)
    both = functools.partial(svd_by_polar, full_matrices=full, compute_uv=True)
    s, u, vt = (np.asarray(r) for r in meshrt.jit(both)(x))
    want = np.linalg.svd(x, full_matrices=full)
    assert [a.shape for a in (u, s, vt)] == [a.shape for a in want]
    largest = max(1.0, float(want[1].max(initial=0)))
    np.testing.assert_allclose(s, want[1], atol=1e-5 * largest)
    k = s.shape[-1]
    np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ vt[..., :k, :], x, atol=2e-5 * largest)
    for q in (u, np.swapaxes(vt.conj(), -1, -2)):
        eye = np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1]))
        np.testing.assert_allclose(np.swapaxes(q.conj(), -1, -2) @ q, eye, atol=2e-5)
    (alone,) = meshrt.jit(functools.partial(svd_by_polar, full_matrices=full, compute_uv=False))(x)
    np.testing.assert_allclose(alone, s, atol=1e-6 * largest)


@pytest.mark.parametrize("name", ["svd", "matrix_rank"])
def test_programs_for_tpus_have_them(name):
    """As JAX's have, without a kernel of its own: what they call are decompositions of XLA's."""
    x = np.ones((2, 4, 3), np.float32)
    text = export.export(meshrt.jit(getattr(jnp.linalg, name)), platforms=["tpu"])(x).mlir_module()
    assert "@Eigh" in text and "@Qr" in text
    jax.export.export(jax.jit(getattr(jax.numpy.linalg, name)), platforms=["tpu"])(x)


def test_algorithms_that_tpus_have_not():
    f = meshrt.jit(lambda x: lax.linalg.svd(x, algorithm=lax.linalg.SvdAlgorithm.JACOBI))
    with pytest.raises(errors.UnsupportedError, match="Jacobi is not implemented on TPU; there is POLAR"):
        export.export(f, platforms=["tpu"])(np.ones((3, 3), np.float32))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_tridiagonal_systems_without_a_kernel(batch):
    rng = np.random.default_rng(1)
    dl, d, du = (rng.standard_normal((*batch, 5)).astype(np.float32) for _ in range(3))
    d, b = d + 4, rng.standard_normal((*batch, 5, 2)).astype(np.float32)
    dl[..., 0], du[..., -1] = np.nan, np.inf  # which count for nothing
    found = meshrt.jit(by_elimination)(dl, d, du, b)
    np.testing.assert_allclose(found, lax.linalg.tridiagonal_solve(dl, d, du, b), rtol=1e-5, atol=1e-6)
    text = export.export(meshrt.jit(lax.linalg.tridiagonal_solve), platforms=["tpu"])(dl, d, du, b).mlir_module()
    assert "stablehlo.while" in text and "custom_call" not in text
