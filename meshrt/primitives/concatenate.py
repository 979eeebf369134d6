"""Primitives that put arrays together or take them apart whole: pad, concatenate, split, rev."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.pointwise import binary_operands
from meshrt.primitives.reshape import broadcast_in_dim, canonical_axis, i64_array
from meshrt.transforms.tools import instantiate, is_undefined, zeros

__all__ = ["concatenate", "pad", "rev", "split"]


def batch_together(size: int, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[list[Any], int]:
    """All operands with a batch dimension at one common position; unbatched ones are broadcast."""
    from meshrt.transforms.batching import move_dim

    present = {d for d in dims if d is not None}
    target = present.pop() if len(present) == 1 else 0
    out = []
    for x, d in zip(args, dims):
        if d is not None:
            out.append(move_dim(x, d, target))
            continue
        shape = aval_of(x).shape
        kept = [i if i < target else i + 1 for i in range(len(shape))]
        out.append(broadcast_in_dim(x, (*shape[:target], size, *shape[target:]), kept))
    return out, target


def insert(values: Sequence[Any], position: int, value: Any) -> tuple[Any, ...]:
    """`values` with `value` before `position`."""
    return (*values[:position], value, *values[position:])


def unary_linear_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The jvp of a primitive that is linear in its only operand."""

    def jvp(primals, tangents, **params):
        out = get().bind(*primals, **params)
        return out, None if tangents[0] is None else get().bind(tangents[0], **params)

    return jvp


# ----------------------------------------------------------------------------------------------------------
# pad


def _pad_infer(x, value, *, padding_config):
    if value.ndim or value.dtype != x.dtype or x.is_key:
        raise errors.ArgumentTypeError(
            f"pad needs a scalar of the operand's (numeric) dtype to pad with: operand {x.str_short()}, "
            f"padding value {value.str_short()}"
        )
    if len(padding_config) != x.ndim or any(len(c) != 3 or c[2] < 0 for c in padding_config):
        raise errors.ArgumentTypeError(
            f"pad of {x.str_short()} needs one (low, high, interior) per dimension, interior not negative, "
            f"but got {padding_config}"
        )
    shape = tuple([n + max(n - 1, 0) * inner + low + high for n, (low, high, inner) in zip(x.shape, padding_config)])
    if any(n < 0 for n in shape):
        raise errors.ArgumentTypeError(f"pad of {x.str_short()} by {padding_config} would give the sizes {shape}")
    return ShapedArray(shape, x.dtype, x.weak_type and value.weak_type)


def _pad_lower(ctx, eqn, x, value):
    low, high, inner = zip(*eqn.params["padding_config"]) if eqn.params["padding_config"] else ((), (), ())
    attrs = (
        f"edge_padding_low = {i64_array(low)}, edge_padding_high = {i64_array(high)}, "
        f"interior_padding = {i64_array(inner)}"
    )
    return ctx.op("stablehlo.pad", [x, value], eqn.outvars[0].aval, attrs)


def _pad_jvp(primals, tangents, *, padding_config):
    out = pad_p.bind(*primals, padding_config=padding_config)
    if tangents[0] is None and tangents[1] is None:
        return out, None
    parts = [instantiate(t, p) for t, p in zip(tangents, primals)]
    return out, pad_p.bind(*parts, padding_config=padding_config)


