"""The LU decomposition with partial pivoting, on batches of matrices (the last two dimensions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.shapes import bring_to_front, broadcast_in_dim, move_dim, reduce_sum_p, reshape
from meshrt.core.dimensions.expression import DimExpr, as_size, min_dim
from meshrt.core.explicit import matrices, stacks
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.control_loops import fori_loop
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.dynamic_slice import dynamic_index_in_dim
from meshrt.primitives.gather import take_along
from meshrt.primitives.lapack import INFO, Kernel, batch_leading, call_kernel, call_tpu, is_gpu, nan_unless_ok
from meshrt.primitives.linalg import matmul, matrix_transpose, triangle, triangular_solve
from meshrt.primitives.matrix_types import check_matrices
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.slice import pad, slice_in_dim
from meshrt.primitives.sort import sort_key_val


def _lu_infer(x: ShapedArray) -> list[ShapedArray]:
    check_matrices("lu", [x], [2])
    (*batch, m, n) = x.shape
    exchanges: Any = min_dim(m, n)
    pivots, permutation = (ShapedArray((*batch, k), INFO, x.weak_type) for k in (exchanges, m))
    return [x, pivots, permutation]


def _lu_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval = eqn.invars[0].aval.strong()
    pivots_aval, permutation_aval = (v.aval.strong() for v in eqn.outvars[1:])
    batch, rows = aval.shape[:-2], aval.shape[-2]
    if not aval.size:
        order = ctx.op("stablehlo.iota", [], permutation_aval, f"iota_dimension = {len(batch)} : i64")
        return [x, ctx.full(0, pivots_aval), order]
    if ctx.module.platform == "tpu":
        return list(call_tpu(ctx, "LuDecomposition", [x], [aval, pivots_aval, permutation_aval]))
    info = ShapedArray(batch, INFO)
    kernels = {"cpu": Kernel("getrf"), "cuda": Kernel("cusolver_getrf_ffi")}
    packed, pivots, failed = call_kernel(ctx, "lu", [x], [aval], [aval, pivots_aval, info], kernels)
    pivots = ctx.op("stablehlo.subtract", [pivots, ctx.full(1, pivots_aval)], pivots_aval)
    # A positive `info` says that the matrix is singular, which its factors show.
    (packed,) = nan_unless_ok(ctx, failed, batch, [packed], [aval], "GE")
    (order,) = write_composed(ctx, eqn, [pivots], [pivots_aval], lambda p: [lu_pivots_to_permutation(p, rows)])
    return [packed, pivots, order]


def _order_infer(pivots: ShapedArray, *, permutation_size: int) -> ShapedArray:
    if pivots.is_key or pivots.dtype != INFO or not pivots.ndim:
        raise errors.ArgumentTypeError(f"lu_pivots_to_permutation takes int32[..., k], got {pivots.short()}")
    if permutation_size < pivots.shape[-1]:
        raise errors.ArgumentValueError(
            f"Output permutation size {permutation_size} has to exceed the trailing dimension of the pivots. Got "
            f"pivots size {pivots.shape[-1]}"
        )
    return ShapedArray((*pivots.shape[:-1], permutation_size), INFO, pivots.weak_type)


def _order_lower(ctx: LoweringContext, eqn: Eqn, pivots: Any) -> Any:
    aval, rows = eqn.invars[0].aval.strong(), eqn.params["permutation_size"]
    if is_gpu(ctx) and aval.size:
        outs = [eqn.outvars[0].aval.strong()]
        kernel = Kernel("cu_lu_pivots_to_permutation")
        return call_kernel(ctx, "lu_pivots_to_permutation", [pivots], [aval], outs, {"cuda": kernel}, columns=False)[0]
    return write_composed(ctx, eqn, [pivots], [aval], lambda p: [_exchanged(p, rows)])[0]


def _exchanged(pivots: Any, rows: int) -> Any:
    """The order of `rows` rows after all exchanges."""
    *batch, count = aval_of(pivots).shape
    last = len(batch)
    places = broadcasted_iota(np.int32, (*batch, rows), last)
    if not count:
        return places

    def exchange(i: Any, order: Any) -> Any:
        other = broadcast_in_dim(
            dynamic_index_in_dim(pivots, i, last, keepdims=False), (*batch, rows), tuple(range(last))
        )
        # The counter has the default width.
        here, there = ew.eq_p.bind(places, convert_element_type(i, np.int32)), ew.eq_p.bind(places, other)
        mine, its = (_only(order, mask, last) for mask in (here, there))
        return ew.select_n(here, ew.select_n(there, order, mine), its)

    return fori_loop(np.int32(0), _integer(count), exchange, places)


def _integer(size: Any) -> Any:
    """A size as int32."""
    return convert_element_type(size, np.int32) if isinstance(size, DimExpr) else np.int32(size)


lu_pivots_to_permutation_p: Primitive = Primitive(
    "lu_pivots_to_permutation",
    _order_infer,
    lower=_order_lower,
    explicit=stacks(1),
    batch=batch_leading(lambda: lu_pivots_to_permutation_p),
    absent={**NOT_LINEAR, "jvp": "integers have no derivative"},
)


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of rows after exchanging row i with row `pivots[i]`, one i after the other.

    Args:
      pivots: int32[..., k].
      permutation_size: the number of rows, k at least.

    Returns:
      int32[..., permutation_size]: the row of the matrix that stands in each place.

    >>> lax.linalg.lu_pivots_to_permutation(jnp.array([1, 1]), 2)
    Array([1, 0], dtype=int32)
    """
    return lu_pivots_to_permutation_p.bind(pivots, permutation_size=as_size(permutation_size))


