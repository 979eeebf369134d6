"""Windows that segments of a signal are multiplied by."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors

__all__ = ["named_window", "window_and_length"]


def named_window(window: Any, length: int) -> np.ndarray[Any, Any]:
    """A periodic window by its name, or by its name and parameters: float64 [length].

    Raises:
      ImportError: it is another than "hann", and SciPy, which knows them, is not installed.
    """
    if window == "hann":
        return np.ones(1) if length == 1 else np.sin(np.pi * np.arange(length) / length) ** 2
    try:
        from scipy.signal import get_window  # an optional wheel
    except ImportError as e:
        raise ImportError(f"scipy must be available to use window={window!r}; pass the window's values") from e
    return np.asarray(get_window(window, length))


def window_and_length(window: Any, length: int | None, available: int, dtype: Any) -> tuple[Any, int]:
    """A window's values [n] and n, for a signal of `available` samples.

    Args:
      window: a name, a tuple of a name and parameters, or values.
      length: n; of a name by default the signal's length, and at most that.

    Raises:
      ArgumentValueError: values that are no vector, are longer than the signal, or not `length` many.
    """
    if isinstance(window, str | tuple):
        if length is not None and length > available:
            warnings.warn(
                f"nperseg={length} is greater than input_length={available}, using nperseg={available}", stacklevel=4
            )
        length = available if length is None else min(length, available)
        return jnp.asarray(named_window(window, length).astype(dtype)), length
    values = jnp.asarray(window, dtype)
    if values.ndim != 1:
        raise errors.ArgumentValueError(f"window must be 1-D, got shape {values.shape}")
    if available < values.size:
        raise errors.ArgumentValueError(
            f"window is longer than input signal: it has {values.size} values, the signal {available}"
        )
    if length not in (None, values.size):
        raise errors.ArgumentValueError(
            f"value specified for nperseg is different from length of window: {length} and {values.size}"
        )
    return values, values.size
