"""Matrices after a change of low rank: Cholesky factors, symmetric products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.explicit import stacks
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.control_loops import fori_loop
from meshrt.primitives.dynamic_slice import dynamic_index_in_dim, dynamic_update_index_in_dim
from meshrt.primitives.lapack import Kernel, batch_leading, call_kernel
from meshrt.primitives.linalg import matmul, matrix_transpose, triangle
from meshrt.primitives.matrix_types import check_matrices

# ----------------------------------------------------------------------------------------------------------
# r^T r + w w^T


def _update_infer(r: ShapedArray, w: ShapedArray) -> ShapedArray:
    check_matrices("cholesky_update", [r, w], [2, 1], np.floating, batched=False)
    if r.shape[0] != r.shape[1] or w.shape[0] != r.shape[1]:
        raise errors.ArgumentValueError(
            "Rank-1 update to Cholesky decomposition takes a square matrix and a vector of the same size as input. "
            f"Got shapes {r.shape} and {w.shape} instead"
        )
    return ShapedArray(r.shape, r.dtype, r.weak_type and w.weak_type)


def _update_lower(ctx: LoweringContext, eqn: Eqn, r: Any, w: Any) -> Any:
    avals = [v.aval.strong() for v in eqn.invars]
    if not avals[0].size:
        return r
    if ctx.module.platform == "cuda":
        kernel = Kernel("cu_cholesky_update_ffi")
        return call_kernel(ctx, "cholesky_update", [r, w], avals, avals, {"cuda": kernel}, columns=False)[0]
    return write_composed(ctx, eqn, [r, w], avals, lambda r, w: [_rotated(r, w)])[0]


def _rotated(r: Any, w: Any) -> Any:
    """Turns w into zeros by rotations of w with the rows of r, one after the other."""
    n = aval_of(w).shape[0]

    def rotate(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        r, w = state
        row = dynamic_index_in_dim(r, i, 0, keepdims=False)
        c, s = _rotation(*(dynamic_index_in_dim(x, i, 0, keepdims=False) for x in (row, w)))
        turned = ew.sub_p.bind(ew.mul(c, row), ew.mul(s, w))
        rest = ew.add_p.bind(ew.mul(c, w), ew.mul(s, row))
        return dynamic_update_index_in_dim(r, turned, i, 0), rest

    return fori_loop(np.int32(0), np.int32(n), rotate, (r, w))[0]


def _rotation(x: Any, y: Any) -> tuple[Any, Any]:
    """(cosine, sine) with cosine * y + sine * x = 0, scaled before squaring against overflow."""
    largest = ew.max_p.bind(ew.abs_p.bind(x), ew.abs_p.bind(y))
    none = ew.eq_p.bind(y, _like(0, y))
    scale = ew.select_n(none, largest, _like(1, x))
    x, y = ew.div_p.bind(x, scale), ew.div_p.bind(y, scale)
    length = ew.rsqrt_p.bind(ew.add_p.bind(ew.mul_p.bind(x, x), ew.mul_p.bind(y, y)))
    c, s = ew.mul_p.bind(x, length), ew.neg_p.bind(ew.mul_p.bind(y, length))
    return ew.select_n(none, c, _like(1, c)), ew.select_n(none, s, _like(0, s))


def _like(value: float, x: Any) -> Any:
    return np.asarray(value, aval_of(x).dtype)[()]


cholesky_update_p: Primitive = Primitive(
    "cholesky_update",
    _update_infer,
    lower=_update_lower,
    explicit=stacks(2, 1),
    absent={
        **NOT_LINEAR,
        "jvp": "differentiate lax.linalg.cholesky of the sum",
        "batch": "its kernels take one matrix; map with lax.map",
    },
)


def cholesky_update(r_matrix: Any, w_vector: Any) -> Any:
    """The upper triangular factor of r^T r + w w^T, in time O(n^2).

    Args:
      r_matrix: [n, n] real and upper triangular.
      w_vector: [n].

    Returns:
      [n, n] upper triangular.

    Raises:
      ArgumentTypeError: a batch, or complex numbers. ArgumentValueError: shapes that do not fit each other.

    >>> lax.linalg.cholesky_update(jnp.eye(2), jnp.array([1.0, 0.0])).round(3)
    Array([[1.414, 0.   ],
           [0.   , 1.   ]], dtype=float32)
    """
    return cholesky_update_p.bind(r_matrix, w_vector)


# ----------------------------------------------------------------------------------------------------------
# alpha a a^T + beta c


def _product_infer(a: ShapedArray, c: ShapedArray, *, alpha: float, beta: float) -> ShapedArray:
    check_matrices("symmetric_product", [a, c], [2, 2], np.floating)
    if a.shape[-2] != c.shape[-1] or c.shape[-2] != c.shape[-1]:
        raise errors.ArgumentValueError(
            "symmetric_update expects a rectangular matrix of shape (m, n) and a square matrix of shape (m, m). Got "
            f"shapes {a.shape} and {c.shape}."
        )
    return ShapedArray(c.shape, c.dtype, a.weak_type and c.weak_type)


def _product_lower(ctx: LoweringContext, eqn: Eqn, a: Any, c: Any) -> Any:
    avals, p = [v.aval.strong() for v in eqn.invars], eqn.params
    if ctx.module.platform == "cuda" and avals[0].size:
        factor = ShapedArray((), avals[0].dtype)
        operands = [a, c, *(ctx.full(p[name], factor) for name in ("alpha", "beta"))]
        kernel = Kernel("cusolver_syrk_ffi", transpose=False)
        avals = [*avals, factor, factor]
        return call_kernel(ctx, "symmetric_product", operands, avals, avals[1:2], {"cuda": kernel}, columns=False)[0]

    def product(a: Any, c: Any) -> list[Any]:
        return [ew.add_p.bind(ew.mul(matmul(a, matrix_transpose(a)), p["alpha"]), ew.mul(c, p["beta"]))]

    return write_composed(ctx, eqn, [a, c], avals, product)[0]


def _product_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, alpha: float, beta: float) -> tuple[Any, Any]:
    (a, c), (ta, tc) = primals, tangents
    out = symmetric_product_p.bind(a, c, alpha=alpha, beta=beta)
    change = None
    if ta is not None:
        half = matmul(ta, matrix_transpose(a))
        change = ew.mul(ew.add_p.bind(half, matrix_transpose(half)), alpha)
    return out, add_tangents(change, None if tc is None else ew.mul(tc, beta))


symmetric_product_p: Primitive = Primitive(
    "symmetric_product",
    _product_infer,
    lower=_product_lower,
    jvp=_product_jvp,
    explicit=stacks(2, 2),
    batch=batch_leading(lambda: symmetric_product_p),
    absent=NOT_LINEAR,
)


def symmetric_product(
    a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False
) -> Any:
    """alpha a a^T + beta c, of which some platforms compute the lower triangle only.

    Args:
      a_matrix: [..., m, n], real.
      c_matrix: [..., m, m], symmetric.
      symmetrize_output: put the transpose of the lower triangle into the upper one.

    Returns:
      [..., m, m].

    Raises:
      ArgumentValueError: shapes that do not fit each other.

    >>> lax.linalg.symmetric_product(jnp.ones((2, 3)), jnp.zeros((2, 2)), symmetrize_output=True)
    Array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    out = symmetric_product_p.bind(a_matrix, c_matrix, alpha=alpha, beta=beta)
    if not symmetrize_output:
        return out
    return ew.add_p.bind(triangle(out, True), matrix_transpose(triangle(out, True, -1)))
