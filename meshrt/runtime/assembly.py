"""Arrays from parts: what a callback gives, what each process has, or arrays on single devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.shapes import canonical_shape
from meshrt.core.operators import ArrayOperators
from meshrt.core.tracebacks import offer
from meshrt.core.types import ShapedArray
from meshrt.runtime import guards
from meshrt.runtime.array import Array, Signature, assembled, signature
from meshrt.runtime.layouts import relayout
from meshrt.runtime.reshard import reshard
from meshrt.runtime.signature import extents, filled, local_parts, local_positions
from meshrt.runtime.transfer import put_leaf
from meshrt.sharding.context import get_mesh
from meshrt.sharding.layout import Format, Layout
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.xla import jaxlib_api

__all__ = [
    "global_of_host", "host_of_global", "make_array_from_callback", "make_array_from_process_local_data",
    "make_array_from_single_device_arrays", "make_global",
]  # fmt: skip


def _concrete(sharding: Any, caller: str) -> Sharding:
    """The sharding that an argument names: it itself, or a PartitionSpec over the mesh in context."""
    if isinstance(sharding, PartitionSpec):
        mesh = get_mesh()
        if mesh.empty:
            raise errors.MeshContextError(
                f"{caller} with {sharding!r} needs a mesh in the context: use `with meshrt.set_mesh(mesh):`, or pass "
                "NamedSharding(mesh, spec)"
            )
        return NamedSharding(mesh, sharding)
    if not isinstance(sharding, Sharding):
        raise errors.ArgumentTypeError(
            f"sharding should be an instance of `meshrt.sharding.Sharding`. Got {sharding} of type {type(sharding)}; "
            f"pass {caller} a NamedSharding or a SingleDeviceSharding"
        )
    return sharding


# ---------------------------------------------------------------------------------------------------------------------
# From a callback


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding | Format, data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: Any = None,
) -> Array:  # fmt: skip
    """An Array whose parts `data_callback(index)` gives, asked once for each part that this process holds.

    Args:
      shape: the global shape.
      sharding: where the parts are to be; of an uneven one the last parts are shorter, or empty. A Format says in which
        layout, too.
      data_callback: slices of the global array -> its values there (anything NumPy makes an array of, or an Array).
      dtype: the dtype of the result, which the callback's values must have; needed if this process holds no part.

    Raises:
      ArgumentTypeError: `sharding` is none. ArgumentValueError: the callback's values differ in dtype, or have not the
        shape of the part. LeakedTracerError: it gives a traced value.

    >>> import meshrt, numpy as np
    >>> from meshrt.sharding import NamedSharding, P
    >>> rows = NamedSharding(meshrt.make_mesh((1,), ("x",)), P("x"))
    >>> meshrt.make_array_from_callback((2, 2), rows, lambda index: np.eye(2, dtype="float32")[index])
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    shape = canonical_shape(shape)
    if isinstance(sharding, Format):
        made = make_array_from_callback(shape, _of_format(sharding, "make_array_from_callback"), data_callback, dtype)
        return relayout(made, sharding.layout) if isinstance(sharding.layout, Layout) else made
    sharding = _concrete(sharding, "make_array_from_callback")
    largest = sharding.shard_shape(shape)
    held = local_parts(sharding, shape)
    values = [_called(data_callback, index) for index in held.indices]
    kind = _dtype_of([v.dtype for v in values], dtype, "make_array_from_callback")
    sig = signature(ShapedArray(shape, dtypes.canonicalize_dtype(kind)), sharding, True)
    for value, index in zip(values, held.indices):
        if value.shape != (largest if sig.parts is None else extents(index, shape)):
            raise _wrong_part(value, index, sig)
    if any(type(v) is Array for v in values) or sig.aval.is_key:
        return _from_arrays([values[k] for k in held.which], sig)
    stored = sig.stored.dtype
    parts = [v if v.dtype == stored else v.astype(stored) for v in values]
    if sig.parts is not None:
        parts = [filled(part, sig.shard_shape) for part in parts]
    if guards.active:
        guards.check("host_to_device", sig.aval, sharding, False)
    buffer = jaxlib_api.put(
        sig.stored, sig.native, [parts[k] for k in held.which], sig.local_devices, may_alias=False
    )  # fmt: skip
    return Array(buffer, sig)


def _of_format(wanted: Format, caller: str) -> Sharding:
    if wanted.is_auto:
        raise errors.ArgumentTypeError(
            f"`Layout.AUTO` cannot be used in place of a device-local layout when calling `{caller}`. Got {wanted}; "
            "name the layout, or pass the sharding alone"
        )
    return _concrete(wanted.sharding, caller)