def _only(x: Any, mask: Any, dim: int) -> Any:
    """The element of each row at which `mask` is true, repeated along the row."""
    picked = reduce_sum_p.bind(ew.select_n(mask, ew.mul(x, 0), x), axes=(dim,))
    return broadcast_in_dim(picked, aval_of(x).shape, tuple(range(dim)))


def _lu_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """With P x = L U, the tangents of L and U are those of L^-1 P dx U^-1 below and above the diagonal.

    Both factors are made square by ones on their diagonals, which changes nothing of what is kept.
    """
    factors, pivots, permutation = lu_p.bind(*primals)
    if tangents[0] is None:
        return [factors, pivots, permutation], [None, None, None]
    aval = aval_of(factors)
    m, n = aval.shape[-2:]
    k: Any = min_dim(m, n)
    lower = _with_unit_diagonal(triangle(_columns(factors, k), True, -1), m, 0)
    upper = _with_unit_diagonal(triangle(_rows(factors, k), False), n, k)
    moved = permute_rows(tangents[0], permutation)
    inner = triangular_solve(lower, moved, left_side=True, lower=True, unit_diagonal=True)
    inner = triangular_solve(upper, inner)
    change = ew.add_p.bind(
        matmul(lower, triangle(inner, True, -1)),
        matmul(triangle(inner, False), upper),
    )
    return [factors, pivots, permutation], [change, None, None]


def _columns(x: Any, count: int) -> Any:
    return slice_in_dim(x, 0, count, axis=aval_of(x).ndim - 1)


def _rows(x: Any, count: int) -> Any:
    return slice_in_dim(x, 0, count, axis=aval_of(x).ndim - 2)


def _with_unit_diagonal(x: Any, size: int, start: int) -> Any:
    """`x` filled up with zeros to square matrices, with ones added on the diagonal from `start` on."""
    aval = aval_of(x)
    config = [(0, 0, 0)] * (aval.ndim - 2) + [(0, size - s, 0) for s in aval.shape[-2:]]
    x = pad(x, np.zeros((), aval.dtype)[()], config)
    shape = aval_of(x).shape
    rows, columns = (broadcasted_iota(np.int32, shape, len(shape) - d) for d in (2, 1))
    ones = ew.and_p.bind(ew.eq_p.bind(rows, columns), ew.ge_p.bind(rows, _integer(start)))
    return ew.add_p.bind(x, convert_element_type(ones, aval.dtype))


def permute_rows(x: Any, permutation: Any) -> Any:
    """Matrices with their rows in the order of a permutation of the same batch."""
    shape = aval_of(x).shape
    index = broadcast_in_dim(permutation, shape, tuple(range(len(shape) - 1)))
    return take_along(x, index, len(shape) - 2)


