"""`make_mesh`: a mesh from the devices at hand."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.sharding.axes import AxisType, axis_names_of, axis_sizes_of, axis_types_of
from meshrt.sharding.device_order import create_device_mesh, create_hybrid_device_mesh, granules, may_split
from meshrt.sharding.devices import lookup
from meshrt.sharding.mesh import Mesh

__all__ = ["make_mesh"]


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: Any = None,
    *,
    devices: Sequence[Any] | None = None,
    dcn_axes: str | Sequence[str] | Mapping[str, int] | None = None,
) -> Mesh:
    """A mesh of `axis_shapes` over the first devices at hand, in an order that suits their interconnect.

    >>> meshrt.make_mesh((4, 2), ("data", "model"))
    Mesh(axis_sizes=(4, 2), axis_names=('data', 'model'), axis_types=(Explicit, Explicit))
    >>> meshrt.make_mesh((32, 16), ("data", "model"), dcn_axes="data")  # doctest: +SKIP

    Args:
      axis_shapes: sizes of the axes; their product may be smaller than the number of devices.
      axis_names: a name for each axis.
      axis_types: one AxisType per axis, or one for all; all Explicit by default, as in JAX (`Mesh` makes Auto axes).
        With `(AxisType.Auto,) * n` shardings along them are left to propagation.
      devices: the devices to use; by default `meshrt.devices()`.
      dcn_axes: the axes that lie across slices (where devices have no slices, across processes), which a slower
        network joins: {name: number of slices along it}, whose numbers divide the axes' sizes, or names. One name gets
        all slices, several the slices of their whole size. Within each slice the devices are arranged as usual.

    Raises:
      MeshError: too few devices, sizes that are not positive ints, not one name and type for each axis, a name twice,
        devices of several slices without `dcn_axes`, or `dcn_axes` that do not make up the slices.
      ShardingTypeError: `axis_types` that are no AxisTypes.
      UnsupportedError: no whole physical axes of a torus make up an axis.
    """
    names, sizes = axis_names_of(axis_names), _sizes(axis_shapes)
    types = axis_types_of(AxisType.Explicit if axis_types is None else axis_types, names, "make_mesh")
    if len(sizes) != len(names):
        raise errors.MeshError(f"make_mesh needs one size per axis. Got axis_shapes={sizes}, axis_names={names}")
    found = list(lookup() if devices is None else devices)
    size = math.prod(sizes)
    if len(found) < size:
        raise errors.MeshError(
            f"Number of devices {len(found)} must be >= the product of mesh_shape {sizes}. Use a smaller mesh"
            + (f", or meshrt.config.update('num_cpu_devices', {size}) before anything uses a device."
               if getattr(found[0] if found else None, "platform", "cpu") == "cpu" else ".")
        )  # fmt: skip
    found = found[:size]
    if dcn_axes is not None:
        return Mesh(_hybrid(sizes, names, found, dcn_axes), names, types)
    slices = {getattr(d, "slice_index", None) for d in found}
    if len(slices) > 1:
        raise errors.MeshError(
            f"these {size} devices are of {len(slices)} slices, which a slower network joins: say which axes lie "
            f"across slices, as in make_mesh({sizes}, {names}, dcn_axes={names[0]!r}), use "
            "meshrt.experimental.mesh_utils.create_hybrid_device_mesh, or pass the devices of one slice"
        )
    return Mesh(create_device_mesh(sizes, found, allow_split_physical_axes=may_split(found)), names, types)


def _sizes(axis_shapes: Any) -> tuple[int, ...]:
    given = axis_shapes if isinstance(axis_shapes, Sequence | np.ndarray) else (axis_shapes,)
    try:
        if any(isinstance(s, bool | np.bool_) for s in given):
            raise TypeError
        out = tuple(operator.index(s) for s in given)
    except TypeError:
        raise errors.MeshError(
            f"`axis_shapes` passed to `make_mesh` should be a sequence of ints. Got {axis_shapes}"
        ) from None
    return axis_sizes_of(out)


def _hybrid(sizes: tuple[int, ...], names: tuple[Hashable, ...], devices: list[Any], dcn_axes: Any) -> np.ndarray:
    by_process = len({getattr(d, "slice_index", None) for d in devices}) == 1
    parts = granules(devices, "process_index" if by_process else "slice_index")
    called = "processes" if by_process else "slices"
    along = _along(sizes, names, len(parts), dcn_axes, called)
    if math.prod(along.values()) != len(parts):
        raise errors.MeshError(
            f"make_mesh(dcn_axes={dcn_axes!r}) asks for {math.prod(along.values())} {called}, but the devices are of "
            f"{len(parts)}; give the number along each axis, as in dcn_axes={{{names[0]!r}: {len(parts)}}}"
        )
    counts = {len(part) for part in parts}
    if len(counts) > 1:
        raise errors.MeshError(
            f"the {called} have different numbers of devices in this mesh ({[len(p) for p in parts]}); use as many of "
            "each, by passing devices=..."
        )
    outer = tuple(along.get(n, 1) for n in names)
    return create_hybrid_device_mesh(
        tuple(s // o for s, o in zip(sizes, outer)), outer, devices, process_is_granule=by_process,
        allow_split_physical_axes=may_split(devices),
    )  # fmt: skip


def _along(
    sizes: tuple[int, ...], names: tuple[Hashable, ...], parts: int, dcn_axes: Any, called: str
) -> dict[Hashable, int]:
    """How many slices lie along each axis that is named."""
    of = dict(zip(names, sizes))
    if isinstance(dcn_axes, Mapping):
        along = dict(dcn_axes)
    else:
        given = (dcn_axes,) if isinstance(dcn_axes, str) else tuple(dcn_axes)
        along = dict.fromkeys(given, parts) if len(given) == 1 else {n: of.get(n, 0) for n in given}
    for name, n in along.items():
        if name not in of:
            raise errors.UnknownAxisError(f"make_mesh(dcn_axes=...) names {name!r}, which is not one of {names}")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise errors.MeshError(f"make_mesh(dcn_axes=...) takes positive ints. Got {n!r} for {name!r}")
        if of[name] % n:
            raise errors.MeshError(
                f"axis {name!r} of size {of[name]} cannot lie across {n} {called}: they do not divide it. Make it a "
                f"multiple of {n}, or give the number along each axis: dcn_axes={{name: number}}"
            )
    return along