def _unpad(ct: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """The elements of a padded array that come from the operand (zero where they were cut away)."""
    from meshrt.primitives.slice import slice

    zero = np.zeros((), aval_of(ct).dtype)[()]
    cut = pad_p.bind(ct, zero, padding_config=tuple((-low, -high, 0) for low, high, _ in padding_config))
    strides = [inner + 1 for _, _, inner in padding_config]
    return cut if all(s == 1 for s in strides) else slice(cut, (0,) * len(strides), aval_of(cut).shape, strides)


def _pad_transpose(ct, x, value, *, padding_config):
    from meshrt.primitives.elementwise import sub_p
    from meshrt.primitives.reduce import reduce_sum_p

    mine = _unpad(ct, padding_config)
    ct_value = None
    if is_undefined(value):
        total = reduce_sum_p.bind(ct, axes=tuple(range(aval_of(ct).ndim)))
        ct_value = sub_p.bind(total, reduce_sum_p.bind(mine, axes=tuple(range(aval_of(mine).ndim))))
    return [mine if is_undefined(x) else None, ct_value]


def _pad_batch(size, args, dims, params):
    from meshrt.primitives.elementwise import select_n
    from meshrt.transforms.batching import bring_to_front

    (x, value), config = args, params["padding_config"]
    if dims[1] is None:
        return pad_p.bind(x, value, padding_config=insert(config, dims[0], (0, 0, 0))), dims[0]
    # A padding value for each element of the batch: pad by anything, then choose by a padded mask.
    x = bring_to_front(size, x, dims[0])
    config = ((0, 0, 0), *config)
    padded = pad_p.bind(x, np.zeros((), aval_of(x).dtype)[()], padding_config=config)
    inside = broadcast_in_dim(np.True_, aval_of(x).shape, ())
    mask = pad_p.bind(inside, np.False_, padding_config=config)
    return select_n(mask, broadcast_in_dim(value, aval_of(padded).shape, (0,)), padded), 0


pad_p = Primitive("pad", _pad_infer, lower=_pad_lower, jvp=_pad_jvp, transpose=_pad_transpose, batch=_pad_batch)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """`operand` with `low`, `high` and `interior` (between elements) copies of a scalar added in each dimension.

    Negative `low` and `high` remove elements instead.
    """
    operand, padding_value = binary_operands(operand, padding_value)
    config = tuple(tuple(map(operator.index, c)) for c in padding_config)
    return pad_p.bind(operand, padding_value, padding_config=config)


# ----------------------------------------------------------------------------------------------------------
# concatenate


def _concatenate_infer(*operands, dimension):
    first = operands[0] if operands else None
    fits = first is not None and 0 <= dimension < first.ndim and all(
        x.dtype == first.dtype and x.ndim == first.ndim
        and x.shape[:dimension] == first.shape[:dimension] and x.shape[dimension + 1 :] == first.shape[dimension + 1 :]
        for x in operands
    )  # fmt: skip
    if not fits:
        raise errors.ArgumentTypeError(
            f"concatenate along dimension {dimension} needs operands of one dtype whose shapes differ in it "
            f"only, but got {', '.join(x.str_short() for x in operands) or 'none'}"
        )
    total = sum([x.shape[dimension] for x in operands])
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    return ShapedArray(shape, first.dtype, all(x.weak_type for x in operands))


def _concatenate_lower(ctx, eqn, *operands):
    if len(operands) == 1:
        return operands[0]
    attrs = f"dimension = {eqn.params['dimension']} : i64"
    return ctx.op("stablehlo.concatenate", operands, eqn.outvars[0].aval, attrs)


def _concatenate_jvp(primals, tangents, *, dimension):
    out = concatenate_p.bind(*primals, dimension=dimension)
    if all(t is None for t in tangents):
        return out, None
    parts = [instantiate(t, p) for t, p in zip(tangents, primals)]
    return out, concatenate_p.bind(*parts, dimension=dimension)


def _concatenate_transpose(ct, *operands, dimension):
    from meshrt.primitives.slice import slice_in_dim

    out, start = [], 0
    for x in operands:
        size = (x.aval if is_undefined(x) else aval_of(x)).shape[dimension]
        out.append(slice_in_dim(ct, start, start + size, 1, dimension) if is_undefined(x) else None)
        start += size
    return out


def _concatenate_batch(size, args, dims, params):
    args, d = batch_together(size, args, dims)
    dimension = params["dimension"]
    return concatenate_p.bind(*args, dimension=dimension + (d <= dimension)), d


concatenate_p = Primitive(
    "concatenate", _concatenate_infer, lower=_concatenate_lower, jvp=_concatenate_jvp, transpose=_concatenate_transpose,
    batch=_concatenate_batch,
)  # fmt: skip


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """The operands one after the other along `dimension`."""
    operands = list(operands)
    if not operands:
        raise errors.ArgumentTypeError("concatenate needs at least one operand")
    dimension = canonical_axis(dimension, aval_of(operands[0]).ndim)
    if len(operands) == 1 and not isinstance(operands[0], np.ndarray):
        return operands[0]
    return concatenate_p.bind(*operands, dimension=dimension)


# ----------------------------------------------------------------------------------------------------------
# split


def _split_infer(x, *, sizes, axis):
    if not 0 <= axis < x.ndim or any(s < 0 for s in sizes) or sum(sizes) != x.shape[axis]:
        raise errors.ArgumentTypeError(
            f"split of {x.str_short()} along axis {axis} needs sizes that add up to that dimension, but got {sizes}"
        )
    return [x.with_shape((*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes]


def _split_lower(ctx, eqn, x):
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


def _split_jvp(primals, tangents, **params):
    outs = split_p.bind(*primals, **params)
    t = tangents[0]
    return outs, [None] * len(outs) if t is None else split_p.bind(t, **params)


def _split_transpose(cts, x, *, sizes, axis):
    dtype = next(aval_of(c).dtype for c in cts if c is not None)
    parts = []
    for ct, size in zip(cts, sizes):
        shape = (*x.aval.shape[:axis], size, *x.aval.shape[axis + 1 :])
        parts.append(zeros(ShapedArray(shape, dtype)) if ct is None else ct)
    return [concatenate_p.bind(*parts, dimension=axis)]


def _split_batch(size, args, dims, params):
    d, axis = dims[0], params["axis"]
    outs = split_p.bind(args[0], sizes=params["sizes"], axis=axis + (d <= axis))
    return outs, [d] * len(outs)


split_p = Primitive(
    "split", _split_infer, lower=_split_lower, jvp=_split_jvp, transpose=_split_transpose, batch=_split_batch,
    multiple_results=True,
)  # fmt: skip


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> Sequence[Any]:
    """Consecutive parts of `operand` along `axis`, of the given sizes."""
    axis = canonical_axis(axis, aval_of(operand).ndim)
    return split_p.bind(operand, sizes=tuple(map(operator.index, sizes)), axis=axis)


# ----------------------------------------------------------------------------------------------------------
# rev


def _rev_infer(x, *, dimensions):
    if len(set(dimensions)) != len(dimensions) or any(not 0 <= d < x.ndim for d in dimensions):
        raise errors.ArgumentTypeError(f"rev of {x.str_short()} needs distinct dimensions of it but got {dimensions}")
    return x


def _rev_batch(size, args, dims, params):
    d = dims[0]
    return rev_p.bind(args[0], dimensions=tuple(i + (d <= i) for i in params["dimensions"])), d


rev_p = Primitive(
    "rev", _rev_infer, jvp=unary_linear_jvp(lambda: rev_p), batch=_rev_batch,
    transpose=lambda ct, x, *, dimensions: [rev_p.bind(ct, dimensions=dimensions)],
    lower=lambda ctx, eqn, x: ctx.op(
        "stablehlo.reverse", [x], eqn.outvars[0].aval, f"dimensions = {i64_array(eqn.params['dimensions'])}"),
)  # fmt: skip


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """`operand` with the order of elements reversed along `dimensions`."""
    ndim = aval_of(operand).ndim
    return rev_p.bind(operand, dimensions=tuple(canonical_axis(d, ndim) for d in dimensions))
