"""One array as a zarr array of TensorStore's: each process writes its parts, and reads those that it needs.

Names are those of ``jax.experimental.array_serialization.tensorstore_impl``; files are the same, read by either.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Awaitable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.runtime import backend
from meshrt.runtime.array import Array
from meshrt.runtime.assembly import make_array_from_single_device_arrays
from meshrt.runtime.transfer import put_leaf
from meshrt.sharding.named import SingleDeviceSharding

__all__ = [
    "async_deserialize", "async_serialize", "get_tensorstore_spec", "is_tensorstore_spec_leaf", "run_deserialization",
    "run_serialization",
]  # fmt: skip

# Chosen: what several arrays that are read at once may hold on the host, as JAX's `concurrent_gb`.
READ_AT_ONCE_GB = 32


def tensorstore() -> ModuleType:
    """The package, which only those need who write or read.

    Raises:
      UnsupportedError: it is not installed.
    """
    try:
        import tensorstore  # an optional wheel
    except ImportError as e:
        raise errors.UnsupportedError(
            "arrays are written and read here by the package tensorstore, which is not installed: "
            "pip install tensorstore (meshrt.checkpoint needs no further package)"
        ) from e
    found: ModuleType = tensorstore
    return found


def is_tensorstore_spec_leaf(leaf: Any) -> bool:
    """Whether a member of a tree is a specification, or None in place of one."""
    return leaf is None or (isinstance(leaf, dict) and ("driver" in leaf or "kvstore" in leaf))


def get_tensorstore_spec(
    ckpt_path: str | os.PathLike[str], ocdbt: bool = False, process_idx: int | None = None, arr: Any = None,
    driver: str = "zarr",
) -> dict[str, Any]:  # fmt: skip
    """Where an array lies, as TensorStore's specification.

    Args:
      ckpt_path: a folder, on this machine or at `gs://` or `s3://`.
      ocdbt: arrays beside each other share a database in the folder above.
      process_idx: the folder above has one folder for each process, and this is that of process `process_idx`.
      arr: shape, type and chunks, one for each device's part, are those of this array.
      driver: "zarr" or "zarr3".

    >>> get_tensorstore_spec("/data/step_1/w")
    {'driver': 'zarr', 'kvstore': {'driver': 'file', 'path': '/data/step_1/w'}}
    """
    path = re.sub("^(gs|s3):/", r"\1://", os.path.normpath(str(ckpt_path)))
    if process_idx is not None:
        above, last = os.path.split(path)
        path = os.path.join(above, f"process_{process_idx}", last)
    if ocdbt:
        if not (os.path.isabs(path) or path.startswith(("gs://", "s3://"))):
            raise errors.ArgumentValueError(f"a path in a shared database is absolute. Got {path!r}")
        above, last = os.path.split(path)
        store = {"driver": "ocdbt", "base": _store(above), "path": last}
    else:
        store = _store(path)
    spec: dict[str, Any] = {"driver": driver, "kvstore": store}
    if arr is not None:
        spec["metadata"] = _metadata(arr, driver)
    return spec


def _store(path: str) -> dict[str, Any]:
    """Where files lie. Buckets have a name and a path within."""
    drivers = {"gs://": "gcs", "s3://": "s3"}
    driver = drivers.get(path[:5])
    if driver is None:
        return {"driver": "file", "path": path}
    bucket, _, inside = path[5:].partition("/")
    if not inside:
        raise errors.ArgumentValueError(
            f"a path of a bucket consists of the name of the bucket and the path inside the bucket. Got {path!r}"
        )
    return {"driver": driver, "bucket": bucket, "path": inside}


def _metadata(array: Any, driver: str) -> dict[str, Any]:
    """What zarr says of an array: one chunk for each device's part, so that no two processes write to one file."""
    part = array.sharding.shard_shape(array.shape) if isinstance(array, Array) else array.shape
    chunk = [max(1, size) for size in part]
    if driver == "zarr3":
        grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
        return {"codecs": [], "shape": array.shape, "data_type": np.dtype(array.dtype).name, "chunk_grid": grid}
    return {"compressor": {"id": "zstd"}, "shape": array.shape, "chunks": chunk}


def _completed(spec: dict[str, Any], array: Any) -> dict[str, Any]:
    """A specification that says what an array needs to be made."""
    found = dict(spec)
    if "metadata" not in found and "base" not in found:  # a driver that stands on another ("cast") has it there
        found["metadata"] = _metadata(array, found["driver"])
    if found["driver"] == "zarr":
        found.setdefault("dtype", np.dtype(array.dtype).name)
    return found


