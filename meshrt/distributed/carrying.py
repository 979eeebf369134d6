"""The state of a job, carried from its processes to those of the next one when others come to it, or some have left.

Each process keeps the parts that it holds in its own memory, of equal ones one process alone, while the devices are let
go (keeping.py). In the new job process 0 says what was kept and by whom, and then all of them gather the bytes
(gathering.py) and take of each piece what their own devices are to hold.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.distributed.gathering import gather
from meshrt.distributed.pieces import Box, Kept, Leaf, Piece, box_of, common, within
from meshrt.distributed.state import DistributedContext
from meshrt.distributed.store import read
from meshrt.runtime import backend
from meshrt.runtime.assembly import make_array_from_callback
from meshrt.sharding.named import Sharding
from meshrt.sharding.spec import PartitionSpec

__all__ = ["carry"]

_VALUE = 512 << 10  # bytes under one key of the service, which refuses messages of megabytes
_TELL_S = 300.0  # for process 0 to say what was kept


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
    gather(made, own)
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
                yield box_of(index, self.leaf.shape)

    def wants(self, piece: Piece) -> bool:
        """Whether anything of a piece is to be held here."""
        return any(common(piece.box, box) is not None for box in self._parts)

    def take(self, piece: Piece, data: np.ndarray) -> None:
        """What a piece has of what is to be held here."""
        values = data.view(self.dtype).reshape(piece.shape)
        for box, part in self._parts.items():
            if (shared := common(piece.box, box)) is not None:
                part[within(shared, box)] = values[within(shared, piece.box)]

    def value(self) -> Any:
        """The leaf."""
        if self.dtype is None:
            return self.leaf.value
        if self._target is None:
            (whole,) = self._parts.values()
            return whole
        shape = self.leaf.shape
        return make_array_from_callback(shape, self._target, lambda i: self._parts[box_of(i, shape)], self.dtype)
