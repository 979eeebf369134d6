"""Parts of joined arrays, as XLA's simplifier makes them: a slice that takes nothing of some of the operands of a
concatenation is one of the others, joined apart.

A halo of which an operation takes the middle back is the array that it was put around: what is computed in the middle
waits for no neighbour, and holds no copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..ir.attributes import Integers
from ..ir.program import LocalOp, LocalValue
from ..ir.walker import inputs

__all__ = ["Narrowed", "narrowed"]

_SLICE, _CONCATENATE = "stablehlo.slice", "stablehlo.concatenate"


class Narrowed(NamedTuple):
    """The items of a region, those that join fewer operands among them; what slices read in place of their operands;
    the slices that take all of that, which are other names of it."""

    items: Sequence[LocalOp]
    reads: dict[LocalOp, LocalValue]
    whole: frozenset[LocalOp]


def narrowed(items: Sequence[LocalOp], is_kept: Callable[[LocalValue], bool] = lambda value: False) -> Narrowed:
    """The items with each slice of a concatenation reading those operands alone of which it takes something, without
    what nobody reads then. `is_kept` says which values a region gives away."""
    reads: dict[LocalOp, LocalValue] = {}
    whole: set[LocalOp] = set()
    made: dict[tuple[LocalOp, int, int], LocalOp] = {}
    behind: dict[LocalOp, list[LocalOp]] = {}
    here = set(items)
    for item in items:
        if item.name != _SLICE:
            continue
        joined, offsets = _sliced(item, here)
        if joined is None or joined.name != _CONCATENATE or joined not in here:
            continue
        dim = joined.number("dimension")
        start, limit = (_numbers(item, name)[dim] + offsets[dim] for name in ("start_indices", "limit_indices"))
        taken = [i for i, (first, end) in enumerate(_places(joined, dim)) if first < limit and end > start]
        if not taken or len(taken) == len(joined.operands):
            continue
        low, high = taken[0], taken[-1] + 1
        value = joined.operands[low]
        if high - low > 1:
            part = made.get((joined, low, high))
            if part is None:
                part = made[joined, low, high] = _joining(joined, dim, low, high)
                behind.setdefault(joined, []).append(part)
            value = part.results[0]
        reads[item] = value
        if value.shape == item.results[0].shape:
            whole.add(item)
    if reads:
        items = _read([each for item in items for each in (item, *behind.get(item, ()))], reads, is_kept)
    return Narrowed(items, reads, frozenset(whole))


def _read(
    items: Sequence[LocalOp], reads: Mapping[LocalOp, LocalValue], is_kept: Callable[[LocalValue], bool]
) -> list[LocalOp]:
    """The items without the slices and concatenations that nobody reads."""
    found: list[LocalOp] = []
    needed: set[LocalValue] = set()
    for item in reversed(items):
        if item.name in (_SLICE, _CONCATENATE) and not is_kept(item.results[0]) and item.results[0] not in needed:
            continue
        needed.update([reads[item]] if item in reads else inputs(item))
        found.append(item)
    return found[::-1]


def _sliced(item: LocalOp, here: set[LocalOp]) -> tuple[LocalOp | None, list[int]]:
    """What a slice takes from, through other slices without gaps; where those begin."""
    offsets = [0] * len(item.operands[0].shape)
    maker = item.operands[0].item
    while maker is not None and maker in here and maker.name == _SLICE and set(_numbers(maker, "strides")) <= {1}:
        offsets = [a + b for a, b in zip(offsets, _numbers(maker, "start_indices"))]
        maker = maker.operands[0].item
    return maker, offsets


def _joining(joined: LocalOp, dim: int, low: int, high: int) -> LocalOp:
    """The concatenation of some operands of one."""
    operands = joined.operands[low:high]
    shape = list(joined.results[0].shape)
    shape[dim] = sum(v.shape[dim] for v in operands)
    value = LocalValue(tuple(shape), joined.results[0].dtype)
    return LocalOp(_CONCATENATE, operands, [value], joined.attrs, joined.extra, loc=joined.loc)


def _places(joined: LocalOp, dim: int) -> Iterator[tuple[int, int]]:
    """Where each operand lies in the whole."""
    ends = list(itertools.accumulate(v.shape[dim] for v in joined.operands))
    return zip([0, *ends], ends)


def _numbers(item: LocalOp, name: str) -> tuple[int, ...]:
    found = item.attribute(name)
    assert isinstance(found, Integers), f"{item.name} has no numbers {name}"
    return tuple(found.values)
