"""Images at any place: names and signatures are those of ``jax.scipy.ndimage``."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.core.tracebacks import offer as _offer
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing

__all__ = ["map_coordinates"]
__getattr__ = _missing(__name__, __all__)


def map_coordinates(input: Any, coordinates: Sequence[Any], order: int, mode: str = "constant", cval: Any = 0.0) -> Any:
    """Values of an array at places between its elements.

    Args:
      input: an array of n dimensions.
      coordinates: n arrays of one shape, the places along each dimension.
      order: 0 takes the nearest element, 1 interpolates linearly.
      mode: what lies outside: "constant" (`cval`), "nearest" (the border), "wrap", "mirror" (reflected about the
        centres of the elements at the border) or "reflect" (about their edges).
      cval: the value outside, for mode "constant".

    Returns:
      An array of the coordinates' shape and the input's dtype. Integers are rounded.

    Raises:
      ArgumentValueError: not one array of coordinates per dimension.
      UnsupportedError: another order or mode.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> msp.ndimage.map_coordinates(mnp.array([0.0, 10.0, 20.0]), [mnp.array([0.5, 1.25])], order=1)
    Array([ 5. , 12.5], dtype=float32)
    """
    image = jnp.asarray(input)
    places = tuple(jnp.asarray(c) for c in coordinates)
    if len(places) != image.ndim:
        raise errors.ArgumentValueError(
            f"coordinates must be a sequence of length input.ndim, but {len(places)} != {image.ndim}"
        )
    if mode not in _INSIDE:
        raise errors.UnsupportedError(
            f"jax.scipy.ndimage.map_coordinates does not yet support mode {mode}. Currently supported modes "
            f"are {set(_INSIDE)}."
        )
    if order not in _NEIGHBOURS:
        raise errors.UnsupportedError(f"jax.scipy.ndimage.map_coordinates currently requires order<=1, got {order}")
    return _sampled(image, places, jnp.asarray(cval, image.dtype), operator.index(order), mode)


@jit(static_argnums=(3, 4))
def _sampled(image: Any, places: tuple[Any, ...], outside: Any, order: int, mode: str) -> Any:
    choices = [_neighbours(p, size, order, mode) for p, size in zip(places, image.shape)]
    total: Any = None
    for corner in itertools.product(*choices):
        indices, known, weights = zip(*corner)
        value = image[indices]
        if mode == "constant":
            value = jnp.where(functools.reduce(operator.and_, known), value, outside)
        part = functools.reduce(operator.mul, weights) * value
        total = part if total is None else total + part
    if dtypes.issubdtype(image.dtype, np.integer):
        total = _rounded(total)
    return total.astype(image.dtype)


def _neighbours(place: Any, size: int, order: int, mode: str) -> list[tuple[Any, Any, Any]]:
    """The elements that a place along one dimension sees: index, whether it is inside, weight."""
    found = _NEIGHBOURS[order](place)
    return [(_INSIDE[mode](i, size), (i >= 0) & (i < size), w) for i, w in found]


def _rounded(x: Any) -> Any:
    """To the nearest integer, halves away from zero."""
    return x if dtypes.issubdtype(x.dtype, np.integer) else lax.round(x)


def _nearest(place: Any) -> list[tuple[Any, Any]]:
    return [(_rounded(place).astype(np.int32), jnp.ones((), place.dtype))]


def _linear(place: Any) -> list[tuple[Any, Any]]:
    lower = jnp.floor(place)
    beyond = place - lower
    first = lower.astype(np.int32)
    return [(first, 1 - beyond), (first + 1, beyond)]


def _mirror(index: Any, size: int) -> Any:
    """A triangular wave of period 2 (size - 1)."""
    period = max(1, 2 * (size - 1))
    folded = index % period
    return jnp.minimum(folded, period - folded) if size > 1 else jnp.zeros_like(index)


def _reflect(index: Any, size: int) -> Any:
    """A triangular wave of period 2 size, which repeats the ends."""
    folded = index % (2 * size)
    return jnp.minimum(folded, 2 * size - 1 - folded)


_NEIGHBOURS: dict[int, Callable[[Any], list[tuple[Any, Any]]]] = {0: _nearest, 1: _linear}
_INSIDE: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda index, size: index,
    "nearest": lambda index, size: jnp.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirror,
    "reflect": _reflect,
}

_offer(globals(), __all__)
