"""Shardings over a mesh and on one device. `NamedSharding` over an AbstractMesh says how a value is split without
saying on which devices.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt import errors
from meshrt.sharding.axes import AxisType
from meshrt.sharding.base import Sharding
from meshrt.sharding.devices import lookup_by_id
from meshrt.sharding.memory import resolved_kind
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.set_once import put, putters
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of

if TYPE_CHECKING:
    from meshrt.sharding.sdy_array import SdyArray

__all__ = ["NamedSharding", "Sharding", "SingleDeviceSharding", "make_single_device_sharding"]


class NamedSharding(Sharding):
    """A mesh, and a PartitionSpec that says which of its axes each dimension is split over.

    Args:
      mesh: a Mesh or an AbstractMesh.
      spec: a PartitionSpec; missing trailing entries mean "not split".
      memory_kind: the memory on each device; None is the device's default, whose name it gets if the mesh has devices.
      uneven: sizes need not divide. A dimension of `n` over `p` devices gives each ceil(n / p) elements and the last
        ones fewer, or none. Devices hold all parts in buffers of the largest size; what lies behind a part's end is
        never read.

    Over an AbstractMesh there are no devices: asked for them (`device_assignment`, `device_set`, `addressable_devices`,
    `is_fully_addressable`) it raises MeshError.

    Raises:
      UnknownAxisError, DuplicateAxisError: the spec does not fit the mesh.
      ShardingTypeError: an argument of another type.
      ShardingError: UNCONSTRAINED without Auto axes, unreduced or reduced over Auto axes, or a kind of memory that the
        devices don't have.

    >>> mesh = meshrt.make_mesh((4, 2), ("data", "model"))
    >>> meshrt.sharding.NamedSharding(mesh, meshrt.P("data", "model")).shard_shape((8, 6))
    (2, 3)
    """

    __slots__ = ("_assignment", "_tilings", "memory_kind", "mesh", "other_memory", "spec", "uneven")

    mesh: Mesh | AbstractMesh
    spec: PartitionSpec
    memory_kind: str | None
    # None over an AbstractMesh.
    _assignment: tuple[Any, ...] | None
    # `tiling` by rank.
    _tilings: dict[int, tuple[int, ...]]

    def __new__(cls, mesh: Any, spec: Any, *, memory_kind: str | None = None, uneven: bool = False) -> NamedSharding:
        key = (spec, memory_kind, True) if uneven else (spec, memory_kind)
        try:
            known: NamedSharding = mesh._shardings[key]
            return known
        except (AttributeError, KeyError, TypeError):
            pass
        check_spec(mesh, spec)
        if memory_kind is not None and not isinstance(memory_kind, str):
            raise errors.ShardingTypeError(f"memory_kind must be a string or None. Got {memory_kind!r}")
        devices = mesh.flat_devices if isinstance(mesh, Mesh) else None
        named, other = resolved_kind(devices, memory_kind)
        known = made = object.__new__(cls)
        values: tuple[Any, ...] = mesh, spec, bool(uneven), named, other, devices, {}, {}, {}, {}
        for put_slot, value in zip(_SLOTS, values):
            put_slot(made, value)
        if named != memory_kind:  # one object, however the default memory is spelled
            known = mesh._shardings.setdefault((spec, named, True) if uneven else (spec, named), made)
        kept: NamedSharding = mesh._shardings.setdefault(key, known)
        return kept

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_named, (self.mesh, self.spec, self.other_memory, self.uneven))

    @property
    def is_concrete(self) -> bool:
        """Whether the mesh has devices."""
        return self._assignment is not None

    @property
    def device_assignment(self) -> tuple[Any, ...]:
        """The devices in order: shard *i* is on device *i*. MeshError over an AbstractMesh."""
        return self._devices_for("device_assignment")

    _device_assignment = property(lambda self: self._devices_for("_device_assignment"))

    def _devices_for(self, what: str) -> tuple[Any, ...]:
        if self._assignment is None:
            raise errors.MeshError(
                f"{what} is not implemented for `meshrt.sharding.AbstractMesh`: {self!r} has no devices; use a Mesh, "
                "for example from `meshrt.make_mesh`"
            )
        return self._assignment

    @property
    def device_set(self) -> set[Any]:
        """The devices, of all processes. MeshError over an AbstractMesh."""
        return set(self._devices_for("device_set"))

    @property
    def addressable_devices(self) -> set[Any]:
        """The devices that belong to this process. MeshError over an AbstractMesh."""
        self._devices_for("addressable_devices")
        return super().addressable_devices

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process. MeshError over an AbstractMesh."""
        return len(self._devices_for("is_fully_addressable")) == len(self.addressable_devices)

    @property
    def _internal_device_list(self) -> Any:
        """jaxlib's list of the devices, one object for all shardings over them; None over an AbstractMesh."""
        return self.mesh._internal_device_list

    @property
    def num_devices(self) -> int:
        """The size of the mesh."""
        return self.mesh.size

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole value."""
        if self.mesh.size == 1:
            return True
        if self.spec.unreduced:
            return False
        return all(self.mesh._sizes[a] == 1 for a in self.spec.axes)

    def check_compatible_aval(self, aval_shape: tuple[int, ...]) -> None:
        """RankMismatchError if values of this shape have fewer dimensions than the spec has entries."""
        rank = len(self.spec.partitions)
        if rank > len(aval_shape):
            fix = "Remove entries of the PartitionSpec" if aval_shape else "For scalars the PartitionSpec should be P()"
            raise errors.RankMismatchError(
                f"Sharding {self!r} is only valid for values of rank at least {rank}, but was applied to a value of "
                f"rank {len(aval_shape)}. {fix}, or split other dimensions."
            )

    @property
    def unreduced_axes(self) -> frozenset[Any]:
        """The mesh axes along which devices hold addends of the value."""
        return self.spec.unreduced

    @property
    def replicated_axes(self) -> frozenset[Any]:
        """The mesh axes that the spec does not name in any way."""
        return frozenset(self.mesh.axis_names) - set(self.spec.axes) - self.spec.unreduced - self.spec.reduced

    def tiling(self, ndim: int) -> tuple[int, ...]:
        found = self._tilings.get(ndim)
        if found is None:
            sizes = self.mesh._sizes
            found = tuple(math.prod(sizes[a] for a in axes_of(e)) for e in self.spec.padded(ndim))
            self._tilings[ndim] = found
        return found

    def tile_indices(self, ndim: int) -> np.ndarray:
        mesh = self.mesh
        out = np.zeros((mesh.size, ndim), np.int64)
        if not self.spec.axes:
            return out
        coordinate = dict(zip(mesh.axis_names, np.indices(mesh.axis_sizes).reshape(mesh.ndim, -1)))
        for dim, entry in enumerate(self.spec.padded(ndim)):
            for axis in axes_of(entry):
                out[:, dim] = out[:, dim] * mesh._sizes[axis] + coordinate[axis]
        return out

    def with_memory_kind(self, kind: str | None) -> NamedSharding:
        """The same split in another memory of the devices; ShardingError if they have none of this kind."""
        return NamedSharding(self.mesh, self.spec, memory_kind=kind, uneven=self.uneven)

    def _to_sdy_sharding(self, num_dimensions: int) -> SdyArray:
        """Shardy's form of the sharding for values of so many dimensions; JAX's name, which scripts use."""
        from meshrt.sharding.sdy_array import SdyArray, SdyDim  # start-up time: for other tools' sake only

        dims = tuple(
            SdyDim(() if e is UNCONSTRAINED else axes_of(e), e is UNCONSTRAINED)
            for e in self.spec.padded(num_dimensions)
        )
        return SdyArray(self.mesh.shape_tuple, dims, unreduced_axes=self.spec.unreduced)

    def _split_over(self, dim: int) -> str:
        axes = [f"{a!r}: {self.mesh._sizes[a]}" for a in axes_of(self.spec.partitions[dim])]
        return f"; it is split over the mesh {'axis' if len(axes) == 1 else 'axes'} {', '.join(axes)}"

    def update(self, **changes: Any) -> NamedSharding:
        """A sharding with `mesh`, `spec` (also as a sequence of entries), `memory_kind` or `uneven` replaced.

        Raises:
          ShardingTypeError: another keyword. What `NamedSharding` raises.
        """
        unknown = set(changes) - {"mesh", "spec", "memory_kind", "uneven"}
        if unknown:
            raise errors.ShardingTypeError(
                f"NamedSharding.update takes mesh, spec, memory_kind and uneven. Got {unknown}"
            )
        spec = changes.get("spec", self.spec)
        if not isinstance(spec, PartitionSpec):
            spec = PartitionSpec(*spec)
        kind = changes.get("memory_kind", self.memory_kind if "mesh" not in changes else self.other_memory)
        uneven = changes.get("uneven", self.uneven)
        return NamedSharding(changes.get("mesh", self.mesh), spec, memory_kind=kind, uneven=uneven)

    def abstract(self) -> NamedSharding:
        """The same split over the AbstractMesh."""
        return NamedSharding(self.mesh.abstract_mesh, self.spec, memory_kind=self.other_memory, uneven=self.uneven)

    def replicated(self, ndim: int) -> NamedSharding:
        """Over the same mesh, no dimension of `ndim` split; one entry for each."""
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * ndim))

    def __repr__(self) -> str:
        kind = f", memory_kind={self.memory_kind}" if self.memory_kind is not None else ""
        kind += ", uneven=True" if self.uneven else ""
        return f"NamedSharding(mesh={self.mesh}, spec={self.spec!r}{kind})"


_SLOTS = putters(
    NamedSharding, "mesh", "spec", "uneven", "memory_kind", "other_memory", "_assignment", "_tilings", "signatures",
    "native", "places",
)  # fmt: skip


def _rebuild_named(mesh: Any, spec: PartitionSpec, memory_kind: str | None, uneven: bool = False) -> NamedSharding:
    return NamedSharding(mesh, spec, memory_kind=memory_kind, uneven=uneven)


def check_spec(mesh: Any, spec: Any) -> None:
    """Raises unless `spec` is a PartitionSpec that fits `mesh`; see NamedSharding."""
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise errors.ShardingTypeError(
            f"the first argument of NamedSharding must be a Mesh or an AbstractMesh. Got {mesh!r} of type {type(mesh)}"
        )
    if not isinstance(spec, PartitionSpec):
        hint = f" Write P{spec!r}." if isinstance(spec, tuple) else " Write it as P(...)."
        raise errors.ShardingTypeError(
            f"the second argument of NamedSharding must be a PartitionSpec. Got {spec!r} of type {type(spec)}.{hint}"
        )
    sums = spec.unreduced or spec.reduced
    sizes, axes = mesh._sizes, spec.axes
    for axis in (*axes, *spec.unreduced, *spec.reduced) if sums else axes:
        if axis not in sizes:
            raise errors.UnknownAxisError(
                f"Resource axis: {axis} of {spec!r} is not found in mesh: {mesh.axis_names}. Use one of its axes, or "
                f"make the mesh with an axis named {axis!r}."
            )
    if len(axes) > 1 and len(set(axes)) != len(axes):
        twice = next(a for a in axes if axes.count(a) > 1)
        raise errors.DuplicateAxisError(
            "A single NamedSharding spec specification can map every mesh axis to at most one positional dimension, "
            f"but {spec!r} has duplicate entries for `{twice}`. Keep one of them."
        )
    if UNCONSTRAINED in spec.partitions and AxisType.Auto not in mesh.axis_types:
        raise errors.ShardingError(
            f"{spec!r} cannot contain `P.UNCONSTRAINED` when no mesh axis_types are `Auto`, as nothing is propagated "
            f"along {mesh}; use None, or make some axes Auto"
        )
    for what in ("unreduced", "reduced") if sums else ():
        bad = [a for a in getattr(spec, what) if mesh._types[a] is AxisType.Auto]
        if bad:
            raise errors.ShardingError(
                f"{what.capitalize()} axes can only refer to mesh axes that are of type `Explicit`, but in {spec!r} "
                f"{bad} are {', '.join(repr(mesh._types[a]) for a in bad)} in {mesh}; make them Explicit with "
                "axis_types=..."
            )


def refuse_manual(sharding: NamedSharding) -> None:
    """ShardingError if the spec names Manual axes: there each device's part is a value of its own, with no whole."""
    manual = [a for a in sharding.spec.axes if sharding.mesh._types[a] is AxisType.Manual]
    if manual:
        raise errors.ShardingError(
            f"{sharding.spec!r} can only refer to Auto axes of the mesh, but {', '.join(map(repr, manual))} "
            f"{'is' if len(manual) == 1 else 'are'} Manual in {sharding.mesh}: Manual axes have a meaning inside "
            "shard_map only; build the mesh with axis_types=(AxisType.Auto, ...)"
        )


