"""Moving values: from the host to devices and back, and from one sharding to another."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors, tree_util
from meshrt.core.types import ShapedArray, aval_of, require_value
from meshrt.runtime import backend, dlpack, guards, reshard
from meshrt.runtime.array import Array, Signature, copy_array, shard_slices, signature
from meshrt.runtime.layouts import relayout
from meshrt.sharding.layout import Format, Layout
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.xla import jaxlib_api, jaxlib_executables

__all__ = [
    "SCALARS",
    "block_until_ready",
    "buffer_of",
    "copy_to_host_async",
    "device_get",
    "from_dlpack",
    "from_numpy",
    "overflow",
    "put_leaf",
    "put_value",
    "scalar",
    "scalar_beside",
]


# ----------------------------------------------------------------------------------------------------------
# From the host.


def from_numpy(
    value: Any,
    sharding: Sharding | None = None,
    *,
    weak_type: bool = False,
    key_type: Any = None,
    may_alias: bool = False,
    committed: bool = True,
) -> Array:
    """An Array of a host value.

    Args:
      value: anything that NumPy makes an array of; of keys, their uint32 words.
      sharding: where to put it; by default the default device, uncommitted.
      key_type: the dtype of the result if it is a key array.
      may_alias: the value never changes, so the device may use its memory.
      committed: whether it is to stay where `sharding` says.
    """
    value = np.asarray(value)
    if key_type is not None:
        aval = ShapedArray(value.shape[: value.ndim - len(key_type.physical_suffix)], key_type)
    else:
        aval = ShapedArray(value.shape, dtypes.canonicalize_dtype(value.dtype), weak_type)
    committed = committed and sharding is not None
    if sharding is None:
        sharding = SingleDeviceSharding(backend.default_device())
    sig = signature(aval, sharding, committed)
    return Array(buffer_of(value, sig, may_alias=may_alias), sig)


def buffer_of(value: Any, sig: Signature, *, may_alias: bool = False, explicit: bool = False) -> Any:
    """A buffer of a host value (NumPy array, scalar) laid out as `sig` says; converts to its dtype.

    `explicit` is whether the transfer was asked for (`meshrt.runtime.guards`).
    """
    physical = sig.physical
    if guards.active:
        guards.check("host_to_device", sig.aval, sig.sharding, explicit)
    if sig.dtype == dtypes.float0:
        value = np.zeros(physical.shape, physical.dtype)
    try:
        host = np.asarray(value, dtype=physical.dtype)
    except OverflowError:
        raise overflow(value, physical.dtype) from None
    except TypeError:
        require_value(value)
        raise
    sharding = sig.sharding
    devices = sharding.device_assignment
    if len(devices) == 1:
        return jaxlib_api.put(physical, sig.native, [host], devices, may_alias=may_alias)
    parts = shard_slices(host, sharding, sig.shape)
    if isinstance(sharding, NamedSharding) and sharding.unreduced_axes:
        return _put_addends(_as_addends(parts, sharding, sig.local_devices), sig)
    return jaxlib_api.put(sig.stored, sig.native, parts, sig.local_devices, may_alias=may_alias)


def overflow(value: Any, dtype: Any) -> errors.IntegerOverflowError:
    """That a Python number is too large for a dtype."""
    return errors.IntegerOverflowError(
        f"An overflow was encountered: {value!r} does not fit into {dtype}. Pass a NumPy value of a wider dtype with "
        "meshrt.config.update('enable_x64', True), or a smaller number."
    )


def _put_addends(parts: list[np.ndarray], sig: Signature) -> Any:
    """Device by device: put together, jaxlib takes what no axis splits to be the same on all devices."""
    pieces = []
    for part, device in zip(parts, sig.local_devices):
        place = SingleDeviceSharding(device, memory_kind=sig.sharding.memory_kind)
        own = signature(sig.physical.with_shape(part.shape), place, True)
        pieces.append(jaxlib_api.put(own.physical, own.native, [part], [device], may_alias=False))
    return jaxlib_api.assemble(sig.stored, sig.native, pieces)


def _as_addends(parts: Any, sharding: NamedSharding, devices: Any) -> list[np.ndarray]:
    """Parts whose sum over the axes that `sharding` is unreduced over is the value: the first device has all of it."""
    mesh = sharding.mesh
    names = [mesh.axis_names.index(a) for a in sharding.spec.unreduced]
    places = np.indices(mesh.axis_sizes).reshape(len(mesh.axis_sizes), -1)
    is_first = dict(zip(sharding.device_assignment, (places[names] == 0).all(axis=0).tolist()))
    return [part if is_first[d] else np.zeros_like(part) for part, d in zip(parts, devices)]


# Scalars whose value and type are a key. Complex ones have two zeros each way and are left out.
SCALARS = (bool, int, float, np.bool_, np.integer, np.floating)


def scalar(value: Any, sig: Signature) -> Array:
    """One of SCALARS laid out as `sig` says, kept for the next time: most are constants of a script.

    Nobody may donate it.
    """
    if guards.active:  # as for one that is not kept
        guards.check("host_to_device", sig.aval, sig.sharding, False)
    return _scalar(value, _sign(value), sig)


def scalar_beside(value: Any, neighbour: Array) -> Array:
    """One of SCALARS as an array on the one device of `neighbour`, kept as `scalar` is; not committed."""
    if guards.active:
        guards.check("host_to_device", aval_of(value), neighbour._sig.sharding, False)
    return _beside(value, _sign(value), neighbour._sig.sharding, config.trace_key())


def _sign(value: Any) -> float:
    """Tells 0.0 from -0.0, which are equal."""
    return 1.0 if value else math.copysign(1.0, value)


@functools.lru_cache(maxsize=4096, typed=True)
def _scalar(value: Any, sign: float, sig: Signature) -> Array:
    return Array(buffer_of(value, sig), sig)


@functools.lru_cache(maxsize=4096, typed=True)
def _beside(value: Any, sign: float, sharding: Any, settings: tuple) -> Array:
    if isinstance(sharding, NamedSharding):  # over a mesh of one device; a scalar has no dimensions for its spec
        sharding = sharding.update(spec=PartitionSpec(), uneven=False)
    return scalar(value, signature(aval_of(value), sharding, False))


backend.on_clear(_scalar.cache_clear)
backend.on_clear(_beside.cache_clear)


# ----------------------------------------------------------------------------------------------------------
# From one place to another.


def put_value(value: Any, sharding: Sharding, *, may_alias: bool) -> Array:
    """A value (no tracer) where `sharding` says, now, whatever is being traced."""
    return put_leaf(value, sharding, False, may_alias)


def put_leaf(leaf: Any, target: Sharding | Format | None, donate: bool | None, may_alias: bool | None) -> Any:
    """One leaf of `device_put` (see there) that is no tracer; without a target an Array stays where it is."""
    if isinstance(target, Format):
        placed = put_leaf(leaf, target.sharding, donate, may_alias)
        return relayout(placed, target.layout) if isinstance(target.layout, Layout) else placed
    if target is not None:
        backend.refuse_fork()
    if type(leaf) is Array and target is not None and leaf.sharding.unreduced_axes != target.unreduced_axes:
        leaf = leaf._value  # which raises for what is unreduced
    if type(leaf) is Array:
        if target is None:
            return leaf if may_alias is not False else copy_array(leaf)
        return reshard.reshard(leaf, target, donate=bool(donate), may_alias=may_alias is not False, explicit=True)
    aval = aval_of(leaf)
    if target is None:
        sig = signature(aval, SingleDeviceSharding(backend.default_device()), False)
    else:
        sig = signature(aval, target, True)
    return Array(buffer_of(leaf, sig, may_alias=bool(may_alias), explicit=True), sig)


def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Array:
    """An array with the values of an object that speaks DLPack, whose memory it shares where it can.

    Memory is shared if the object lies in the host's, row-major, at an address that CPU devices can use (a multiple of
    64 bytes), in a dtype that arrays have; it must not change any more. Otherwise values are copied.

    Args:
      device: a device or sharding to put the array on; by default the default device. It is committed to it.
      copy: True always copies, False never does.

    Raises:
      ArgumentTypeError: the object does not speak DLPack. ArgumentValueError: `copy=False`, and sharing is impossible.
      UnsupportedError: the object is not in host memory. ExchangeError: it has a dtype that arrays have not.

    >>> meshrt.dlpack.from_dlpack(np.arange(3, dtype=np.float32))
    Array([0., 1., 2.], dtype=float32)
    """
    target = SingleDeviceSharding(device) if isinstance(device, jaxlib_api.Device) else device
    if target is not None and not isinstance(target, Sharding):
        raise errors.ArgumentTypeError(f"device of from_dlpack is a device, a Sharding or None. Got {device!r}")
    on_gpu = dlpack.gpu_buffer(external_array)
    if on_gpu is not None:
        return _from_gpu(*on_gpu, target, copy)
    value, shareable = dlpack.host_view(external_array)
    place = target if target is not None else SingleDeviceSharding(backend.default_device())
    first = place.device_assignment[0]
    if copy is False:
        source = next((d for d in backend.local_devices() if d.platform == "cpu"), None)
        if target is not None and (place.num_devices != 1 or first != source):
            raise errors.ArgumentValueError(
                f"Specified {device=} which requires a copy since the source device is {source}, however copy=False. "
                "Set copy=True or copy=None to perform the requested operation."
            )
        if not shareable or first.platform != "cpu":
            raise errors.ArgumentValueError(
                f"from_dlpack(copy=False) of an array of dtype {value.dtype}, shape {value.shape} and strides "
                f"{value.strides} at address {value.ctypes.data:#x} requires a copy: {first.platform} devices share "
                "row-major memory at multiples of 64 bytes only, in dtypes that arrays have. Set copy=None to copy it"
            )
    aval = ShapedArray(value.shape, dtypes.canonicalize_dtype(value.dtype))
    sig = signature(aval, place, True)
    return Array(buffer_of(value, sig, may_alias=shareable and not copy, explicit=True), sig)


def _from_gpu(buffer: Any, device: Any, target: Sharding | None, copy: bool | None) -> Array:
    """An array in a GPU's memory that another library has written, moved to `target` if that is elsewhere."""
    here = SingleDeviceSharding(device)
    dtype = dtypes.canonicalize_dtype(buffer.dtype)
    if copy is False and (dtype != buffer.dtype or target not in (None, here)):
        wanted = f"dtype {dtype}" if target in (None, here) else f"{target}"
        raise errors.ArgumentValueError(
            f"from_dlpack(copy=False) of an array of dtype {buffer.dtype} on {device} requires a copy for {wanted}. "
            "Set copy=None to copy it"
        )
    parts = jaxlib_executables.buffer_layout(buffer)
    layout = None if parts is None else Layout(parts[0][::-1])
    row_major = layout is None or layout.is_default
    sig = signature(ShapedArray(buffer.shape, np.dtype(buffer.dtype)), here, True, None if row_major else layout)
    found = relayout(Array(jaxlib_api.rewrap(buffer, sig.physical, sig.native), sig), None)
    if dtype != buffer.dtype:
        found = put_value(np.asarray(found).astype(dtype), here, may_alias=True)
    elif copy and row_major:
        found = copy_array(found)
    return found if target is None else put_value(found, target, may_alias=True)


