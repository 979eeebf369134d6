"""Spectra of signals that are cut into windowed segments: of each one (`stft`), or averaged (`csd`, `welch`)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.core.dimensions.arithmetic import broadcast_shapes
from meshrt.jit import jit
from meshrt.numpy.operands import canonical_axis, static_int
from meshrt.scipy.operands import separate
from meshrt.scipy.signal.trends import detrend as without_trend
from meshrt.scipy.signal.windows import window_and_length

__all__ = ["csd", "stft", "welch"]

# What is added to both ends of a signal, as numpy.pad calls it.
_EXTENSIONS: dict[str, dict[str, Any]] = {
    "even": {"mode": "reflect"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
    "constant": {"mode": "edge"},
    "zeros": {"mode": "constant"},
}


class _Plan(NamedTuple):
    """What is done to every segment."""

    length: int
    step: int
    points: int  # of the Fourier transform
    trend: Any  # what is removed: a name, a function or nothing
    one_sided: bool
    scaling: str
    extension: str | None
    padded: bool
    crossed: bool  # products with the second signal's or the own spectrum, not the spectrum itself
    axis: int


@usual_promotion
def stft(
    x: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Any, Any, Any]:
    """The Fourier transforms of overlapping segments of a signal.

    Args:
      x: samples along `axis`.
      fs: how many of them a unit of time has.
      window: what segments are multiplied by: a name ("hann"; SciPy knows others), a tuple of a name and parameters, or
        values.
      nperseg: the length of a segment.
      noverlap: how many samples a segment shares with the next, by default half of them.
      nfft: the length that segments are padded to, by default theirs.
      detrend: what is removed from each segment: "linear", "constant", a function of segments along the last dimension,
        or False.
      return_onesided: whether only frequencies that are not negative are given, of a real signal.
      boundary: how the signal is extended by half a segment at both ends: "even", "odd", "constant", "zeros" or None.
      padded: whether zeros are added to fill the last segment.

    Returns:
      Frequencies [f], times of the segments [t], and spectra, complex, with f in place of the axis and t last.

    Raises:
      ArgumentValueError: an unknown `boundary` or window, or lengths that do not fit.
      AxisError: there is no such axis.

    >>> [x.shape for x in meshrt.scipy.signal.stft(jnp.ones(64), nperseg=16)]
    [(9,), (9,), (9, 9)]
    """
    return _spectra(
        "stft", x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, "spectrum", axis,
        boundary=boundary, padded=padded, crossed=False,
    )  # fmt: skip


@usual_promotion
def csd(
    x: Any,
    y: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Any, Any]:
    """The cross power spectral density of two signals by Welch's method; of one with itself where y is None.

    Args:
      x, y: samples along `axis`, of dimensions beside it that broadcast; the shorter one is padded with zeros.
      scaling: "density", or "spectrum" for power in each frequency.
      average: over segments: "mean" or "median".

    For the others see `stft`; nperseg is by default the length of the signal.

    Returns:
      Frequencies [f], and densities with f in place of the axis.

    Raises:
      ArgumentValueError: an unknown name, or shapes or lengths that do not fit.

    >>> [x.shape for x in meshrt.scipy.signal.csd(jnp.ones(64), jnp.ones(64), nperseg=16)]
    [(9,), (9,)]
    """
    frequencies, _, density = _spectra(
        "csd", x, y, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis,
        boundary=None, padded=False, crossed=True,
    )  # fmt: skip
    if y is not None:
        density = density.astype(dtypes.to_complex_dtype(density.dtype))
    if density.ndim >= 2 and density.size > 0:
        density = density[..., 0] if density.shape[-1] == 1 else _averaged(density, average)
    return frequencies, density


@usual_promotion
def welch(
    x: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Any, Any]:
    """The power spectral density of a signal (Welch 1967). Arguments and results are those of `csd`.

    Args:
      x: an array.
      fs: samples per unit of time.
      window: a name, a tuple of a name and its parameters, or the values.
      nperseg: length of a segment.
      noverlap: by how much segments overlap.
      nfft: length of the transform.
      detrend: "constant", "linear", a function, or False.
      return_onesided: return half of the spectrum of real signals.
      scaling: "density" or "spectrum".
      axis: the dimension to work along.
      average: "mean" or "median".

    >>> [x.shape for x in meshrt.scipy.signal.welch(jnp.ones(64), nperseg=16)]
    [(9,), (9,)]
    """
    frequencies, density = csd(
        x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average
    )
    return frequencies, density.real


def _averaged(density: Any, average: str) -> Any:
    if average == "mean":
        return jnp.mean(density, axis=-1)
    if average != "median":
        raise errors.ArgumentValueError(f'average must be "median" or "mean", got {average}')
    # The median of a sum of two squares is below its mean (Allen et al., "FINDCHIRP", 2012, appendix B).
    even = np.arange(2.0, density.shape[-1], 2)
    bias = float(1 + np.sum(1 / (even + 1) - 1 / even))
    if density.dtype.kind == "c":
        return lax.complex(jnp.median(density.real, axis=-1), jnp.median(density.imag, axis=-1)) / bias
    return jnp.median(density, axis=-1) / bias


def _spectra(
    name: str,
    x: Any,
    y: Any,
    fs: Any,
    window: Any,
    nperseg: Any,
    noverlap: Any,
    nfft: Any,
    detrend: Any,
    one_sided: bool,
    scaling: str,
    axis: Any,
    *,
    boundary: str | None,
    padded: bool,
    crossed: bool,
) -> tuple[Any, Any, Any]:
    if boundary is not None and boundary not in _EXTENSIONS:
        raise errors.ArgumentValueError(f"Unknown boundary option '{boundary}', must be one of: {[*_EXTENSIONS, None]}")
    if scaling not in ("density", "spectrum"):
        raise errors.ArgumentValueError(f"Unknown scaling: {scaling}; use 'density' or 'spectrum'")
    if isinstance(detrend, str) and detrend not in ("constant", "linear"):
        raise errors.ArgumentValueError(f"Trend type must be 'linear' or 'constant', got {detrend!r}.")
    signals = separate(name, x) if y is None else separate(name, x, y)
    x = signals[0]
    axis = canonical_axis(axis, x.ndim, name)
    outer = _outer_shape(signals, axis)
    length = None if nperseg is None else static_int(nperseg, f"{name}: nperseg")
    if length is not None and length < 1:
        raise errors.ArgumentValueError(f"nperseg must be a positive integer, got {length}")
    values, length = window_and_length(window, length, x.shape[axis], x.dtype)
    overlap = length // 2 if noverlap is None else static_int(noverlap, f"{name}: noverlap")
    points = length if nfft is None else static_int(nfft, f"{name}: nfft")
    if any(s.size == 0 for s in signals):
        sizes = list(outer)
        sizes.insert(axis, min(s.shape[axis] for s in signals))
        complex_dtype = dtypes.to_complex_dtype(x.dtype)
        real = np.zeros((), complex_dtype).real.dtype
        return jnp.zeros(sizes, real), jnp.zeros(sizes, real), jnp.zeros(sizes, complex_dtype)
    if points < length:
        raise errors.ArgumentValueError(f"nfft must be greater than or equal to nperseg, got {points} and {length}.")
    if overlap >= length:
        raise errors.ArgumentValueError(f"noverlap must be less than nperseg, got {overlap} and {length}.")
    if one_sided and any(s.dtype.kind == "c" for s in signals):
        warnings.warn("Input data is complex, switching to return_onesided=False", stacklevel=3)
        one_sided = False
    plan = _Plan(length, length - overlap, points, detrend or None, one_sided, scaling, boundary, padded, crossed, axis)
    # A function of the user's may close over values of an outer trace: it is called in that.
    return (_planned.__wrapped__ if callable(detrend) else _planned)(plan, signals, values, fs)


def _outer_shape(signals: tuple[Any, ...], axis: int) -> tuple[int, ...]:
    """The common shape of all dimensions but the axis."""
    ranks = {s.ndim for s in signals}
    if len(ranks) > 1:
        raise errors.ArgumentValueError(
            f"two arguments must have the same rank, got shapes {[s.shape for s in signals]}"
        )
    try:
        return broadcast_shapes(*(s.shape[:axis] + s.shape[axis + 1 :] for s in signals))
    except ValueError:
        raise errors.ArgumentValueError(
            f"x and y cannot be broadcast together: shapes {[s.shape for s in signals]}"
        ) from None


@jit(static_argnums=0)
def _planned(plan: _Plan, signals: tuple[Any, ...], window: Any, fs: Any) -> tuple[Any, Any, Any]:
    moved = [jnp.moveaxis(s, plan.axis, -1) for s in signals]
    longest = max(s.shape[-1] for s in moved)
    moved = [_extended(_padded(s, longest - s.shape[-1]), plan) for s in moved]
    spectra = [_of_segments(s, window, plan) for s in moved]
    size, dtype = moved[0].shape[-1], spectra[0].dtype
    out = spectra[0]
    if plan.crossed:
        out = jnp.conj(out) * spectra[-1]
    out = out * _scale(plan, window, fs).astype(dtype)
    if plan.crossed and plan.one_sided:
        # Those frequencies stand for their negatives too: all but 0 and the highest of an even number.
        twice = np.full(out.shape[-1], 2.0)
        twice[0] = 1
        if plan.points % 2 == 0:
            twice[-1] = 1
        out = out * twice.astype(dtype)
    if plan.crossed and len(signals) == 1:
        out = out.real
    real = np.zeros((), dtype).real.dtype
    frequencies = (jnp.fft.rfftfreq if plan.one_sided else jnp.fft.fftfreq)(plan.points, 1 / fs, dtype=real)
    middle = plan.length / 2
    times = np.arange(middle, size - middle + 1, plan.step, dtype=real) - (0 if plan.extension is None else middle)
    return frequencies, jnp.asarray(times, real) / fs, jnp.moveaxis(out, -1, plan.axis)


def _padded(x: Any, count: int) -> Any:
    """x with so many zeros behind."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)]) if count else x


