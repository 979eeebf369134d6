"""Arrays in pickles: the value, and where it lay.

A pickled array comes back with its sharding if the process that reads it has those devices, of which only the platform
and the numbers count. Where they are missing it comes back on the default device, uncommitted, with a
`PlacementWarning`; so does nothing else, and an uncommitted array always comes back on the default device. An array
that spans processes is pickled as the parts of this process, and comes back only where those are enough.
"""

from __future__ import annotations

import copyreg
import pickle
import warnings
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.source import user_stacklevel
from meshrt.core.types import ShapedArray
from meshrt.runtime.array import Array, signature
from meshrt.runtime.signature import extents, filled, local_parts
from meshrt.runtime.transfer import from_numpy
from meshrt.sharding.named import Sharding
from meshrt.xla import jaxlib_api

__all__: list[str] = []  # pickle finds what is registered here

# The bounds of a part, a pair for each dimension, and its physical value; None is the whole.
Parts = list[tuple[tuple[tuple[int, int], ...] | None, np.ndarray]]


def _reduce(array: Array) -> tuple[Any, ...]:
    aval, sharding = array.aval, array.sharding
    where = pickle.dumps(sharding) if array.committed else None
    parts: Parts
    if sharding.is_fully_addressable or sharding.is_fully_replicated:
        parts = [(None, np.asarray(array._value))]
    else:
        array._check()
        held = local_parts(sharding, array.shape)
        parts = [
            (_bounds(index, array.shape), np.asarray(array._shard_numpy(held.which.index(k))))
            for k, index in enumerate(held.indices)
        ]
    return _rebuild, (array.shape, aval.dtype, aval.weak_type, where, parts)


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape))


def _rebuild(shape: tuple[int, ...], dtype: Any, weak_type: bool, where: bytes | None, parts: Parts) -> Array:
    aval = ShapedArray(shape, dtype, weak_type)
    if where is None:
        return _on_default(aval, parts)
    try:
        sharding: Sharding = pickle.loads(where)
    except errors.MeshError as e:
        out = _on_default(aval, parts)
        warnings.warn(
            f"a pickled array of type {aval.short()} comes back on the default device, as its own devices are not "
            f"here ({e}). Place it with meshrt.device_put, or start as many devices as it was written with",
            errors.PlacementWarning,
            stacklevel=user_stacklevel(),
        )
        return out
    sig = signature(aval, sharding, True)
    known = dict(parts)
    held = local_parts(sharding, shape)
    pieces = [_piece(index, aval, known, sharding) for index in held.indices]
    if sig.parts is not None:
        pieces = [filled(piece, sig.shard_shape) for piece in pieces]
    buffers = [pieces[k] for k in held.which]
    return Array(jaxlib_api.put(sig.stored, sig.native, buffers, sig.local_devices, may_alias=False), sig)


def _piece(index: tuple[slice, ...], aval: ShapedArray, known: dict[Any, np.ndarray], sharding: Sharding) -> np.ndarray:
    if None in known:
        return known[None][index]
    bounds = _bounds(index, aval.shape)
    if bounds not in known:
        raise errors.NonAddressableError(
            f"a pickled array of type {aval.short()} has the parts of another process only, not {index} of "
            f"{sharding}: read in each process what it wrote, or pickle the whole "
            "(meshrt.experimental.multihost_utils.process_allgather)"
        )
    return known[bounds]


def _on_default(aval: ShapedArray, parts: Parts) -> Array:
    key_type = aval.dtype if aval.is_key else None
    if parts and parts[0][0] is None:
        return from_numpy(parts[0][1], weak_type=aval.weak_type, key_type=key_type)
    value = np.zeros(aval.physical().shape, aval.physical().dtype)
    seen = 0
    for bounds, part in parts:
        index = tuple(slice(*b) for b in bounds or ())
        value[index] = part
        seen += int(np.prod(extents(index, aval.shape), dtype=np.int64))
    if seen != aval.size:
        raise errors.NonAddressableError(
            f"a pickled array of type {aval.short()} spanned several processes, and this pickle has {seen} of its "
            f"{aval.size} elements: read it with the devices it was written with, or pickle the whole "
            "(meshrt.experimental.multihost_utils.process_allgather)"
        )
    return from_numpy(value, weak_type=aval.weak_type, key_type=key_type)


# Here, as arrays do not know how they are made.
copyreg.pickle(Array, _reduce)
