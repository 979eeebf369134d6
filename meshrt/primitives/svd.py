"""Singular values and vectors of batches of matrices (the last two dimensions).

The derivatives are those of Giles, "An extended collection of matrix derivative results for forward and reverse mode
automatic differentiation" (2008), for distinct singular values.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import broadcast_in_dim
from meshrt.core.dimensions.expression import min_dim
from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive, also
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.lapack import (
    INFO,
    Kernel,
    batch_leading,
    call_kernel,
    is_gpu,
    nan_unless_ok,
    real_dtype,
    slice_matrix,
    write_eye,
)
from meshrt.primitives.linalg import adjoint, matmul, matrix_transpose
from meshrt.primitives.matrix_parts import as_rows, diagonal, diagonal_part, off_diagonal, safe_inverse
from meshrt.primitives.matrix_types import check_matrices
from meshrt.primitives.svd_by_polar import svd_by_polar


class SvdAlgorithm(enum.Enum):
    """How singular values are computed."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


def _shapes(x: ShapedArray, full_matrices: bool, subset: tuple[int, int] | None = None) -> list[ShapedArray]:
    (*batch, m, n) = x.shape
    k: Any = min_dim(m, n)
    if subset is not None:
        if full_matrices and subset != (0, k):
            raise errors.ArgumentValueError("svd: full_matrices and subset_by_index cannot both be set")
        k = min_dim(k, subset[1] - subset[0])
    rows, columns = (m, n) if full_matrices else (k, k)
    u, vt = (ShapedArray(shape, x.dtype, x.weak_type) for shape in ((*batch, m, rows), (*batch, columns, n)))
    return [ShapedArray((*batch, k), real_dtype(x.dtype), x.weak_type), u, vt]


def _infer(
    x: ShapedArray,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: tuple[int, int] | None,
    algorithm: SvdAlgorithm | None,
) -> list[ShapedArray]:
    check_matrices("svd", [x], [2])
    shapes = _shapes(x, full_matrices, subset_by_index)
    return shapes if compute_uv else shapes[:1]


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    p, aval, count = eqn.params, eqn.invars[0].aval.strong(), len(eqn.outvars)
    if p["subset_by_index"] not in (None, (0, min_dim(*aval.shape[-2:]))):
        raise errors.UnsupportedError("subset_by_index is not implemented for svd; slice the results")
    if 0 in aval.shape[-2:]:
        empty, *bases = [v.aval for v in eqn.outvars]
        return [ctx.full(0, empty.strong()), *(write_eye(ctx, b.strong()) for b in bases)]
    if ctx.module.platform == "tpu":
        return _on_tpu(ctx, eqn, x, aval)
    outs = _shapes(aval, p["full_matrices"])
    write = _on_gpu if is_gpu(ctx) else _on_cpu
    *results, info = write(ctx, eqn, x, aval, outs)
    return nan_unless_ok(ctx, info, aval.shape[:-2], results[:count], outs[:count])


def _on_cpu(ctx: LoweringContext, eqn: Eqn, x: Any, aval: ShapedArray, outs: Sequence[ShapedArray]) -> Sequence[Any]:
    p, algorithm = eqn.params, eqn.params["algorithm"]
    if algorithm in (SvdAlgorithm.JACOBI, SvdAlgorithm.POLAR):
        raise errors.UnsupportedError(
            f"The SVD algorithm {algorithm.value} is not implemented on CPU; there are QR and DIVIDE_AND_CONQUER"
        )
    mode = "N" if not p["compute_uv"] else "A" if p["full_matrices"] else "S"
    kernel = Kernel("gesvd" if algorithm == SvdAlgorithm.QR else "gesdd", mode=mode)
    info = ShapedArray(aval.shape[:-2], INFO)
    return call_kernel(ctx, "svd", [x], [aval], [aval, *outs, info], {"cpu": kernel})[1:]


def _on_tpu(ctx: LoweringContext, eqn: Eqn, x: Any, aval: ShapedArray) -> Sequence[Any]:
    """There is no kernel: a program of polar and eigenvalue decompositions, which have some."""
    p, algorithm = eqn.params, eqn.params["algorithm"]
    if algorithm not in (None, SvdAlgorithm.DEFAULT, SvdAlgorithm.POLAR):
        raise errors.UnsupportedError(f"The SVD algorithm {algorithm.value} is not implemented on TPU; there is POLAR")
    program = functools.partial(svd_by_polar, full_matrices=p["full_matrices"], compute_uv=p["compute_uv"])
    return write_composed(ctx, eqn, [x], [aval], program)


_LARGEST_JACOBI = 1024  # rows or columns, as cuSOLVER's authors advise
_LARGEST_BATCHED_JACOBI = 32  # its batched form computes full matrices only


