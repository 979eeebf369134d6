"""The order of devices in a mesh that suits how they are connected.

CPU devices stand as they are given, GPUs by their id: their number is that of the fast interconnect. TPU chips form
rings and tori. Small boards have a ring that visits every chip once (`_RINGS`); larger systems are tori whose axes are
given to the axes of the mesh (`meshrt.sharding.torus`). Systems of several slices, which are joined by a slower
network, are arranged slice by slice (`create_hybrid_device_mesh`). Orders, names and errors are those of
`jax.experimental.mesh_utils`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.sharding.axes import axis_sizes_of
from meshrt.sharding.devices import lookup

__all__ = ["create_device_mesh", "create_hybrid_device_mesh", "granules", "may_split"]

# Walks through the chips of a board, numbered by their place (x fastest), from neighbour to neighbour.
_RING_2X2 = (0, 1, 3, 2)
_RING_4X4 = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4)
_RING_4X2 = (0, 1, 2, 3, 7, 6, 5, 4)
_RING_2X2X2 = (0, 1, 3, 2, 6, 7, 5, 4)
# By number on the tray, two cores of a chip beside each other.
_RING_TRAY = (0, 1, 2, 3, 6, 7, 4, 5)
_BLOCKS_2X2X2 = (0, 4, 2, 6, 1, 5, 3, 7)

# Kinds whose chips have two cores that are devices of their own.
_SEVERAL_CORES = ("TPU7x", "TPU7", "TPU8i")

# Axes of a physical mesh by the mesh shapes for which each host's devices form a block, and how the physical mesh is
# to be turned for that.
_AS_IS, _TURNED = (0, 1, 2), (0, 2, 1)
_CONTIGUOUS: dict[tuple[int, ...], dict[tuple[int, ...], tuple[int, ...]]] = {
    (2, 2, 1): {(2, 2): _AS_IS},
    (2, 2, 4): {(4, 4): _AS_IS},
    (4, 4, 4): {(16, 4): _TURNED},
    (4, 8, 8): {(64, 4): _TURNED, (4, 64): _TURNED},
    (8, 8, 8): {(64, 8): _TURNED},
    (8, 16, 16): {(256, 8): _TURNED, (8, 256): _TURNED},
}


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """The devices in an object array of `mesh_shape`, in an order that suits their interconnect.

    Args:
      mesh_shape: sizes of the mesh's axes; the last axis is the one that communicates most.
      devices: by default `meshrt.devices()`.
      contiguous_submeshes: of TPU tori: the devices of each process are to form a block of the mesh.
      allow_split_physical_axes: of TPU tori: a physical axis may serve several axes of the mesh.

    Raises:
      MeshError: the product of `mesh_shape` is not the number of devices, no contiguous submeshes for this shape, or
        (also an AssertionError) the devices do not fill a box.
      UnsupportedError: no whole physical axes make up a mesh axis, and they may not be split.

    >>> meshrt.sharding.create_device_mesh((4, 2)).shape
    (4, 2)
    """
    shape = axis_sizes_of(mesh_shape)
    found = list(lookup() if devices is None else devices)
    if math.prod(shape) != len(found):
        raise errors.MeshError(
            f"Number of devices {len(found)} must equal the product of mesh_shape {shape}, which is {math.prod(shape)}"
        )
    kind, platform = (getattr(found[-1], name, "") for name in ("device_kind", "platform"))
    small = _BOARDS.get(kind)
    order = None if small is None else small(found, shape)
    if order is not None:
        return _array([found[i] for i in order]).reshape(shape)
    if platform == "tpu":
        from meshrt.sharding.torus import assign  # start-up time: only tori need it

        physical = _physical_mesh(found)
        if contiguous_submeshes:
            physical = _turned(physical, shape)
        return assign(physical, shape, split=allow_split_physical_axes)
    if platform in ("gpu", "cuda", "rocm"):
        found.sort(key=lambda d: d.id)
    return _array(found).reshape(shape)


def may_split(devices: Sequence[Any]) -> bool:
    """Whether `make_mesh` splits the physical axes of these devices where it has to: their links allow it."""
    return getattr(devices[0], "device_kind", "") in ("TPU v5 lite", "TPU v5e")


def _array(devices: Sequence[Any]) -> np.ndarray:
    """One dimension, whatever the devices look like to NumPy."""
    out = np.empty(len(devices), dtype=object)
    out[:] = devices
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Boards


def _by_place(devices: Sequence[Any]) -> list[int]:
    """Positions of the devices, sorted by their coordinates, x fastest."""
    return sorted(range(len(devices)), key=lambda i: tuple(reversed(_coords(devices[i]))))


def _coords(device: Any) -> tuple[int, ...]:
    return tuple(getattr(device, "coords", (0, 0, 0)))


def _bounds(devices: Sequence[Any]) -> tuple[int, ...]:
    return tuple(c + 1 for c in max(map(_coords, devices)))


def _tray(devices: Sequence[Any], shape: tuple[int, ...]) -> Iterable[int]:
    """v2 and v3: the cores of a tray of four chips."""
    trays = len(devices) // 8
    if len(devices) == 8 or (shape and shape[-1] == 8):
        return [8 * tray + i for tray in range(trays) for i in _RING_TRAY]
    return range(len(devices))


def _ring_of_four(devices: Sequence[Any], shape: tuple[int, ...]) -> Iterable[int] | None:
    return _RING_2X2 if len(devices) == 4 else None


def _flat_board(devices: Sequence[Any], shape: tuple[int, ...]) -> Iterable[int] | None:
    """v5e and v6e: boards of 2x2, 4x2 and 4x4 chips, and eight in a cube."""
    bounds, n = _bounds(devices), len(devices)
    order: tuple[int, ...] | None = None
    if bounds == (2, 2, 1) and n == 4:
        order = _RING_2X2
    elif n == 8:
        order = _BLOCKS_2X2X2 if bounds == (2, 2, 2) else _RING_4X2
    elif bounds == (4, 4, 1) and n == 16 and max(shape) == n:  # one ring helps only an axis that has all chips
        order = _RING_4X4
    return None if order is None else _walk(devices, order)


def _cube(devices: Sequence[Any], shape: tuple[int, ...]) -> Iterable[int] | None:
    """v5p: eight chips in a cube."""
    if _bounds(devices) == (2, 2, 2) and len(devices) == 8:
        return _walk(devices, _RING_2X2X2)
    return None


def _cored_board(devices: Sequence[Any], shape: tuple[int, ...]) -> Iterable[int] | None:
    """7x: up to four layers of 2x2 chips with two cores each; a ring in each layer."""
    n = len(devices)
    if n % 8 or n > 32 or max(_physical_mesh(devices).shape[:2]) > 2:
        return None
    return [layer + i for layer in range(0, n, 8) for i in _RING_TRAY]


def _walk(devices: Sequence[Any], order: Sequence[int]) -> list[int]:
    places = _by_place(devices)
    return [places[i] for i in order]


# By kind of device: positions of the devices in the order of a ring, or None where the torus decides.
_BOARDS: dict[str, Callable[[Sequence[Any], tuple[int, ...]], Iterable[int] | None]] = {
    "TPU v2": _tray,
    "TPU v3": _tray,
    "TPU v4 lite": _ring_of_four,
    "TPU v5 lite": _flat_board,
    "TPU v5p": _cube,
    "TPU v6 lite": _flat_board,
    "TPU7x": _cored_board,
    "TPU7": _cored_board,
    "TPU8i": _ring_of_four,
}


# ---------------------------------------------------------------------------------------------------------------------
# Tori


def _physical_mesh(devices: Sequence[Any]) -> np.ndarray:
    """The devices at their places (x, y, z), with their core as a further axis where cores are devices."""
    kind = devices[0].device_kind
    places = np.array([(*_coords(d), getattr(d, "core_on_chip", 0)) for d in devices])
    cored = kind in _SEVERAL_CORES or (kind == "TPU v5p" and len(set(places[:, -1])) == 2)
    if not cored:
        several = next((d for d, place in zip(devices, places) if place[-1]), None)
        if several is not None:
            raise errors.PhysicalMeshError(
                f"a mesh of {kind} requires one device per chip (megacore), but {several} is a second core"
            )
        places = places[:, :-1]
    places -= places.min(axis=0)
    extents = tuple(int(n) for n in places.max(axis=0) + 1)
    out = np.full(extents, None, dtype=object)
    for place, device in zip(places, devices):
        out[tuple(place)] = device
    if math.prod(extents) != len(devices) or any(d is None for d in out.flat):
        raise errors.PhysicalMeshError(
            f'Constructed mesh contains a "hole": the coordinates of {len(devices)} devices do not fill a box of '
            f"{'x'.join(map(str, extents))}. Choose devices that do, or arrange them yourself and pass them to "
            "meshrt.sharding.Mesh"
        )
    return out


def _turned(physical: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The physical mesh turned so that each process's devices are a block of a mesh of `shape`."""
    known = _CONTIGUOUS.get(physical.shape)
    if known is None:
        raise errors.MeshError(
            "create_device_mesh cannot create contiguous submeshes for physical mesh topology "
            f"{physical.shape}; those known are {list(_CONTIGUOUS)}. Drop contiguous_submeshes=True"
        )
    order = known.get(tuple(s for s in shape if s != 1))
    if order is None:
        raise errors.MeshError(
            f"create_device_mesh cannot create contiguous submeshes for mesh_shape {shape} and physical mesh topology "
            f"{physical.shape}. Available mesh_shapes: {list(known)}"
        )
    return physical.transpose(order)


