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

__all__ = ["Exchange", "Tiles", "exchange", "lacking", "summing", "tiles"]

MESSAGE_LIMIT = 1 << 16  # boxes in all; beyond them planning takes seconds and the latencies more than the bytes


class Tiles(NamedTuple):
    """The parts of all devices, by device number: positions low <= p < high in each dimension (i64[devices, rank])."""

    low: np.ndarray
    high: np.ndarray

    @property
    def elements(self) -> np.ndarray:
        """f64[devices]: how many elements each device holds."""
        return np.prod(self.high - self.low, axis=1, dtype=np.float64)


class Exchange(NamedTuple):
    """Boxes that travel until everybody has what it lacks.

    rounds    number of collective permutes
    elements  the largest boxes of all rounds, added up: what a device sends where a permute has one size for all
    """

    rounds: int
    elements: float


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


def exchange(source: Tiles, target: Tiles) -> Exchange | None:
    """Boxes that bring every device exactly what it lacks, dealt into rounds in which nobody sends or receives twice.

    A device's part of the target is cut along the parts of the source; of each cut that it does not hold one of the
    holders is asked, the least busy first. The largest boxes are dealt out first, so that those of a round are of about
    one size. None where there would be too many.
    """
    keys, index = np.unique(np.concatenate([source.low, source.high], axis=1), axis=0, return_inverse=True)
    index, rank = index.reshape(-1), source.low.shape[1]
    if len(index) * len(keys) > 16 * MESSAGE_LIMIT:
        return None
    low, high = keys[None, :, :rank], keys[None, :, rank:]
    common = np.minimum(high, target.high[:, None]) - np.maximum(low, target.low[:, None])
    size = np.prod(np.maximum(common, 0), axis=2, dtype=np.float64)  # f64[devices, parts]
    size[np.arange(len(index)), index] = 0
    receivers, parts = np.nonzero(size)
    if len(receivers) > MESSAGE_LIMIT:
        return None
    sizes = size[receivers, parts]
    holders: list[list[int]] = [[] for _ in keys]
    for device, part in enumerate(index.tolist()):
        holders[part].append(device)
    load, sent, got = [0.0] * len(index), [0] * len(index), [0] * len(index)
    rounds: list[float] = []
    for m in np.argsort(-sizes, kind="stable").tolist():
        receiver, n = int(receivers[m]), float(sizes[m])
        sender = min(holders[parts[m]], key=load.__getitem__)
        load[sender] += n
        busy = sent[sender] | got[receiver]
        free = ~busy & (busy + 1)  # the lowest bit that neither has
        sent[sender] |= free
        got[receiver] |= free
        if free.bit_length() > len(rounds):
            rounds.append(n)
    return Exchange(len(rounds), math.fsum(rounds))
