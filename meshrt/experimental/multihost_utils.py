"""Small exchanges between the processes of a job, through the coordination service: no device takes part.

Every process must make the same calls in the same order. In a job of one process they return at once.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import ml_dtypes  # noqa: F401 -- makes bfloat16 and its like known to numpy by name
import numpy as np

from meshrt import distributed, tree_util
from meshrt.errors import ArgumentTypeError, DistributedError

__all__ = ["process_allgather", "sync_global_devices"]

_TIMEOUT_MS = 300_000
_CHUNK = 1 << 20  # bytes of one value in the service's store
_numbers = itertools.count()


def sync_global_devices(name: str) -> None:
    """Waits until every process has called this with the same `name`; DistributedError after 300 s."""
    context = distributed.context()
    if context is not None:
        _meet(context, f"meshrt/sync/{next(_numbers)}/{name}")


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Every process's value of each leaf, as numpy arrays that are equal in all processes.

    Arrays that spread over several processes come back whole. Of all other leaves, whose shapes and dtypes must agree
    between processes, the result stacks the values in a new leading axis of size process_count, or, if `tiled`, joins
    them along the existing one.
    """
    return tree_util.tree_map(lambda leaf: _gather(leaf, tiled), in_tree)


def _gather(leaf: Any, tiled: bool) -> np.ndarray:
    if not getattr(leaf, "is_fully_addressable", True):
        return _whole(leaf)
    value = np.asarray(leaf)
    if tiled and value.ndim == 0:
        raise ArgumentTypeError("process_allgather(tiled=True): a scalar has no axis to join along; use tiled=False")
    blocks = [_decode(block) for block in _exchange(_encode(value))]
    if any((b.shape, b.dtype) != (value.shape, value.dtype) for b in blocks):
        kinds = ", ".join(f"process {i}: {b.dtype}{list(b.shape)}" for i, b in enumerate(blocks))
        raise ArgumentTypeError(f"process_allgather: the processes hold different kinds of arrays: {kinds}")
    return np.concatenate(blocks) if tiled else np.stack(blocks)


def _whole(array: Any) -> np.ndarray:
    """A global array, put together from the first replica of each shard."""
    shards = [s for s in array.addressable_shards if s.replica_id == 0]
    parts = [_encode(np.asarray(s.data), _bounds(s.index, array.shape)) for s in shards]
    out = np.empty(array.shape, array.dtype)
    for block in _exchange(b"".join(len(p).to_bytes(8, "little") + p for p in parts)):
        at = 0
        while at < len(block):
            size = int.from_bytes(block[at : at + 8], "little")
            part = block[at + 8 : at + 8 + size]
            out[tuple(slice(*b) for b in json.loads(part.partition(b"\n")[0])["bounds"])] = _decode(part)
            at += 8 + size
    return out


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[list[int]]:
    return [list(s.indices(size)[:2]) for s, size in zip(index, shape)]


def _encode(value: np.ndarray, bounds: list | None = None) -> bytes:
    head = {"dtype": value.dtype.name, "shape": value.shape, "bounds": bounds}
    return json.dumps(head).encode() + b"\n" + value.tobytes()


def _decode(block: bytes) -> np.ndarray:
    head, _, data = block.partition(b"\n")
    fields = json.loads(head)
    return np.frombuffer(data, np.dtype(fields["dtype"])).reshape(fields["shape"])


def _exchange(data: bytes) -> list[bytes]:
    """The bytes of every process, by process number."""
    context = distributed.context()
    if context is None:
        return [data]
    client, prefix = context.client, f"meshrt/gather/{next(_numbers)}"
    count = math.ceil(len(data) / _CHUNK)
    own = {f"{prefix}/{context.node_id}/{i}": data[i * _CHUNK : (i + 1) * _CHUNK] for i in range(count)}
    for key, chunk in own.items():
        client.key_value_set_bytes(key, chunk)
    client.key_value_set_bytes(f"{prefix}/{context.node_id}/count", str(count).encode())
    _meet(context, f"{prefix}/written")
    blocks = []
    for process in range(context.num_nodes):
        chunks = int(client.blocking_key_value_get_bytes(f"{prefix}/{process}/count", _TIMEOUT_MS))
        keys = [f"{prefix}/{process}/{i}" for i in range(chunks)]
        blocks.append(b"".join(client.blocking_key_value_get_bytes(key, _TIMEOUT_MS) for key in keys))
    _meet(context, f"{prefix}/read")
    for key in (*own, f"{prefix}/{context.node_id}/count"):
        client.key_value_delete(key)
    return blocks


def _meet(context: distributed.DistributedContext, barrier: str) -> None:
    try:
        context.client.wait_at_barrier(barrier, _TIMEOUT_MS)
    except Exception as e:
        raise DistributedError(
            f"process {context.node_id} waited at {barrier!r} and not all of {context.num_nodes} processes came there: "
            f"{e}. Every process must make the same calls of multihost_utils in the same order."
        ) from e
