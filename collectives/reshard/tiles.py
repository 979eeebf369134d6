"""Which part of a tensor each device holds, as intervals of positions, and what it takes to get from one such division
to another.

This is where sizes that do not divide and other orders of the devices are told exactly: a part may be shorter than
others or empty, and a device's place in the source's mesh need not be its place in the target's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import le
from typing import NamedTuple

import numpy as np

from ..heuristics import EXCHANGED_BOXES, PAIRS_PER_BOX, RECUT_BOXES
from ..layout import Atoms, Dims

__all__ = ["Exchange", "TileRound", "Tiles", "exchange", "lacking", "summing", "tiles"]


class Tiles(NamedTuple):
    """The parts of all devices, by device number: positions low <= p < high in each dimension (i64[devices, rank])."""

    low: np.ndarray
    high: np.ndarray

    @property
    def elements(self) -> np.ndarray:
        """f64[devices]: how many elements each device holds."""
        sizes: np.ndarray = np.prod(self.high - self.low, axis=1, dtype=np.float64)
        return sizes


class TileRound(NamedTuple):
    """Boxes that travel at the same time: nobody sends or receives two of them.

    box        the least extents that hold each of them
    senders    i64[boxes]: devices
    receivers  i64[boxes]: devices
    low, high  i64[boxes, rank]: positions low <= p < high of each
    """

    box: tuple[int, ...]
    senders: np.ndarray
    receivers: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Exchange(NamedTuple):
    """Boxes that travel until everybody has what it lacks."""

    rounds: tuple[TileRound, ...]

    @property
    def elements(self) -> int:
        """What a device sends that takes part in every round, a round's messages all having the extents of its box."""
        return sum(math.prod(r.box) for r in self.rounds)


