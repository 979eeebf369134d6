"""The state of a job, carried from its processes to those of the next one when others come to it.

Each process keeps the parts that it holds in its own memory, of equal ones one process alone, while the devices are let
go. In the new job process 0 says what was kept and by whom, and then all of them gather the bytes, a bounded number at
a time, and take of each piece what their own devices are to hold. So no process ever has more of a leaf than that, and
one piece of which it wants something.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.distributed.state import DistributedContext
from meshrt.distributed.store import read
from meshrt.runtime import backend
from meshrt.runtime.array import Array
from meshrt.runtime.assembly import make_array_from_callback
from meshrt.runtime.reshard import reshard
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding, Sharding
from meshrt.sharding.spec import PartitionSpec

__all__ = ["Kept", "carry", "keep"]

_AT_ONCE = 64 << 20  # bytes that all processes gather at once, and each of them holds; Chosen: little beside a model
_VALUE = 512 << 10  # bytes under one key of the service, which refuses messages of megabytes
_TELL_S = 300.0  # for process 0 to say what was kept
_PLAIN = (bool, int, float, str)

Box = tuple[tuple[int, int], ...]  # of each dimension: from, to


class Piece(NamedTuple):
    """A part of a leaf, and the process that kept it."""

    owner: int
    box: Box

    def bytes(self, itemsize: int) -> int:
        """How many it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the part."""
        return tuple(stop - start for start, stop in self.box)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf as all processes know it: `dtype` "" is a plain `value`; else the `pieces` cover `shape`."""

    path: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What this process kept: all `leaves`, and its own `data`, the pieces of each leaf that it owns in order."""

    leaves: tuple[Leaf, ...]
    data: tuple[tuple[np.ndarray, ...], ...]


def keep(tree: Any, process: int) -> Kept:
    """Keeps the state as of now; returns when all of it has been computed and fetched.

    ArgumentTypeError: a leaf cannot be kept.
    """
    found = [_kept(f"state{tree_util.keystr(path)}", leaf, process) for path, leaf in _leaves(tree)]
    return Kept(tuple(leaf for leaf, _ in found), tuple(data for _, data in found))


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return tree_util.tree_flatten_with_path(tree)[0]


def _kept(path: str, leaf: Any, process: int) -> tuple[Leaf, tuple[np.ndarray, ...]]:
    if type(leaf) in _PLAIN:
        return Leaf(path, value=leaf), ()
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
    name, shape = leaf.dtype.name, tuple(leaf.shape)
    if not isinstance(leaf, Array) or leaf.is_fully_addressable:  # each process has its own, and that of 0 counts
        whole = Piece(0, tuple((0, n) for n in shape))
        return Leaf(path, name, shape, (whole,)), (np.asarray(leaf),) if process == 0 else ()
    shards = [s for s in leaf.global_shards if s.replica_id == 0]
    pieces = tuple(Piece(s.device.process_index, _box(s.index, shape)) for s in shards)
    own = tuple(np.asarray(s.data) for s in shards if s.device.process_index == process)
    return Leaf(path, name, shape, pieces), own


def _is_carried(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtypes.is_held(dtype)


def _box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def carry(kept: Kept | None, ctx: DistributedContext, generation: int, like: Any) -> Any:
    """The state in the new job, or None if none was kept; called by all of its processes.

    Args:
      kept: what this process kept; None of one that has come.
      generation: how often the processes came together anew, the same for all.
      like: the structure of the state, with a Sharding wherever an array is to be made.

    Raises:
      ArgumentValueError: `like` has other leaves than the state. ArgumentTypeError: a spec in place of a sharding.
      PeerLost: a process is lost meanwhile.
    """
    prefix = f"meshrt/carried/{generation}"
    if ctx.node_id == 0:
        leaves = () if kept is None else kept.leaves
        _tell(ctx, prefix, leaves)
    else:
        leaves = _told(ctx, prefix)
    if not leaves:
        return None
    wanted, structure = tree_util.tree_flatten_with_path(like)
    _check_paths(leaves, [f"state{tree_util.keystr(path)}" for path, _ in wanted])
    made = [_Made(leaf, target) for leaf, (_, target) in zip(leaves, wanted, strict=True)]
    own = () if kept is None else tuple(itertools.chain.from_iterable(kept.data))
    _gather(made, own)
    return tree_util.tree_unflatten(structure, [m.value() for m in made])


def _check_paths(leaves: Sequence[Leaf], asked: list[str]) -> None:
    paths = [leaf.path for leaf in leaves]
    if paths != asked:
        missing, more = [p for p in paths if p not in asked], [p for p in asked if p not in paths]
        text = [f"`like` has no {', '.join(missing[:8])}"] if missing else []
        text += [f"the state has no {', '.join(more[:8])}"] if more else []
        raise errors.ArgumentValueError(
            f"elastic.carried: {' and '.join(text) or 'the order of the leaves differs'}. Give the structure of what "
            "the other processes gave grows()"
        )


# --- what was kept, told by process 0.


def _tell(ctx: DistributedContext, prefix: str, leaves: Sequence[Leaf]) -> None:
    rows = [[leaf.path, leaf.dtype, leaf.shape, leaf.pieces, leaf.value] for leaf in leaves]
    data = zlib.compress(json.dumps(rows).encode(), 1)
    parts = [data[i : i + _VALUE] for i in range(0, len(data), _VALUE)]
    for i, part in enumerate(parts):
        ctx.client.key_value_set_bytes(f"{prefix}/{i}", part)
    ctx.client.key_value_set_bytes(f"{prefix}/count", str(len(parts)).encode())


def _told(ctx: DistributedContext, prefix: str) -> tuple[Leaf, ...]:
    count = int(_part(ctx, f"{prefix}/count"))
    data = b"".join(_part(ctx, f"{prefix}/{i}") for i in range(count))
    return tuple(
        Leaf(path, dtype, tuple(shape), tuple(Piece(p, tuple(map(tuple, box))) for p, box in pieces), value)
        for path, dtype, shape, pieces, value in json.loads(zlib.decompress(data))
    )


def _part(ctx: DistributedContext, key: str) -> bytes:
    found = read(ctx, key, _TELL_S)
    if found is None:
        raise errors.DistributedError(
            f"elastic.carried: process 0 did not say within {_TELL_S:g} s what it kept. All processes must call it"
        )
    return found


# --- the bytes.


class _Made:
    """A leaf in the making: of each part that this process is to hold, what has come of it."""

    def __init__(self, leaf: Leaf, target: Any):
        if isinstance(target, PartitionSpec):
            raise errors.ArgumentTypeError(
                f"elastic.carried: {leaf.path} is to be {target}, a spec: give NamedSharding(mesh, spec)"
            )
        self.leaf, self._target = leaf, target if isinstance(target, Sharding) else None
        self.dtype = dtypes.named_dtype(leaf.dtype) if leaf.dtype else None
        boxes: set[Box] = set()
        if self.dtype is not None:
            boxes = {tuple((0, n) for n in leaf.shape)} if self._target is None else set(self._own(self._target))
        self._parts = {box: np.empty([b - a for a, b in box], self.dtype) for box in boxes}

    def _own(self, target: Sharding) -> Iterator[Box]:
        here = backend.process_index()
        for device, index in zip(target.device_assignment, target.shard_indices(self.leaf.shape), strict=True):
            if device.process_index == here:
                yield _box(index, self.leaf.shape)

    def wants(self, piece: Piece) -> bool:
        """Whether anything of a piece is to be held here."""
        return any(_common(piece.box, box) is not None for box in self._parts)

    def take(self, piece: Piece, data: np.ndarray) -> None:
        """What a piece has of what is to be held here."""
        values = data.view(self.dtype).reshape(piece.shape)
        for box, part in self._parts.items():
            if (common := _common(piece.box, box)) is not None:
                part[_within(common, box)] = values[_within(common, piece.box)]

    def value(self) -> Any:
        """The leaf."""
        if self.dtype is None:
            return self.leaf.value
        if self._target is None:
            (whole,) = self._parts.values()
            return whole
        shape = self.leaf.shape
        return make_array_from_callback(shape, self._target, lambda i: self._parts[_box(i, shape)], self.dtype)


def _common(one: Box, other: Box) -> Box | None:
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(start < stop for start, stop in found) else None


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))


def _gather(made: Sequence[_Made], own: Sequence[np.ndarray]) -> None:
    """Every process sends the bytes of its pieces in order, all of them as many at once, and takes what it wants."""
    rows: dict[int, list[tuple[_Made, Piece]]] = {}
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

    def __init__(self, row: Sequence[tuple[_Made, Piece]]):
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
