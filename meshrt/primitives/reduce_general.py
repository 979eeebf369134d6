"""Reductions by any associative computation, of several operands together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.basic.reducer import reduced_shape
from meshrt.core.basic.shapes import (
    batch_together,
    broadcast_in_dim,
    instantiate,
    reduce_sum_p,
    reshape,
    transpose,
)
from meshrt.core.completion import asked
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.trace import eval_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives import reduce as sums
from meshrt.primitives.computation import is_of_lax, only_operation, scalar_jaxpr, starts_from
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.neutral import highest, lowest
from meshrt.primitives.slice import slice_in_dim
from meshrt.transforms.batching import MappedAxis, batch_jaxpr
from meshrt.transforms.jvp import jvp_flat
from propagation.asm import i64_array

__all__ = ["reduce"]


def _infer(*avals: ShapedArray, jaxpr: Jaxpr, dimensions: tuple[int, ...]) -> list[ShapedArray]:
    count = len(avals) // 2
    operands, inits = avals[:count], avals[count:]
    first = operands[0]
    if any(x.shape != first.shape for x in operands):
        raise errors.ArgumentTypeError(
            f"reduce needs operands of one shape, but got {', '.join(x.short() for x in operands)}"
        )
    if any(i.shape for i in inits):
        raise errors.ArgumentShapeError(
            f"reduce found non-scalar initial value: init_values are {', '.join(i.short() for i in inits)}"
        )
    if any(x.dtype != i.dtype for x, i in zip(operands, inits)):
        raise errors.ArgumentTypeError(
            "reduce needs for each operand an init_value of its dtype, but operands are "
            f"{', '.join(x.short() for x in operands)} and init_values {', '.join(i.short() for i in inits)}"
        )
    shape = reduced_shape(first.shape, dimensions)
    return [ShapedArray(shape, x.dtype, x.weak_type and i.weak_type) for x, i in zip(operands, inits)]


def _lower(ctx: LoweringContext, eqn: Eqn, *args: Any) -> Any:
    attrs = f"dimensions = {i64_array(eqn.params['dimensions'])}"
    outs = [v.aval for v in eqn.outvars]
    return ctx.ops("stablehlo.reduce", args, outs, attrs, [ctx.region(eqn.params["jaxpr"])])


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    count = len(args) // 2
    if any(d is not None for d in dims[count:]):
        raise errors.UnsupportedError("reduce cannot be mapped over its init_values; map over the operands only")
    operands, d = batch_together(size, args[:count], dims[:count])
    dimensions = tuple(i if i < d else i + 1 for i in params["dimensions"])
    outs = reduce_p.bind(*operands, *args[count:], jaxpr=params["jaxpr"], dimensions=dimensions)
    return outs, [d - sum(i < d for i in dimensions)] * count


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, dimensions: tuple[int, ...]
) -> tuple[list[Any], list[Any]]:
    """The derivative of a tree of combinations of halves, in which every use of the computation has one."""
    count = len(primals) // 2
    inits = primals[count:]
    if any(t is not None for t in tangents[count:]):
        raise errors.UnsupportedError(
            "Gradient of general lax.reduce with non-zero tangents for initial values to reduction not implemented; "
            "combine them with the result outside of the reduction"
        )
    if all(t is None for t in tangents):
        return reduce_p.bind(*primals, jaxpr=jaxpr, dimensions=dimensions), [None] * count
    moved = [instantiate(t, x) if t is not None else None for t, x in zip(tangents[:count], primals)]
    return jvp_flat(lambda *xs: _by_halves(xs, inits, jaxpr, dimensions), primals[:count], moved)


def _by_halves(xs: Sequence[Any], inits: Sequence[Any], jaxpr: Jaxpr, dimensions: tuple[int, ...]) -> list[Any]:
    """The reduction of f32[5] as combinations of two of f32[3], the second filled with `inits`, then of f32[2], ..."""
    aval = aval_of(xs[0])
    kept = [i for i in range(aval.ndim) if i not in dimensions]
    shape = tuple(aval.shape[i] for i in kept)
    width, count = math.prod(shape), math.prod(aval.shape[i] for i in dimensions)
    if not aval.size:
        return [broadcast_in_dim(i, shape, ()) for i in inits]
    values = [reshape(transpose(x, (*dimensions, *kept)), (count, width)) for x in xs]
    while count > 1:
        half = (count + 1) // 2
        first = [slice_in_dim(v, 0, half) for v in values]
        second = [slice_in_dim(v, half, count) for v in values]
        if count % 2:
            second = [concatenate([v, broadcast_in_dim(i, (1, width), ())], 0) for v, i in zip(second, inits)]
        values, count = _combined(jaxpr, [*first, *second], half * width), half
    return [reshape(v, shape) for v in values]


def _combined(jaxpr: Jaxpr, values: Sequence[Any], size: int) -> list[Any]:
    """The computation on scalars, applied to all elements of arrays."""
    shape = aval_of(values[0]).shape
    mapped, _ = batch_jaxpr(jaxpr, MappedAxis(size), (True,) * len(values), True)
    outs = eval_jaxpr(mapped.jaxpr, mapped.consts, [reshape(v, (size,)) for v in values])
    return [reshape(o, shape) for o in outs]


reduce_p = Primitive(
    "reduce", _infer, lower=_lower, jvp=_jvp, batch=_batch, multiple_results=True, cache_types=False, typed=False,
    absent=NOT_LINEAR,
)  # fmt: skip

# By the operation that a computation consists of: the reduction that knows its derivative, and where it starts from.
_KNOWN: dict[Primitive, tuple[Primitive, Callable[[Any], Any]]] = {
    ew.add_p: (reduce_sum_p, lambda dtype: 0),
    ew.mul_p: (sums.reduce_prod_p, lambda dtype: 1),
    ew.max_p: (sums.reduce_max_p, lowest),
    ew.min_p: (sums.reduce_min_p, highest),
    ew.or_p: (sums.reduce_or_p, lambda dtype: 0),
    ew.xor_p: (sums.reduce_xor_p, lambda dtype: 0),
    ew.and_p: (sums.reduce_and_p, lambda dtype: -1),
}


def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
    out_sharding: Any = None,
) -> Any:
    """Reduces an array, or several of one shape as a pytree, over `dimensions` by an associative `computation`.

    `computation(a, b)` takes two pytrees like `operands` of scalars and returns one; `init_values`, a pytree of
    scalars, is its identity. The result has the operands' dtypes and the shape without `dimensions`. Sums, products,
    extremes and combinations of bits become the reductions of those names; `out_sharding` is for sums.

    >>> import meshrt.numpy as jnp
    >>> from meshrt import lax
    >>> print(lax.reduce(jnp.arange(6.0).reshape(2, 3), 0.0, lambda a, b: a + b, [1]))
    [ 3. 12.]

    Raises:
      ArgumentValueError: `init_values` has another structure than `operands`.
      ArgumentTypeError: shapes, dtypes or the computation's results don't go together.
    """
    xs, tree = tree_util.tree_flatten(operands)
    inits, init_tree = tree_util.tree_flatten(init_values)
    if tree != init_tree or not xs:
        raise errors.ArgumentValueError(
            f"reduce: Operands must have the same tree structure as init_values: {tree} vs. {init_tree}"
        )
    ndim = aval_of(xs[0]).ndim
    if any(not 0 <= d < ndim for d in dimensions):
        raise errors.AxisError(
            f"reduction axes {tuple(dimensions)} contains out-of-bounds indices for {aval_of(xs[0]).str_short()}."
        )
    axes = tuple(map(int, dimensions))
    if len(set(axes)) < len(axes):
        raise errors.ArgumentValueError(f"reduce: duplicate value in 'axes' of reduction: {tuple(dimensions)}")
    x_aval, i_aval = aval_of(xs[0]), aval_of(inits[0])
    jaxpr = scalar_jaxpr("reduce", computation, [aval_of(i) for i in inits], tree)
    # A function of `lax` is known by itself, which is so of initial values of another dtype too.
    is_one = len(xs) == 1 and (x_aval.dtype == i_aval.dtype or is_of_lax(computation))
    operation = only_operation(jaxpr) if is_one else None
    known = None if operation is None else _KNOWN.get(operation)
    if known is not None and starts_from(inits[0], known[1](i_aval.dtype), i_aval.dtype):
        primitive = known[0]
        wanted = asked(out_sharding, ndim - len(axes), "reduce") if primitive is reduce_sum_p else {}
        if out_sharding is not None and not wanted:
            raise errors.UnsupportedError(f"reduce takes out_sharding for sums only, not for {primitive.name}")
        out = primitive.bind(xs[0], axes=tuple(sorted(axes)), **wanted)
        weak = x_aval.weak_type and i_aval.weak_type
        out = convert_element_type(out, aval_of(out).dtype, weak) if aval_of(out).weak_type != weak else out
        return tree_util.tree_unflatten(tree, [out])
    if out_sharding is not None:
        raise errors.UnsupportedError("reduce takes out_sharding for sums only, not for any computation")
    inits = [np.asarray(i, aval_of(i).dtype)[()] if isinstance(i, np.ndarray) else i for i in inits]
    return tree_util.tree_unflatten(tree, reduce_p.bind(*xs, *inits, jaxpr=jaxpr, dimensions=tuple(sorted(axes))))
