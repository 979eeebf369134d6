"""Matrix decompositions that LAPACK computes: QR, Hermitian eigenvalues, singular values.

They run on CPU, through the kernels that ship with jaxlib. The derivatives are those of Giles, "An extended collection
of matrix derivative results for forward and reverse mode automatic differentiation" (2008), for distinct eigenvalues
and singular values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import broadcast_in_dim, i64_array, reduce_sum_p, zeros
from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.lapack import (
    INFO,
    batch_leading,
    call_kernel,
    check_matrix,
    nan_unless_ok,
    real_dtype,
    slice_matrix,
    write_eye,
)
from meshrt.primitives.linalg import adjoint, check_square, matmul, matrix_transpose, triangle, triangular_solve
from meshrt.primitives.lu import lu, lu_solve
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.slice import slice_in_dim

# ----------------------------------------------------------------------------------------------------------
# QR


def _qr_infer(x: ShapedArray, *, full_matrices: bool) -> Any:
    check_matrix("qr", x)
    (*batch, m, n) = x.shape
    k = m if full_matrices else min(m, n)
    return [ShapedArray(shape, x.dtype, x.weak_type) for shape in ((*batch, m, k), (*batch, k, n))]


def _qr_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, (q_aval, r_aval) = eqn.invars[0].aval.strong(), [v.aval for v in eqn.outvars]
    (*batch, m, n), k = aval.shape, q_aval.shape[-1]
    if not m or not n:
        return [write_eye(ctx, q_aval), ctx.full(0, r_aval.strong())]
    tau = ShapedArray((*batch, min(m, n)), aval.dtype)
    packed, taus = call_kernel(ctx, "geqrf", [x], [aval], [aval, tau])
    reflectors = slice_matrix(ctx, packed, aval, m, min(k, n))
    if k > n:
        high = [0] * (aval.ndim - 1) + [k - n]
        zeros = i64_array([0] * aval.ndim)
        attrs = f"edge_padding_low = {zeros}, edge_padding_high = {i64_array(high)}, interior_padding = {zeros}"
        reflectors = ctx.op("stablehlo.pad", [reflectors, ctx.scalar(0, aval.dtype)], q_aval, attrs)
    kernel = "ungqr" if aval.dtype.kind == "c" else "orgqr"
    (q,) = call_kernel(ctx, kernel, [reflectors, taus], [q_aval, tau], [q_aval])
    return [q, _upper(ctx, slice_matrix(ctx, packed, aval, k, n), r_aval)]


def _upper(ctx: LoweringContext, ref: Any, aval: ShapedArray) -> Any:
    index, flag = ShapedArray(aval.shape, INFO), ShapedArray(aval.shape, np.dtype(bool))
    rows, columns = (ctx.op("stablehlo.iota", [], index, f"iota_dimension = {aval.ndim - d} : i64") for d in (2, 1))
    attrs = (
        "comparison_direction = #stablehlo<comparison_direction LE>, compare_type = #stablehlo<comparison_type SIGNED>"
    )
    keep = ctx.op("stablehlo.compare", [rows, columns], flag, attrs)
    return ctx.op("stablehlo.select", [keep, ref, ctx.full(0, aval)], aval)


def _qr_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, full_matrices: bool) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    q, r = qr_p.bind(x, full_matrices=full_matrices)
    if t is None:
        return [q, r], [None, None]
    m, n = aval_of(x).shape[-2:]
    if m < n:
        dq, left = _thin_qr_jvp(q, _part(r, 0, m, -1), _part(t, 0, m, -1))
        right = ew.add_p.bind(matmul(adjoint(dq), _part(x, m, n, -1)), matmul(adjoint(q), _part(t, m, n, -1)))
        return [q, r], [dq, concatenate([left, right], aval_of(r).ndim - 1)]
    if not full_matrices or m == n:
        return [q, r], list(_thin_qr_jvp(q, r, t))
    dq, dr = _thin_qr_jvp(_part(q, 0, n, -1), _part(r, 0, n, -2), t)
    below = zeros(ShapedArray((*aval_of(r).shape[:-2], m - n, n), aval_of(r).dtype))
    rest = _completing_jvp(q, dq)
    last = aval_of(q).ndim - 1
    return [q, r], [concatenate([dq, rest], last), concatenate([dr, below], last - 1)]


def _part(x: Any, start: int, stop: int, axis: int) -> Any:
    return slice_in_dim(x, start, stop, axis=aval_of(x).ndim + axis)


def _thin_qr_jvp(q: Any, r: Any, t: Any) -> tuple[Any, Any]:
    """The tangents of q [m, n] and of square r, for m >= n."""
    scaled = triangular_solve(r, t)  # dx r^-1
    inner = matmul(adjoint(q), scaled)
    below = triangle(inner, True, -1)
    rotation = ew.sub_p.bind(below, adjoint(below))
    if aval_of(q).dtype.kind == "c":
        imaginary = ew.complex(None, ew.imag_p.bind(_diagonal_part(inner)))
        rotation = ew.add_p.bind(rotation, imaginary)
    dq = ew.add_p.bind(matmul(q, ew.sub_p.bind(rotation, inner)), scaled)
    return dq, matmul(ew.sub_p.bind(inner, rotation), r)


def _completing_jvp(q: Any, dq: Any) -> Any:
    """The tangent of the columns of square q behind the first n, whose tangent is `dq`.

    They are what products of n reflections make of the identity, 1 - v t v^H, so that the blocks of q below the first n
    rows are z = v2 v1^-1 times those above: q[n:, :n] = z (q[:n, :n] - 1), and z holds all that is free.
    """
    n = aval_of(dq).shape[-1]
    m = aval_of(q).shape[-1]
    first, rest = _part(q, 0, n, -1), _part(q, n, m, -1)
    top, bottom = _part(first, 0, n, -2), _part(first, n, m, -2)
    factors, _, permutation = lu(ew.sub_p.bind(top, _eye(aval_of(top))))
    z_adjoint = lu_solve(factors, permutation, adjoint(bottom), trans=2)
    z = adjoint(z_adjoint)
    moved = ew.sub_p.bind(_part(dq, n, m, -2), matmul(z, _part(dq, 0, n, -2)))
    turned = matmul(ew.add_p.bind(first, matmul(rest, z)), adjoint(moved))
    return ew.sub_p.bind(matmul(dq, z_adjoint), turned)


qr_p: Primitive = Primitive(
    "qr",
    _qr_infer,
    lower=_qr_lower,
    jvp=_qr_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: qr_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> tuple[Any, Any]:
    """`x = q r` with unitary q and upper triangular r, for matrices `[..., m, n]`.

    `full_matrices` gives a square q. Pivoting is not available.
    """
    if pivoting or use_magma is not None:
        raise errors.UnsupportedError("qr with pivoting or use_magma is not available; leave them out")
    q, r = qr_p.bind(x, full_matrices=bool(full_matrices))
    return q, r


# ----------------------------------------------------------------------------------------------------------
# Hermitian eigenvalues


def _eigh_infer(x: ShapedArray, *, lower: bool) -> list[ShapedArray]:
    check_square("eigh", x)
    check_matrix("eigh", x)
    return [x, ShapedArray(x.shape[:-1], real_dtype(x.dtype), x.weak_type)]


def _eigh_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, outs = eqn.invars[0].aval.strong(), [v.aval for v in eqn.outvars]
    if not aval.size:
        return [ctx.full(0, o) for o in outs]
    batch = aval.shape[:-2]
    kernel = "heevd" if aval.dtype.kind == "c" else "syevd"
    uplo = "L" if eqn.params["lower"] else "U"
    *results, info = call_kernel(ctx, kernel, [x], [aval], [*outs, ShapedArray(batch, INFO)], mode="V", uplo=uplo)
    return nan_unless_ok(ctx, info, batch, results, outs)


def _eye(aval: ShapedArray) -> Any:
    rows, columns = (broadcasted_iota(np.int32, aval.shape, aval.ndim - d) for d in (2, 1))
    return convert_element_type(ew.eq_p.bind(rows, columns), aval.dtype)


def _diagonal_part(x: Any) -> Any:
    """`x` with zeros off the diagonal."""
    return ew.mul_p.bind(x, _eye(aval_of(x)))


def _diagonal(x: Any) -> Any:
    return reduce_sum_p.bind(_diagonal_part(x), axes=(aval_of(x).ndim - 1,))


def _as_rows(w: Any) -> Any:
    """A vector repeated as the rows of a square matrix."""
    shape = aval_of(w).shape
    return broadcast_in_dim(w, (*shape, shape[-1]), (*range(len(shape) - 1), len(shape)))


def _safe_inverse(x: Any) -> Any:
    """1 / x off the diagonal of square matrices, 0 on it."""
    eye = _eye(aval_of(x))
    return ew.sub_p.bind(ew.div(1, ew.add_p.bind(x, eye)), eye)


def _eigh_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, lower: bool) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    v, w = eigh_p.bind(x, lower=lower)
    if t is None:
        return [v, w], [None, None]
    inner = matmul(matmul(adjoint(v), t), v)
    rows = _as_rows(w)
    gaps = _off_diagonal(ew.sub_p.bind(rows, matrix_transpose(rows)))
    dv = matmul(v, ew.mul_p.bind(convert_element_type(_safe_inverse(gaps), aval_of(x).dtype), inner))
    diagonal = _diagonal(inner)
    return [v, w], [dv, ew.real_p.bind(diagonal) if aval_of(x).dtype.kind == "c" else diagonal]


def _off_diagonal(x: Any) -> Any:
    return ew.sub_p.bind(x, _diagonal_part(x))


eigh_p: Primitive = Primitive(
    "eigh",
    _eigh_infer,
    lower=_eigh_lower,
    jvp=_eigh_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: eigh_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def eigh(
    x: Any,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: Any = None,
) -> tuple[Any, Any]:
    """(eigenvectors as columns, ascending eigenvalues) of Hermitian matrices, of which one triangle is read.

    `symmetrize_input` uses (x + x^H) / 2. Subsets and other implementations are not available.
    """
    n = aval_of(x).shape[-1] if aval_of(x).ndim else 0
    if implementation is not None or subset_by_index not in (None, (0, n)):
        raise errors.UnsupportedError("eigh with subset_by_index or implementation is not available; leave them out")
    if symmetrize_input:
        check_square("eigh", aval_of(x))
        x = ew.mul(ew.add_p.bind(x, adjoint(x)), 0.5)
    v, w = eigh_p.bind(x, lower=bool(lower))
    return v, w


# ----------------------------------------------------------------------------------------------------------
# Singular values


def _svd_shapes(x: ShapedArray, full_matrices: bool) -> list[ShapedArray]:
    (*batch, m, n) = x.shape
    k = min(m, n)
    rows, columns = (m, n) if full_matrices else (k, k)
    u, vt = (ShapedArray(shape, x.dtype, x.weak_type) for shape in ((*batch, m, rows), (*batch, columns, n)))
    return [ShapedArray((*batch, k), real_dtype(x.dtype), x.weak_type), u, vt]


def _svd_infer(x: ShapedArray, *, full_matrices: bool, compute_uv: bool) -> Any:
    check_matrix("svd", x)
    shapes = _svd_shapes(x, full_matrices)
    return shapes if compute_uv else shapes[:1]


def _svd_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    p, aval = eqn.params, eqn.invars[0].aval.strong()
    if 0 in aval.shape[-2:]:
        empty, *bases = [v.aval for v in eqn.outvars]
        return [ctx.full(0, empty.strong()), *(write_eye(ctx, b) for b in bases)]
    outs, batch = _svd_shapes(aval, p["full_matrices"]), aval.shape[:-2]
    mode = "N" if not p["compute_uv"] else "A" if p["full_matrices"] else "S"
    info = ShapedArray(batch, INFO)
    _, *results, failed = call_kernel(ctx, "gesdd", [x], [aval], [aval, *outs, info], mode=mode)
    count = len(eqn.outvars)
    return nan_unless_ok(ctx, failed, batch, results[:count], outs[:count])


def _svd_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, full_matrices: bool, compute_uv: bool
) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    if t is None:
        outs = svd_p.bind(x, full_matrices=full_matrices, compute_uv=compute_uv)
        return outs, [None] * len(outs)
    aval = aval_of(x)
    m, n = aval.shape[-2:]
    if compute_uv and full_matrices and m != n:
        raise errors.UnsupportedError(
            f"the derivative of svd of {aval.str_short()} is not available with full_matrices=True; pass False"
        )
    s, u, vt = svd_p.bind(x, full_matrices=False, compute_uv=True)
    v = adjoint(vt)
    inner = matmul(matmul(adjoint(u), t), v)
    diagonal = _diagonal(inner)
    ds = ew.real_p.bind(diagonal) if aval.dtype.kind == "c" else diagonal
    if not compute_uv:
        return [s], [ds]
    du, dv = _singular_vectors_jvp(s, u, v, inner)
    if m > n:
        du = ew.add_p.bind(du, _outside(u, matmul(t, v), s))
    if n > m:
        dv = ew.add_p.bind(dv, _outside(v, matmul(adjoint(t), u), s))
    return [s, u, vt], [ds, du, adjoint(dv)]


def _singular_vectors_jvp(s: Any, u: Any, v: Any, inner: Any) -> tuple[Any, Any]:
    """The tangents of u and v within their own spans."""
    dtype = aval_of(u).dtype
    rows = _as_rows(s)
    columns = matrix_transpose(rows)
    gaps = ew.mul_p.bind(ew.add_p.bind(rows, columns), ew.sub_p.bind(rows, columns))
    weights = convert_element_type(_safe_inverse(_off_diagonal(gaps)), dtype)
    right = ew.mul_p.bind(convert_element_type(rows, dtype), inner)
    left = ew.mul_p.bind(convert_element_type(columns, dtype), inner)
    du = ew.mul_p.bind(weights, ew.add_p.bind(right, adjoint(right)))
    dv = ew.mul_p.bind(weights, ew.add_p.bind(left, adjoint(left)))
    if dtype.kind == "c":
        # The phase that the diagonal leaves free goes to u.
        phase = ew.mul(ew.sub_p.bind(inner, adjoint(inner)), 0.5)
        zero = convert_element_type(ew.eq_p.bind(s, np.zeros((), aval_of(s).dtype)[()]), aval_of(s).dtype)
        inverse = ew.sub_p.bind(ew.div(1, ew.add_p.bind(s, zero)), zero)
        scale = convert_element_type(_diagonal_part(_as_rows(inverse)), dtype)
        du = ew.add_p.bind(du, ew.mul_p.bind(phase, scale))
    return matmul(u, du), matmul(v, dv)


def _outside(basis: Any, change: Any, s: Any) -> Any:
    """The part of `change` / s orthogonal to the columns of `basis`."""
    rest = ew.sub_p.bind(change, matmul(basis, matmul(adjoint(basis), change)))
    aval = aval_of(rest)
    scale = broadcast_in_dim(s, aval.shape, (*range(aval.ndim - 2), aval.ndim - 1))
    return ew.div_p.bind(rest, convert_element_type(scale, aval.dtype))


svd_p: Primitive = Primitive(
    "svd",
    _svd_infer,
    lower=_svd_lower,
    jvp=_svd_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: svd_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def svd(
    x: Any,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: Any = None,
) -> Any:
    """(u, s, vh) with `x = u s vh` and descending real s, or s alone without `compute_uv`.

    `full_matrices` gives square u and vh. Subsets and other algorithms are not available.
    """
    if algorithm is not None or subset_by_index is not None:
        raise errors.UnsupportedError("svd with subset_by_index or algorithm is not available; leave them out")
    out = svd_p.bind(x, full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    if not compute_uv:
        return out[0]
    s, u, vt = out
    return u, s, vt
