"""Restoring: reads what this process's devices need of each array, and puts it there."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.checkpoint import structure
from meshrt.checkpoint.folder import Opened
from meshrt.checkpoint.grid import Box, slices
from meshrt.checkpoint.manifest import Manifest, StoredArray, StoredLeaf
from meshrt.checkpoint.progress import Meter, OnProgress
from meshrt.checkpoint.reading import PartsBeingRead, bytes_for, start_reading
from meshrt.checkpoint.shards import threads
from meshrt.checkpoint.targets import (
    DeviceTarget,
    HostArray,
    Misfit,
    Options,
    Target,
    high_type_of,
    mismatch,
    python_from_data,
    stored_aval,
    target_of,
)
from meshrt.core.high import is_high_value
from meshrt.core.types import ShapedArray
from meshrt.heuristics import CHECKPOINT_READ_AHEAD_BYTES
from meshrt.runtime import guards
from meshrt.runtime.array import Array
from meshrt.runtime.signature import filled, local_parts
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.named import Sharding
from meshrt.sharding.set_once import put
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.high import TakenApart, spread
from meshrt.xla import jaxlib_api

__all__ = ["described", "restored"]


def restored(
    opened: Opened, like: Any, shardings: Any, options: Options, partial: bool, progress: OnProgress | bool | None
) -> Any:
    """The tree of an opened checkpoint; see `meshrt.checkpoint.restore`."""
    manifest = opened.manifest
    leaves, likes, rebuild = _matched(opened.path, manifest, like, partial)
    asked = _shardings(shardings, leaves, likes, rebuild)
    targets, problems = [], []
    for leaf, wanted, sharding in zip(leaves, likes, asked):
        try:
            targets.append(target_of(leaf, wanted, sharding, manifest, options))
        except Misfit as e:
            problems.append(str(e))
    if problems:
        raise mismatch(opened.path, problems)
    return rebuild(list(_values(opened, targets, progress)))


# ----------------------------------------------------------------------------------------------------------------------
# Which leaf becomes what


def _matched(
    path: Path, manifest: Manifest, like: Any, partial: bool
) -> tuple[Sequence[StoredLeaf], list[Any], Callable[[list[Any]], Any]]:
    """The leaves to restore, what the caller has in their place, and what makes a tree of them."""
    if like is None:

        def rebuild(values: list[Any]) -> Any:
            try:
                return structure.rebuilt(manifest.structure, values)
            except errors.TreeError as e:
                raise errors.CheckpointMismatchError(
                    f"the structure of the checkpoint {path} cannot be made: {e}. Give a like="
                ) from None

        return manifest.leaves, [None] * len(manifest.leaves), rebuild
    pairs, treedef = tree_util.tree_flatten_with_path(like, is_leaf=is_high_value)
    stored = {leaf.path: leaf for leaf in manifest.leaves}
    wanted = [tree_util.keystr(keys) for keys, _ in pairs]
    missing = [f"{p or 'the tree itself'} is not in it" for p in wanted if p not in stored]
    surplus = [] if partial else [f"{p or 'a single leaf'} of it is not wanted" for p in stored if p not in set(wanted)]
    if missing or surplus:
        raise mismatch(path, missing + surplus)
    return [stored[p] for p in wanted], [value for _, value in pairs], treedef.unflatten


def _shardings(
    asked: Any, leaves: Sequence[StoredLeaf], likes: list[Any], rebuild: Callable[[list[Any]], Any]
) -> list[Any]:
    """What was asked for at each leaf: a sharding, a spec, or None."""
    if asked is None or isinstance(asked, Sharding | PartitionSpec):
        return [asked] * len(leaves)
    if callable(asked):
        pairs = zip(leaves, likes)
        return [asked(leaf.path, described(leaf, like)) if _is_array(leaf) else None for leaf, like in pairs]
    stops = lambda x: x is None or isinstance(x, Sharding | PartitionSpec)
    places = [_place_of(leaf, like) for leaf, like in zip(leaves, likes)]
    outline = rebuild(places)
    try:
        given = iter(spread(asked, outline, stops))
    except errors.TreeError as e:
        raise errors.TreeError(f"restore: shardings= is no prefix of the tree that is restored: {e}") from None
    found = {}
    for place in tree_util.tree_leaves(outline, is_leaf=lambda x: type(x) is TakenApart):
        is_high = type(place) is TakenApart
        found[id(place)] = [next(given) for _ in place.arrays] if is_high else next(given)
    return [found[id(place)] for place in places]


class _Place:
    """Stands for a leaf, or for an array of one."""


def _place_of(leaf: StoredLeaf, like: Any) -> Any:
    """What stands for a leaf: a place, and for a value of a high type one for each of its arrays."""
    high = high_type_of(like)
    if leaf.kind != "high" or high is None or len(high.lo_ty()) != len(leaf.arrays):
        return _Place()  # what does not fit is told with all that does not
    return TakenApart(high, [_Place() for _ in leaf.arrays])


def _is_array(leaf: StoredLeaf) -> bool:
    return leaf.kind not in ("python", "high")


def described(leaf: StoredLeaf, like: Any = None) -> Any:
    """The type of a stored leaf: a ShapeDtypeStruct or a HostArray, of a Python value the value, of a high one its
    arrays' types."""
    if leaf.kind == "python":
        return python_from_data(leaf.about)
    if leaf.kind == "high":
        return tuple(ShapeDtypeStruct(a.shape, a.dtype) for a in leaf.arrays)
    (array,) = leaf.arrays
    if leaf.kind.startswith("numpy"):
        return HostArray(array.shape, array.dtype, leaf.kind == "numpy scalar")
    try:
        aval = stored_aval(leaf, like)
    except Misfit:  # keys of an unknown generator, shown as their words
        aval = ShapedArray(array.shape, array.dtype)
    made = ShapeDtypeStruct(aval.shape, np.float32, weak_type=aval.weak_type)
    put(made, dtype=aval.dtype)  # which may be one that needs enable_x64
    return made