class SingleDeviceSharding(Sharding):
    """The whole value on one device.

    Raises:
      ShardingTypeError: `device` is no device. ShardingError: it has no memory of the kind `memory_kind`.

    >>> meshrt.sharding.SingleDeviceSharding(meshrt.devices()[0]).shard_shape((8, 6))
    (8, 6)
    """

    __slots__ = ("_assignment", "device", "memory_kind", "mesh", "other_memory")
    device: Any
    memory_kind: str | None
    other_memory: str | None
    _assignment: tuple[Any, ...]
    _interned: weakref.WeakValueDictionary[Any, SingleDeviceSharding] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __new__(cls, device: Any, *, memory_kind: str | None = None) -> SingleDeviceSharding:
        key = (device, memory_kind)
        found = cls._interned.get(key)
        if found is None:
            if not hasattr(device, "process_index"):
                raise errors.ShardingTypeError(f"SingleDeviceSharding takes a device. Got {device!r}")
            named, other = resolved_kind((device,), memory_kind)
            if named != memory_kind:
                found = cls(device, memory_kind=named)
                with cls._lock:
                    cls._interned[key] = found  # one object, however the default memory is spelled
                return found
            with cls._lock:
                found = cls._interned.get(key)
                if found is None:
                    found = object.__new__(cls)
                    put(
                        found, device=device, mesh=None, memory_kind=named, other_memory=other,
                        _assignment=(device,), signatures={}, native={}, places={},
                    )  # fmt: skip
                    cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_single, (self.device.platform, self.device.id, self.other_memory))

    @property
    def device_assignment(self) -> tuple[Any, ...]:
        return self._assignment

    @property
    def num_devices(self) -> int:
        return 1

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def tiling(self, ndim: int) -> tuple[int, ...]:
        return (1,) * ndim

    def tile_indices(self, ndim: int) -> np.ndarray:
        return np.zeros((1, ndim), np.int64)

    def with_memory_kind(self, kind: str | None) -> SingleDeviceSharding:
        """The same in another memory of the device; ShardingError if it has none of this kind."""
        return SingleDeviceSharding(self.device, memory_kind=kind)

    def __repr__(self) -> str:
        kind = f", memory_kind={self.memory_kind}" if self.memory_kind is not None else ""
        return f"SingleDeviceSharding(device={self.device!r}{kind})"


def make_single_device_sharding(device: Any, memory_kind: str | None = None) -> SingleDeviceSharding:
    """The sharding of a whole value on one device, as `SingleDeviceSharding(device, memory_kind=memory_kind)`, which
    says what is raised.

    >>> meshrt.sharding.make_single_device_sharding(meshrt.devices()[0]).is_fully_replicated
    True
    """
    return SingleDeviceSharding(device, memory_kind=memory_kind)


def _rebuild_single(platform: str, device_id: int, memory_kind: str | None) -> SingleDeviceSharding:
    (device,) = lookup_by_id(platform, (device_id,), "a pickled sharding")
    return SingleDeviceSharding(device, memory_kind=memory_kind)
