"""Decompositions of batches of matrices, and what follows from singular values."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.dimensions.arithmetic import is_surely
from meshrt.core.dimensions.expression import max_dim, min_dim
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.contractions import matmul
from meshrt.numpy.filled import zeros
from meshrt.numpy.indexing import take_along_axis
from meshrt.numpy.logic import logical_and
from meshrt.numpy.operands import ShapeError
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.reductions import sum as total
from meshrt.numpy.results import EighResult, EigResult, QRResult, SVDResult
from meshrt.numpy.shapes import expand_dims, matrix_transpose
from meshrt.numpy.ufuncs import conjugate, real
from meshrt.primitives.householder import geqrf
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = [
    "cholesky", "eig", "eigh", "eigvals", "eigvalsh", "lstsq", "matrix_rank", "pinv", "qr", "svd", "svdvals",
]  # fmt: skip

_product = functools.partial(matmul, precision="highest")


def adjoint(x: Any) -> Any:
    """The conjugate transposes of matrices."""
    return conjugate(matrix_transpose(x))


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    """The lower triangular L with ``a == L @ L^H`` (or its adjoint) for positive definite matrices; NaN without one.

    ``symmetrize_input`` uses (a + a^H) / 2, which makes gradients symmetric; without it only the lower triangle counts.

    Args:
      a: Hermitian positive definite matrices.
      upper: return the upper factor.
      symmetrize_input: use the mean of the matrix and its conjugate transpose.

    >>> jnp.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 2.0]]))
    Array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    factor = lax.linalg.cholesky(*promoted_inexact("cholesky", a), symmetrize_input=symmetrize_input)
    return adjoint(factor) if upper else factor