lu_p: Primitive = Primitive(
    "lu",
    _lu_infer,
    lower=_lu_lower,
    jvp=_lu_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: lu_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def lu(x: Any) -> list[Any]:
    """[factors, pivots, permutation] with `x[permutation] = L U`, for matrices `[..., m, n]`.

    The factors share one matrix: U on and above the diagonal, L below it (its diagonal is ones). `pivots[i]` is the row
    that row i was exchanged with, in turn; both are int32.

    >>> lax.linalg.lu(jnp.array([[0.0, 1.0], [2.0, 3.0]]))
    [Array([[2., 3.],
           [0., 1.]], dtype=float32), Array([1, 1], dtype=int32), Array([1, 0], dtype=int32)]
    """
    factors, pivots, permutation = lu_p.bind(x)
    return [factors, pivots, permutation]


def lu_solve(factors: Any, permutation: Any, b: Any, trans: int = 0) -> Any:
    """The x with `a x = b`, given what `lu` says of square a; all with one batch, b with rows like a.

    `trans` 1 solves with the transpose of a, 2 with its adjoint.
    """
    if trans == 0:
        x = permute_rows(b, permutation)
        x = triangular_solve(factors, x, left_side=True, lower=True, unit_diagonal=True)
        return triangular_solve(factors, x, left_side=True)
    turned = {"left_side": True, "transpose_a": True, "conjugate_a": trans == 2}
    x = triangular_solve(factors, b, **turned)
    x = triangular_solve(factors, x, lower=True, unit_diagonal=True, **turned)
    return permute_rows(x, inverse_permutation(permutation))


def inverse_permutation(permutation: Any) -> Any:
    """The permutation that undoes one, along the last dimension."""
    shape = aval_of(permutation).shape
    return sort_key_val(permutation, broadcasted_iota(np.int32, shape, len(shape) - 1))[1]


# ----------------------------------------------------------------------------------------------------------
# Systems whose matrix has been factored


def _factored_infer(
    factors: ShapedArray, permutation: ShapedArray, a: ShapedArray, b: ShapedArray, *, trans: int
) -> Any:
    fits = b.ndim == a.ndim and b.shape[:-1] == a.shape[:-1] == permutation.shape and factors.shape == a.shape
    if not fits or not a.dtype == b.dtype == factors.dtype:
        raise errors.ArgumentTypeError(
            f"factored_solve of {a.short()} needs its own factors and right-hand sides of one batch and dtype, but "
            f"got {factors.short()}, {permutation.short()} and {b.short()}"
        )
    return ShapedArray(b.shape, b.dtype, a.weak_type and b.weak_type)


def _factored_lower(ctx: LoweringContext, eqn: Eqn, factors: Any, permutation: Any, a: Any, b: Any) -> Any:
    avals = [eqn.invars[i].aval for i in (0, 1, 3)]
    solve = lambda f, p, b: [lu_solve(f, p, b, eqn.params["trans"])]
    return write_composed(ctx, eqn, [factors, permutation, b], avals, solve)[0]


def _factored_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, trans: int) -> tuple[Any, Any]:
    """The factors belong to `a`, whose tangent stands for theirs: dx = a^-1 (db - da x)."""
    factors, permutation, a, _ = primals
    out = factored_solve_p.bind(*primals, trans=trans)
    change = tangents[3]
    if tangents[2] is not None:
        moved = ew.neg_p.bind(matmul(matrix_transpose(tangents[2]) if trans else tangents[2], out))
        change = add_tangents(change, moved)
    return out, None if change is None else factored_solve_p.bind(factors, permutation, a, change, trans=trans)


def _factored_transpose(ct: Any, factors: Any, permutation: Any, a: Any, b: Any, *, trans: int) -> list[Any]:
    return [None, None, None, factored_solve_p.bind(factors, permutation, a, ct, trans=1 - trans)]


def _factored_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    if all(d is None for d in dims[:3]) and aval_of(args[2]).ndim == 2:
        # One matrix for the whole batch: more right-hand sides.
        b = move_dim(args[3], dims[3], 1)
        shape = aval_of(b).shape
        flat = reshape(b, (shape[0], size * shape[2]))
        return reshape(factored_solve_p.bind(*args[:3], flat, **params), shape), 1
    return factored_solve_p.bind(*(bring_to_front(size, x, d) for x, d in zip(args, dims)), **params), 0


factored_solve_p: Primitive = Primitive(
    "factored_solve",
    _factored_infer,
    lower=_factored_lower,
    jvp=_factored_jvp,
    transpose=_factored_transpose,
    explicit=stacks(2, 1, 2, 2),
    batch=_factored_batch,
)


def factored_solve(factors: Any, permutation: Any, a: Any, b: Any) -> Any:
    """The x with `a x = b`, given what `lu` says of square a; all with one batch, b with rows like a.

    Derivatives are those of a and b: the factors, used again, are taken as they are.
    """
    return factored_solve_p.bind(factors, permutation, a, b, trans=0)