# ----------------------------------------------------------------------------------------------------------------------
# Reading and placing


def _values(opened: Opened, targets: Sequence[Target], progress: OnProgress | bool | None) -> Iterator[Any]:
    """The leaves in order. While one is put on devices, those after it are being read."""
    jobs = [(t, [_boxes(stored, on) for stored, on in zip(t.leaf.arrays, t.arrays)]) for t in targets]
    arrays = [(a, boxes) for t, rows in jobs for a, boxes in zip(t.leaf.arrays, rows)]
    total = sum(bytes_for(a, boxes) for a, boxes in arrays) if progress else 0
    meter = Meter(progress, "restore", str(opened.path), total)
    meter.start()
    ahead: collections.deque[tuple[Target, list[PartsBeingRead], int]] = collections.deque()
    waiting = 0
    with threads() as pool:
        try:
            for target, rows in jobs:
                reads = [_begin(opened, target, a, boxes, pool, meter) for a, boxes in zip(target.leaf.arrays, rows)]
                size = sum(math.prod(e - s for s, e in box) * a.dtype.itemsize
                           for a, boxes in zip(target.leaf.arrays, rows) for box in boxes)  # fmt: skip
                ahead.append((target, reads, size))
                waiting += size
                while ahead and waiting > CHECKPOINT_READ_AHEAD_BYTES:
                    done, reads, size = ahead.popleft()
                    waiting -= size
                    yield _made(done, [r.result() for r in reads])
            while ahead:
                done, reads, _ = ahead.popleft()
                yield _made(done, [r.result() for r in reads])
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _begin(
    opened: Opened, target: Target, array: StoredArray, boxes: list[Box], pool: ThreadPoolExecutor, meter: Meter
) -> PartsBeingRead:
    return start_reading(opened, target.leaf.name, array, boxes, pool, meter)


def _boxes(stored: StoredArray, on: DeviceTarget | None) -> list[Box]:
    """The parts that this process needs of an array: all of it on the host."""
    if on is None:
        return [tuple((0, n) for n in stored.shape)]
    sig = on.sig
    suffix = tuple((0, n) for n in stored.shape[len(sig.shape) :])
    return [slices(index, sig.shape) + suffix for index in local_parts(sig.sharding, sig.shape).indices]


def _made(target: Target, parts: list[list[np.ndarray]]) -> Any:
    """The leaf, of its parts."""
    leaf = target.leaf
    if target.made == "high":
        return target.about.raise_val(*[_placed(on, p) for on, p in zip(target.arrays, parts) if on is not None])
    if target.made == "array":
        (on,) = target.arrays
        assert on is not None  # arrays are on devices
        if leaf.kind == "python":
            value = np.asarray(python_from_data(leaf.about)).astype(on.dtype)
            parts = [[value] * len(local_parts(on.sig.sharding, ()).indices)]
        return _placed(on, parts[0])
    if leaf.kind == "python":
        value = python_from_data(leaf.about)
        return value if target.made == "python" else _numpy(np.asarray(value), target)
    if target.made == "python":
        return target.about(parts[0][0].item())
    return _numpy(parts[0][0], target)


def _numpy(value: np.ndarray, target: Target) -> Any:
    value = value.astype(target.about, copy=False)
    return value[()] if target.made == "numpy scalar" else value


def _placed(on: DeviceTarget, parts: list[np.ndarray]) -> Array:
    """An array of the different parts that this process holds; their memory is the array's from here on."""
    sig = on.sig
    parts = [part.astype(on.dtype, copy=False) for part in parts]
    if sig.parts is not None:
        parts = [filled(part, sig.shard_shape) for part in parts]
    held = local_parts(sig.sharding, sig.shape)
    if guards.active:
        guards.check("host_to_device", sig.aval, sig.sharding, True)
    buffers = [parts[k] for k in held.which]
    return Array(jaxlib_api.put(sig.stored, sig.native, buffers, sig.local_devices), sig)
