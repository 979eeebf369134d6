"""Repetition: tile, repeat, resize."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p
from meshrt.core.dimensions.arithmetic import ceil_div
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.explicit import refusal
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy.arrays import asarray
from meshrt.numpy.cumulative import cumsum
from meshrt.numpy.filled import zeros
from meshrt.numpy.indexing import take, take_static
from meshrt.numpy.operands import (
    ShapeError,
    canonical_axis,
    operand,
    shape_tuple,
    static_int,
    static_size,
)
from meshrt.numpy.shapes import broadcast_to, ravel, reshape
from meshrt.primitives import arrangement
from meshrt.primitives.axis_types import constrained, in_auto_mode
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.mesh import AxisType

__all__ = ["repeat", "resize", "tile"]

# ----------------------------------------------------------------------------------------------------------
# Public functions.


def _operand(name: str, x: Any) -> Any:
    x = operand(name, x)
    return x if isinstance(x, ArrayOperators) else asarray(x)


@at_once(1, ["reps"])
def tile(A: Any, reps: Any) -> Any:
    """``A`` laid out ``reps`` times along each dimension.

    Args:
      A: an array, or what `asarray` makes one of.
      reps: how often along each dimension.

    >>> jnp.tile(jnp.array([1, 2]), (2, 2))
    Array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    x = _operand("tile", A)
    reps = shape_tuple(reps)
    reps = (1,) * (x.ndim - len(reps)) + reps
    own = (1,) * (len(reps) - x.ndim) + x.shape
    return arrangement.tile(reshape(x, own), reps)


def _with_static_counts(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`repeat` with counts of NumPy as a tuple: they decide about shapes, so they are part of the program."""

    @functools.wraps(fun)
    def wrapped(a: Any, repeats: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(repeats, list | tuple):
            raise errors.ArgumentTypeError(
                f"repeat requires ndarray or scalar arguments, got {type(repeats)} at position 1; write "
                f"np.array({repeats})"
            )
        if isinstance(repeats, np.ndarray) and repeats.size:
            repeats = tuple(repeats.ravel().tolist()) if repeats.ndim else repeats.item()
        return fun(a, repeats, *args, **kwargs)

    return wrapped


@_with_static_counts
@in_auto_mode
def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out_sharding: Any = None
) -> Any:
    """Each position along ``axis`` repeated ``repeats`` times (a number, or an array of one per position).

    Repeats per position that are traced need ``total_repeat_length``, the static size of the result.

    Args:
      a: an array, or what `asarray` makes one of.
      repeats: how often each element is repeated.
      axis: the dimension to work along; negative numbers count from the end.
      total_repeat_length: the length of the result, so that its shape is known to `jit`.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.repeat(jnp.array([1, 2]), jnp.array([1, 2]), total_repeat_length=3)
    Array([1, 2, 2], dtype=int32)
    """
    x = _operand("repeat", a)
    if axis is None or (x.ndim == 0 and (isinstance(repeats, DimExpr) or np.size(repeats) == 1)):
        x, axis = ravel(x), 0
    axis = canonical_axis(axis, x.ndim, "repeat")
    n = x.shape[axis]
    sharding = aval_of(x).explicit
    asks = AxisType.Explicit in get_abstract_mesh().axis_types
    if asks and out_sharding is None and sharding is not None and sharding.spec.partitions[axis] is not None:
        raise refusal(
            "repeat", [aval_of(x)], "Please pass sharding to `jnp.repeat` via `out_sharding` parameter.",
            "give `out_sharding=P(...)`",
        )  # fmt: skip
    if total_repeat_length is not None:
        out = _repeat_dynamic(
            x, broadcast_to(ravel(asarray(repeats)), (n,)), axis, static_size(total_repeat_length, "repeat")
        )
    else:
        counts = np.zeros(()) if isinstance(repeats, DimExpr) else np.asarray(repeats)
        if isinstance(repeats, DimExpr):
            out = _repeat_evenly(x, repeats, axis)
        elif counts.ndim == 0:
            out = _repeat_evenly(x, static_int(repeats, "repeat: repeats"), axis)
        else:
            out = take_static(x, np.repeat(np.arange(n), np.broadcast_to(counts.ravel(), (n,))), axis)
    return constrained(out, out_sharding, "repeat")


def _repeat_evenly(x: Any, count: Any, axis: int) -> Any:
    wide = (*x.shape[: axis + 1], count, *x.shape[axis + 1 :])
    kept = tuple(i for i in range(len(wide)) if i != axis + 1)
    x = broadcast_in_dim_p.bind(x, shape=wide, broadcast_dimensions=kept)
    return reshape_p.bind(x, new_sizes=(*wide[:axis], wide[axis] * count, *wide[axis + 2 :]))


def _repeat_dynamic(x: Any, counts: Any, axis: int, total: int) -> Any:
    """Position k of the result comes from the last position whose repeats begin at or before k."""
    if total == 0:
        return zeros((*x.shape[:axis], 0, *x.shape[axis + 1 :]), x.dtype)
    if x.shape[axis] == 0:
        return x  # there is nothing to repeat
    starts = cumsum(counts) - counts
    marks = zeros((total,), np.int32).at[starts].add(1, mode="drop")
    return take(x, cumsum(marks) - 1, axis=axis, mode="clip")


def resize(a: Any, new_shape: Any) -> Any:
    """``a`` with another shape, repeated or cut as needed.

    Args:
      a: an array, or what `asarray` makes one of.
      new_shape: sizes of the result.

    >>> jnp.resize(jnp.array([1, 2, 3]), (2, 2))
    Array([[1, 2],
           [3, 1]], dtype=int32)
    """
    x = ravel(a)
    target = shape_tuple(new_shape)
    if any(n < 0 for n in target):
        raise ShapeError(f"resize: all elements of new_shape must be non-negative, got {target}")
    count = math.prod(target)
    if x.size == 0 or count == 0:
        return zeros(target, x.dtype)
    return reshape(tile(x, ceil_div(count, x.size))[:count], target)