def qr(a: Any, mode: str = "reduced") -> Any:
    """(Q, R) with ``a == Q @ R``, unitary Q and upper triangular R.

    Args:
      mode: "reduced" leaves out the columns of Q that R does not need, "complete" gives a square Q, "r" R alone, and
        "raw" the transposed packed reflections with their scales.

    >>> jnp.linalg.qr(jnp.ones((3, 2))).R.shape
    (2, 2)
    """
    (x,) = promoted_inexact("qr", a)
    if mode not in ("reduced", "complete", "r", "full", "raw"):
        raise errors.ArgumentValueError(
            f"Unsupported QR decomposition mode {mode!r}; it must be 'reduced', 'complete', 'r' or 'raw'"
        )
    if mode == "raw":
        packed, taus = geqrf(x)
        return QRResult(matrix_transpose(packed), taus)
    q, r = lax.linalg.qr(x, full_matrices=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


# ----------------------------------------------------------------------------------------------------------
# Eigenvalues


def eig(a: Any) -> EigResult:
    """(eigenvalues, eigenvectors as columns) of square matrices, complex.

    >>> jnp.linalg.eig(jnp.array([[2.0, 0.0], [0.0, 3.0]])).eigenvalues
    Array([2.+0.j, 3.+0.j], dtype=complex64)
    """
    return EigResult(*lax.linalg.eig(*promoted_inexact("eig", a), compute_left_eigenvectors=False))


def eigvals(a: Any) -> Any:
    """The eigenvalues of square matrices, complex.

    >>> jnp.linalg.eigvals(jnp.array([[0.0, 1.0], [-1.0, 0.0]]))
    Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    (x,) = promoted_inexact("eigvals", a)
    return lax.linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """(ascending eigenvalues, eigenvectors as columns) of Hermitian matrices.

    Args:
      UPLO: which triangle is read, "L" (the default) or "U".
      symmetrize_input: use (a + a^H) / 2, so that both are.

    >>> jnp.linalg.eigh(jnp.array([[2.0, 0.0], [0.0, 3.0]])).eigenvalues
    Array([2., 3.], dtype=float32)
    """
    if UPLO not in (None, "L", "U"):
        raise errors.ArgumentValueError(f"UPLO must be one of None, 'L', or 'U', got {UPLO}")
    (x,) = promoted_inexact("eigh", a)
    vectors, values = lax.linalg.eigh(x, lower=UPLO != "U", symmetrize_input=symmetrize_input)
    return EighResult(values, vectors)


def eigvalsh(a: Any, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Any:
    """The ascending eigenvalues of Hermitian matrices; see :func:`eigh`.

    Args:
      a: an array, or what `asarray` makes one of.
      UPLO: which triangle is read: "L" or "U".
      symmetrize_input: use the mean of the matrix and its conjugate transpose.

    >>> jnp.linalg.eigvalsh(jnp.array([[2.0, 0.0], [0.0, 3.0]]))
    Array([2., 3.], dtype=float32)
    """
    return eigh(a, UPLO, symmetrize_input).eigenvalues


# ----------------------------------------------------------------------------------------------------------
# Singular values


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:  # fmt: skip
    """(U, S, Vh) with ``a == U @ diag(S) @ Vh``, unitary U and Vh, and descending S; S alone without ``compute_uv``.

    Args:
      full_matrices: give square U and Vh.
      hermitian: promises that the matrices are, which eigenvalues then serve for.
      subset_by_index: all singular values at most; LAPACK computes them together.

    >>> jnp.linalg.svd(jnp.array([[3.0, 0.0], [0.0, 4.0]])).S
    Array([4., 3.], dtype=float32)
    """
    (x,) = promoted_inexact("svd", a)
    if hermitian:
        return _hermitian_svd(x, compute_uv, subset_by_index)
    if (
        subset_by_index is not None
        and x.ndim > 1
        and full_matrices
        and compute_uv
        and subset_by_index != (0, min_dim(*x.shape[-2:]))
    ):
        raise errors.ArgumentValueError("svd: full_matrices and subset_by_index cannot both be set")
    if subset_by_index is not None and x.ndim > 1 and subset_by_index == (0, min_dim(*x.shape[-2:])):
        subset_by_index = None
    out = lax.linalg.svd(x, full_matrices=full_matrices, compute_uv=compute_uv, subset_by_index=subset_by_index)
    return SVDResult(*out) if compute_uv else out


def _hermitian_svd(x: Any, compute_uv: bool, subset: tuple[int, int] | None) -> Any:
    vectors, values = lax.linalg.eigh(x, subset_by_index=subset)
    size, last = el.abs_p.bind(values), values.ndim - 1
    if not compute_uv:
        return lax.rev(lax.sort(size, dimension=last), (last,))
    positions = lax.broadcasted_iota(np.int32, size.shape, last)
    ordered = lax.sort((size, positions, el.sign_p.bind(values)), dimension=last, num_keys=1)
    size, positions, signs = (lax.rev(v, (last,)) for v in ordered)
    u = take_along_axis(vectors, positions[..., None, :], axis=-1)
    return SVDResult(u, size, adjoint(u * signs[..., None, :].astype(u.dtype)))


def svdvals(x: Any, /) -> Any:
    """The descending singular values of matrices.

    >>> jnp.linalg.svdvals(jnp.array([[3.0, 0.0], [0.0, 4.0]]))
    Array([4., 3.], dtype=float32)
    """
    return svd(x, compute_uv=False)


def matrix_rank(M: Any, rtol: Any = None, *, hermitian: bool = False, tol: Any = None) -> Any:
    """The number of singular values above ``rtol`` (by default the largest one times the size and the precision).

    Args:
      M: matrices.
      rtol: singular values below it count as zero.
      hermitian: the operand is known to be Hermitian.
      tol: the former name of `rtol`.

    >>> jnp.linalg.matrix_rank(jnp.array([[1.0, 2.0], [2.0, 4.0]]))
    Array(1, dtype=int32)
    """
    x = operand_array("matrix_rank", M)
    if tol is not None:
        if rtol is not None:
            raise errors.ArgumentValueError("matrix_rank: give either rtol or tol, not both")
        rtol = tol
    (x,) = promoted_inexact("matrix_rank", x)
    if x.ndim < 2:
        return any_(x != 0).astype(np.int32)
    s = svd(x, full_matrices=False, compute_uv=False, hermitian=hermitian)
    if rtol is None:
        rtol = s.max(-1) * asarray(max_dim(*x.shape[-2:]) * dtypes.finfo(s.dtype).eps, s.dtype)
    rtol = asarray(rtol)
    return total(s > expand_dims(rtol, rtol.ndim), -1)


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Any:
    """The pseudo-inverses of matrices; singular values below ``rtol`` times the largest count as zero.

    Args:
      a: an array, or what `asarray` makes one of.
      rtol: singular values below this part of the largest count as zero.
      hermitian: the operand is known to be Hermitian.
      rcond: the former name of `rtol`.

    >>> jnp.linalg.pinv(jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    if rcond is not None:
        if rtol is not None:
            raise errors.ArgumentValueError("pinv: give either rtol or rcond, not both")
        rtol = rcond
    (x,) = promoted_inexact("pinv", a)
    if x.ndim < 2:
        raise ShapeError(f"pinv needs matrices, got shape {x.shape}")
    return _pinv(x, rtol, hermitian)


@functools.partial(custom_jvp, nondiff_argnums=(1, 2))
def _pinv(x: Any, rtol: Any, hermitian: bool) -> Any:
    m, n = x.shape[-2:]
    if m == 0 or n == 0:
        return zeros((*x.shape[:-2], n, m), x.dtype)
    u, s, vh = svd(conjugate(x), full_matrices=False, hermitian=hermitian)
    tolerance = 10.0 * max_dim(m, n) * dtypes.finfo(x.dtype).eps if rtol is None else rtol
    tolerance = asarray(tolerance, s.dtype)
    tolerance = lax.expand_dims(tolerance[..., None], tuple(range(s.ndim - tolerance.ndim - 1)))
    s = choose(s > tolerance * s[..., :1], s, np.inf).astype(u.dtype)
    return _product(matrix_transpose(vh), matrix_transpose(u) / s[..., None])


@_pinv.defjvp
def _pinv_jvp(rtol: Any, hermitian: bool, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """Golub and Pereyra, "The differentiation of pseudo-inverses" (1973): three terms, by small products."""
    (a,), (t,) = primals, tangents
    p = _pinv(a, rtol, hermitian)
    if hermitian:
        a, t = ((x + adjoint(x)) / 2 for x in (a, t))
    p_h, t_h = adjoint(p), adjoint(t)
    if is_surely(lambda: a.shape[-2] >= a.shape[-1]):  # either way is right, this one is shorter then
        rows, columns = _product(_product(p, p_h), t_h), _product(_product(t_h, p_h), p)
        rows = rows - _product(_product(rows, a), p)
        columns = columns - _product(_product(p, a), columns)
        return p, rows + columns - _product(_product(p, t), p)
    rows, columns = _product(p, _product(p_h, t_h)), _product(t_h, _product(p_h, p))
    rows = rows - _product(rows, _product(a, p))
    columns = columns - _product(p, _product(a, columns))
    return p, rows + columns - _product(p, _product(t, p))


def lstsq(a: Any, b: Any, rcond: float | None = None, *, numpy_resid: bool = False) -> tuple[Any, Any, Any, Any]:
    """(x, squared distances, rank of a, its singular values), x with the least distances of ``a @ x`` from ``b``.

    Args:
      b: a vector, or a matrix with one problem per column.
      rcond: singular values below this part of the largest one count as zero.
      numpy_resid: give no distances where NumPy gives none, for which the operands must be concrete.

    >>> jnp.linalg.lstsq(jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([1.0, 4.0]))[0]
    Array([1., 2.], dtype=float32)
    """
    a, b = promoted_inexact("lstsq", a, b)
    if not a.ndim or not b.ndim or a.shape[0] != b.shape[0]:
        raise ShapeError(f"Leading dimensions of input arrays must match, got {a.shape} and {b.shape}")
    if a.ndim != 2 or b.ndim > 2:
        raise errors.ArgumentTypeError(
            f"{(a if a.ndim != 2 else b).ndim}-dimensional array given. Array must be two-dimensional: lstsq takes a "
            f"matrix and a vector or a matrix, got {a.shape} and {b.shape}"
        )
    vector = b.ndim == 1
    b = b[:, None] if vector else b
    m, n = a.shape
    if not a.size:
        s, rank, x = zeros(0, a.dtype), zeros((), dtypes.default_int_dtype()), zeros((n, b.shape[1]), a.dtype)
    else:
        x, rank, s = _least_squares(a, b, rcond)
    if numpy_resid and (m <= n or int(rank) < n):
        distances = zeros(0)
    else:
        rest = b - _product(a, x)
        distances = total(real(rest * conjugate(rest)), 0)
    return (x[:, 0] if vector else x), distances, rank, s


def _least_squares(a: Any, b: Any, rcond: Any) -> tuple[Any, Any, Any]:
    eps = dtypes.finfo(a.dtype).eps
    u, s, vh = svd(a, full_matrices=False)
    if rcond is None:
        rcond = float(eps) * max_dim(*a.shape)
    elif isinstance(rcond, int | float):
        rcond = float(eps) if rcond < 0 else rcond
    else:
        rcond = choose(asarray(rcond) < 0, eps, rcond)
    used = logical_and(s > 0, s >= asarray(rcond, s.dtype) * s[0])
    safe = choose(used, s, 1).astype(a.dtype)
    inverse = choose(used, 1 / safe, 0)[:, None]
    x = _product(adjoint(vh), inverse * _product(adjoint(u), b))
    return x, total(used), s
