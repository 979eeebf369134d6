"""Signals from the spectra of their segments."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors
from meshrt.contexts import usual_promotion
from meshrt.jit import jit
from meshrt.numpy.operands import canonical_axis, operand, static_int
from meshrt.scipy.signal.windows import named_window

__all__ = ["istft"]


@usual_promotion
def istft(
    Zxx: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Any, Any]:
    """The signal whose `stft` was Zxx, by overlapping and adding (Griffin and Lim 1984).

    Args:
      Zxx: spectra of segments, with frequencies along `freq_axis` and segments along `time_axis`.
      fs, window, nperseg, noverlap, nfft: as they were given to `stft`.
      input_onesided: whether only frequencies that are not negative are there.
      boundary: whether the signal had been extended at both ends.

    Returns:
      Times, and the signal with its samples in place of the segments.

    Raises:
      ArgumentValueError: fewer than two dimensions, one axis for both, lengths that do not fit, a window of another
        length.
      AxisError: there is no such axis.

    >>> meshrt.scipy.signal.istft(meshrt.scipy.signal.stft(jnp.ones(64), nperseg=16)[2], nperseg=16)[1].shape
    (64,)
    """
    Z = jnp.asarray(operand("istft", Zxx))
    if Z.ndim < 2:
        raise errors.ArgumentValueError(f"Input stft must be at least 2d, got shape {Z.shape}!")
    frequency, time = (canonical_axis(a, Z.ndim, "istft") for a in (freq_axis, time_axis))
    if frequency == time:
        raise errors.ArgumentValueError("Must specify differing time and frequency axes!")
    Z = Z.astype(dtypes.to_complex_dtype(Z.dtype))
    usual = 2 * (Z.shape[frequency] - 1) if input_onesided else Z.shape[frequency]
    length = static_int(nperseg or usual, "istft: nperseg")
    if length < 1:
        raise errors.ArgumentValueError(f"nperseg must be a positive integer, got {length}")
    if nfft is not None:
        points = static_int(nfft, "istft: nfft")
    else:
        points = length if input_onesided and length == usual + 1 else usual
    if points < length:
        raise errors.ArgumentValueError(f"FFT length ({points}) must be longer than nperseg ({length}).")
    overlap = static_int(noverlap or length // 2, "istft: noverlap")
    if overlap >= length:
        raise errors.ArgumentValueError(f"noverlap must be less than nperseg, got {overlap} and {length}.")
    values = _window(window, length)
    signal = _joined(jnp.moveaxis(Z, (time, frequency), (-2, -1)), values, points, overlap, input_onesided, boundary)
    if signal.ndim > 1:
        signal = jnp.moveaxis(signal, -1, time - (frequency < time))
    return jnp.arange(signal.shape[0], dtype=np.zeros((), signal.dtype).real.dtype) / fs, signal


def _window(window: Any, length: int) -> Any:
    if isinstance(window, str | tuple):
        return named_window(window, length)
    values = jnp.asarray(window)
    if values.ndim != 1:
        raise errors.ArgumentValueError(f"window must be 1-D, got shape {values.shape}")
    if values.shape[0] != length:
        raise errors.ArgumentValueError(f"window must have length of {length}, got {values.shape[0]}")
    return values


@jit(static_argnums=(2, 3, 4, 5))
def _joined(Z: Any, window: Any, points: int, overlap: int, one_sided: bool, boundary: bool) -> Any:
    """Segments [..., segments, frequencies] back to signals [..., n], divided by the sum of the windows' squares."""
    length = window.shape[0]
    segments = (jnp.fft.irfft if one_sided else jnp.fft.ifft)(Z, points)[..., :length]
    window = jnp.asarray(window).astype(segments.dtype)
    signal = _added(segments * jnp.sum(window) * window, length - overlap)
    weight = _added(jnp.broadcast_to(window * window, segments.shape[-2:]), length - overlap).real
    if boundary:
        half = length // 2
        signal, weight = (x[..., half : x.shape[-1] - half] for x in (signal, weight))
    return signal / jnp.where(weight > 1e-10, weight, 1)


def _added(segments: Any, step: int) -> Any:
    """The sum of segments [..., count, length], each `step` behind the one before.

    They are cut into blocks of `step`. Block j of segment i goes to place i + j: rows of blocks j that are lengthened
    by as many zeros as there are blocks, and then read in shorter rows, slide by one place each.
    """
    *outer, count, length = segments.shape
    blocks = -(-length // step)
    fill = [(0, 0)] * len(outer)
    x = jnp.pad(segments, [*fill, (0, 0), (0, blocks * step - length)])
    x = jnp.moveaxis(x.reshape(*outer, count, blocks, step), -2, -3)
    x = jnp.pad(x, [*fill, (0, 0), (0, blocks), (0, 0)]).reshape(*outer, blocks * (count + blocks), step)
    x = x[..., : blocks * (count + blocks - 1), :].reshape(*outer, blocks, count + blocks - 1, step)
    return x.sum(-3).reshape(*outer, -1)[..., : step * (count - 1) + length]
