"""Shapes, reductions and products of vectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, vector
from jaxlib.mosaic.python import tpu

from meshrt.core.basic import shapes
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels.mlir.algorithms import SMALLEST, converted_first, in_parts, preset_asked
from meshrt.experimental.kernels.mlir.conversions import bits_of, converted
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of, through
from meshrt.primitives import (
    arrangement,
    bitcast,
    compositions,
    concatenate,
    contract,
    gather,
    reduce,
    reshape,
    slice,
)
from meshrt.primitives.gather_scatter import GatherScatterMode
from meshrt.primitives.precision import DotAlgorithm, DotAlgorithmPreset, Precision, is_in_full

__all__ = ["RULES"]

_F32, _I32, _BOOL = np.dtype(np.float32), np.dtype(np.int32), np.dtype(bool)
_BF16 = np.dtype(ml_dtypes.bfloat16)


def wide_type(dtype: Any) -> np.dtype:
    """The element type of words that values of a narrower one are widened to."""
    if kind_of(dtype) == "f":
        return _F32
    return np.dtype(dtype) if bits_of(dtype) == 32 else _I32


# ----------------------------------------------------------------------------------------------------------------------
# Shapes


def _broadcast_in_dim(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if aval.shape == out.shape:
        return x
    if aval.shape:
        middle = [1] * out.ndim
        for d, n in zip(eqn.params["broadcast_dimensions"], aval.shape):
            middle[d] = n
        x = walk.reshaped(x, middle, aval.dtype)
        if tuple(middle) == out.shape:
            return x
    return vector.broadcast(walk.type_of(out), x)


def _reshape(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if aval.shape == out.shape:
        return x
    if not out.shape:
        wide = wide_type(aval.dtype)  # only words are taken out of vectors
        element = vector.extract(converted(walk, x, aval.shape, aval.dtype, wide), [], [0] * aval.ndim)
        return converted(walk, element, (), wide, aval.dtype)
    if not aval.shape:
        return walk.spread(x, out.shape, out.dtype)
    return walk.reshaped(x, out.shape, out.dtype)


def _transpose(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    order = list(eqn.params["permutation"])
    if order == sorted(order):
        return x
    return tpu.transpose(walk.type_of(eqn.outvars[0].aval), x, order)


def _concatenate(walk: Walk, eqn: Eqn, *operands: ir.Value) -> ir.Value:
    return tpu.concatenate(list(operands), eqn.params["dimension"])


def _slice(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    starts, out = eqn.params["start_indices"], eqn.outvars[0].aval
    strides = eqn.params["strides"] or (1,) * out.ndim
    if any(s != 1 for s in strides):
        walk.refuse("a slice of a value takes neighbouring elements; index the reference with a stride")
    return _part(walk, x, starts, out.shape, out.dtype)


def _part(walk: Walk, x: ir.Value, starts: Sequence[int], shape: Sequence[int], dtype: Any) -> ir.Value:
    kind = walk.like(shape, dtype)
    return vector.extract_strided_slice(kind, x, list(starts), list(shape), [1] * len(starts))


def _split(walk: Walk, eqn: Eqn, x: ir.Value) -> list[ir.Value]:
    axis, at, parts = eqn.params["axis"], 0, []
    for v, size in zip(eqn.outvars, eqn.params["sizes"]):
        starts = [0] * v.aval.ndim
        starts[axis] = at
        parts.append(_part(walk, x, starts, v.aval.shape, v.aval.dtype))
        at += size
    return parts


def _pad(walk: Walk, eqn: Eqn, x: ir.Value, value: ir.Value) -> ir.Value:
    """Constants beside the value, one dimension after the other."""
    aval = eqn.invars[0].aval
    shape = list(aval.shape)
    for d, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        if interior or low < 0 or high < 0:
            walk.refuse("padding adds elements before and behind; none in between, and removes none")
        border = lambda n, d=d: walk.spread(value, [*shape[:d], n, *shape[d + 1 :]], aval.dtype)
        parts = [p for p in (border(low) if low else None, x, border(high) if high else None) if p is not None]
        x = tpu.concatenate(parts, d) if len(parts) > 1 else x
        shape[d] += low + high
    return x


def _iota(walk: Walk, eqn: Eqn) -> ir.Value:
    """Hardware counts along dimensions of arrays of two dimensions or more, in words."""
    out, d = eqn.outvars[0].aval, eqn.params["dimension"]
    shape = out.shape if out.ndim > 1 else (1, *out.shape)
    count = tpu.iota(walk.like(shape, _I32), dimensions=[d + len(shape) - out.ndim])
    if out.ndim == 1:
        count = walk.reshaped(count, out.shape, _I32)
    return converted(walk, count, out.shape, _I32, out.dtype)


def _bitcast(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if bits_of(aval.dtype) != bits_of(out.dtype) or _BOOL in (aval.dtype, out.dtype):
        walk.refuse("elements are seen as others of as many bits")
    if walk.element(aval.dtype) == walk.element(out.dtype):
        return x
    return tpu.bitcast(walk.type_of(out), x) if out.shape else arith.bitcast(walk.type_of(out), x)


def _gather(walk: Walk, eqn: Eqn, x: ir.Value, places: ir.Value) -> ir.Value:
    """Elements of a matrix along one dimension, as many as it has there: what `take_along_axis` asks for."""
    aval, index_type, out = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    along = numbers.start_index_map
    others = tuple(d for d in range(aval.ndim) if d not in along)
    is_along_axis = (
        aval.ndim == 2 and len(along) == 1 and out.shape == shape and set(eqn.params["slice_sizes"]) == {1}
        and numbers.collapsed_slice_dims == along and numbers.operand_batching_dims == others
        and numbers.start_indices_batching_dims == others and index_type.shape == (*shape, 1)
    )  # fmt: skip
    if not is_along_axis:
        walk.refuse(
            "of gathers there is take_along_axis of a matrix with as many indices as it has elements; index the "
            "reference by scalars, or multiply by a one-hot matrix"
        )
    at = converted(walk, walk.reshaped(places, shape, index_type.dtype), shape, index_type.dtype, _I32)
    last = walk.constant(shape[along[0]] - 1, shape, _I32)
    zero = walk.constant(0, shape, _I32)
    wide = wide_type(aval.dtype)
    inside = arith.minsi(arith.maxsi(at, zero), last)
    found = tpu.dynamic_gather(converted(walk, x, shape, aval.dtype, wide), inside, [along[0]])
    found = converted(walk, found, shape, wide, aval.dtype)
    if eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return found
    exists = arith.cmpi(arith.CmpIPredicate.eq, at, inside)
    return arith.select(exists, found, walk.constant(eqn.params["fill_value"], shape, aval.dtype))


# ----------------------------------------------------------------------------------------------------------------------
# Reductions


def _reduction(kind: str, of_floats: float, of_ints: int) -> Rule:
    """A reduction and what it starts from. Narrow elements are widened to words first."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
        sort = kind_of(aval.dtype)
        if sort not in ("f", "i", "u") or (sort == "u" and kind != "add" and bits_of(aval.dtype) == 32):
            walk.refuse(f"there is no such reduction of {aval.dtype}; convert to int32 or float32")
        wide = _F32 if sort == "f" else _I32
        x = converted(walk, x, aval.shape, aval.dtype, wide)
        start = of_floats if sort == "f" else of_ints
        total = reduced(walk, x, aval.shape, wide, eqn.params["axes"], _combining(kind, sort), start)
        return converted(walk, total, out.shape, wide, out.dtype)

    return rule


