"""Systems with tridiagonal matrices, given by their three diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.shapes import bring_to_front, broadcast_in_dim, move_dim, reshape, zeros
from meshrt.core.explicit import stacks
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.control import scan
from meshrt.primitives.lapack import INFO, Kernel, call_kernel, is_gpu, nan_unless_ok
from meshrt.primitives.matrix_types import check_matrices
from meshrt.primitives.slice import pad


def _infer(dl: ShapedArray, d: ShapedArray, du: ShapedArray, b: ShapedArray, *, perturb_singular: bool) -> ShapedArray:
    check_matrices("tridiagonal_solve", [dl, d, du, b], [1, 1, 1, 2])
    if dl.shape != d.shape or d.shape != du.shape:
        raise errors.ArgumentTypeError(
            "tridiagonal_solve requires that all diagonal arguments have the same shape, got "
            f"{dl.shape}, {d.shape} and {du.shape}"
        )
    if b.shape[:-1] != d.shape:
        raise errors.ArgumentTypeError(
            "tridiagonal_solve requires that the leading ndim-1 dimensions of b equal the dimensions of the diagonal "
            f"arguments, got {b.shape} for {d.shape}"
        )
    return ShapedArray(b.shape, b.dtype, all(x.weak_type for x in (dl, d, du, b)))


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    avals, out = [v.aval.strong() for v in eqn.invars], eqn.outvars[0].aval.strong()
    if not out.size:
        return operands[3]
    name = "tridiagonal_solve"
    if eqn.params["perturb_singular"]:
        kernels = {"cpu": Kernel("tridiagonal_solve_perturbed_ffi"), "cuda": Kernel("cu_tridiagonal_solve_perturbed")}
        return call_kernel(ctx, name, operands, avals, [out], kernels)[0]
    if is_gpu(ctx):
        return call_kernel(ctx, name, operands, avals, [out], {"cuda": Kernel("cusparse_gtsv2_ffi")})[0]
    if ctx.module.platform == "tpu":
        return write_composed(ctx, eqn, operands, avals, lambda *xs: [by_elimination(*xs)])[0]
    info = ShapedArray(out.shape[:-2], INFO)
    # The kernel works in place, so that factors of the diagonals are results, too.
    *_, x, failed = call_kernel(ctx, name, operands, avals, [*avals, info], {"cpu": Kernel("gtsv")})
    return nan_unless_ok(ctx, failed, out.shape[:-2], [x], [out])[0]


def by_elimination(dl: Any, d: Any, du: Any, b: Any) -> Any:
    """The x with a x = b where there is no kernel: row by row, without exchanging any."""
    last = aval_of(d).ndim - 1
    # The first element below and the last one above count for nothing, and may be anything, NaN too.
    dl, du = _moved(_moved(dl, -1, last), 1, last), _moved(_moved(du, 1, last), -1, last)
    lower, middle, upper, right = (move_dim(x, last, 0) for x in (dl, d, du, b))

    def spread(x: Any, like: Any) -> Any:
        shape = aval_of(like).shape
        return broadcast_in_dim(x, shape, tuple(range(len(shape) - 1)))

    def down(above: tuple[Any, Any], row: tuple[Any, Any, Any, Any]) -> tuple[Any, Any]:
        (ratio, value), (low, mid, up, given) = above, row
        pivot = ew.sub_p.bind(mid, ew.mul_p.bind(low, ratio))
        value = ew.sub_p.bind(given, ew.mul_p.bind(spread(low, given), value))
        found = ew.div_p.bind(up, pivot), ew.div_p.bind(value, spread(pivot, given))
        return found, found

    def up(below: Any, row: tuple[Any, Any]) -> tuple[Any, Any]:
        ratio, value = row
        found = ew.sub_p.bind(value, ew.mul_p.bind(spread(ratio, value), below))
        return found, found

    rows, columns = (zeros(ShapedArray(aval_of(x).shape[1:], aval_of(x).dtype)) for x in (middle, right))
    _, eliminated = scan(down, (rows, columns), (lower, middle, upper, right))
    _, found = scan(up, columns, eliminated, reverse=True)
    return move_dim(found, 0, last)


def _moved(x: Any, by: int, axis: int) -> Any:
    """`x` moved along a dimension, with zeros where nothing moves to."""
    aval = aval_of(x)
    config = [(0, 0, 0)] * aval.ndim
    config[axis] = (by, -by, 0)
    return pad(x, np.zeros((), aval.dtype)[()], config)


def _product(dl: Any, d: Any, du: Any, x: Any) -> Any:
    """The product of a tridiagonal matrix and `x`; diagonals may be None, for zeros."""
    shape = aval_of(x).shape
    rows = len(shape) - 2
    total = None
    for diagonal, by in ((dl, 1), (d, 0), (du, -1)):
        if diagonal is not None:
            spread = broadcast_in_dim(diagonal, shape, tuple(range(rows + 1)))
            total = add_tangents(total, ew.mul_p.bind(spread, _moved(x, by, rows) if by else x))
    return total


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, perturb_singular: bool) -> tuple[Any, Any]:
    """dx = a^-1 (db - da x)."""
    *diagonals, _ = primals
    out = tridiagonal_solve_p.bind(*primals, perturb_singular=perturb_singular)
    change = tangents[3]
    dl, d, du, _ = tangents
    product = _product(dl, d, du, out)
    if product is not None:
        change = add_tangents(change, ew.neg_p.bind(product))
    if change is None:
        return out, None
    return out, tridiagonal_solve_p.bind(*diagonals, change, perturb_singular=perturb_singular)


def _transpose(ct: Any, dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool) -> list[Any]:
    last = aval_of(d).ndim - 1
    turned = _moved(du, 1, last), d, _moved(dl, -1, last)
    return [None, None, None, tridiagonal_solve_p.bind(*turned, ct, perturb_singular=perturb_singular)]


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    if all(d is None for d in dims[:3]):
        # One matrix for the whole batch: more right-hand sides.
        last = aval_of(args[3]).ndim - 2
        b = move_dim(args[3], dims[3], last)
        shape = aval_of(b).shape
        flat = reshape(b, (*shape[:-2], size * shape[-1]))
        return reshape(tridiagonal_solve_p.bind(*args[:3], flat, **params), shape), last
    return tridiagonal_solve_p.bind(*(bring_to_front(size, x, d) for x, d in zip(args, dims)), **params), 0


tridiagonal_solve_p: Primitive = Primitive(
    "tridiagonal_solve",
    _infer,
    lower=_lower,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    explicit=stacks(1, 1, 1, 2),
)


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Any:
    """The x with a x = b for tridiagonal matrices a.

    Args:
      dl: [..., m], the diagonal below the middle one; `dl[..., 0]` does not count.
      d: [..., m], the middle one.
      du: [..., m], the one above it; `du[..., m - 1]` does not count.
      b: [..., m, n].
      perturb_singular: take tiny pivots as somewhat larger ones, so that the result is finite.

    Returns:
      [..., m, n]; NaN where a matrix is singular.

    Raises:
      ArgumentTypeError: shapes or dtypes that do not fit each other.

    >>> lax.linalg.tridiagonal_solve(jnp.zeros(2), jnp.array([2.0, 4.0]), jnp.zeros(2), jnp.ones((2, 1)))
    Array([[0.5 ],
           [0.25]], dtype=float32)
    """
    return tridiagonal_solve_p.bind(dl, d, du, b, perturb_singular=bool(perturb_singular))
