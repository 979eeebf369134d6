"""Eigenvalues and eigenvectors of general square matrices, by LAPACK on CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, reduce_sum_p
from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.identity import stop_gradient
from meshrt.primitives.lapack import INFO, batch_leading, call_kernel, check_matrix, nan_unless_ok
from meshrt.primitives.linalg import adjoint, matmul, matrix_transpose
from meshrt.primitives.lu import factored_solve, lu
from meshrt.primitives.reduce import argmax
from meshrt.primitives.reshape import broadcasted_iota


def _infer(
    x: ShapedArray, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, enable_eigvec_derivs: bool
) -> list[ShapedArray]:
    check_matrix("eig", x)
    if x.shape[-1] != x.shape[-2]:
        raise errors.ArgumentValueError(f"eig needs square matrices in the last two dimensions, got {x.str_short()}")
    dtype = dtypes.to_complex_dtype(x.dtype)
    vectors = ShapedArray(x.shape, dtype, x.weak_type)
    count = bool(compute_left_eigenvectors) + bool(compute_right_eigenvectors)
    return [ShapedArray(x.shape[:-1], dtype, x.weak_type), *[vectors] * count]


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, outs = eqn.invars[0].aval.strong(), [v.aval.strong() for v in eqn.outvars]
    if not aval.size:
        return [ctx.full(0, o) for o in outs]
    batch, values = aval.shape[:-2], ShapedArray(aval.shape[:-1], aval.dtype)
    vectors = ShapedArray(aval.shape, outs[0].dtype)
    is_complex = aval.dtype.kind == "c"
    parts = [values] if is_complex else [values, values]
    left, right = (eqn.params[f"compute_{side}_eigenvectors"] for side in ("left", "right"))
    *w, vl, vr, info = call_kernel(
        ctx,
        "geev",
        [x],
        [aval],
        [*parts, vectors, vectors, ShapedArray(batch, INFO)],
        compute_left="V" if left else "N",
        compute_right="V" if right else "N",
    )
    eigenvalues = w[0] if is_complex else ctx.op("stablehlo.complex", w, outs[0])
    results = [eigenvalues, *([vl] if left else []), *([vr] if right else [])]
    return nan_unless_ok(ctx, info, batch, results, outs)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    left, right = params["compute_left_eigenvectors"], params["compute_right_eigenvectors"]
    if t is None:
        outs = eig_p.bind(x, **params)
        return outs, [None] * len(outs)
    if (left or right) and not params["enable_eigvec_derivs"]:
        raise errors.UnsupportedError(
            "derivatives of eigenvectors of general matrices need distinct eigenvalues and a choice of their phases, "
            "which cannot be checked; pass enable_eigvec_derivs=True to lax.linalg.eig if they are given"
        )
    w, *sides = eig_p.bind(x, **{**params, "compute_right_eigenvectors": True})
    v = sides[-1]
    t = convert_element_type(t, aval_of(v).dtype)
    if not (left or right):
        return [w], [_diagonal(_inverse_times(v, matmul(t, v)))]
    dw, dv = _vectors_jvp(w, v, t)
    outs, changes = [w], [dw]
    if left:
        outs.append(sides[0])
        changes.append(_vectors_jvp(ew.conj(w), sides[0], adjoint(t))[1])
    if right:
        outs.append(v)
        changes.append(dv)
    return outs, changes


def _vectors_jvp(w: Any, v: Any, t: Any) -> tuple[Any, Any]:
    """Tangents of eigenvalues and of eigenvectors."""
    inner = _inverse_times(v, matmul(t, v))
    shape = aval_of(v).shape
    batch = tuple(range(len(shape) - 2))
    columns = broadcast_in_dim(w, shape, (*batch, len(shape) - 1))
    gaps = ew.sub_p.bind(columns, matrix_transpose(columns))
    eye = _eye(shape, aval_of(v).dtype)
    weights = ew.sub_p.bind(ew.div(1, ew.add_p.bind(gaps, eye)), eye)
    change = matmul(v, ew.mul_p.bind(weights, inner))
    # What leaves the columns at length one, and their largest elements real, as LAPACK has them.
    norm = reduce_sum_p.bind(ew.mul_p.bind(ew.conj(v), change), axes=(len(shape) - 2,))
    largest = _at_largest(v)
    turn = ew.div_p.bind(
        ew.imag_p.bind(_summed(ew.mul_p.bind(largest, change))), ew.real_p.bind(_summed(ew.mul_p.bind(largest, v)))
    )
    factor = ew.complex(ew.neg_p.bind(ew.real_p.bind(norm)), ew.neg_p.bind(turn))
    spread = broadcast_in_dim(factor, shape, (*batch, len(shape) - 1))
    return _diagonal(inner), ew.add_p.bind(change, ew.mul_p.bind(v, spread))


def _at_largest(v: Any) -> Any:
    """1 at the largest element of each column, 0 elsewhere."""
    aval = aval_of(v)
    rows = aval.ndim - 2
    place = argmax(ew.abs_p.bind(v), rows, np.int32)
    place = broadcast_in_dim(place, aval.shape, (*range(rows), rows + 1))
    return convert_element_type(ew.eq_p.bind(broadcasted_iota(np.int32, aval.shape, rows), place), aval.dtype)


def _summed(x: Any) -> Any:
    return reduce_sum_p.bind(x, axes=(aval_of(x).ndim - 2,))


def _inverse_times(v: Any, x: Any) -> Any:
    factors, _, permutation = lu(stop_gradient(v))
    return factored_solve(factors, permutation, v, x)


def _eye(shape: tuple[int, ...], dtype: Any) -> Any:
    rows, columns = (broadcasted_iota(np.int32, shape, len(shape) - d) for d in (2, 1))
    return convert_element_type(ew.eq_p.bind(rows, columns), dtype)


def _diagonal(x: Any) -> Any:
    aval = aval_of(x)
    return reduce_sum_p.bind(ew.mul_p.bind(x, _eye(aval.shape, aval.dtype)), axes=(aval.ndim - 1,))


eig_p: Primitive = Primitive(
    "eig",
    _infer,
    lower=_lower,
    jvp=_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: eig_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def eig(
    x: Any,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: Any = None,
    use_magma: bool | None = None,
) -> list[Any]:
    """[eigenvalues, left eigenvectors, right eigenvectors], as far as asked for, of square matrices `[..., n, n]`.

    All are complex; eigenvectors are columns of length one. Those on the left belong to the adjoint matrix.
    `enable_eigvec_derivs` promises that the eigenvalues are distinct. Other implementations are not available.
    """
    if implementation is not None or use_magma is not None:
        raise errors.UnsupportedError("eig with implementation or use_magma is not available; leave them out")
    return list(
        eig_p.bind(
            x,
            compute_left_eigenvectors=bool(compute_left_eigenvectors),
            compute_right_eigenvectors=bool(compute_right_eigenvectors),
            enable_eigvec_derivs=bool(enable_eigvec_derivs),
        )
    )