def _combining(kind: str, sort: str) -> ir.Attribute:
    name = {"max": "maximumf", "min": "minimumf"}.get(kind, kind) if sort == "f" else kind
    return ir.Attribute.parse(f"#vector.kind<{name if name not in ('max', 'min') else name + 'si'}>")


def reduced(
    walk: Walk, x: ir.Value, shape: Sequence[int], dtype: Any, axes: Sequence[int], kind: ir.Attribute, start: Any
) -> ir.Value:
    """The reduction of a vector along axes; along all of them it is that of a row of vectors, and its only element."""
    left = [n for d, n in enumerate(shape) if d not in axes]
    if left:
        return vector.multi_reduction(kind, x, walk.constant(start, left, dtype), list(axes))
    x = walk.reshaped(x, (1, *shape), dtype)
    row = vector.multi_reduction(kind, x, walk.constant(start, (1,), dtype), [d + 1 for d in range(len(shape))])
    ones = (1,) * (len(shape) + 1)
    return vector.extract(walk.reshaped(row, ones, dtype), [], [0] * len(ones))


def _of_bools(kind: str, start: float) -> Rule:
    """`and` and `or` of bools are the least and the greatest of their numbers."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
        if aval.dtype != _BOOL:
            walk.refuse("bits of numbers are not reduced; compare them first")
        x = arith.select(x, walk.constant(1.0, aval.shape, _F32), walk.constant(0.0, aval.shape, _F32))
        found = reduced(walk, x, aval.shape, _F32, eqn.params["axes"], _combining(kind, "f"), start)
        return arith.cmpf(arith.CmpFPredicate.OGT, found, walk.constant(0.5, out.shape, _F32))

    return rule


def _place_of(kind: tpu.ReductionKind) -> Rule:
    """Where the greatest or least element stands."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
        (axis,) = eqn.params["axes"]
        if kind_of(aval.dtype) != "f":
            walk.refuse(f"places are found among floats, not {aval.dtype}; convert with astype")
        x = converted(walk, x, aval.shape, aval.dtype, _F32)
        if aval.ndim == 1:
            row = walk.reshaped(x, (1, *aval.shape), _F32)
            found = vector.extract(tpu.reduce_index(walk.like((1,), _I32), row, 1, kind), [], [0])
        else:
            found = tpu.reduce_index(walk.like(out.shape, _I32), x, axis, kind)
        return converted(walk, found, out.shape, _I32, out.dtype)

    return rule


