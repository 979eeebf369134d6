"""What each process keeps of a job's state while they all come together anew.

Of each part one process has it, among those that stay. What only processes hold that leave is handed over first, by
all of them together, to those that have been handed least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.distributed.gathering import gather
from meshrt.distributed.pieces import Box, Kept, Leaf, Piece, box_of
from meshrt.runtime.array import Array

__all__ = ["keep"]

_PLAIN = (bool, int, float, str)


@dataclass(slots=True)
class _Part:
    """A box of a leaf: which process has it, which is to have it, and what is in it where this process has it."""

    box: Box
    source: int
    owner: int
    data: np.ndarray | None = None


@dataclass(slots=True)
class _Found:
    """A leaf of the state; `dtype` None is a plain `value`."""

    path: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    value: Any = None
    parts: list[_Part] = field(default_factory=list)


def keep(tree: Any, process: int, count: int = 1, without: Collection[int] = ()) -> Kept:
    """Keeps the state as of now; returns when all of it has been computed and fetched.

    Args:
      tree: the state.
      process: this one's number among `count`.
      without: those that leave. The others are numbered anew, in their order, and so are the owners of pieces.

    Raises:
      ArgumentTypeError: a leaf cannot be kept. PeerLost: a process is lost while those that leave hand over what they
      hold.
    """
    staying = [p for p in range(count) if p not in without]
    found = [_look(f"state{tree_util.keystr(path)}", leaf, process, staying) for path, leaf in _leaves(tree)]
    _hand_over(found, process, staying)
    number = {p: i for i, p in enumerate(staying)}
    leaves = tuple(
        Leaf(f.path, f.dtype.name if f.dtype is not None else "", f.shape,
             tuple(Piece(number[part.owner], part.box) for part in f.parts), f.value)
        for f in found
    )  # fmt: skip
    return Kept(leaves, tuple(tuple(_own(f, process)) for f in found))


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return tree_util.tree_flatten_with_path(tree)[0]


def _own(found: _Found, process: int) -> Iterator[np.ndarray]:
    for part in found.parts:
        if part.owner == process:
            assert part.data is not None  # it was here, or has been handed over
            yield part.data


def _look(path: str, leaf: Any, process: int, staying: list[int]) -> _Found:
    if type(leaf) in _PLAIN:
        return _Found(path, value=leaf)
    if isinstance(leaf, np.ndarray | np.generic) and not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))  # the name of a dtype does not tell the order of bytes
    if not isinstance(leaf, Array | np.ndarray | np.generic) or not _is_carried(leaf.dtype):
        of = f" of {leaf.dtype}" if isinstance(leaf, np.ndarray | np.generic) else ""
        raise errors.ArgumentTypeError(
            f"elastic.grows: {path} is a {type(leaf).__name__}{of}, which cannot be carried to other processes: "
            "expected an array of numbers (of keys, their key_data) or a Python number or text"
        )
    if isinstance(leaf, Array) and getattr(leaf.sharding, "unreduced_axes", None):
        raise errors.ArgumentTypeError(
            f"elastic.grows: {path} is unreduced, {leaf.sharding}: reduce it first, as by meshrt.reshard"
        )
    shape = tuple(leaf.shape)
    if not isinstance(leaf, Array) or leaf.is_fully_addressable:  # each has its own, and that of the first counts
        first = staying[0]
        whole = _Part(tuple((0, n) for n in shape), first, first, np.asarray(leaf) if process == first else None)
        return _Found(path, leaf.dtype, shape, parts=[whole])
    return _Found(path, leaf.dtype, shape, parts=_parts(leaf, process, set(staying)))


def _is_carried(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtypes.is_held(dtype)


def _parts(leaf: Array, process: int, staying: Collection[int]) -> list[_Part]:
    """The different boxes of an array, each with a process that has it and stays, if one does."""
    chosen: dict[Box, Any] = {}
    for shard in leaf.global_shards:
        box = box_of(shard.index, leaf.shape)
        known = chosen.get(box)
        stays = shard.device.process_index in staying
        if known is None or (stays and known.device.process_index not in staying):
            chosen[box] = shard
    parts = []
    for box, shard in chosen.items():
        source = shard.device.process_index
        parts.append(_Part(box, source, source, np.asarray(shard.data) if source == process else None))
    return parts


# --- what processes that leave hand over.


class _Handed:
    """Takes what is handed over of one leaf."""

    def __init__(self, found: _Found, parts: list[_Part], process: int):
        pieces = tuple(Piece(part.source, part.box) for part in parts)
        self.leaf = Leaf(found.path, found.dtype.name, found.shape, pieces)
        self.dtype = found.dtype
        self._mine = {part.box: part for part in parts if part.owner == process}
        for part in self._mine.values():  # of what is empty nothing comes
            part.data = np.empty([b - a for a, b in part.box], found.dtype)

    def wants(self, piece: Piece) -> bool:
        return piece.box in self._mine

    def take(self, piece: Piece, data: np.ndarray) -> None:
        if (part := self._mine.get(piece.box)) is not None:
            part.data = data.view(self.dtype).reshape(piece.shape)


def _hand_over(found: list[_Found], process: int, staying: list[int]) -> None:
    """Gives all that nobody has who stays to those who do; the same decisions in all processes, without a word."""
    load = dict.fromkeys(staying, 0)
    takers: list[_Handed] = []
    own: list[np.ndarray] = []
    for leaf in found:
        parts = [part for part in leaf.parts if part.source not in load]
        for part in parts:
            part.owner = min(load, key=load.__getitem__)
            load[part.owner] += 1 + Piece(part.source, part.box).bytes(leaf.dtype.itemsize)
        own += [part.data for part in parts if part.data is not None]
        if parts:
            takers.append(_Handed(leaf, parts, process))
    if takers:
        gather(takers, own)
