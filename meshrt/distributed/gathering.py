"""Bytes of all processes for all: each sends those of its pieces, a bounded number at a time, and keeps what it wants.

So no process ever has more of a leaf than what it is to hold, and one piece of which it wants something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from meshrt.distributed.pieces import Leaf, Piece
from meshrt.runtime import backend
from meshrt.runtime.assembly import make_array_from_callback
from meshrt.runtime.reshard import reshard
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec

__all__ = ["Taker", "gather"]

_AT_ONCE = 64 << 20  # bytes that all processes gather at once, and each of them holds; Chosen: little beside a model


class Taker(Protocol):
    """Who takes pieces of a leaf: of an array if it has a dtype."""

    leaf: Leaf
    dtype: Any

    def wants(self, piece: Piece) -> bool:
        """Whether anything of a piece is to be held here."""
        ...

    def take(self, piece: Piece, data: np.ndarray) -> None:
        """What a piece has, as bytes."""
        ...


def gather(made: Sequence[Taker], own: Sequence[np.ndarray]) -> None:
    """Every process sends the bytes of its pieces in order, all of them as many at once, and takes what it wants."""
    rows: dict[int, list[tuple[Taker, Piece]]] = {}
    for leaf in made:
        for piece in leaf.leaf.pieces:
            rows.setdefault(piece.owner, []).append((leaf, piece))
    count = backend.process_count()
    lengths = {p: sum(piece.bytes(m.dtype.itemsize) for m, piece in row if m.dtype) for p, row in rows.items()}
    longest = max(lengths.values(), default=0)
    step = min(longest, max(1 << 16, _AT_ONCE // count))
    mine = _Source(own)
    sinks = {p: _Sink(row) for p, row in rows.items()}
    for start in range(0, longest, max(1, step)):
        table = _everybodys(mine.next(step), count)
        for p, sink in sinks.items():
            sink.put(table[p, : max(0, lengths[p] - start)])


def _everybodys(row: np.ndarray, count: int) -> np.ndarray:
    """The rows of all processes, by a program that runs on one device of each."""
    if count == 1:
        return row[None]
    leaders = {d.process_index: d for d in reversed(backend.devices())}
    mesh = Mesh(np.array([leaders[p] for p in range(count)]), ("process",))
    split = NamedSharding(mesh, PartitionSpec("process"))
    array = make_array_from_callback((count, len(row)), split, lambda index: row[None])
    return np.asarray(reshard(array, NamedSharding(mesh, PartitionSpec()), explicit=True).addressable_data(0))


class _Source:
    """The bytes of this process's pieces, one behind the other; zeros behind the last."""

    def __init__(self, pieces: Sequence[np.ndarray]):
        self._left = [np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in pieces if p.size]

    def next(self, size: int) -> np.ndarray:
        out, at = np.zeros(size, np.uint8), 0
        while at < size and self._left:
            some = self._left[0][: size - at]
            out[at : at + len(some)] = some
            self._left[0] = self._left[0][len(some) :]
            at += len(some)
            if not len(self._left[0]):
                del self._left[0]
        return out


class _Sink:
    """Cuts what comes of one process into its pieces, and gives each to its leaf if that wants it."""

    def __init__(self, row: Sequence[tuple[Taker, Piece]]):
        sized = ((m, piece, piece.bytes(m.dtype.itemsize)) for m, piece in row if m.dtype is not None)
        self._left = [entry for entry in sized if entry[2]]
        self._left.reverse()
        self._waiting: list[np.ndarray] = []
        self._have = 0

    def put(self, data: np.ndarray) -> None:
        while len(data):
            made, piece, size = self._left[-1]
            some, data = data[: size - self._have], data[size - self._have :]
            self._have += len(some)
            if made.wants(piece):
                self._waiting.append(some.copy())
            if self._have == size:
                if self._waiting:
                    made.take(piece, np.concatenate(self._waiting))
                self._left.pop()
                self._waiting, self._have = [], 0
