"""Sorting: sort (several operands, total order of floats), top_k and its approximations.

The order is lexicographic in the first `num_keys` operands. Floats are ordered totally, with -0 equal to 0 and every
NaN equal and last; complex numbers by real, then imaginary part.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import batch_together, canonical_axis
from meshrt.core.completion import declared
from meshrt.core.dimensions.expression import as_size, is_symbolic_shape
from meshrt.core.explicit import alike, each, whole
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from meshrt.primitives.elementwise import neg_p
from meshrt.primitives.gather import take_along
from meshrt.primitives.reshape import iota_p
from meshrt.xla import jaxlib_api
from propagation.asm import i64_array

__all__ = ["approx_max_k", "approx_min_k", "sort", "sort_key_val", "top_k"]


def _sort_infer(*operands: ShapedArray, dimension: int, is_stable: bool, num_keys: int) -> Any:
    first = operands[0] if operands else None
    if first is not None and any(x.shape != first.shape for x in operands):
        raise errors.ArgumentTypeError(
            f"Arguments to sort must have equal shapes, got: {' '.join(str(x.shape) for x in operands)}"
        )
    if first is None or not 0 <= dimension < first.ndim or any(x.shape != first.shape for x in operands):
        raise errors.ArgumentTypeError(
            f"sort along dimension {dimension} needs operands of one shape that has this dimension, but got "
            f"{', '.join(x.short() for x in operands) or 'none'}"
        )
    if not 1 <= num_keys <= len(operands):
        most = (
            "1 for a single operand" if len(operands) == 1 else f"one of 1 to {len(operands)}, the number of operands"
        )
        raise errors.ArgumentValueError(f"sort: num_keys={num_keys} must equal {most}.")
    if any(x.is_key for x in operands):
        raise errors.ArgumentTypeError("PRNG keys cannot be sorted; sort meshrt.random.key_data(keys) instead")
    if extended := [x for x in operands if x.is_extended]:
        raise errors.ArgumentTypeError(
            f"sort does not accept dtype {extended[0].dtype}; sort positions by numbers that are made of it, and index"
        )
    return operands


class _Comparator:
    """Writes the region of a stablehlo.sort: whether the left element comes before the right one."""

    def __init__(self, ctx: LoweringContext, body: Any):
        self.ctx = ctx.nested(body)

    def compare(self, direction: str, kind: str, x: Any, y: Any) -> Any:
        attrs = (
            f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
            f"compare_type = #stablehlo<comparison_type {kind}>"
        )
        return self.ctx.op("stablehlo.compare", [x, y], ShapedArray((), np.dtype(bool)), attrs)

    def keys(self, x: Any, dtype: Any) -> list[tuple[Any, str]]:
        """The comparable values of an element, most significant first, each with its kind of comparison."""
        if dtypes.issubdtype(dtype, np.complexfloating):
            part = ShapedArray((), np.empty((), dtype).real.dtype)
            parts = [self.ctx.op(f"stablehlo.{which}", [x], part) for which in ("real", "imag")]
            return [(self.canonical(p, part), "TOTALORDER") for p in parts]
        if dtypes.issubdtype(dtype, np.floating):
            return [(self.canonical(x, ShapedArray((), dtype)), "TOTALORDER")]
        unsigned = dtype == np.bool_ or dtypes.issubdtype(dtype, np.unsignedinteger)
        return [(x, "UNSIGNED" if unsigned else "SIGNED")]

    def canonical(self, x: Any, aval: ShapedArray) -> Any:
        """One representation for both zeros and one for all NaNs, so that ties stay ties. (In the words that JAX has,
        by which files are recognised.)"""
        zero = self.ctx.full(0, aval)
        same = self.ctx.op("stablehlo.select", [self.compare("EQ", "FLOAT", x, zero), zero, x], aval)
        nan = self.ctx.full(np.nan, aval)
        return self.ctx.op("stablehlo.select", [self.compare("NE", "FLOAT", x, x), nan, same], aval)

    def before(self, pairs: Sequence[tuple[Any, Any, str]]) -> Any:
        """Lexicographic less-than."""
        flag = ShapedArray((), np.dtype(bool))
        result = None
        for x, y, kind in reversed(pairs):
            less = self.compare("LT", kind, x, y)
            if result is not None:
                tie = self.ctx.op("stablehlo.and", [self.compare("EQ", kind, x, y), result], flag)
                less = self.ctx.op("stablehlo.or", [less, tie], flag)
            result = less
        return result


def _sort_lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    p, avals = eqn.params, [v.aval for v in eqn.invars]
    scalars = [mlir_type(ShapedArray((), a.dtype)) for a in avals]
    body = ctx.body.body([s for s in scalars for _ in range(2)])
    comparator, pairs = _Comparator(ctx, body), []
    for i in range(p["num_keys"]):
        left = comparator.keys(body.args[2 * i], avals[i].dtype)
        right = comparator.keys(body.args[2 * i + 1], avals[i].dtype)
        pairs += [(x, y, kind) for (x, kind), (y, _) in zip(left, right)]
    body.ret([comparator.before(pairs)])
    attrs = f"dimension = {p['dimension']} : i64, is_stable = {str(p['is_stable']).lower()}"
    return ctx.ops("stablehlo.sort", operands, [v.aval for v in eqn.outvars], attrs, [body])


def _sort_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int, is_stable: bool, num_keys: int
) -> tuple[Any, Any]:
    if all(t is None for t in tangents):
        outs = sort_p.bind(*primals, dimension=dimension, is_stable=is_stable, num_keys=num_keys)
        return outs, [None] * len(outs)
    first = aval_of(primals[0])
    dtype = dtypes.canonicalize_dtype(dtypes.default_int_dtype())
    positions = iota_p.bind(dtype=dtype, shape=first.shape, dimension=dimension, **declared(first, ()))
    *outs, order = sort_p.bind(*primals, positions, dimension=dimension, is_stable=is_stable, num_keys=num_keys)
    return outs, [None if t is None else take_along(t, order, dimension) for t in tangents]


def _sort_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    args, d = batch_together(size, args, dims)
    dimension = params["dimension"]
    outs = sort_p.bind(*args, **{**params, "dimension": dimension + (d <= dimension)})
    return outs, [d] * len(outs)


sort_p = Primitive(
    "sort",
    _sort_infer,
    lower=_sort_lower,
    jvp=_sort_jvp,
    batch=_sort_batch,
    explicit=each(
        whole(
            lambda params: (params["dimension"],),
            "Arguments to sort must be unsharded over the sorting dimension. Got arg sharding={spec} and sorting "
            "dimension={dim}.",
        ),
        alike("Arguments to sort must have equal shardings, got: {specs}."),
    ),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """`operand` in ascending order along `dimension`; a sequence is permuted together, by its first `num_keys` arrays.

    Equal elements keep their order if `is_stable`.

    Args:
      operand: an array.
      dimension: a dimension number.
      is_stable: equal elements keep their order.
      num_keys: how many of the operands are compared.

    >>> lax.sort(jnp.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    >>> lax.sort((jnp.array([3, 1, 2]), jnp.array([10, 20, 30])), num_keys=1)
    (Array([1, 2, 3], dtype=int32), Array([20, 30, 10], dtype=int32))
    """
    single = not isinstance(operand, list | tuple)
    operands = [operand] if single else list(operand)
    if not operands:
        raise errors.ArgumentShapeError("Sort requires at least one operand")
    dimension = canonical_axis(dimension, aval_of(operands[0]).ndim)
    outs = sort_p.bind(*operands, dimension=dimension, is_stable=bool(is_stable), num_keys=operator.index(num_keys))
    return outs[0] if single else tuple(outs)


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Any, Any]:
    """`keys` in ascending order along `dimension`, and `values` permuted alike.

    Args:
      keys: what is sorted.
      values: what is moved along.
      dimension: a dimension number.
      is_stable: equal elements keep their order.

    >>> lax.sort_key_val(jnp.array([3, 1, 2]), jnp.array([10, 20, 30]))
    (Array([1, 2, 3], dtype=int32), Array([20, 30, 10], dtype=int32))
    """
    keys, values = sort((keys, values), dimension, is_stable, num_keys=1)
    return keys, values


# ----------------------------------------------------------------------------------------------------------
# top_k


def _top_k_infer(x: ShapedArray, *, k: int, axis: int) -> list[ShapedArray]:
    if x.is_extended:
        raise errors.ArgumentTypeError(f"top_k does not accept dtype {x.dtype}; convert with astype")
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        raise errors.ArgumentValueError("top_k is not compatible with complex inputs. Take their jnp.abs or jnp.real")
    if k < 0:
        raise errors.ArgumentShapeError(f"k argument to top_k must be nonnegative, got {k}")
    if not 0 <= axis < x.ndim or k > x.shape[axis]:
        raise errors.ArgumentShapeError(
            f"k argument to top_k must be no larger than size along axis; got k={k} with shape={list(x.shape)} and "
            f"axis={axis}"
        )
    if isinstance(x.shape[axis], int) and x.shape[axis] > np.iinfo(np.int32).max:
        raise errors.ArgumentValueError(
            f"top_k returns int32 indices, which will overflow along axis {axis} of {x.short()}"
        )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [ShapedArray(shape, x.dtype, x.weak_type), ShapedArray(shape, np.dtype(np.int32), x.weak_type)]


def _top_k_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    # chlo.top_k works along the last dimension, on signed and unsigned integers and floats.
    k, axis = eqn.params["k"], eqn.params["axis"]
    aval, outs = eqn.invars[0].aval, [v.aval for v in eqn.outvars]
    last = aval.ndim - 1
    if axis == last:
        return ctx.ops("chlo.top_k", [x], outs, f"k = {k} : i64")
    order = [i for i in range(aval.ndim) if i != axis] + [axis]
    inverse = list(np.argsort(order))
    moved = ctx.op(
        "stablehlo.transpose",
        [x],
        ShapedArray(tuple(aval.shape[i] for i in order), aval.dtype),
        _permutation(order),
    )
    inner = [ShapedArray(tuple(o.shape[i] for i in order), o.dtype) for o in outs]
    found = ctx.ops("chlo.top_k", [moved], inner, f"k = {k} : i64")
    return [ctx.op("stablehlo.transpose", [f], o, _permutation(inverse)) for f, o in zip(found, outs)]


def _permutation(order: Sequence[int]) -> str:
    return f"permutation = {i64_array(order)}"


def _top_k_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, k: Any, axis: int) -> tuple[Any, Any]:
    values, positions = top_k_p.bind(*primals, k=k, axis=axis)
    t = tangents[0]
    return [values, positions], [None if t is None else take_along(t, positions, axis), None]


def _top_k_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    d, axis = dims[0], params["axis"]
    outs = top_k_p.bind(args[0], k=params["k"], axis=axis + (d <= axis))
    return outs, [d, d]


top_k_p = Primitive(
    "top_k",
    _top_k_infer,
    lower=_top_k_lower,
    jvp=_top_k_jvp,
    batch=_top_k_batch,
    explicit=whole(
        lambda params: (params["axis"],),
        "The input should be unsharded over the axis along which to compute the top_k values. Got input type={type} "
        "and axis={dim}.",
    ),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def top_k(operand: Any, k: int, *, axis: int = -1) -> list[Any]:
    """The `k` largest elements along `axis` in descending order, lower position first, and their int32 positions.

    Args:
      operand: an array.
      k: how many.
      axis: a dimension number.

    >>> lax.top_k(jnp.array([1, 5, 3]), 2)
    [Array([5, 3], dtype=int32), Array([1, 2], dtype=int32)]
    """
    axis = canonical_axis(axis, aval_of(operand).ndim)
    values, positions = top_k_p.bind(operand, k=as_size(k), axis=axis)
    return [values, positions]


def approx_max_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Any]:
    """The `k` largest elements along a dimension in descending order, and their int32 positions.

    At least the share `recall_target` of them has to be right; here all are. Without `aggregate_to_topk` there are as
    many candidates as an approximation would leave for that share, among `reduction_input_size_override` elements if it
    is positive.

    Raises:
      ArgumentValueError: `operand` is not floating, or `k` does not lie between 1 and the dimension's size.
      ArgumentTypeError: `operand` is a scalar.

    Args:
      operand: an array.
      k: how many.
      reduction_dimension: a dimension number.
      recall_target: the part of the true results that is to be found, on hardware that approximates.
      reduction_input_size_override: the size to compute the recall for.
      aggregate_to_topk: reduce what hardware finds to `k` results.

    >>> lax.approx_max_k(jnp.array([1.0, 5.0, 3.0]), 2)
    [Array([5., 3.], dtype=float32), Array([1, 2], dtype=int32)]
    """
    aval = aval_of(operand)
    if not aval.shape:
        raise errors.ArgumentTypeError(f"approx_max_k needs an operand with a dimension, but got {aval.short()}")
    axis = canonical_axis(reduction_dimension, aval.ndim)
    size = aval.shape[axis]
    if not dtypes.issubdtype(aval.dtype, np.floating):
        raise errors.ArgumentValueError(
            f"approx_max_k operand must be a floating type, got {aval.short()}; convert it, or use top_k"
        )
    if k < 1:
        raise errors.ArgumentValueError(f"k must be positive, got {k}")
    if k > size:
        raise errors.ArgumentValueError(
            f"k must be smaller than the size of reduction_dim {size}, got {k}: it may be no larger"
        )
    if not aggregate_to_topk:
        if is_symbolic_shape((size, k)):
            raise errors.UnsupportedError(
                f"approx_max_k with aggregate_to_topk=False is not supported for symbolic sizes, here {k} of {size}: "
                "how many results there are is the compiler's choice for numbers; leave aggregate_to_topk out"
            )
        k = jaxlib_api.approximate_top_k_size(size, aval.ndim, k, recall_target, reduction_input_size_override)
    return top_k(operand, k, axis=axis)


def approx_min_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Any]:
    """The `k` smallest elements along a dimension in ascending order, and their positions; see `approx_max_k`.

    Args:
      operand: an array.
      k: how many.
      reduction_dimension: a dimension number.
      recall_target: the part of the true results that is to be found, on hardware that approximates.
      reduction_input_size_override: the size to compute the recall for.
      aggregate_to_topk: reduce what hardware finds to `k` results.

    >>> lax.approx_min_k(jnp.array([1.0, 5.0, 3.0]), 2)
    [Array([1., 3.], dtype=float32), Array([0, 2], dtype=int32)]
    """
    if not dtypes.issubdtype(aval_of(operand).dtype, np.floating):
        raise errors.ArgumentValueError(
            f"approx_min_k operand must be a floating type, got {aval_of(operand).short()}; convert it, or use sort"
        )
    values, positions = approx_max_k(
        neg_p.bind(operand), k, reduction_dimension, recall_target, reduction_input_size_override, aggregate_to_topk
    )
    return [neg_p.bind(values), positions]