# ----------------------------------------------------------------------------------------------------------------------
# Products


def _dot_general(walk: Walk, eqn: Eqn, x: ir.Value, y: ir.Value) -> ir.Value:
    """`tpu.matmul` into words. A vector is a matrix with one row or column."""
    (xc, yc), (xb, yb) = eqn.params["dimension_numbers"]
    (a, b), out = [v.aval for v in eqn.invars], eqn.outvars[0].aval
    if len(xc) != 1 or len(xb) > 1:
        walk.refuse("a product contracts one dimension and maps at most one; reshape the operands to join dimensions")
    for aval in (a, b):
        if kind_of(aval.dtype) not in ("f", "i"):
            walk.refuse(f"there are no products of {aval.dtype}; convert to a float or to int8")
        if kind_of(aval.dtype) == "i" and bits_of(aval.dtype) > 8:
            walk.refuse(f"of whole numbers only int8 and int4 have products, not {aval.dtype}; convert to a float")
    program = _written_as(walk, eqn, a.dtype, b.dtype)
    if program is not None:
        parts: ir.Value = through(program)(walk, eqn, x, y)
        return parts
    x, a_shape, x_free = _as_matrix(walk, x, a, xc, xb)
    y, b_shape, y_free = _as_matrix(walk, y, b, yc, yb)
    wide = _F32 if kind_of(a.dtype) == "f" else _I32
    shape = [*[a_shape[d] for d in xb], *[a_shape[d] for d in x_free], *[b_shape[d] for d in y_free]]
    order = [*(n for d in (*xb, *x_free) for n in (0, d)), *(n for d in y_free for n in (1, d))]
    numbers = ", ".join(str(list(n)) for n in (xc, yc, x_free, y_free, order, xb, yb))
    made = tpu.matmul(
        walk.like(shape, wide), x, y, walk.constant(0, shape, wide), False,
        precision=_precision(walk, eqn, wide),
        dimension_numbers=ir.Attribute.parse(f"#tpu.dot_dimension_numbers<{numbers}>"),
    )  # fmt: skip
    if not out.shape:
        made = vector.extract(made, [], [0] * len(shape))
    elif tuple(shape) != out.shape:
        made = walk.reshaped(made, out.shape, wide)
    return converted(walk, made, out.shape, wide, out.dtype)