async def async_serialize(
    arr_inp: Array, tensorstore_spec: dict[str, Any], commit_future: list[Any] | None = None, context: Any = None,
    chunk_layout: Any = None, primary_host: int | None = None, replica_id: int = 0, transaction: Any = None,
) -> None:  # fmt: skip
    """Writes what this process holds of an array.

    Args:
      arr_inp: the array. In a job of several processes it spreads over them.
      tensorstore_spec: where it goes (`get_tensorstore_spec`).
      commit_future: a list to which what is still to be waited for is appended; without one, this waits itself.
      context, chunk_layout, transaction: as `tensorstore.open` takes them.
      primary_host: the process that makes the array on disk; None for all.
      replica_id: which of several equal parts is written.

    Raises:
      ArgumentTypeError: what is to be written is no array, or one of random keys.
      ArgumentValueError: the array is this process's own, and several processes would write to one file.
    """
    if not isinstance(arr_inp, Array) or isinstance(arr_inp.dtype, dtypes.ExtendedDType):
        raise errors.ArgumentTypeError(
            f"what is written is an array of numbers on devices, got {getattr(arr_inp, 'dtype', type(arr_inp))}: give "
            "meshrt.device_put(x), and of keys meshrt.random.key_data(keys)"
        )
    if backend.process_count() > 1 and arr_inp.is_fully_addressable:
        raise errors.ArgumentValueError(
            "several processes would write arrays of their own to one place: the array for "
            f"{tensorstore_spec['kvstore']} is fully addressable. Give arrays that spread over all processes"
        )
    ts, spec = tensorstore(), _completed(tensorstore_spec, arr_inp)
    options = {"context": context, "chunk_layout": chunk_layout, "transaction": transaction}
    if primary_host is None or backend.process_index() == primary_host:
        made = ts.open(ts.Spec(spec), create=True, open=True, **options)
        if commit_future is None:
            await made
        else:
            commit_future.append(made)
    store = await ts.open(ts.Spec(spec), open=True, assume_metadata=True, **options)

    async def write(shard: Any) -> None:
        shard.data.copy_to_host_async()
        await asyncio.sleep(0)  # the copies of the other parts start before this one is waited for
        written = store[shard.index].write(np.asarray(shard.data), can_reference_source_data_indefinitely=True)
        if commit_future is None:
            await written.commit
        else:
            commit_future.append(written.commit)
            await written.copy

    await asyncio.gather(*(write(shard) for shard in arr_inp.addressable_shards if shard.replica_id == replica_id))


def run_serialization(arrays: Sequence[Array], tensorstore_specs: Sequence[dict[str, Any]]) -> None:
    """Writes arrays, and returns when they are written."""

    async def run() -> None:
        await asyncio.gather(*map(async_serialize, arrays, tensorstore_specs))

    asyncio.run(run())


class _Budget:
    """Bytes that may be held on the host at once."""

    def __init__(self, limit: int):
        self._limit = self._free = limit
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> int:
        """Waits for `size` bytes, at most for all; gives how many were taken."""
        taken = min(size, self._limit)
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        return taken

    async def give(self, taken: int) -> None:
        """Gives them back."""
        async with self._changed:
            self._free += taken
            self._changed.notify_all()


async def async_deserialize(
    in_type: Any, tensorstore_spec: Any, global_shape: Sequence[int] | None = None, dtype: Any = None,
    byte_limiter: Any = None, context: Any = None, chunk_layout: Any = None, assume_metadata: bool = False,
) -> Array:  # fmt: skip
    """Reads an array into a sharding, which need not be that in which it was written.

    Args:
      in_type: the sharding, or a ShapeDtypeStruct that has one.
      tensorstore_spec: where the array lies.
      global_shape: the shape of the result, by default that on disk; what is beyond that is zero, and what does not fit
        is left out.
      dtype: the element type of the result, by default that on disk.
      byte_limiter: what bounds the bytes held at once, of `run_deserialization`.
      context, chunk_layout, assume_metadata: as `tensorstore.open` takes them.
    """
    ts = tensorstore()
    sharding = in_type.sharding if hasattr(in_type, "dtype") else in_type
    if sharding is None:
        raise errors.ArgumentValueError(f"async_deserialize reads into a sharding. Got {in_type!r}, which has none")
    options = {"context": context, "chunk_layout": chunk_layout, "assume_metadata": assume_metadata}
    store = await ts.open(tensorstore_spec, open=True, **options)
    shape = tuple(store.shape if global_shape is None else global_shape)
    if len(shape) != len(store.shape):
        raise errors.ArgumentValueError(f"an array of shape {tuple(store.shape)} cannot be read as one of {shape}")
    kind = np.dtype(store.dtype.numpy_dtype if dtype is None else dtypes.canonicalize_dtype(dtype))

    async def part(device: Any, index: tuple[slice, ...]) -> Array:
        host = await _read(ts, store, index, sharding.shard_shape(shape), byte_limiter)
        placed: Array = put_leaf(host.astype(kind, copy=False), SingleDeviceSharding(device), None, None)
        return placed

    places = sharding.addressable_devices_indices_map(shape)
    parts: list[Awaitable[Array]] = [part(device, index) for device, index in places.items()]
    return make_array_from_single_device_arrays(shape, sharding, await asyncio.gather(*parts))


async def _read(ts: Any, store: Any, index: Any, part: Sequence[int], budget: _Budget | None) -> np.ndarray:
    """The elements of a part, zero where there are none on disk."""
    first = [s.start or 0 for s in index]
    wanted = ts.IndexDomain(inclusive_min=first, shape=part)
    there = store.domain.intersect(wanted)
    kind = store.dtype.numpy_dtype
    taken = 0 if budget is None else await budget.take(math.prod(part) * kind.itemsize)
    try:
        out = np.zeros(part, kind)
        ends = zip(there.inclusive_min, there.exclusive_max, first)
        out[tuple(slice(low - start, high - start) for low, high, start in ends)] = await store[there].read()
    finally:
        if budget is not None:
            await budget.give(taken)
    return out


def run_deserialization(
    shardings: Sequence[Any], tensorstore_specs: Sequence[Any], global_shapes: Sequence[Any] | None = None,
    dtypes: Sequence[Any] | None = None, concurrent_gb: int = READ_AT_ONCE_GB,
) -> list[Array]:  # fmt: skip
    """Reads arrays (`async_deserialize`), of which at most `concurrent_gb` gigabytes are on the host at once."""
    count = len(tensorstore_specs)
    shapes = [None] * count if global_shapes is None else global_shapes
    kinds = [None] * count if dtypes is None else dtypes

    async def run() -> list[Array]:
        budget = _Budget(concurrent_gb * 10**9)
        reads = zip(shardings, tensorstore_specs, shapes, kinds)
        return await asyncio.gather(*(async_deserialize(*read, budget) for read in reads))

    return asyncio.run(run())