def _called(data_callback: Callable[[tuple[slice, ...]], Any], index: tuple[slice, ...]) -> Any:
    """What the callback gives for a part, as an Array or a NumPy array of a dtype that arrays have."""
    value = data_callback(index)
    if type(value) is np.ndarray or type(value) is Array:
        return value
    if isinstance(value, ArrayOperators):
        raise errors.LeakedTracerError(
            "make_array_from_callback cannot be called within a traced context: its callback gave a traced value for "
            f"the part {index}. Call it outside of jit, grad and vmap, or give NumPy values"
        )
    found = np.asarray(value)
    return found.astype(dtypes.canonicalize_dtype(found.dtype)) if isinstance(value, (int, float, complex)) else found


def _dtype_of(found: Sequence[Any], asked: Any, caller: str) -> Any:
    if not found:
        if asked is None:
            raise errors.ArgumentValueError(
                f"If the Array has no addressable shards, `dtype` must be provided via the `dtype` argument to "
                f"{caller}: this process holds no part of the array, so its dtype is unknown"
            )
        return dtypes.canonicalize_dtype(asked)
    first = found[0]
    for kind in {k for k in found if isinstance(k, np.dtype)}:
        dtypes.check_value_dtype(kind, lambda: f"a part that {caller} got")
    if any(kind != first and dtypes.canonicalize_dtype(kind) != dtypes.canonicalize_dtype(first) for kind in found):
        names = sorted({str(k) for k in found})
        raise errors.ArgumentValueError(
            f"Input buffers to `Array` must have matching dtypes. Got {next(k for k in found if k != first)}, expected "
            f"{first} for buffer: {caller} was given {', '.join(names)}; make all parts {first}"
        )
    if asked is not None and dtypes.canonicalize_dtype(asked) != dtypes.canonicalize_dtype(first):
        raise errors.ArgumentValueError(
            f"If `dtype` is provided to {caller}, it must match the dtype of the addressable shards. Got dtype={asked} "
            f"and shards of {first}; convert them, or leave dtype out"
        )
    return first


def _wrong_part(value: Any, index: tuple[slice, ...], sig: Signature) -> errors.ArgumentValueError:
    wanted = extents(index, sig.shape)
    return errors.ArgumentValueError(
        f"Expected shard shape {wanted} doesn't match the single device array shape {value.shape}. Shape of Array is "
        f"{sig.aval} with sharding {sig.sharding}: the callback of make_array_from_callback must give the "
        f"values at {index}"
    )


def _from_arrays(parts: Sequence[Any], sig: Signature) -> Array:
    """From values of which some are on devices already, each moved to its device."""
    kind = sig.sharding.memory_kind
    targets = [SingleDeviceSharding(d, memory_kind=kind) for d in sig.local_devices]
    arrays = [put_leaf(part, target, False, False) for part, target in zip(parts, targets)]
    return _assembled(arrays, sig)


# ---------------------------------------------------------------------------------------------------------------------
# From what each process has


def make_array_from_process_local_data(sharding: Any, local_data: Any, global_shape: Any = None) -> Any:
    """Global Arrays from the part of the data that each process has.

    Args:
      sharding: the sharding of the result (or a PartitionSpec over the mesh in context, one device, or a Format, which
        says in which layout, too), or a tree of them that is a prefix of `local_data`.
      local_data: this process's rows (or whatever the sharding splits between processes), or a tree of them; along a
        dimension where its size equals the global one it is taken to be the whole.
      global_shape: the shape of the result, or a tree; None (for all, or for a dimension) infers it from local sizes.

    Raises:
      ArgumentValueError: the local sizes fit neither the whole nor this process's part, or the shape of the result
        cannot be told, or `global_shape` is no shape. IndivisibleError: the sizes do not divide into the parts.

    >>> from meshrt.sharding import NamedSharding, PartitionSpec as P
    >>> sharding = NamedSharding(meshrt.make_mesh((2,), ("x",)), P("x"))
    >>> meshrt.make_array_from_process_local_data(sharding, np.arange(4))
    Array([0, 1, 2, 3], dtype=int32)
    """
    leaves, tree = tree_util.tree_flatten(local_data)
    shardings = tree_util.broadcast_prefix(sharding, local_data, is_leaf=_is_sharding)
    shapes = tree_util.broadcast_prefix(global_shape, local_data, is_leaf=_is_shape)
    return tree.unflatten(_local_leaf(s, leaf, shape) for s, leaf, shape in zip(shardings, leaves, shapes))