def _extended(x: Any, plan: _Plan) -> Any:
    if plan.extension is not None:
        half = plan.length // 2
        if plan.extension in ("odd", "even") and half > x.shape[-1] - 1:
            raise errors.ArgumentValueError(
                f"The extension length n ({half}) is too big. It must not exceed x.shape[axis]-1, which is "
                f"{x.shape[-1] - 1}."
            )
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], **_EXTENSIONS[plan.extension])
    return _padded(x, -(x.shape[-1] - plan.length) % plan.step % plan.length) if plan.padded else x


def _of_segments(x: Any, window: Any, plan: _Plan) -> Any:
    """Spectra [..., segments, frequencies] of a signal [..., n]."""
    starts = np.arange(0, x.shape[-1] - plan.length + 1, plan.step)
    segments = window * _trend_remover(plan)(x[..., starts[:, None] + np.arange(plan.length)])
    if plan.one_sided:
        return jnp.fft.rfft(segments.real, plan.points)
    return jnp.fft.fft(segments, plan.points)


def _trend_remover(plan: _Plan) -> Callable[[Any], Any]:
    """A function of segments along the last dimension. One of the user's sees them along the axis that it was told
    of."""
    trend, axis = plan.trend, plan.axis
    if trend is None:
        return lambda segments: segments
    if isinstance(trend, str):
        return functools.partial(without_trend, type=trend, axis=-1)
    if not callable(trend):
        raise errors.ArgumentValueError(f"Unsupported detrend type: {trend}")

    def removed(segments: Any) -> Any:
        if axis == segments.ndim - 2:
            return trend(segments)
        return jnp.moveaxis(trend(jnp.moveaxis(segments, -1, axis)), axis, -1)

    return removed


def _scale(plan: _Plan, window: Any, fs: Any) -> Any:
    scale = 1 / (fs * jnp.sum(window * window)) if plan.scaling == "density" else 1 / jnp.sum(window) ** 2
    return scale if plan.crossed else jnp.sqrt(scale)
