"""Where the boxes of an exact exchange are cut and put, in elements of the devices' pieces.

Layouts that divide their dimensions are exchanged in boxes of one shape (`pieces.py`), others in boxes of whatever
shape remains (`tiles.py`). A permute has one shape for all devices, so those with a smaller box send a window of their
piece that holds it. What the window shows besides is right as well, and is put where it belongs: a window lies at the
same positions of the tensor for sender and receiver. Where it reaches beyond the receiver's piece, the piece is built
with margins, which are cut off in the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..heuristics import EXACT_DEVICES, EXACT_ROUNDS_FOR_MEMORY
from ..layout import Dims, local_shape
from .pieces import fewest, involved, pieces_between, positions
from .tiles import TileRound, Tiles, exchange

__all__ = ["Boxes", "Put", "boxes_between", "fewest_between", "tiles_of"]


class Put(NamedTuple):
    """One box on every device, by device number over the atoms involved.

    box       its shape
    sender    i64[devices]: from whom a device gets its box (itself, if it keeps it); -1: it has none
    cut_at    i64[devices, rank]: where each device cuts the box out of its old piece
    put_at    i64[devices, rank]: where each device puts the box into its new one
    """

    box: tuple[int, ...]
    sender: np.ndarray
    cut_at: np.ndarray
    put_at: np.ndarray


class Boxes(NamedTuple):
    """How boxes travel.

    atoms    the atoms involved, in the order in which `Put` numbers devices
    rounds   the permutes
    own      what devices keep
    low      the margin below the new piece, by dimension
    high     the margin above it
    """

    atoms: tuple[int, ...]
    rounds: tuple[Put, ...]
    own: tuple[Put, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def elements(self) -> int:
        """What a device sends that takes part in every round."""
        return sum(math.prod(r.box) for r in self.rounds)


@functools.lru_cache(4096)
def boxes_between(shape: tuple[int, ...], source: Dims, target: Dims, sizes: tuple[int, ...]) -> Boxes | None:
    """The exact exchange of a tensor of global `shape` between two layouts; None where it has none within the limits.
    `sizes` are those of all atoms."""
    parts = [[math.prod(sizes[a] for a in d) for d in dims] for dims in (source, target)]
    if all(n % p == 0 == n % q for n, p, q in zip(shape, *parts)):
        return _of_one_shape(shape, source, target, sizes)
    atoms = involved(source, target)
    if math.prod(sizes[a] for a in atoms) > EXACT_DEVICES:
        return None
    pieces = [local_shape(shape, dims, sizes) for dims in (source, target)]
    starts = _starts(shape, source, target, sizes)
    old, new = (_clipped(start, piece, shape) for start, piece in zip(starts, pieces))
    found = exchange(old, new, EXACT_ROUNDS_FOR_MEMORY)
    if found is None:
        return None
    place = _Places(starts, pieces)
    rounds = [place.windows(r) for r in found.rounds]
    own = [place.windows(r) for r in _kept(old, new)]
    windows = [*rounds, *own]
    lowest = np.min([[0] * len(shape), *[w.put_at[w.sender >= 0].min(axis=0) for w in windows]], axis=0)
    over = [(w.put_at + w.box - np.array(pieces[1]))[w.sender >= 0].max(axis=0) for w in windows]
    low, high = -lowest, np.max([[0] * len(shape), *over], axis=0)
    shifted = lambda w: w._replace(put_at=np.where((w.sender >= 0)[:, None], w.put_at + low, 0))
    return Boxes(
        atoms, tuple(map(shifted, rounds)), tuple(map(shifted, own)), tuple(low.tolist()), tuple(high.tolist())
    )


def fewest_between(
    shape: tuple[int, ...], source: Dims, target: Dims, sizes: tuple[int, ...]
) -> tuple[int, int] | None:
    """(permutes, elements that a device sends) that `boxes_between` has at least, found quickly; None where it has
    nothing. Both layouts divide their dimensions."""
    found = fewest(source, target, sizes)
    if found is None or any(n % k for n, k in zip(shape, found[1])):
        return None
    rounds, units = found
    return rounds, rounds * math.prod(n // k for n, k in zip(shape, units))


def _of_one_shape(shape: Sequence[int], source: Dims, target: Dims, sizes: tuple[int, ...]) -> Boxes | None:
    pieces = pieces_between(source, target, sizes)
    if pieces is None or any(n % k for n, k in zip(shape, pieces.units)):
        return None
    box = tuple(n // k for n, k in zip(shape, pieces.units))
    puts = lambda some: tuple(Put(box, r.sender, r.cut_at * box, r.put_at * box) for r in some)
    none = (0,) * len(shape)
    return Boxes(pieces.atoms, puts(pieces.rounds), puts(pieces.own), none, none)


def tiles_of(shape: Sequence[int], source: Dims, target: Dims, sizes: Sequence[int]) -> tuple[Tiles, Tiles]:
    """The parts of two layouts, of devices that differ in the atoms involved."""
    pieces = [local_shape(shape, dims, sizes) for dims in (source, target)]
    old, new = (_clipped(s, p, shape) for s, p in zip(_starts(shape, source, target, sizes), pieces))
    return old, new


def _starts(shape: Sequence[int], source: Dims, target: Dims, sizes: Sequence[int]) -> list[np.ndarray]:
    """i64[devices, rank] for each layout: where devices' pieces start, were there no end to the tensor."""
    atoms = involved(source, target)
    count = math.prod(sizes[a] for a in atoms)
    position = positions(atoms, sizes, count)
    out = []
    for dims in (source, target):
        start = np.zeros((count, len(shape)), np.int64)
        for d, n in enumerate(local_shape(shape, dims, sizes)):
            start[:, d] = position(dims[d]) * n
        out.append(start)
    return out


def _clipped(start: np.ndarray, piece: Sequence[int], shape: Sequence[int]) -> Tiles:
    return Tiles(np.minimum(start, shape), np.minimum(start + piece, shape))


def _kept(old: Tiles, new: Tiles) -> list[TileRound]:
    """What each device holds of its new piece."""
    low, high = np.maximum(old.low, new.low), np.minimum(old.high, new.high)
    (devices,) = np.nonzero((low < high).all(axis=1))
    if not len(devices):
        return []
    low, high = low[devices], high[devices]
    return [TileRound(tuple((high - low).max(axis=0).tolist()), devices, devices, low, high)]


class _Places:
    """Windows of old pieces (`starts[0]`, by device) and new ones (`starts[1]`), of the shapes `pieces`."""

    def __init__(self, starts: Sequence[np.ndarray], pieces: Sequence[tuple[int, ...]]):
        self.starts, self.pieces = starts, pieces

    def windows(self, dealt: TileRound) -> Put:
        """A window of one shape around each box: within the sender's piece, and within the receiver's if it can be."""
        old, new = self.starts[0][dealt.senders], self.starts[1][dealt.receivers]
        first = np.maximum(dealt.high - dealt.box, old)
        last = np.minimum(dealt.low, old + self.pieces[0] - np.array(dealt.box))
        start = np.clip(np.clip(last, new, new + self.pieces[1] - np.array(dealt.box)), first, last)
        count, rank = self.starts[0].shape
        put = Put(
            dealt.box,
            np.full(count, -1, np.int64),
            np.zeros((count, rank), np.int64),
            np.zeros((count, rank), np.int64),
        )
        put.sender[dealt.receivers] = dealt.senders
        put.cut_at[dealt.senders] = start - old
        put.put_at[dealt.receivers] = start - new
        return put
