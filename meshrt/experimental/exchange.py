"""Values between the processes of a job through the coordination service's store: no device takes part.

Every process must make the same calls in the same order. In a job of one process they return at once.
"""

from __future__ import annotations

import json
import math

import ml_dtypes  # noqa: F401 -- makes bfloat16 and its like known to numpy by name
import numpy as np

from meshrt import distributed
from meshrt.distributed.state import next_number
from meshrt.errors import DistributedError

__all__ = ["bounds_of", "decode", "encode", "exchange", "meet"]

_TIMEOUT_MS = 300_000
_CHUNK = 1 << 20  # bytes of one value in the service's store


def encode(value: np.ndarray, bounds: list | None = None) -> bytes:
    head = {"dtype": value.dtype.name, "shape": value.shape, "bounds": bounds}
    return json.dumps(head).encode() + b"\n" + value.tobytes()


def decode(block: bytes) -> np.ndarray:
    head, _, data = block.partition(b"\n")
    fields = json.loads(head)
    return np.frombuffer(data, np.dtype(fields["dtype"])).reshape(fields["shape"])


def bounds_of(block: bytes) -> list[list[int]]:
    """Where the encoded part lies in its array."""
    bounds: list[list[int]] = json.loads(block.partition(b"\n")[0])["bounds"]
    return bounds


def exchange(data: bytes) -> list[bytes]:
    """The bytes of every process, by process number."""
    context = distributed.context()
    if context is None:
        return [data]
    client, prefix = context.client, f"meshrt/gather/{next_number('gather')}"
    count = math.ceil(len(data) / _CHUNK)
    own = {f"{prefix}/{context.node_id}/{i}": data[i * _CHUNK : (i + 1) * _CHUNK] for i in range(count)}
    for key, chunk in own.items():
        client.key_value_set_bytes(key, chunk)
    client.key_value_set_bytes(f"{prefix}/{context.node_id}/count", str(count).encode())
    meet(context, f"{prefix}/written")
    blocks = []
    for process in range(context.num_nodes):
        chunks = int(client.blocking_key_value_get_bytes(f"{prefix}/{process}/count", _TIMEOUT_MS))
        keys = [f"{prefix}/{process}/{i}" for i in range(chunks)]
        blocks.append(b"".join(client.blocking_key_value_get_bytes(key, _TIMEOUT_MS) for key in keys))
    meet(context, f"{prefix}/read")
    for key in (*own, f"{prefix}/{context.node_id}/count"):
        client.key_value_delete(key)
    return blocks


def meet(context: distributed.DistributedContext, barrier: str) -> None:
    try:
        context.client.wait_at_barrier(barrier, _TIMEOUT_MS)
    except Exception as e:
        raise DistributedError(
            f"process {context.node_id} waited at {barrier!r} and not all of {context.num_nodes} processes came there: "
            f"{e}. Every process must make the same calls of multihost_utils in the same order."
        ) from e