def _is_sharding(x: Any) -> bool:
    return isinstance(x, (Sharding, PartitionSpec, Format))


def _is_shape(x: Any) -> bool:
    return x is None or (isinstance(x, (tuple, list)) and all(s is None or isinstance(s, (int, np.integer)) for s in x))


def _local_leaf(wanted: Any, local_data: Any, global_shape: Any) -> Array:
    name = "make_array_from_process_local_data"
    if not _is_shape(global_shape):
        raise errors.ArgumentValueError(
            f"{name}: global_shape should be None or a tuple of sizes, one for each dimension. Got "
            f"global_shape={global_shape!r} and local_data.shape={np.shape(local_data)}"
        )
    if isinstance(wanted, jaxlib_api.Device):
        return _from_local(SingleDeviceSharding(wanted), local_data, global_shape)
    if not isinstance(wanted, Format):
        return _from_local(_concrete(wanted, name), local_data, global_shape)
    made = _from_local(_of_format(wanted, name), local_data, global_shape)
    return relayout(made, wanted.layout) if isinstance(wanted.layout, Layout) else made


def _from_local(sharding: Sharding, local_data: Any, global_shape: Sequence[int | None] | None) -> Array:
    local = local_data if type(local_data) is Array else np.asarray(local_data)
    ndim = local.ndim
    positions = local_positions(sharding)
    if len(positions) == sharding.num_devices:
        if global_shape is not None and any(
            a is not None and a != b for a, b in zip(global_shape, local.shape)
        ) | (len(global_shape or local.shape) != ndim):  # fmt: skip
            raise errors.ArgumentValueError(
                "When calling `make_array_from_process_local_data` on a single process, global_shape should be None or "
                f"equal to local_data.shape. Got global_shape={tuple(global_shape)} and local_data.shape={local.shape}"
            )
        return put_leaf(local_data, sharding, False, None)
    if not positions:
        raise errors.ArgumentValueError(
            "make_array_from_process_local_data: this process holds no part of the sharding"
        )
    local = np.asarray(local)
    tiling, tiles = sharding.tiling(ndim), sharding.tile_indices(ndim)
    mine = [sorted(set(tiles[positions, d].tolist())) for d in range(ndim)]
    shape = _global_shape(local.shape, global_shape, sharding, tiling, mine)
    sig = signature(ShapedArray(shape, dtypes.canonicalize_dtype(local.dtype)), sharding, True)
    size = sharding.shard_shape(shape)
    held = local_parts(sharding, shape)
    first = [positions[held.which.index(k)] for k in range(len(held.indices))]
    parts = []
    for p, index in zip(first, held.indices):
        part = []
        for d, s in enumerate(index):
            if local.shape[d] == shape[d]:
                part.append(s)
            else:
                start = mine[d].index(int(tiles[p, d])) * size[d]
                part.append(slice(start, start + extents(index, shape)[d]))
        value = np.asarray(local[tuple(part)], dtype=sig.stored.dtype)
        parts.append(filled(value, sig.shard_shape))
    if guards.active:
        guards.check("host_to_device", sig.aval, sharding, False)
    buffer = jaxlib_api.put(
        sig.stored, sig.native, [parts[k] for k in held.which], sig.local_devices, may_alias=False
    )  # fmt: skip
    return Array(buffer, sig)


def make_global(sharding: Sharding, local: Array) -> Array:
    """The global array of which `local`, over this process's devices of the sharding's mesh, is this process's part."""
    positions, ndim = local_positions(sharding), local.ndim
    tiles, tiling = sharding.tile_indices(ndim), sharding.tiling(ndim)
    shape = tuple(
        size // len(set(tiles[positions, d].tolist())) * tiling[d] for d, size in enumerate(local.shape)
    )  # fmt: skip
    return make_array_from_single_device_arrays(shape, sharding, local.local_parts())


