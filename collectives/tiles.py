"""Which part of a tensor each device holds, as intervals of positions, and what it takes to get from one such division
to another.

This is where sizes that do not divide and other orders of the devices are told exactly: a part may be shorter than
others or empty, and a device's place in the source's mesh need not be its place in the target's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .layout import Atoms, Dims

__all__ = ["Exchange", "Round", "Tiles", "exchange", "lacking", "summing", "tiles"]

CUT_LIMIT = 256  # boxes up to which other ways to cut them are tried
MESSAGE_LIMIT = 1 << 16  # boxes in all; beyond them planning takes seconds and the latencies more than the bytes


class Tiles(NamedTuple):
    """The parts of all devices, by device number: positions low <= p < high in each dimension (i64[devices, rank])."""

    low: np.ndarray
    high: np.ndarray

    @property
    def elements(self) -> np.ndarray:
        """f64[devices]: how many elements each device holds."""
        return np.prod(self.high - self.low, axis=1, dtype=np.float64)


class Round(NamedTuple):
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

    rounds: tuple[Round, ...]

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
    if count * len(keys) > 16 * MESSAGE_LIMIT:
        return None
    low = np.maximum(keys[None, :, :rank], target.low[:, None])
    extents = np.minimum(keys[None, :, rank:], target.high[:, None]) - low
    missing = (extents > 0).all(axis=2)  # bool[devices, parts]
    missing[np.arange(count), index] = False
    receivers, parts = np.nonzero(missing)
    most = int(missing.sum(axis=1).max()) if len(keys) else 0
    if len(receivers) > MESSAGE_LIMIT or (limit is not None and most > limit):
        return None
    low, extents = low[receivers, parts], extents[receivers, parts]
    found = None
    for boxes in _cut((receivers, parts, low, extents)):
        if found is None or len(boxes[0]) <= CUT_LIMIT:
            dealt = _deal(index, len(keys), *boxes, limit)
            if dealt is not None and (found is None or dealt.elements < found.elements):
                found = dealt
    return found


def _cut(boxes: tuple[np.ndarray, ...]):
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
    index: np.ndarray, count: int, receivers: np.ndarray, parts: np.ndarray, low: np.ndarray, extents: np.ndarray,
    limit: int | None,
) -> Exchange | None:  # fmt: skip
    """Boxes of `count` parts, held by the devices as `index` says, dealt into rounds; None if there are too many."""
    order = np.lexsort((*extents.T, -np.prod(extents, axis=1)))
    receivers, parts, low, extents = receivers[order], parts[order], low[order], extents[order]
    senders = _senders(index, count, parts, np.prod(extents, axis=1))
    dealt = _dealt(senders.tolist(), receivers.tolist(), extents, len(index))
    if limit is not None and max(dealt, default=-1) >= limit:
        return None
    of = np.array(dealt, np.int64)
    rounds = []
    for number in range(max(dealt, default=-1) + 1):
        (these,) = np.nonzero(of == number)
        box = tuple(extents[these].max(axis=0).tolist())
        rounds.append(Round(box, senders[these], receivers[these], low[these], (low + extents)[these]))
    return Exchange(tuple(rounds))


def _senders(index: np.ndarray, count: int, parts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """i64[boxes]: who sends each box, one of the holders of the part that it is cut from (`index`, by device)."""
    holders: list[list[int]] = [[] for _ in range(count)]
    for device, part in enumerate(index.tolist()):
        holders[part].append(device)
    load = [0] * len(index)
    out = []
    for part, n in zip(parts.tolist(), sizes.tolist()):
        sender = min(holders[part], key=load.__getitem__)
        load[sender] += n
        out.append(sender)
    return np.array(out, np.int64)


def _dealt(senders: list[int], receivers: list[int], extents: np.ndarray, count: int) -> list[int]:
    """The round of each box: the first where neither of its devices is busy and the boxes are no smaller, else the one
    that has to grow least, be it a new one. The largest boxes come first."""
    shapes, kinds = np.unique(extents, axis=0, return_inverse=True)
    sizes = np.prod(shapes, axis=1).tolist()
    busy = [0] * (2 * count)  # the rounds in which a device sends, and those in which it receives, as bits
    boxes: list[np.ndarray] = []
    fits = [0] * len(shapes)  # the rounds whose boxes hold those of a kind, as bits
    out = []
    for sender, receiver, kind in zip(senders, receivers, kinds.reshape(-1).tolist()):
        taken = busy[sender] | busy[count + receiver]
        room = fits[kind] & ~taken
        if room:
            number = (room & -room).bit_length() - 1
        else:
            number, grown = len(boxes), sizes[kind]
            for i, box in enumerate(boxes):
                more = int(np.prod(np.maximum(box, shapes[kind])) - np.prod(box))
                if more < grown and not taken >> i & 1:
                    number, grown = i, more
            if number == len(boxes):
                boxes.append(shapes[kind])
            boxes[number] = np.maximum(boxes[number], shapes[kind])
            for k in np.nonzero((shapes <= boxes[number]).all(axis=1))[0].tolist():
                fits[k] |= 1 << number
        busy[sender] |= 1 << number
        busy[count + receiver] |= 1 << number
        out.append(number)
    return out
