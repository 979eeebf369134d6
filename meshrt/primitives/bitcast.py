"""bitcast_convert_type: the bits of elements as those of another type, of the same width or of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, move_dim
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.conversion import convert_element_type, no_key_bits
from meshrt.primitives.elementwise import mul_p, shift_left_p, shift_right_logical_p
from meshrt.primitives.reduce import reduce_or_p
from meshrt.primitives.reshape import broadcasted_iota
from propagation.asm import Ref


def _bitcast_infer(x: ShapedArray, *, new_dtype: Any) -> ShapedArray:
    if isinstance(x.dtype, dtypes.ExtendedDType) or isinstance(new_dtype, dtypes.ExtendedDType):
        raise no_key_bits("bitcast_convert_type", x, new_dtype)
    old, new = dtypes.itemsize_bits(x.dtype), dtypes.itemsize_bits(new_dtype)
    if x.dtype != new_dtype and any(d == np.bool_ or d.kind == "c" for d in (x.dtype, new_dtype)):
        raise errors.ArgumentTypeError(
            "lax.bitcast_convert_type does not support bool or complex values unless the operand and destination types "
            f"match. Got operand dtype={x.dtype}, new_dtype={new_dtype!r}. Consider using the arr.view() method "
            "instead."
        )
    if old == new:
        return ShapedArray(x.shape, new_dtype)
    if old < new:
        if not x.shape or x.shape[-1] * old != new:
            raise errors.ArgumentShapeError(
                f"Attempting to convert array of shape {x.shape} from {x.dtype} of size {old} bits to {new_dtype} of "
                f"size {new}, bits but {x.shape[-1] if x.shape else 1} * {old} != {new}: the last dimension must have "
                f"size {new // old}"
            )
        return ShapedArray(x.shape[:-1], new_dtype)
    return ShapedArray((*x.shape, old // new), new_dtype)


def _bitcast_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    return bitcast_convert_type_p.bind(move_dim(args[0], dims[0], 0), **params), 0


def _bitcast_lower(ctx: LoweringContext, eqn: Eqn, x: Ref) -> Ref:
    given, wanted = eqn.invars[0].aval, eqn.outvars[0].aval
    old, new = dtypes.itemsize_bits(given.dtype), dtypes.itemsize_bits(wanted.dtype)
    if old == new or not is_symbolic_shape(given.shape):
        return ctx.op("stablehlo.bitcast_convert", [x], wanted)
    # XLA finds no sizes for results of other widths.
    form = split_bits if old > new else joined_bits
    return write_composed(ctx, eqn, [x], [given], lambda x: [form(x, new_dtype=wanted.dtype)])[0]


def _bits_type(dtype: Any) -> np.dtype:
    return np.dtype(f"uint{dtypes.itemsize_bits(dtype)}")


def split_bits(x: Any, *, new_dtype: Any) -> Any:
    """An element as several narrower ones along a new last dimension, the lowest bits first, by shifts."""
    wide, narrow, aval = _bits_type(x.dtype), _bits_type(new_dtype), aval_of(x)
    width = dtypes.itemsize_bits(narrow)
    shape = (*aval.shape, dtypes.itemsize_bits(wide) // width)
    bits = broadcast_in_dim(bitcast_convert_type(x, wide), shape, range(aval.ndim))
    steps = mul_p.bind(broadcasted_iota(wide, shape, aval.ndim), np.asarray(width, wide)[()])
    parts = convert_element_type(shift_right_logical_p.bind(bits, steps), narrow)
    return bitcast_convert_type(parts, new_dtype)


def joined_bits(x: Any, *, new_dtype: Any) -> Any:
    """The elements of the last dimension as one wider one, by shifts."""
    wide, narrow, aval = _bits_type(new_dtype), _bits_type(x.dtype), aval_of(x)
    bits, last = convert_element_type(bitcast_convert_type(x, narrow), wide), aval.ndim - 1
    width = np.asarray(dtypes.itemsize_bits(narrow), wide)[()]
    steps = mul_p.bind(broadcasted_iota(wide, aval.shape, last), width)
    whole = reduce_or_p.bind(shift_left_p.bind(bits, steps), axes=(last,))
    return bitcast_convert_type(whole, new_dtype)


bitcast_convert_type_p: Primitive = Primitive(
    "bitcast_convert_type", _bitcast_infer, batch=_bitcast_batch,
    lower=_bitcast_lower,
    jvp=lambda primals, tangents, **params: (bitcast_convert_type_p.bind(*primals, **params), None),
    absent=NOT_LINEAR,
)  # fmt: skip


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """Reinterprets the bits of `operand`; a change of width splits or merges the last dimension.

    Args:
      operand: an array.
      new_dtype: the dtype of the result.

    >>> lax.bitcast_convert_type(jnp.float32(1), jnp.int32)
    Array(1065353216, dtype=int32)
    """
    return bitcast_convert_type_p.bind(operand, new_dtype=dtypes.canonicalize_dtype(dtypes.dtype(new_dtype)))
