"""Changes of elements that arrays of indices name, of which every one counts where an element is named several times:
one index after another, so that each finds what the one before it left, or by one scatter, where only what is left in
the end is asked for and the order of the changes does not matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt import numpy as jnp
from meshrt.core.primitive import Primitive
from meshrt.primitives.control import scan
from meshrt.primitives.gather import scatter_add_p
from meshrt.primitives.scatter import scatter_xor_p
from meshrt.primitives.state_indices import Indexer, Slice

__all__ = ["Change", "at_once", "in_turn"]

Change = Callable[..., Any]  # (what is there, *operands) -> what stands there afterwards


def in_turn(x: Any, step: Indexer, change: Change, operands: Sequence[Any], mask: Any) -> tuple[Any, Any]:
    """`x` after `change(what is there, *operands)` of what each index of `step` names, where `mask` is True; and what
    each of them found. Indices beyond the end change nothing.

    Args:
      x: an array of `step.shape`.
      step: slices, and arrays of indices of a shape that is not ().
      operands: arrays of `step.out_shape()`.
      mask: None, or a bool array that broadcasts to it.
    """
    at, count = step._position(), len(step.int_shape)
    turns, axes = math.prod(step.int_shape), range(at, at + count)

    def by_turn(value: Any) -> Any:
        front = jnp.moveaxis(jnp.broadcast_to(value, step.out_shape()), axes, range(count))
        return jnp.reshape(front, (turns, *front.shape[count:]))

    def turn(x: Any, given: Any) -> tuple[Any, Any]:
        numbers, values, taken = given
        left = iter(numbers)
        here = Indexer(tuple([i if type(i) is Slice else next(left) for i in step.indices]), step.shape, ())
        for number, d in zip(numbers, step.int_dims):
            exists = (number >= 0) & (number < step.shape[d])
            taken = exists if taken is None else taken & exists
        before = here.read(x)
        return here.write(x, jnp.where(taken, change(before, *values), before)), before

    numbers = [jnp.reshape(jnp.asarray(step.indices[d], np.int32), (turns,)) for d in step.int_dims]
    numbers = [jnp.where(n < 0, n + step.shape[d], n) for n, d in zip(numbers, step.int_dims)]
    given = (numbers, list(map(by_turn, operands)), None if mask is None else by_turn(mask))
    x, found = scan(turn, x, given)
    rest = found.shape[1:]
    return x, jnp.moveaxis(jnp.reshape(found, (*step.int_shape, *rest)), range(count), axes)


def at_once(x: Any, step: Indexer, scatter: Primitive, value: Any, mask: Any) -> Any:
    """`x` with `value` combined with what the indices of `step` name, where `mask` is True, by a scatter. Indices
    beyond the end change nothing. Arguments are those of `in_turn`."""
    value = jnp.broadcast_to(value, step.out_shape())
    if mask is not None:
        adds = scatter in (scatter_add_p, scatter_xor_p)
        # What changes nothing: -0, which leaves the sign of a zero; of others, which do the same twice, what is there.
        value = jnp.where(mask, value, _nothing(value.dtype) if adds else step.read(x))
    return step.put(x, value, scatter)


def _nothing(dtype: Any) -> Any:
    return jnp.asarray(-0.0 if dtypes.issubdtype(dtype, np.inexact) else 0, dtype)