def _as_matrix(walk: Walk, x: ir.Value, aval: Any, contracted: Any, mapped: Any) -> tuple[ir.Value, Any, list[int]]:
    """The operand with at least one dimension that is neither contracted nor mapped, its shape, these dimensions."""
    free = [d for d in range(aval.ndim) if d not in (*contracted, *mapped)]
    if len(free) > 1:
        walk.refuse(f"a product keeps one dimension of each operand, not {len(free)}; reshape the operand to join them")
    if free:
        return x, aval.shape, free
    shape = (*aval.shape, 1)
    return walk.reshaped(x, shape, aval.dtype), shape, [aval.ndim]


def _one_precision(walk: Walk, eqn: Eqn) -> Any:
    """What a product is asked for: a `Precision`, an algorithm, or None."""
    asked = eqn.params.get("precision")
    if not isinstance(asked, tuple) or isinstance(asked, DotAlgorithm):
        return asked
    if asked[0] != asked[1]:
        walk.refuse(f"both operands of a product have one precision, not {asked}")
    return asked[0]


def _written_as(walk: Walk, eqn: Eqn, a: Any, b: Any) -> Callable[..., Any] | None:
    """The program of products that matrix units have, which a product of operands of these types is asked for."""
    preset = preset_asked(walk, eqn, "F32_F32_F32 or BF16_BF16_F32_X3")
    if preset is None:
        return in_parts if _one_precision(walk, eqn) == Precision.HIGH and a == b == _F32 else None
    if preset is DotAlgorithmPreset.F32_F32_F32:
        return None if a == b == _F32 else functools.partial(converted_first, to=_F32)
    if preset.name not in (DotAlgorithmPreset.BF16_BF16_F32.name, *SMALLEST):
        walk.refuse(f"a TPU multiplies bfloat16, or float32 in parts of it, not as {preset} says; ask for another")
    if a == b == _BF16:
        return None
    return in_parts if preset.name in SMALLEST else functools.partial(converted_first, to=_BF16)


def _precision(walk: Walk, eqn: Eqn, wide: Any) -> ir.Attribute | None:
    asked = _one_precision(walk, eqn)
    if wide == _F32 and (asked == Precision.HIGHEST or (asked is not None and is_in_full(asked))):
        return ir.Attribute.parse("#tpu.contract_precision<fp32>")
    return None


RULES: dict[Primitive, Rule] = {
    shapes.broadcast_in_dim_p: _broadcast_in_dim,
    shapes.reshape_p: _reshape,
    shapes.transpose_p: _transpose,
    compositions.squeeze_p: through(lambda x, *, dimensions: reshape.squeeze(x, dimensions)),
    compositions.stack_p: through(lambda *xs, axis: arrangement.stack(xs, axis)),
    compositions.unstack_p: through(lambda x, *, axis: arrangement.unstack(x, axis)),
    compositions.tile_p: through(lambda x, *, reps: arrangement.tile(x, reps)),
    concatenate.concatenate_p: _concatenate,
    concatenate.split_p: _split,
    slice.slice_p: _slice,
    slice.pad_p: _pad,
    reshape.iota_p: _iota,
    gather.gather_p: _gather,
    bitcast.bitcast_convert_type_p: _bitcast,
    reduce.reduce_sum_p: _reduction("add", 0.0, 0),
    reduce.reduce_max_p: _reduction("max", -math.inf, np.iinfo(np.int32).min),
    reduce.reduce_min_p: _reduction("min", math.inf, np.iinfo(np.int32).max),
    reduce.reduce_and_p: _of_bools("min", math.inf),
    reduce.reduce_or_p: _of_bools("max", -math.inf),
    reduce.argmax_p: _place_of(tpu.ReductionKind.kArgMax),
    reduce.argmin_p: _place_of(tpu.ReductionKind.kArgMin),
    contract.dot_general_p: _dot_general,
}