# ----------------------------------------------------------------------------------------------------------
# Back to the host, and waiting.


def copy_to_host_async(x: Any) -> Any:
    """Begins to fetch every array of a tree, of any library that has `copy_to_host_async()`; returns the tree.

    >>> x = meshrt.copy_to_host_async(jnp.arange(2))
    """
    for leaf in tree_util.tree_leaves(x):
        if type(leaf) is Array or hasattr(leaf, "copy_to_host_async"):
            leaf.copy_to_host_async()
    return x


def device_get(x: Any) -> Any:
    """The tree with NumPy arrays in place of arrays (read-only); other leaves stay.

    >>> meshrt.device_get({"a": jnp.arange(2)})
    {'a': array([0, 1], dtype=int32)}
    """
    copy_to_host_async(x)
    with guards.explicitly():
        return tree_util.tree_map(lambda leaf: leaf.__array__() if type(leaf) is Array else leaf, x)


def block_until_ready(x: Any) -> Any:
    """Waits until every array of a tree has been computed; returns the tree. Raises what a computation raised.

    >>> meshrt.block_until_ready({"a": jnp.arange(2)})
    {'a': Array([0, 1], dtype=int32)}
    """
    arrays = [leaf for leaf in tree_util.tree_leaves(x) if type(leaf) is Array]
    try:
        jaxlib_api.block_until_ready([a._buf for a in arrays])
    except jaxlib_api.XlaError:
        for a in arrays:
            a.block_until_ready()  # finds the one that failed, and says why
        raise
    return x
