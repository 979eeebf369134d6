"""Triangular systems and the Cholesky decomposition, on batches of matrices (the last two dimensions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import has_kind
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.shapes import bring_to_front, move_dim, reshape, transpose, zeros
from meshrt.core.explicit import Application, Spec, matrices, shown
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.contract import dot_general
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.lapack import (
    INFO,
    Kernel,
    batch_leading,
    call_kernel,
    has_kernels,
    nan_unless_ok,
    real_dtype,
    select_by_place,
)
from meshrt.primitives.matrix_parts import eye_like
from meshrt.primitives.matrix_types import check_matrices, check_square
from meshrt.primitives.precision import Precision
from meshrt.primitives.reshape import broadcasted_iota


def matmul(x: Any, y: Any) -> Any:
    """The product of two batches of matrices at the highest precision."""
    ndim = aval_of(x).ndim
    batch = tuple(range(ndim - 2))
    return dot_general(x, y, (((ndim - 1,), (ndim - 2,)), (batch, batch)), precision=Precision.HIGHEST)


def matrix_transpose(x: Any) -> Any:
    """`x` with its last two dimensions exchanged."""
    ndim = aval_of(x).ndim
    return transpose(x, (*range(ndim - 2), ndim - 1, ndim - 2))


def adjoint(x: Any) -> Any:
    """The conjugate transpose."""
    return ew.conj(matrix_transpose(x))


def triangle(x: Any, lower: bool, offset: int = 0) -> Any:
    """The part of `x` on and below (or above) the diagonal `offset`, zero elsewhere."""
    aval = aval_of(x)
    rows = broadcasted_iota(np.int32, aval.shape, aval.ndim - 2)
    columns = broadcasted_iota(np.int32, aval.shape, aval.ndim - 1)
    shifted = ew.add(rows, offset)
    keep = (ew.ge_p if lower else ew.le_p).bind(shifted, columns)
    return ew.select_n(keep, convert_element_type(zeros(aval.strong()), aval.dtype, aval.weak_type), x)


def symmetrized(name: str, x: Any) -> Any:
    """(x + x^H) / 2 of square matrices, of which `name` is to be computed."""
    if has_kind(aval_of(x).dtype, "iu"):  # whose mean is none
        x = convert_element_type(x, dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(aval_of(x).dtype)))
    check_square(name, aval_of(x))
    return ew.mul(ew.add_p.bind(x, adjoint(x)), 0.5)


# ----------------------------------------------------------------------------------------------------------
# Triangular systems


def _solve_infer(
    a: ShapedArray,
    b: ShapedArray,
    *,
    left_side: Any,
    lower: bool,
    transpose_a: Any,
    conjugate_a: Any,
    unit_diagonal: Any,
) -> ShapedArray:
    check_matrices("triangular_solve", [a, b], [2, 2])
    if a.shape[-1] != a.shape[-2]:
        raise errors.ArgumentValueError(
            f"The first input to triangular_solve must be a square matrix. Got shape {a.shape}."
        )
    if b.shape[-2 if left_side else -1] != a.shape[-1]:
        raise errors.ArgumentValueError(
            f"Incompatible shapes for arguments to triangular_solve: {a.shape} and {b.shape}; the right-hand sides "
            f"need {a.shape[-1]} {'rows' if left_side else 'columns'}."
        )
    return ShapedArray(b.shape, b.dtype, a.weak_type and b.weak_type)


def _solve_lower(ctx: LoweringContext, eqn: Eqn, a: Any, b: Any) -> Any:
    p, aval, out = eqn.params, eqn.invars[0].aval, eqn.outvars[0].aval
    transposed, conjugated = p["transpose_a"], p["conjugate_a"]
    if conjugated and not transposed and aval.dtype.kind == "c":
        part = ShapedArray(aval.shape, real_dtype(aval.dtype))
        real, imag = (ctx.op(f"stablehlo.{which}", [a], part) for which in ("real", "imag"))
        a = ctx.op("stablehlo.complex", [real, ctx.op("stablehlo.negate", [imag], part)], aval)
    if ctx.module.platform == "cpu" and has_kernels(ctx, aval) and aval.size and out.size:
        how = "N" if not transposed else "C" if conjugated else "T"
        side, uplo, diag = "LR"[not p["left_side"]], "UL"[p["lower"]], "NU"[p["unit_diagonal"]]
        kernel = Kernel("trsm", side=side, uplo=uplo, trans_x=how, diag=diag)
        avals = [aval.strong(), out.strong()]
        return call_kernel(ctx, "triangular_solve", [a, b], avals, avals[1:], {"cpu": kernel})[0]
    how = "NO_TRANSPOSE" if not transposed else "ADJOINT" if conjugated else "TRANSPOSE"
    flags = ", ".join(f"{k} = {str(p[k]).lower()}" for k in ("left_side", "lower"))
    attrs = f"{flags}, transpose_a = #stablehlo<transpose {how}>, unit_diagonal = {str(p['unit_diagonal']).lower()}"
    return ctx.op("stablehlo.triangular_solve", [a, b], out, attrs)


def _solve_jvp(primals: Sequence[Any], tangents: Sequence[Any], **p: Any) -> tuple[Any, Any]:
    (a, b), (ta, tb) = primals, tangents
    out = triangular_solve_p.bind(a, b, **p)
    total = None if tb is None else triangular_solve_p.bind(a, tb, **p)
    if ta is None:
        return out, total
    offset = 0 if not p["unit_diagonal"] else -1 if p["lower"] else 1
    change = ew.neg_p.bind(triangle(ta, p["lower"], offset))
    change = matrix_transpose(change) if p["transpose_a"] else change
    change = ew.conj(change) if p["conjugate_a"] else change
    moved = matmul(change, out) if p["left_side"] else matmul(out, change)
    return out, add_tangents(total, triangular_solve_p.bind(a, moved, **p))


def _solve_transpose(ct: Any, a: Any, b: Any, **p: Any) -> list[Any]:
    return [None, triangular_solve_p.bind(a, ct, **{**p, "transpose_a": not p["transpose_a"]})]


def _solve_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    a, b = args
    if dims[0] is None and aval_of(a).ndim == 2:
        # One matrix for the whole batch: more right-hand sides.
        last = 1 if params["left_side"] else 0
        b = move_dim(b, dims[1], last)
        shape = aval_of(b).shape
        merged = (shape[0], size * shape[2]) if params["left_side"] else (size * shape[1], shape[2])
        return reshape(triangular_solve_p.bind(a, reshape(b, merged), **params), shape), last
    return triangular_solve_p.bind(*(bring_to_front(size, x, d) for x, d in zip(args, dims)), **params), 0


def _solve_explicit(app: Application) -> list[Spec]:
    """Right-hand sides may be split, and the rows of `a` that the unknowns do not meet."""
    a, b, left, transposed = *app.specs, app.params["left_side"], app.params["transpose_a"]
    if a[:-2] != b[:-2]:
        app.refuse(f"All inputs to triangular_solve must have the same batch sharding, but got {a[:-2]} and {b[:-2]}.")
    how = f"with left_side={left} and transpose_a={transposed}."
    if a[-2:][left != transposed] is not None:
        app.refuse(f"triangular solve input `a` must be unsharded on the contracting axis, but got {shown(a)} {how}")
    if b[-2:][not left] is not None:
        app.refuse(f"triangular solve input `b` must be unsharded on the contracting axis, but got {shown(b)} {how}")
    rows = a[-2:][transposed if left else not transposed]
    return [(*a[:-2], rows, b[-1]) if left else (*a[:-2], b[-2], rows)]


triangular_solve_p = Primitive(
    "triangular_solve",
    _solve_infer,
    explicit=_solve_explicit,
    lower=_solve_lower,
    jvp=_solve_jvp,
    transpose=_solve_transpose,
    batch=_solve_batch,
)


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """Solves op(a) x = b (`left_side`) or x op(a) = b for triangular matrices `a`.

    Only the triangle named by `lower` is read; `op` transposes and conjugates as asked. `unit_diagonal` takes the
    diagonal as ones. A vector `b` (one dimension less than `a`) is one right-hand side.

    Args:
      a: triangular matrices.
      b: matrices.
      left_side: solve a x = b instead of x a = b.
      lower: use the lower triangle.
      transpose_a: use the transpose.
      conjugate_a: use the conjugate.
      unit_diagonal: the diagonal is taken to be ones.

    >>> lax.linalg.triangular_solve(jnp.array([[2.0, 0.0], [1.0, 4.0]]), jnp.array([[2.0], [5.0]]), left_side=True,
    ...     lower=True)
    Array([[1.],
           [1.]], dtype=float32)
    """
    conjugate_a = conjugate_a and dtypes.issubdtype(aval_of(a).dtype, np.complexfloating)
    is_vector = aval_of(b).ndim == aval_of(a).ndim - 1
    shape = aval_of(b).shape
    if is_vector:
        b = reshape(b, (*shape, 1) if left_side else (*shape[:-1], 1, shape[-1]))
    out = triangular_solve_p.bind(
        a, b, left_side=bool(left_side), lower=bool(lower), transpose_a=bool(transpose_a),
        conjugate_a=bool(conjugate_a), unit_diagonal=bool(unit_diagonal),
    )  # fmt: skip
    return reshape(out, shape) if is_vector else out


# ----------------------------------------------------------------------------------------------------------
# Cholesky


def _cholesky_infer(x: ShapedArray) -> ShapedArray:
    check_square("cholesky", x)
    return ShapedArray(x.shape, x.dtype, x.weak_type)


def _cholesky_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    """The upper triangle of the factorisation's result is unspecified: clear it."""
    aval = eqn.outvars[0].aval.strong()
    if has_kernels(ctx, aval) and aval.size:
        batch = aval.shape[:-2]
        kernels = {"cpu": Kernel("potrf", uplo="L"), "cuda": Kernel("cusolver_potrf_ffi", lower=True)}
        out, info = call_kernel(ctx, "cholesky", [x], [aval], [aval, ShapedArray(batch, INFO)], kernels)
        (out,) = nan_unless_ok(ctx, info, batch, [out], [aval])
    else:
        out = ctx.op("stablehlo.cholesky", [x], aval, "lower = true")
    return select_by_place(ctx, "GE", aval, out, ctx.full(0, aval))


