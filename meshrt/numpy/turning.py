"""Elements in another order along their dimensions: reversed, turned by quarters, rolled on."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import lax
from meshrt.core.dimensions.expression import as_size, max_dim
from meshrt.core.operators import ArrayOperators
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array
from meshrt.numpy.operands import ShapeError, canonical_axes, canonical_axis
from meshrt.numpy.shapes import broadcast_to, ravel, reshape, swapaxes

__all__ = ["flip", "fliplr", "flipud", "roll", "rot90"]


@at_once(1)
def flip(m: Any, axis: Any = None) -> Any:
    """``m`` with the order of elements reversed along ``axis`` (all by default).

    Args:
      m: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reverse; all by default.

    >>> jnp.flip(jnp.array([1, 2, 3]))
    Array([3, 2, 1], dtype=int32)
    """
    x = operand_array("flip", m)
    return lax.rev(x, canonical_axes(axis, x.ndim, "flip"))


@at_once(1)
def flipud(m: Any) -> Any:
    """``m`` reversed along the first dimension.

    >>> jnp.flipud(jnp.array([[1, 2], [3, 4]]))
    Array([[3, 4],
           [1, 2]], dtype=int32)
    """
    return flip(m, 0)


@at_once(1)
def fliplr(m: Any) -> Any:
    """``m`` reversed along the second dimension.

    >>> jnp.fliplr(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    return flip(m, 1)


@at_once(1, ["k"])
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """``m`` turned by ``k`` quarters in the plane of ``axes``, from the first towards the second.

    Args:
      m: an array, or what `asarray` makes one of.
      k: how often, by a quarter turn.
      axes: the plane, from the first dimension towards the second.

    >>> jnp.rot90(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 4],
           [1, 3]], dtype=int32)
    """
    x = operand_array("rot90", m)
    if x.ndim < 2:
        raise ShapeError(
            f"rot90 requires its first argument to have ndim at least two, but got first argument of shape {x.shape}"
        )
    a, b = canonical_axes(tuple(axes), x.ndim, "rot90")
    k %= 4
    if k == 0:
        return x
    if k == 2:
        return flip(x, (a, b))
    return swapaxes(flip(x, b), a, b) if k == 1 else flip(swapaxes(x, a, b), b)


@at_once(1, ["shift"])
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """``a`` with elements moved on by ``shift`` along ``axis``, those past the end coming in at the start.

    Args:
      a: an array, or what `asarray` makes one of.
      shift: by how many places; one for each axis.
      axis: the dimension or dimensions; by default the flattened array is rolled.

    >>> jnp.roll(jnp.array([1, 2, 3]), 1)
    Array([3, 1, 2], dtype=int32)
    """
    x = operand_array("roll", a)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    axes = canonical_axis_list(axis, x.ndim, "roll")
    if isinstance(shift, tuple | list) and any(isinstance(s, ArrayOperators) for s in shift):
        shift = asarray(shift)
    shape = np.shape(shift)
    counts = {n for n in (*shape, len(axes)) if n != 1}
    if len(shape) > 1 or len(counts) > 1:
        raise ShapeError(
            "shape mismatch: objects cannot be broadcast to a single shape. Mismatch is between arg 0 with shape "
            f"{(len(axes),)} and arg 1 with shape {shape}. Give roll one shift per axis"
        )
    count = counts.pop() if counts else 1
    axes = np.broadcast_to(axes, count).tolist()
    if isinstance(shift, ArrayOperators):
        return _roll_dynamic(x, broadcast_to(shift, (count,)), axes)
    steps = np.asarray(shift)
    steps = steps.astype(int) if steps.dtype.kind in "bf" else steps  # towards zero, as at run time
    for ax, by in zip(axes, np.broadcast_to(steps, count)):
        n = x.shape[ax]
        at = -as_size(by) % max_dim(n, 1)
        if at != 0:
            parts = [lax.slice_in_dim(x, at, n, axis=int(ax)), lax.slice_in_dim(x, 0, at, axis=int(ax))]
            x = lax.concatenate(parts, int(ax))
    return x


def canonical_axis_list(axis: Any, rank: int, name: str) -> list[int]:
    """Axes counted from the start; the same one may come twice."""
    axis = axis if isinstance(axis, (tuple, list, np.ndarray)) else (axis,)
    return [canonical_axis(a, rank, name) for a in axis]


def _roll_dynamic(x: Any, shift: Any, axes: list[int]) -> Any:
    """A window of the doubled array, for shifts known only at run time."""
    for k, ax in enumerate(axes):
        n = x.shape[ax]
        by = el.convert_element_type(shift[k], np.int32) % max(n, 1)
        x = lax.dynamic_slice_in_dim(lax.concatenate([x, x], ax), n - by, n, ax)
    return x
