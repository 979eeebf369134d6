"""Changes of elements that arrays of indices name: one index after another, so that of an element that is named several
times every change counts, and each finds what the one before it left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import numpy as jnp
from meshrt.primitives.control import scan
from meshrt.primitives.state_indices import Indexer, Slice

__all__ = ["Change", "in_turn"]

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