def tiles(
    shape: Sequence[int], dims: Dims, partial: Sequence[int], atoms: Atoms, ids: Sequence[int] | None = None
) -> Tiles:
    """The parts under layout `dims` of a tensor that is a partial sum over the atoms `partial`; which of the partial
    sums a device has is told by one dimension more. `ids` are the devices in the order of the mesh."""
    low, high = [], []
    for n, split in zip((*shape, atoms.product(partial)), (*dims, tuple(partial))):
        piece = -(-n // atoms.product(split))
        start = np.minimum(atoms.coordinate(split) * piece, n)
        low.append(start)
        high.append(np.minimum(start + piece, n))
    found = np.stack(low, axis=1), np.stack(high, axis=1)
    if ids is None:
        return Tiles(*found)
    placed = tuple(np.empty_like(a) for a in found)
    for a, b in zip(placed, found):
        a[np.asarray(ids)] = b
    return Tiles(*placed)


def lacking(source: Tiles, target: Tiles) -> float:
    """Elements that the busiest device has to be sent: those of its part of the target that it does not hold."""
    common = np.minimum(source.high, target.high) - np.maximum(source.low, target.low)
    held = np.prod(np.maximum(common, 0), axis=1, dtype=np.float64)
    return float((target.elements - held).max())


def summing(target: Tiles, terms: int) -> float:
    """Elements that the busiest device has to be sent where each is a sum of `terms` that as many devices hold.

    An element takes `terms - 1` messages until one device has its sum, and one more for every other holder; some device
    gets no less than the mean. Nor can one that holds an element in the end do without a message about it.
    """
    distinct = np.unique(np.concatenate([target.low, target.high], axis=1), axis=0)
    rank = target.low.shape[1]
    whole = float(np.prod(distinct[:, rank:] - distinct[:, :rank], axis=1, dtype=np.float64).sum())
    held = float(target.elements.sum())  # every element as often as it is held
    return max((whole * (terms - 2) + held) / len(target.low), float(target.elements.max()))


def exchange(source: Tiles, target: Tiles, limit: int | None = None) -> Exchange | None:
    """Boxes that bring every device exactly what it lacks, dealt into rounds in which nobody sends or receives twice.

    A device's part of the target is cut along the parts of the source; of each cut that it does not hold one of the
    holders is asked, the least busy first. None where that takes too many boxes, or more rounds than `limit`.
    """
    count, rank = source.low.shape
    keys, index = np.unique(np.concatenate([source.low, source.high], axis=1), axis=0, return_inverse=True)
    index = index.reshape(-1)
    if count * len(keys) > PAIRS_PER_BOX * EXCHANGED_BOXES:
        return None
    low = np.maximum(keys[None, :, :rank], target.low[:, None])
    extents = np.minimum(keys[None, :, rank:], target.high[:, None]) - low
    missing = (extents > 0).all(axis=2)  # bool[devices, parts]
    missing[np.arange(count), index] = False
    receivers, parts = np.nonzero(missing)
    most = int(missing.sum(axis=1).max()) if len(keys) else 0
    if len(receivers) > EXCHANGED_BOXES or (limit is not None and most > limit):
        return None
    low, extents = low[receivers, parts], extents[receivers, parts]
    holders: list[list[int]] = [[] for _ in range(len(keys))]
    for device, part in enumerate(index.tolist()):
        holders[part].append(device)
    found, least = None, math.inf
    for boxes in _cut((receivers, parts, low, extents)):
        if found is None or len(boxes[0]) <= RECUT_BOXES:
            dealt = _deal(holders, count, boxes, limit, least)
            if dealt is not None:
                found, least = dealt, dealt[-1]
    return None if found is None else _rounds(*found[:-1])


def _cut(boxes: tuple[np.ndarray, ...]) -> Iterator[tuple[np.ndarray, ...]]:
    """The boxes (receivers, parts, low, extents) as they are, and with the longest along a dimension cut in two where
    others end, or the shortest do: a round's messages have the extents of its largest, and the rest of shorter ones is
    sent for nothing."""
    yield boxes
    receivers, parts, low, extents = boxes
    for d in range(extents.shape[1]):
        lengths = np.unique(extents[:, d])
        for length in dict.fromkeys((lengths[0], lengths[-2])) if len(lengths) > 1 else ():
            (long,) = np.nonzero(extents[:, d] > length)
            behind, rest, front = low[long].copy(), extents[long].copy(), extents.copy()
            behind[:, d] += length
            rest[:, d] -= length
            front[long, d] = length
            joined = zip((receivers, parts, low, front), (receivers[long], parts[long], behind, rest))
            yield tuple([np.concatenate(pair) for pair in joined])


def _deal(
    holders: Sequence[Sequence[int]], count: int, boxes: tuple[np.ndarray, ...], limit: int | None, most: float
) -> tuple[tuple[np.ndarray, ...], list[int], list[int], int] | None:
    """Boxes (receivers, parts, low, extents) of parts that `holders` have, dealt into rounds: (boxes in the order in
    which they were dealt, their senders, their rounds, elements sent); None if there are too many rounds, or a device
    would send `most` elements or more."""
    _, _, _, extents = boxes
    order = np.lexsort((*extents.T, -np.prod(extents, axis=1)))
    receivers, parts, low, extents = (x[order] for x in boxes)
    senders = _senders(holders, count, parts.tolist(), np.prod(extents, axis=1).tolist())
    dealt = _dealt(senders, receivers.tolist(), extents, count, limit, most)
    return None if dealt is None else ((receivers, parts, low, extents), senders, *dealt)


def _rounds(boxes: tuple[np.ndarray, ...], senders: Sequence[int], dealt: Sequence[int]) -> Exchange:
    """The rounds that boxes were dealt into."""
    receivers, _, low, extents = boxes
    by, of = np.array(senders, np.int64), np.array(dealt, np.int64)
    rounds = []
    for number in range(max(dealt, default=-1) + 1):
        (these,) = np.nonzero(of == number)
        box = tuple(extents[these].max(axis=0).tolist())
        rounds.append(TileRound(box, by[these], receivers[these], low[these], (low + extents)[these]))
    return Exchange(tuple(rounds))


def _senders(holders: Sequence[Sequence[int]], count: int, parts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Who sends each box, one of the holders of the part that it is cut from."""
    load = [0] * count
    out = []
    for part, n in zip(parts, sizes):
        sender = min(holders[part], key=load.__getitem__)
        load[sender] += n
        out.append(sender)
    return out


def _dealt(
    senders: Sequence[int], receivers: Sequence[int], extents: np.ndarray, count: int, limit: int | None, most: float
) -> tuple[list[int], int] | None:
    """The round of each box: the first where neither of its devices is busy and the boxes are no smaller, else the one
    that has to grow least, be it a new one. The largest boxes come first. With the elements of all rounds' boxes; None
    once these are `most`, or the rounds more than `limit`."""
    found, kinds = np.unique(extents, axis=0, return_inverse=True)
    shapes = [tuple(row) for row in found.tolist()]
    busy = [0] * (2 * count)  # the rounds in which a device sends, and those in which it receives, as bits
    boxes: list[tuple[int, ...]] = []
    volumes: list[int] = []
    fits = [0] * len(shapes)  # the rounds whose boxes hold those of a kind, as bits
    out, total = [], 0
    for sender, receiver, kind in zip(senders, receivers, kinds.reshape(-1).tolist()):
        taken = busy[sender] | busy[count + receiver]
        room = fits[kind] & ~taken
        if room:
            number = (room & -room).bit_length() - 1
        else:
            shape = shapes[kind]
            number, grown = len(boxes), math.prod(shape)
            for i, box in enumerate(boxes):
                if not taken >> i & 1:
                    more = math.prod(map(max, box, shape)) - volumes[i]
                    if more < grown:
                        number, grown = i, more
            if number == len(boxes):
                boxes.append(shape)
                volumes.append(0)
            box = boxes[number] = tuple(map(max, boxes[number], shape))
            volumes[number] += grown
            total += grown
            if total >= most or (limit is not None and len(boxes) > limit):
                return None
            for k, other in enumerate(shapes):
                if all(map(le, other, box)):
                    fits[k] |= 1 << number
        busy[sender] |= 1 << number
        busy[count + receiver] |= 1 << number
        out.append(number)
    return out, total