def _on_gpu(ctx: LoweringContext, eqn: Eqn, x: Any, aval: ShapedArray, outs: Sequence[ShapedArray]) -> Sequence[Any]:
    (m, n), p, algorithm = aval.shape[-2:], eqn.params, eqn.params["algorithm"]
    divides = algorithm == SvdAlgorithm.DIVIDE_AND_CONQUER
    if divides and ctx.module.platform != "rocm":
        raise errors.UnsupportedError("cuSOLVER has no SVD by divide and conquer; there are QR, JACOBI and POLAR")
    if algorithm in (None, SvdAlgorithm.DEFAULT):
        algorithm = SvdAlgorithm.JACOBI if max(m, n) <= _LARGEST_JACOBI else SvdAlgorithm.QR
    if algorithm != SvdAlgorithm.QR and not divides:
        return _by_rotations(ctx, eqn, x, aval, outs, algorithm)
    settings = {"full_matrices": p["full_matrices"], "compute_uv": p["compute_uv"]}
    turned = m < n and not divides
    kernel = Kernel(f"cusolver_{'gesdd' if divides else 'gesvd'}_ffi", transposed=turned, **settings)
    # A wide matrix in row-major order is its transpose, which is tall, in column-major order.
    s, first, second = outs
    bases = [second, first] if turned else [first, second]
    info = ShapedArray(aval.shape[:-2], INFO)
    found = call_kernel(ctx, "svd", [x], [aval], [aval, s, *bases, info], {"cuda": kernel}, columns=not turned)
    _, values, u, vt, failed = found
    return [values, *((vt, u) if turned else (u, vt)), failed]


def _by_rotations(
    ctx: LoweringContext, eqn: Eqn, x: Any, aval: ShapedArray, outs: Sequence[ShapedArray], algorithm: SvdAlgorithm
) -> Sequence[Any]:
    """Kernels that give v, not its adjoint, and all of u and v for small matrices."""
    (*batch, m, n), p = aval.shape, eqn.params
    thin, jacobi = not p["full_matrices"], algorithm == SvdAlgorithm.JACOBI
    if jacobi:
        thin = thin and min_dim(m, n) > _LARGEST_BATCHED_JACOBI
    k: Any = min_dim(m, n)
    u_aval, v_aval = (ShapedArray((*batch, size, k if thin else size), aval.dtype) for size in (m, n))
    kernel = Kernel(
        "cusolver_gesvdj_ffi" if jacobi else "cusolver_gesvdp_ffi", full_matrices=not thin, compute_uv=p["compute_uv"]
    )
    info = ShapedArray(tuple(batch), INFO)
    found = call_kernel(ctx, "svd", [x], [aval], [aval, outs[0], u_aval, v_aval, info], {"cuda": kernel})
    _, s, u, v, failed = found
    (vt,) = write_composed(ctx, eqn, [v], [v_aval], lambda v: [adjoint(v)])
    vt_aval = ShapedArray((*batch, *reversed(v_aval.shape[-2:])), aval.dtype)
    u, vt = (slice_matrix(ctx, r, a, *o.shape[-2:]) for r, a, o in zip((u, vt), (u_aval, vt_aval), outs[1:]))
    return [s, u, vt, failed]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **p: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    if t is None:
        outs = svd_p.bind(x, **p)
        return outs, [None] * len(outs)
    aval = aval_of(x)
    m, n = aval.shape[-2:]
    if p["compute_uv"] and p["full_matrices"] and m != n:
        raise errors.UnsupportedError(
            f"Singular value decomposition JVP not implemented for full matrices: of {aval.short()} pass "
            "full_matrices=False"
        )
    s, u, vt = svd_p.bind(x, **{**p, "full_matrices": False, "compute_uv": True})
    v = adjoint(vt)
    inner = matmul(matmul(adjoint(u), t), v)
    on_diagonal = diagonal(inner)
    ds = ew.real_p.bind(on_diagonal) if aval.dtype.kind == "c" else on_diagonal
    if not p["compute_uv"]:
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
    rows = as_rows(s)
    columns = matrix_transpose(rows)
    gaps = ew.mul_p.bind(ew.add_p.bind(rows, columns), ew.sub_p.bind(rows, columns))
    weights = convert_element_type(safe_inverse(off_diagonal(gaps)), dtype)
    right = ew.mul_p.bind(convert_element_type(rows, dtype), inner)
    left = ew.mul_p.bind(convert_element_type(columns, dtype), inner)
    du = ew.mul_p.bind(weights, ew.add_p.bind(right, adjoint(right)))
    dv = ew.mul_p.bind(weights, ew.add_p.bind(left, adjoint(left)))
    if dtype.kind == "c":
        # The phase that the diagonal leaves free goes to u.
        phase = ew.mul(ew.sub_p.bind(inner, adjoint(inner)), 0.5)
        zero = convert_element_type(ew.eq_p.bind(s, np.zeros((), aval_of(s).dtype)[()]), aval_of(s).dtype)
        inverse = ew.sub_p.bind(ew.div(1, ew.add_p.bind(s, zero)), zero)
        scale = convert_element_type(diagonal_part(as_rows(inverse)), dtype)
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
    _infer,
    shown=also("algorithm", "subset_by_index"),
    lower=_lower,
    jvp=_jvp,
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
    algorithm: SvdAlgorithm | None = None,
) -> Any:
    """(u, s, vh) with `x = u s vh` and descending real s, or s alone without `compute_uv`.

    Args:
      x: matrices [..., m, n].
      full_matrices: give square u and vh.
      subset_by_index: all singular values at most; the kernels compute them together.
      algorithm: on CPUs `DIVIDE_AND_CONQUER` (the default) or `QR`; on CUDA devices `JACOBI`, `POLAR` or `QR`;
        on TPUs `POLAR`.

    Raises:
      UnsupportedError: another algorithm, or a smaller subset.

    >>> lax.linalg.svd(jnp.array([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    check_matrices("svd", [aval_of(x)], [2])  # mapped dimensions hide too few from the primitive
    settings = {"subset_by_index": subset_by_index, "algorithm": algorithm}
    out = svd_p.bind(x, full_matrices=bool(full_matrices), compute_uv=bool(compute_uv), **settings)
    if not compute_uv:
        return out[0]
    s, u, vt = out
    return u, s, vt