def global_of_host(leaf: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    """The array over `mesh` of which `leaf` is this process's part; global arrays stay as they are."""
    if type(leaf) is Array and not leaf.is_fully_addressable:
        return leaf
    if not isinstance(leaf, Array):
        leaf = np.asarray(leaf)
        leaf = leaf if leaf.dtype != dtypes.float0 else np.zeros(leaf.shape, bool)
    local = NamedSharding(mesh.local_mesh, spec)
    here = put_leaf(leaf, local, False, None)
    return make_global(NamedSharding(mesh, spec), here)


def host_of_global(leaf: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    """This process's part of `leaf`, over `mesh.local_mesh`; arrays of this process alone stay as they are."""
    if type(leaf) is Array and leaf.is_fully_addressable:
        return leaf
    wanted = NamedSharding(mesh, spec)
    leaf = put_leaf(leaf, wanted, False, None)
    local = NamedSharding(mesh.local_mesh, spec)
    parts, whole = local.tiling(leaf.ndim), wanted.shard_shape(leaf.shape)
    shape = tuple(n * p for n, p in zip(whole, parts))
    return make_array_from_single_device_arrays(shape, local, leaf.local_parts())


def _share(sharding: Sharding, size: int, tiling: int, mine: list[int]) -> int:
    """How many elements of a dimension of `size` the parts `mine` of it hold."""
    part = -(-size // tiling)
    return sum(min((t + 1) * part, size) - min(t * part, size) for t in mine)


def _global_shape(
    local: tuple[int, ...], given: Sequence[int | None] | None, sharding: Sharding, tiling: tuple[int, ...],
    mine: list[list[int]],
) -> tuple[int, ...]:  # fmt: skip
    if given is not None and len(given) != len(local):
        raise errors.ArgumentValueError(
            f"make_array_from_process_local_data: global_shape {tuple(given)} and local data of shape {local} differ "
            "in rank"
        )
    out = []
    for d, size in enumerate(local):
        asked = None if given is None else given[d]
        if asked is None:
            asked = _inferred(size, d, sharding, tiling, mine[d])
        elif size not in (asked, _share(sharding, asked, tiling[d], mine[d])):
            raise errors.ArgumentValueError(
                "Invalid host data, each dimension should match either global or process shape. In dimension "
                f"{d}, the process data has {size} elements. Process addresses "
                f"{_share(sharding, asked, tiling[d], mine[d])} elements and global_shape={tuple(given or ())}: give "
                f"this process's {len(mine[d])} of {tiling[d]} parts, or the whole"
            )
        out.append(int(asked))
    return tuple(out)


def _inferred(size: int, d: int, sharding: Sharding, tiling: tuple[int, ...], mine: list[int]) -> int:
    if sharding.uneven and tiling[d] > 1:
        raise errors.ArgumentValueError(
            "make_array_from_process_local_data: the parts of an uneven sharding differ in size, so the global size of "
            f"dimension {d} cannot be told from the local {size}; pass global_shape="
        )
    if not _is_uniform(d, sharding, mine):
        raise errors.ArgumentValueError(
            "Unable to compute global_shape due to non-uniform sharding. Specify global shape directly: processes hold "
            f"overlapping parts of dimension {d}, this one {mine} of {tiling[d]}"
        )
    if size % len(mine):
        raise errors.IndivisibleError(
            f"make_array_from_process_local_data: this process holds {len(mine)} of the {tiling[d]} parts of dimension "
            f"{d}, but the local size {size} is not a multiple of {len(mine)}; make it {size + -size % len(mine)}"
        )
    return size // len(mine) * tiling[d]


def _is_uniform(d: int, sharding: Sharding, mine: list[int]) -> bool:
    """Whether processes hold the same or disjoint parts of a dimension, and equally many."""
    tiles = sharding.tile_indices(d + 1)[:, d] if not isinstance(sharding, NamedSharding) else _column(sharding, d)
    held: dict[int, set[int]] = {}
    for device, tile in zip(sharding.device_assignment, tiles):
        held.setdefault(device.process_index, set()).add(int(tile))
    groups = {frozenset(parts) for parts in held.values()}
    return len({len(g) for g in groups}) == 1 and sum(map(len, groups)) == len(frozenset().union(*groups))


def _column(sharding: NamedSharding, d: int) -> Any:
    return sharding.tile_indices(max(d + 1, len(sharding.spec.partitions)))[:, d]


# ---------------------------------------------------------------------------------------------------------------------
# From arrays on single devices


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding, arrays: Sequence[Array], *, dtype: Any = None
) -> Array:
    """An Array from one Array per device of this process, in the order of the sharding or any other; does not copy
    (but parts that are shorter than the others, of uneven shardings, which move into larger buffers).

    Args:
      shape: the global shape.
      dtype: the dtype of the result, which that of the arrays must be; needed if this process holds no part.

    Raises:
      ArgumentValueError: wrong number, devices, shapes or dtypes. ArgumentTypeError: no list of Arrays.

    >>> from meshrt.sharding import NamedSharding, PartitionSpec as P
    >>> mesh = meshrt.make_mesh((2,), ("x",))
    >>> parts = [meshrt.device_put(jnp.arange(2) + 10 * i, d) for i, d in enumerate(mesh.devices.flat)]
    >>> meshrt.make_array_from_single_device_arrays((4,), NamedSharding(mesh, P("x")), parts)
    Array([ 0,  1, 10, 11], dtype=int32)
    """
    shape = canonical_shape(shape)
    sharding = _concrete(sharding, "make_array_from_single_device_arrays")
    if not isinstance(arrays, Sequence):
        raise errors.ArgumentTypeError(
            "make_array_from_single_device_arrays `arrays` argument must be a list or tuple, but got "
            f"{type(arrays)}: pass [a.data for a in x.addressable_shards], for example"
        )
    if any(type(a) is not Array and isinstance(a, ArrayOperators) for a in arrays):
        raise errors.ArgumentValueError(
            "make_array_from_single_device_arrays requires a list of concrete arrays as input, but got types "
            f"{set(map(type, arrays))}: call it outside of jit, grad and vmap"
        )
    if any(type(a) is not Array for a in arrays):
        raise errors.ArgumentTypeError(
            "make_array_from_single_device_arrays takes a list of meshrt.Arrays. Got "
            f"{sorted({type(a).__name__ for a in arrays if type(a) is not Array})}; put them on their devices with "
            "meshrt.device_put"
        )
    kind = _dtype_of([a.dtype for a in arrays], dtype, "make_array_from_single_device_arrays")
    sig = signature(ShapedArray(shape, kind), sharding, True)
    _check_devices(arrays, sig)
    place = {a.device: a for a in arrays}
    ordered = [place[d] for d in sig.local_devices]
    indices = sharding.shard_indices(shape)
    for a, p in zip(ordered, sig.local):
        a._check()
        if a.sharding.memory_kind != sharding.memory_kind:
            raise errors.ArgumentValueError(
                "Memory kind mismatch with xla::PjRtBuffers. Got sharding with memory kind "
                f"{sharding.memory_kind!r} and a buffer with memory_kind {a.sharding.memory_kind!r}: put the arrays "
                "into that memory first, or give sharding.with_memory_kind(...)"
            )
        wanted = extents(indices[p], shape)
        if a.shape != wanted:
            raise errors.ArgumentValueError(
                f"Expected shard shape {wanted} doesn't match the single device array shape {a.shape}. Shape of Array "
                f"is {sig.aval} with sharding {sharding}: the array on {a.device} is its part {indices[p]}"
            )
    return _assembled(ordered, sig)


def _check_devices(arrays: Sequence[Array], sig: Signature) -> None:
    expected = len(sig.local_devices)
    for a in arrays:
        if a.sharding.num_devices != 1:
            raise errors.ArgumentValueError(
                "When making an array from single-device arrays, each array must be on one device. Got one of type "
                f"{a.aval.short()} with sharding {a.sharding!r}; pass its parts, "
                "[s.data for s in x.addressable_shards]"
            )
    if len(arrays) != expected:
        raise errors.ArgumentValueError(
            f"Expected {expected} per-device arrays (this is how many devices are addressable by the sharding), but "
            f"got {len(arrays)}"
        )
    ids = [a.device.id for a in arrays]
    if len({a.device for a in arrays}) != len(arrays):
        raise errors.ArgumentValueError(
            "When making an array from single-device arrays, the input arrays must be from distinct devices, but got "
            f"device IDs {ids}"
        )
    given, wanted = {a.device for a in arrays}, set(sig.local_devices)
    if given != wanted:
        text = "Addressable devices and per-device arrays devices do not match."
        if wanted - given:
            text += f" Sharding contains devices {_ids(wanted - given)} that are not present in per-device arrays."
        if given - wanted:
            text += f" Per-device arrays contain devices {_ids(given - wanted)} that are not present in the sharding."
        raise errors.ArgumentValueError(text + " Put each part on its device with meshrt.device_put(part, device)")


def _ids(devices: Iterable[Any]) -> str:
    return f"{{{', '.join(str(i) for i in sorted(d.id for d in devices))}}}"


def _assembled(arrays: Sequence[Array], sig: Signature) -> Array:
    """`arrays`, one on each local device in order, as one; they share its memory."""
    kind = sig.sharding.memory_kind
    placed = [
        a if a.sharding.memory_kind == kind else reshard(a, SingleDeviceSharding(a.device, memory_kind=kind))
        for a in arrays
    ]
    made = Array(assembled(placed, sig), sig)
    for a in placed:
        made._share_with(a)
    return made


offer(globals(), __all__)