# ---------------------------------------------------------------------------------------------------------------------
# Several slices


def granules(devices: Sequence[Any], attribute: str, *, sort: bool = True) -> list[list[Any]]:
    """The devices by their `attribute`, "slice_index" or "process_index": a list for each value. MeshError if a device
    does not have it."""
    found: dict[Any, list[Any]] = {}
    for d in devices:
        if not hasattr(d, attribute):
            raise errors.MeshError(
                f"Device {d} does not have attribute {attribute}, by which devices are divided into parts with a "
                "faster network. See the `process_is_granule` option."
            )
        found.setdefault(getattr(d, attribute), []).append(d)
    return [found[key] for key in (sorted(found) if sort else found)]


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    process_is_granule: bool = False,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """The devices of several slices in an object array of shape `mesh_shape * dcn_mesh_shape`.

    Along each axis, `dcn_mesh_shape` counts slices, which are joined by the slower network, and `mesh_shape` the
    devices of one slice, arranged by `create_device_mesh`.

    Args:
      process_is_granule: processes take the place of slices.
      should_sort_granules_by_key: slices in order of their index, else in the order of `devices`.

    Raises:
      MeshError: `dcn_mesh_shape` does not have as many slices as there are, a slice has another number of devices than
        `mesh_shape`, or devices do not say their slice. What `create_device_mesh` raises.
    """
    found = list(lookup() if devices is None else devices)
    inner, outer = axis_sizes_of(mesh_shape), axis_sizes_of(dcn_mesh_shape)
    if len(inner) != len(outer):
        raise errors.MeshError(f"mesh_shape {inner} and dcn_mesh_shape {outer} must have one size per axis each")
    parts = granules(found, "process_index" if process_is_granule else "slice_index", sort=should_sort_granules_by_key)
    if math.prod(outer) != len(parts):
        raise errors.MeshError(
            f"Number of slices {len(parts)} must equal the product of dcn_mesh_shape {outer}; set it to that number "
            "along one axis, or pass the devices of some slices only"
        )
    size = tuple(a * b for a, b in zip(inner, outer))
    out = np.empty(size, dtype=object)
    for block, part in zip(itertools.product(*map(range, outer)), parts):
        made = create_device_mesh(inner, part, allow_split_physical_axes=allow_split_physical_axes)
        out[tuple(slice(b * n, (b + 1) * n) for b, n in zip(block, inner))] = made
    return out
