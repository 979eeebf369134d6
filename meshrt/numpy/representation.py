"""How numbers are represented: mantissas and exponents of floats, bits of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import no_derivatives
from meshrt.core.dimensions.arithmetic import ceil_div
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.logic import isfinite, isinf, logical_or
from meshrt.numpy.operands import broadcast_to_shape, canonical_axis, ranked_shape, scalar_like, to_dtype
from meshrt.numpy.shapes import ravel, swapaxes
from meshrt.numpy.ufuncs import bitwise_and, copysign, equal, not_equal, real_only
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["frexp", "ldexp", "packbits", "spacing", "unpackbits"]


# ----------------------------------------------------------------------------------------------------------
# Floats.


def frexp(x: Any, /) -> tuple[Any, Any]:
    """(mantissa, exponent) with ``x == mantissa * 2**exponent`` and 0.5 <= |mantissa| < 1, elementwise.

    The exponent is int32. Zeros, infinities and NaN are their own mantissas, with exponent 0.

    >>> jnp.frexp(jnp.array([8.0]))
    (Array([0.5], dtype=float32), Array([4], dtype=int32))
    """
    (x,) = promoted_inexact("frexp", x)
    real_only("frexp", x.dtype)
    mantissa, exponent = _frexp(x)
    return mantissa, exponent


@custom_jvp
def _frexp(x: Any) -> tuple[Any, Any]:
    x = asarray(x)  # what `grad` is asked at may be a Python number
    info = dtypes.finfo(x.dtype)
    bits = np.dtype(f"int{info.bits}")
    tiny = el.lt_p.bind(el.abs_p.bind(x), scalar_like(x, info.tiny))
    # Subnormal numbers are scaled up to have a leading one.
    scaled = choose(tiny, el.mul_p.bind(x, scalar_like(x, 2.0**info.nmant)), x)
    word = el.bitcast_convert_type_p.bind(scaled, new_dtype=bits)
    mask, bias = (1 << info.nexp) - 1, 1 - info.minexp
    stored = bitwise_and(el.shift_right_arithmetic_p.bind(word, bits.type(info.nmant)), bits.type(mask))
    shift = choose(tiny, bits.type(-info.nmant), bits.type(0))
    exponent = el.convert_element_type(el.add_p.bind(stored, shift), np.int32) + np.int32(1 - bias)
    word = el.or_p.bind(el.and_p.bind(word, bits.type(~(mask << info.nmant))), bits.type((bias - 1) << info.nmant))
    mantissa = el.bitcast_convert_type_p.bind(word, new_dtype=x.dtype)
    special = logical_or(equal(x, scalar_like(x, 0)), el.not_p.bind(isfinite(x)))
    return choose(special, x, mantissa), choose(special, np.int32(0), exponent)


@_frexp.defjvp
def _frexp_jvp(primals: tuple[Any], tangents: tuple[Any]) -> Any:
    t, x = el.convert_element_type(tangents[0], tangents[0].dtype), asarray(primals[0])
    mantissa, exponent = _frexp(x)
    scale = el.exp2_p.bind(el.neg_p.bind(el.convert_element_type(exponent, x.dtype)))
    return (mantissa, exponent), (el.mul_p.bind(t, scale), no_derivatives(exponent.shape))


def ldexp(x1: Any, x2: Any, /) -> Any:
    """``x1 * 2**x2``, elementwise, for integers ``x2``.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.ldexp(jnp.array([1.0, 2.0]), jnp.array([3, -1]))
    Array([8., 1.], dtype=float32)
    """
    x, n = operand_array("ldexp", x1), operand_array("ldexp", x2, 1)
    if dtypes.issubdtype(x.dtype, np.complexfloating) or dtypes.issubdtype(n.dtype, np.inexact):
        raise errors.ArgumentValueError(
            f"ldexp not supported for input types ({x.dtype}, {n.dtype}); it takes a real and an integer"
        )
    (x,) = promoted_inexact("ldexp", x)
    shape = ranked_shape("ldexp", x.shape, n.shape)
    x, n = broadcast_to_shape(x, shape), broadcast_to_shape(n, shape)
    mantissa, exponent = frexp(x)
    exponent = el.add_p.bind(el.convert_element_type(exponent, x.dtype), el.convert_element_type(n, x.dtype))
    # The mantissa is below one, so that the largest exponents alone would overflow.
    up = el.gt_p.bind(exponent, scalar_like(exponent, 0))
    mantissa = choose(up, el.mul_p.bind(mantissa, scalar_like(mantissa, 2)), mantissa)
    exponent = choose(up, el.sub_p.bind(exponent, scalar_like(exponent, 1)), exponent)
    out = el.mul_p.bind(mantissa, el.pow_p.bind(scalar_like(exponent, 2), exponent))
    return choose(logical_or(isinf(x), equal(x, scalar_like(x, 0))), x, out)


def spacing(x: Any, /) -> Any:
    """The distance to the next number further from zero, elementwise, with the sign of ``x``.

    >>> jnp.spacing(jnp.float32(1))
    Array(1.1920929e-07, dtype=float32)
    """
    (x,) = promoted_inexact("spacing", x)
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        raise errors.ArgumentValueError(f"jnp.spacing is not defined for complex inputs such as {aval_of(x).short()}")
    x = to_dtype(x, x.dtype)  # not weak any more
    infinity = scalar_like(x, np.inf)
    if x.dtype == np.float16:  # as NumPy has it: towards infinity
        return el.sub_p.bind(el.nextafter_p.bind(x, infinity), x)
    out = el.sub_p.bind(el.nextafter_p.bind(x, copysign(infinity, x)), x)
    smallest = copysign(scalar_like(x, dtypes.finfo(x.dtype).smallest_subnormal), x)
    return choose(equal(out, scalar_like(out, 0)), smallest, out)


# ----------------------------------------------------------------------------------------------------------
# Bits.


def _bit_positions(bitorder: str) -> np.ndarray:
    if bitorder not in ("little", "big"):
        raise errors.ArgumentValueError(f"'order' must be either 'little' or 'big': bitorder is {bitorder!r}")
    positions = np.arange(8, dtype=np.uint8)
    return positions if bitorder == "little" else positions[::-1].copy()


def _axis_last(x: Any, axis: int | None, name: str) -> tuple[Any, int]:
    x, axis = (ravel(x), 0) if axis is None else (x, canonical_axis(axis, x.ndim, name))
    return swapaxes(x, axis, -1), axis


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements along ``axis`` (flattened by default) as the bits of one byte: 1 for those that are not zero.

    The last byte is filled up with zeros.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      bitorder: "big" or "little".

    >>> jnp.packbits(jnp.array([1, 0, 1, 0, 0, 0, 0, 0]))
    Array([160], dtype=uint8)
    """
    x = operand_array("packbits", a)
    if not (x.dtype == np.bool_ or dtypes.issubdtype(x.dtype, np.integer)):
        raise errors.ArgumentTypeError(
            f"packbits: Expected an input array of integer or boolean data type, got {x.dtype}"
        )
    positions = _bit_positions(bitorder)
    x, axis = _axis_last(x, axis, "packbits")
    bits = el.convert_element_type(not_equal(x, np.zeros((), x.dtype)[()]), np.uint8)
    count = ceil_div(x.shape[-1], 8)
    bits = lax.pad(bits, np.uint8(0), [*[(0, 0, 0)] * (x.ndim - 1), (0, 8 * count - x.shape[-1], 0)])
    bits = lax.reshape(bits, (*x.shape[:-1], count, 8))
    shifted = el.shift_left_p.bind(bits, broadcast_to_shape(asarray(positions), bits.shape))
    return swapaxes(lax.reduce_or(shifted, (bits.ndim - 1,)), axis, -1)


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """The bits of bytes along ``axis`` (flattened by default), as uint8 zeros and ones.

    Args:
      count: how many bits to give, cut or padded with zeros; a negative number leaves out as many at the end.

    >>> jnp.unpackbits(jnp.array([160], dtype=jnp.uint8))
    Array([1, 0, 1, 0, 0, 0, 0, 0], dtype=uint8)
    """
    x = operand_array("unpackbits", a)
    if x.dtype != np.uint8:
        raise errors.ArgumentTypeError(f"unpackbits: Expected an input array of unsigned byte data type, got {x.dtype}")
    positions = _bit_positions(bitorder)
    x, axis = _axis_last(x, axis, "unpackbits")
    shape = (*x.shape, 8)
    spread = lax.broadcast_in_dim(x, shape, tuple(range(x.ndim)))
    moved = el.shift_right_logical_p.bind(spread, broadcast_to_shape(asarray(positions), shape))
    bits = lax.reshape(bitwise_and(moved, np.uint8(1)), (*x.shape[:-1], 8 * x.shape[-1]))
    size = bits.shape[-1]
    if count is not None and count > size:
        bits = lax.pad(bits, np.uint8(0), [*[(0, 0, 0)] * (x.ndim - 1), (0, count - size, 0)])
    elif count is not None:
        bits = bits[..., :count]
    return swapaxes(bits, axis, -1)