def _cholesky_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Forward rule of Murray, "Differentiation of the Cholesky decomposition" (2016), equation 8."""
    factor = cholesky_p.bind(*primals)
    if tangents[0] is None:
        return factor, None
    solve = {"lower": True, "unit_diagonal": False}
    inner = triangular_solve_p.bind(factor, tangents[0], left_side=False, transpose_a=True, conjugate_a=True, **solve)
    inner = triangular_solve_p.bind(factor, inner, left_side=True, transpose_a=False, conjugate_a=False, **solve)
    below = triangle(inner, True)
    below = convert_element_type(below, aval_of(below).dtype)  # what it is divided by is not weakly typed
    halved = ew.div_p.bind(below, ew.add(eye_like(inner), 1))
    return factor, matmul(factor, halved)


cholesky_p: Primitive = Primitive(
    "cholesky",
    _cholesky_infer,
    lower=_cholesky_lower,
    jvp=_cholesky_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: cholesky_p),
    absent=NOT_LINEAR,
)


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangular L with `x = L L^H` for positive definite (Hermitian) matrices; NaN where there is none.

    `symmetrize_input` uses (x + x^H) / 2, which makes gradients symmetric; without it only the lower triangle counts.

    Args:
      x: an array.
      symmetrize_input: use the mean of the matrix and its conjugate transpose.

    >>> lax.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 2.0]]))
    Array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    return cholesky_p.bind(symmetrized("cholesky", x) if symmetrize_input else x)
