"""Rows of the linalg, decomposition and fft families."""

from __future__ import annotations

import numpy as np

from tests.meshrt.primitives.cases import C64, F32, Arg, Case, normal, with_dtypes

CASES: list[Case] = []


def row(name, fun, args, dtypes=(F32, C64), **options):
    CASES.extend(with_dtypes(lambda d: Case(name, fun, tuple(args(d)), **options), dtypes))


def triangular(*shape, dtype):
    """Matrices with a dominant diagonal (both triangles are filled: only one may be read)."""

    def sample(rng):
        x = rng.standard_normal(shape) * 0.3 + 2 * np.eye(shape[-1])
        return (x + 0.3j * rng.standard_normal(shape) if dtype == C64 else x).astype(dtype)

    return Arg(sample)


def definite(*shape, dtype):
    def sample(rng):
        x = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == C64 else 0)
        return (0.3 * x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(shape[-1])).astype(dtype)

    return Arg(sample)


for _name, _options in {
    "left lower": {"left_side": True, "lower": True},
    "right upper": {},
    "left upper transposed": {"left_side": True, "transpose_a": True},
    "right lower adjoint": {"lower": True, "transpose_a": True, "conjugate_a": True},
    "left lower conjugate unit": {"left_side": True, "lower": True, "conjugate_a": True, "unit_diagonal": True},
}.items():
    _shape = (3, 2) if "left" in _name else (2, 3)
    row(
        f"triangular_solve {_name}",
        lambda lax, a, b, o=_options: lax.linalg.triangular_solve(a, b, **o),
        lambda d, s=_shape: (triangular(3, 3, dtype=d), normal(*s, dtype=d)),
    )
row(
    "triangular_solve batch",
    lambda lax, a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    lambda d: (triangular(2, 3, 3, dtype=d), normal(2, 3, 1, dtype=d)),
    dtypes=(F32,),
)
row("cholesky", lambda lax, x: lax.linalg.cholesky(x), lambda d: (definite(3, 3, dtype=d),), scale=4)
row(
    "cholesky batch",
    lambda lax, x: lax.linalg.cholesky(x),
    lambda d: (definite(2, 3, 3, dtype=d),),
    dtypes=(F32,),
    scale=4,
)

for _kind in ("FFT", "IFFT"):
    row(f"fft {_kind}", lambda lax, x, k=_kind: lax.fft(x, k, (5,)), lambda d: (normal(2, 5, dtype=d),), dtypes=(C64,))
row("fft 2d", lambda lax, x: lax.fft(x, "FFT", (3, 4)), lambda d: (normal(2, 3, 4, dtype=d),), dtypes=(C64,))
for _n in (6, 7):
    row(
        f"fft RFFT {_n}",
        lambda lax, x, n=_n: lax.fft(x, "RFFT", (n,)),
        lambda d, n=_n: (normal(2, n, dtype=d),),
        dtypes=(F32,),
    )
    row(
        f"fft IRFFT {_n}",
        lambda lax, x, n=_n: lax.fft(x, "IRFFT", (3, n)),
        lambda d, n=_n: (normal(3, n // 2 + 1, dtype=d),),
        dtypes=(C64,),
    )

# Decompositions. Eigen- and singular values are distinct; vectors are unique up to signs, which LAPACK chooses alike.
row("qr", lambda lax, x: lax.linalg.qr(x, full_matrices=False), lambda d: (normal(4, 3, dtype=d),), scale=10)
row("qr square", lambda lax, x: lax.linalg.qr(x), lambda d: (triangular(3, 3, dtype=d),), dtypes=(F32,), scale=10)
row("qr full", lambda lax, x: lax.linalg.qr(x), lambda d: (normal(4, 3, dtype=d),), derivatives=1, scale=40)
row("qr wide", lambda lax, x: lax.linalg.qr(x), lambda d: (normal(3, 4, dtype=d),), derivatives=1, scale=40)
row("lu", lambda lax, x: lax.linalg.lu(lax.neg(x))[0], lambda d: (triangular(3, 3, dtype=d),), scale=10)
row("lu tall", lambda lax, x: lax.linalg.lu(x), lambda d: (normal(2, 4, 3, dtype=d),), dtypes=(F32,), derivatives=0)
row("lu wide", lambda lax, x: lax.linalg.lu(x), lambda d: (normal(3, 4, dtype=d),), dtypes=(F32,), derivatives=0)
row(
    "eig",
    lambda lax, x: lax.linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0],
    lambda d: (triangular(3, 3, dtype=d),),
    derivatives=1,
    finite=False,
    scale=40,
)
row(
    "eig vectors",
    lambda lax, x: lax.linalg.eig(x, enable_eigvec_derivs=True),
    lambda d: (triangular(3, 3, dtype=d),),
    dtypes=(F32,),
    derivatives=1,
    finite=False,
    scale=100,
)
row("eigh", lambda lax, x: lax.linalg.eigh(x), lambda d: (definite(3, 3, dtype=d),), scale=20)
row("svd", lambda lax, x: lax.linalg.svd(x, full_matrices=False), lambda d: (normal(4, 3, dtype=d),), scale=40)
row(
    "svd wide",
    lambda lax, x: lax.linalg.svd(x, full_matrices=False),
    lambda d: (normal(2, 3, dtype=d),),
    dtypes=(F32,),
    scale=40,
)
row("svd full", lambda lax, x: lax.linalg.svd(x), lambda d: (normal(4, 3, dtype=d),), dtypes=(F32,), derivatives=0)
row(
    "svd values",
    lambda lax, x: lax.linalg.svd(x, compute_uv=False),
    lambda d: (normal(2, 3, 3, dtype=d),),
    dtypes=(F32,),
    scale=10,
)
