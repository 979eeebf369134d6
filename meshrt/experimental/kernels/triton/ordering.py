"""Sorting: networks of comparisons, each of an element with one at a place that differs in one bit (Batcher's bitonic
sort). Positions are compared last, so that equal elements keep their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import lax
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.experimental.kernels.mlir.walk import Rule, kind_of, through
from meshrt.experimental.kernels.triton.filled import filled
from meshrt.primitives import sort
from meshrt.primitives.gather import take_along

__all__ = ["RULES"]

_Before = Callable[[Sequence[Any], Sequence[Any]], Any]


def _less(x: Any, y: Any) -> Any:
    """Whether an element comes before another: NaN comes last."""
    if kind_of(aval_of(x).dtype) != "f":
        return lax.lt(x, y)
    return lax.bitwise_or(lax.lt(x, y), lax.bitwise_and(lax.eq(x, x), lax.ne(y, y)))


def _equal(x: Any, y: Any) -> Any:
    if kind_of(aval_of(x).dtype) != "f":
        return lax.eq(x, y)
    return lax.bitwise_or(lax.eq(x, y), lax.bitwise_and(lax.ne(x, x), lax.ne(y, y)))


def _before(keys: int, size: int, descending: bool) -> _Before:
    """The order of elements by the first `keys` of their arrays; the last array holds positions, and what stands at
    `size` or behind is no element."""

    def before(xs: Sequence[Any], ys: Sequence[Any]) -> Any:
        result = lax.lt(xs[-1], ys[-1])
        for x, y in reversed(list(zip(xs[:keys], ys[:keys]))):
            first = _less(y, x) if descending else _less(x, y)
            result = lax.bitwise_or(first, lax.bitwise_and(_equal(x, y), result))
        x_is, y_is = (lax.lt(v[-1], np.int32(size) + lax.full_like(v[-1], 0)) for v in (xs, ys))
        return lax.bitwise_or(lax.bitwise_and(x_is, lax.bitwise_not(y_is)), lax.bitwise_and(lax.eq(x_is, y_is), result))

    return before


def _sorted(operands: Sequence[Any], axis: int, keys: int, descending: bool = False) -> list[Any]:
    """The operands in order along an axis, and the positions that their elements had."""
    shape = aval_of(operands[0]).shape
    size, (whole,) = shape[axis], filled((shape[axis],))
    room = [(0, whole - size if d == axis else 0, 0) for d in range(len(shape))]
    xs = [lax.pad(x, np.zeros((), aval_of(x).dtype)[()], room) for x in operands] if whole != size else list(operands)
    wide = (*shape[:axis], whole, *shape[axis + 1 :])
    place = lax.broadcasted_iota(np.int32, wide, axis)
    before, one = _before(keys, size, descending), np.int32(1)
    spread = lambda n: lax.broadcast_in_dim(n, wide, ())
    bit = lambda n: lax.eq(lax.bitwise_and(place, spread(lax.shift_left(one, n))), spread(np.int32(0)))

    def step(stage: Any, t: Any, now: Sequence[Any]) -> Any:
        at = lax.sub(lax.sub(stage, t), one)
        partner = lax.bitwise_xor(place, spread(lax.shift_left(one, at)))
        there = [take_along(x, partner, axis) for x in now]
        takes_less = lax.eq(bit(at), bit(stage))
        swap = lax.eq(before(there, now), takes_less)
        return tuple([lax.select_n(swap, x, y) for x, y in zip(now, there)])

    def merged(stage: Any, now: Any) -> Any:
        return lax.fori_loop(np.int32(0), stage, lambda t, now: step(stage, t, now), now)

    stages = np.int32(whole.bit_length())
    *out, positions = lax.fori_loop(one, stages, merged, (*xs, place)) if whole > 1 else (*xs, place)
    return [lax.slice_in_dim(x, 0, size, axis=axis) if whole != size else x for x in (*out, positions)]


def _sort(*operands: Any, dimension: int, num_keys: int, **_: Any) -> Any:
    return _sorted(operands, dimension, num_keys)[:-1]


def _top_k(x: Any, *, k: int, axis: int) -> Any:
    return [lax.slice_in_dim(v, 0, k, axis=axis) for v in _sorted([x], axis, 1, descending=True)]


RULES: dict[Primitive, Rule] = {sort.sort_p: through(_sort), sort.top_k_p: through(_top_k)}
