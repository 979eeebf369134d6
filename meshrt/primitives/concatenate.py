"""Joining arrays along a dimension, cutting them into parts, reversing them: concatenate, split, rev."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import batch_together, canonical_axis, instantiate, linear_jvp, zeros
from meshrt.core.dimensions.expression import as_size
from meshrt.core.explicit import alike, each, joined, keeps, moved
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.slice import slice_in_dim
from propagation.asm import i64_array

__all__ = ["concatenate", "rev", "split"]


# ----------------------------------------------------------------------------------------------------------
# concatenate


def _concatenate_infer(*operands: ShapedArray, dimension: int) -> ShapedArray:
    first = operands[0] if operands else None
    if first is None or not 0 <= dimension < first.ndim or not all(
        x.dtype == first.dtype and x.ndim == first.ndim
        and x.shape[:dimension] == first.shape[:dimension] and x.shape[dimension + 1 :] == first.shape[dimension + 1 :]
        for x in operands
    ):  # fmt: skip
        raise errors.ArgumentTypeError(_not_joined(operands, dimension))
    total = sum([x.shape[dimension] for x in operands])
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    return ShapedArray(shape, first.dtype, all(x.weak_type for x in operands))


def _not_joined(operands: Sequence[ShapedArray], dimension: int) -> str:
    """Why operands cannot be joined along a dimension."""
    shapes = ", ".join(str(x.shape) for x in operands)
    if len({x.ndim for x in operands}) > 1:
        return f"Cannot concatenate arrays with different numbers of dimensions: got {shapes}."
    if not operands or not 0 <= dimension < operands[0].ndim:
        return f"concatenate dimension out of bounds: dimension {dimension} for shapes {shapes or 'of no operand'}."
    if len({x.dtype for x in operands}) > 1:
        given = ", ".join(str(x.dtype) for x in operands)
        return (
            f"lax.concatenate requires arguments to have the same dtypes, got {given}. (Tip: jnp.concatenate promotes "
            "them)"
        )
    return (
        "Cannot concatenate arrays with shapes that differ in dimensions other than the one being concatenated: "
        f"concatenating along dimension {dimension} for shapes {shapes}."
    )


def _concatenate_lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    if len(operands) == 1:
        return operands[0]
    attrs = f"dimension = {eqn.params['dimension']} : i64"
    return ctx.op("stablehlo.concatenate", operands, eqn.outvars[0].aval, attrs)


def _concatenate_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int) -> tuple[Any, Any]:
    out = concatenate_p.bind(*primals, dimension=dimension)
    if all(t is None for t in tangents):
        return out, None
    parts = [instantiate(t, p) for t, p in zip(tangents, primals)]
    return out, concatenate_p.bind(*parts, dimension=dimension)


def _concatenate_transpose(ct: Any, *operands: Any, dimension: int) -> list[Any]:
    out, start = [], 0
    for x in operands:
        size = (x.aval if is_undefined(x) else aval_of(x)).shape[dimension]
        out.append(slice_in_dim(ct, start, start + size, 1, dimension) if is_undefined(x) else None)
        start += size
    return out


def _concatenate_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    args, d = batch_together(size, args, dims)
    dimension = params["dimension"]
    return concatenate_p.bind(*args, dimension=dimension + (d <= dimension)), d


_concatenate_explicit = each(
    alike("All operands should have the same sharding. Got shardings {specs}."), lambda app: app.specs[:1]
)


concatenate_p = Primitive(
    "concatenate", _concatenate_infer, lower=_concatenate_lower, jvp=_concatenate_jvp, transpose=_concatenate_transpose,
    batch=_concatenate_batch, explicit=_concatenate_explicit, sums=joined, finite=True,
)  # fmt: skip


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """The operands one after the other along `dimension`.

    Args:
      operands: arrays.
      dimension: a dimension number.

    >>> lax.concatenate([jnp.array([1]), jnp.array([2, 3])], 0)
    Array([1, 2, 3], dtype=int32)
    """
    operands = list(operands)
    if not operands:
        raise errors.ArgumentShapeError("concatenate requires a non-empty sequences of arrays")
    if len({aval_of(x).ndim for x in operands}) > 1:  # before their dimensions are counted
        raise errors.ArgumentTypeError(_not_joined([aval_of(x) for x in operands], dimension))
    if not -(ndim := aval_of(operands[0]).ndim) <= operator.index(dimension) < ndim:
        raise errors.ArgumentTypeError(_not_joined([aval_of(x) for x in operands], dimension))
    dimension = canonical_axis(dimension, ndim)
    if len(operands) == 1 and not isinstance(operands[0], np.ndarray):
        return operands[0]
    return concatenate_p.bind(*operands, dimension=dimension)


# ----------------------------------------------------------------------------------------------------------
# split


def _split_infer(x: ShapedArray, *, sizes: Sequence[int], axis: int) -> Any:
    if not 0 <= axis < x.ndim:
        raise errors.ArgumentValueError(f"split: axis {axis} is out of bounds for {x.short()}")
    if any(s < 0 for s in sizes):
        raise errors.ArgumentShapeError(f"Sizes passed to split must be nonnegative, got {tuple(sizes)}")
    if sum(sizes) != x.shape[axis]:
        raise errors.ArgumentShapeError(
            f"Sum of sizes {sum(sizes)} must be equal to dimension {axis} of the operand: "
            f"split of {x.short()} along axis {axis} needs sizes that add up to that dimension, but got {sizes}"
        )
    return [x.with_shape((*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes]


def _split_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    axis, start, out = eqn.params["axis"], 0, []
    physical = eqn.invars[0].aval.physical().shape
    for v in eqn.outvars:
        starts, limits = [0] * len(physical), list(physical)
        size = v.aval.shape[axis]
        starts[axis], limits[axis] = start, start + size
        start += size
        attrs = (
            f"start_indices = {i64_array(starts)}, limit_indices = {i64_array(limits)}, "
            f"strides = {i64_array([1] * len(physical))}"
        )
        out.append(ctx.op("stablehlo.slice", [x], v.aval, attrs))
    return out


def _split_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    outs = split_p.bind(*primals, **params)
    t = tangents[0]
    return outs, [None] * len(outs) if t is None else split_p.bind(t, **params)


def _split_transpose(cts: Sequence[Any], x: Any, *, sizes: Sequence[int], axis: int) -> list[Any]:
    dtype = next(aval_of(c).dtype for c in cts if c is not None)
    parts = []
    for ct, size in zip(cts, sizes):
        shape = (*x.aval.shape[:axis], size, *x.aval.shape[axis + 1 :])
        parts.append(zeros(x.aval.update(shape=shape, dtype=dtype, sharding=x.aval.explicit)) if ct is None else ct)
    return [concatenate_p.bind(*parts, dimension=axis)]


def _split_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    d, axis = dims[0], params["axis"]
    outs = split_p.bind(args[0], sizes=params["sizes"], axis=axis + (d <= axis))
    return outs, [d] * len(outs)


split_p = Primitive(
    "split", _split_infer, lower=_split_lower, jvp=_split_jvp, transpose=_split_transpose, batch=_split_batch,
    explicit=keeps("split"), sums=moved,
    multiple_results=True, finite=True,
)  # fmt: skip


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> Sequence[Any]:
    """Consecutive parts of `operand` along `axis`, of the given sizes.

    Args:
      operand: an array.
      sizes: sizes of the parts, which add up to that of the dimension.
      axis: a dimension number.

    >>> lax.split(jnp.arange(5), (2, 3))
    [Array([0, 1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    axis = canonical_axis(axis, aval_of(operand).ndim)
    return split_p.bind(operand, sizes=tuple(map(as_size, sizes)), axis=axis)


# ----------------------------------------------------------------------------------------------------------
# rev


def _rev_infer(x: ShapedArray, *, dimensions: tuple[int, ...]) -> Any:
    if len(set(dimensions)) != len(dimensions):
        raise errors.ArgumentTypeError(f"rev dimensions must be unique, got {dimensions}.")
    if any(d >= x.ndim for d in dimensions):
        raise errors.ArgumentTypeError(
            f"rev dimensions must all be less than operand ndim, got dimensions {dimensions} for operand ndim {x.ndim}."
        )
    return x


def _rev_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    d = dims[0]
    return rev_p.bind(args[0], dimensions=tuple(i + (d <= i) for i in params["dimensions"])), d


rev_p: Primitive = Primitive(
    "rev", _rev_infer, jvp=linear_jvp(lambda: rev_p), batch=_rev_batch, sums=moved, cheap=True,
    transpose=lambda ct, x, *, dimensions: [rev_p.bind(ct, dimensions=dimensions)],
    lower=lambda ctx, eqn, x: ctx.op(
        "stablehlo.reverse", [x], eqn.outvars[0].aval, f"dimensions = {i64_array(eqn.params['dimensions'])}"),
    finite=True,
)  # fmt: skip


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """`operand` with the order of elements reversed along `dimensions`.

    Args:
      operand: an array.
      dimensions: dimension numbers.

    >>> lax.rev(jnp.array([1, 2, 3]), (0,))
    Array([3, 2, 1], dtype=int32)
    """
    if any(d < 0 for d in dimensions):
        raise errors.ArgumentTypeError(
            f"rev dimensions must have every element be nonnegative, got {tuple(dimensions)}. "
            "meshrt.numpy.flip counts negative ones from the end"
        )
    return rev_p.bind(operand, dimensions=tuple(map(int, dimensions)))
