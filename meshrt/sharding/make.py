"""Building meshes from the devices at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.sharding.devices import lookup
from meshrt.sharding.mesh import Mesh, _int_sizes, _names, _types

__all__ = ["create_device_mesh", "make_mesh"]


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: Any = None,
    *,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh of `axis_shapes` over the first devices at hand, in an order that suits their interconnect.

    Args:
      axis_shapes: sizes of the axes; their product may be smaller than the number of devices.
      axis_types: an AxisType or one per axis; all Auto by default.
      devices: the devices to use; by default `meshrt.devices()`.

    Raises:
      MeshError: too few devices, or sizes that are not positive ints.
    """
    names = _names(axis_names)
    given: Any = axis_shapes
    if isinstance(given, (int, np.integer)):
        given = (given,)
    for s in given:
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)):
            raise errors.MeshError(
                f"`axis_shapes` passed to `make_mesh` should be a sequence of ints. Got {axis_shapes}"
            )
    sizes = _int_sizes(given)
    types = _types(axis_types, names, "make_mesh")
    if len(sizes) != len(names):
        raise errors.MeshError(f"make_mesh needs one size per axis. Got axis_shapes={sizes}, axis_names={names}")
    if devices is None:
        devices = lookup()
    size = math.prod(sizes)
    if len(devices) < size:
        raise errors.MeshError(
            f"Number of devices {len(devices)} must be >= the product of mesh_shape {sizes}. Use a smaller mesh"
            + (f", or meshrt.config.update('num_cpu_devices', {size}) before anything uses a device."
               if getattr(devices[0] if devices else None, "platform", "cpu") == "cpu" else ".")
        )  # fmt: skip
    slices = {getattr(d, "slice_index", None) for d in list(devices)[:size]}
    if len(slices) > 1:
        raise errors.UnsupportedError(
            "make_mesh does not support devices of several slices; arrange them yourself and pass them to "
            "meshrt.sharding.Mesh"
        )
    return Mesh(create_device_mesh(sizes, list(devices)[:size]), names, types)


def create_device_mesh(mesh_shape: Sequence[int], devices: Sequence[Any] | None = None) -> np.ndarray:
    """The devices in an object array of `mesh_shape`.

    CPU and GPU devices stand in the order given. Devices with physical coordinates (TPU) are assigned so that each
    mesh axis, the last one first, takes whole physical axes of the torus where sizes allow it, because neighbours
    along an axis then are neighbours in hardware.

    Raises:
      MeshError: the product of `mesh_shape` is not the number of devices.
      UnsupportedError: the physical mesh has a hole, or no whole physical axes make up a mesh axis.
    """
    if devices is None:
        devices = lookup()
    shape = _int_sizes(mesh_shape)
    if math.prod(shape) != len(devices):
        raise errors.MeshError(f"Number of devices {len(devices)} must equal the product of mesh_shape {shape}")
    flat = np.empty(len(devices), dtype=object)
    flat[:] = list(devices)
    if len(devices) == 1 or getattr(devices[0], "coords", None) is None:
        return flat.reshape(shape)
    return _assign(shape, _physical_mesh(flat))


def _physical_mesh(devices: np.ndarray) -> np.ndarray:
    """The devices at their coordinates (x, y, z, core)."""
    places = np.array([(*d.coords, getattr(d, "core_on_chip", 0)) for d in devices])
    places -= places.min(axis=0)
    dims = tuple(places.max(axis=0) + 1)
    out = np.full(dims, None, dtype=object)
    for place, device in zip(places, devices):
        out[tuple(place)] = device
    if math.prod(dims) != len(devices) or any(d is None for d in out.flat):
        raise errors.UnsupportedError(
            f'the physical mesh of {len(devices)} devices with extents {dims} contains a "hole"; choose a full box of '
            "devices, or arrange them yourself and pass them to meshrt.sharding.Mesh"
        )
    return out


def _assign(shape: tuple[int, ...], physical: np.ndarray) -> np.ndarray:
    """Gives each mesh axis, the last first, a set of physical axes with exactly its size (more axes preferred)."""
    free = [i for i in range(physical.ndim) if physical.shape[i] > 1]
    taken: list[tuple[int, ...]] = [()] * len(shape)
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            continue
        fitting = [c for c in _subsets(free) if math.prod(physical.shape[i] for i in c) == shape[axis]]
        if not fitting:
            raise errors.UnsupportedError(
                f"no whole physical axes of the device mesh {physical.shape} make up axis {axis} of mesh shape "
                f"{shape}; "
                "choose sizes that are products of physical extents, or arrange the devices yourself and pass them "
                "to meshrt.sharding.Mesh"
            )
        taken[axis] = max(fitting, key=len)
        free = [i for i in free if i not in taken[axis]]
    order = [i for axes in taken for i in axes]
    rest = [i for i in range(physical.ndim) if i not in order]
    return physical.transpose(order + rest).reshape(shape)


def _subsets(items: list[int]) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for item in items:
        out += [(*s, item) for s in out]
    return [s for s in out if s]
