"""Discrete Fourier transforms over trailing dimensions."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import canonical_shape, linear_jvp, move_dim
from meshrt.core.explicit import keeps
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.slice import pad_p
from propagation.asm import i64_array

__all__ = ["FftType", "fft"]


class FftType(enum.IntEnum):
    """Complex to complex, its inverse, real to (half) complex, and back."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


def _real(dtype: Any) -> np.dtype:
    return np.empty((), dtype).real.dtype


def _complex(dtype: Any) -> np.dtype:
    return np.dtype(np.complex128 if np.dtype(dtype).itemsize == 8 else np.complex64)


def _infer(x: ShapedArray, *, fft_type: Any, fft_lengths: Any) -> ShapedArray:
    count = len(fft_lengths)
    want_real = fft_type is FftType.RFFT
    kind = np.floating if want_real else np.complexfloating
    if x.is_key or not dtypes.issubdtype(x.dtype, kind) or x.dtype.itemsize < 4:
        raise errors.ArgumentValueError(
            f"{fft_type.name} needs a {'real' if want_real else 'complex'} operand of at least single precision, "
            f"but got {x.short()}"
        )
    tail = list(fft_lengths)
    if fft_type is FftType.IRFFT and count:
        tail[-1] = tail[-1] // 2 + 1 if tail[-1] or (x.ndim and x.shape[-1]) else 0
    if x.ndim < count:
        raise errors.ArgumentShapeError(
            f"FFT input shape {x.shape} must have at least as many input dimensions as fft_lengths "
            f"{tuple(fft_lengths)}."
        )
    if not 1 <= count <= 3 or list(x.shape[x.ndim - count :]) != tail:
        raise errors.ArgumentShapeError(
            f"{fft_type.name} input shape {x.shape} minor dimensions must be equal to fft_lengths "
            f"{tuple(fft_lengths)}; it takes 1 to 3 of them, here of sizes {tuple(tail)}"
        )
    lead = x.shape[: x.ndim - count]
    if fft_type is FftType.RFFT:
        last = fft_lengths[-1] // 2 + 1 if fft_lengths[-1] else 0
        return ShapedArray((*lead, *fft_lengths[:-1], last), _complex(x.dtype))
    if fft_type is FftType.IRFFT:
        return ShapedArray((*lead, *fft_lengths), _real(x.dtype))
    return ShapedArray(x.shape, x.dtype)


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    out = eqn.outvars[0].aval
    if not out.size or not eqn.invars[0].aval.size:
        return ctx.full(0, out)
    attrs = (
        f"fft_length = {i64_array(eqn.params['fft_lengths'])}, "
        f"fft_type = #stablehlo<fft_type {eqn.params['fft_type'].name}>"
    )
    return ctx.op("stablehlo.fft", [x], out, attrs)


def _transpose(ct: Any, x: Any, *, fft_type: Any, fft_lengths: Any) -> list[Any]:
    if fft_type is FftType.RFFT:
        return [_rfft_transpose(ct, fft_lengths)]
    if fft_type is FftType.IRFFT:
        return [_irfft_transpose(ct, fft_lengths)]
    return [fft_p.bind(ct, fft_type=fft_type, fft_lengths=fft_lengths)]


def _rfft_transpose(ct: Any, lengths: tuple[int, ...]) -> Any:
    """RFFT is the first half of a complex transform, whose matrix is symmetric."""
    aval = aval_of(ct)
    config = [(0, 0, 0)] * aval.ndim
    config[-1] = (0, lengths[-1] - aval.shape[-1], 0)
    padded = pad_p.bind(ct, np.zeros((), aval.dtype)[()], padding_config=tuple(config))
    return ew.real_p.bind(fft_p.bind(padded, fft_type=FftType.FFT, fft_lengths=lengths))


def _irfft_transpose(ct: Any, lengths: tuple[int, ...]) -> Any:
    """Positions that stand for themselves and their mirror image count twice."""
    forward = fft_p.bind(ct, fft_type=FftType.RFFT, fft_lengths=lengths)
    aval = aval_of(forward)
    part = _real(aval.dtype)
    position = broadcasted_iota(np.int32, aval.shape, aval.ndim - 1)
    mirrored = ew.and_p.bind(
        ew.gt_p.bind(position, np.int32(0)), ew.lt_p.bind(ew.mul(position, 2), np.int32(lengths[-1]))
    )
    scale = ew.mul(ew.add(convert_element_type(mirrored, part), 1), 1 / math.prod(lengths))
    return ew.conj(ew.mul_p.bind(convert_element_type(scale, aval.dtype), forward))


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    return fft_p.bind(move_dim(args[0], dims[0], 0), **params), 0


fft_p: Primitive = Primitive(
    "fft",
    _infer,
    lower=_lower,
    jvp=linear_jvp(lambda: fft_p),
    transpose=_transpose,
    batch=_batch,
    explicit=keeps("fft"),
)


def fft(x: Any, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Any:
    """The transform of `x` over its last `len(fft_lengths)` (1 to 3) dimensions; inverse transforms divide by the size.

    `fft_type` is an FftType or its name. RFFT takes real arrays and gives the first half of the last dimension; IRFFT
    takes that half and gives a real array of `fft_lengths`.

    Args:
      x: an array.
      fft_type: "fft", "ifft", "rfft" or "irfft".
      fft_lengths: sizes of the transformed dimensions, the last ones.

    >>> lax.fft(jnp.array([1, 0, 0, 0], jnp.complex64), "fft", (4,))
    Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    name = getattr(fft_type, "name", fft_type)
    if not isinstance(name, str) or name.upper() not in FftType.__members__:
        raise errors.ArgumentValueError(f"Unknown FFT type {fft_type!r}; known: {', '.join(FftType.__members__)}")
    if not np.iterable(fft_lengths):
        raise errors.ArgumentTypeError(f"fft: fft_lengths must be a sequence of sizes, got {fft_lengths!r}")
    kind, lengths = FftType[name.upper()], canonical_shape(fft_lengths, "transform length")
    dtype = aval_of(x).dtype
    if kind is FftType.RFFT:
        if dtypes.issubdtype(dtype, np.complexfloating):
            raise errors.ArgumentValueError(f"only real valued inputs supported for rfft, got {aval_of(x).short()}")
        x = convert_element_type(x, dtypes.to_inexact_dtype(dtype))
    else:
        x = convert_element_type(x, dtypes.to_complex_dtype(dtype))
    if not lengths and kind in (FftType.FFT, FftType.IFFT):
        return x  # along no dimension
    return fft_p.bind(x, fft_type=kind, fft_lengths=lengths)
