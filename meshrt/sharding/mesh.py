"""Meshes: devices (or only their number) arranged along named axes.

`Mesh` holds devices, `AbstractMesh` only sizes, names and types. Both are interned: two equal ones are one object,
so comparison is identity. Everything up to the loading of a compiled program is keyed by AbstractMesh alone.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from meshrt import errors
from meshrt.core.naming import wraps
from meshrt.core.source import UNKNOWN, Source, capture
from meshrt.sharding import _state
from meshrt.sharding.axes import AbstractDevice, AxisType, axis_names_of, axis_sizes_of, axis_types_of
from meshrt.sharding.devices import lookup_by_id
from meshrt.sharding.set_once import SetOnce, put
from meshrt.xla import jaxlib_api

__all__ = ["AbstractMesh", "AxisType", "Mesh", "empty_abstract_mesh", "empty_mesh"]


def _replaced_types(mesh: BaseMesh, changes: Mapping[Hashable, AxisType]) -> tuple[AxisType, ...]:
    for name in changes:
        if name not in mesh._sizes:
            raise errors.UnknownAxisError(f"axis {name!r} is not one of {mesh}; its axes are {mesh.axis_names}")
    return tuple(changes.get(n, t) for n, t in zip(mesh.axis_names, mesh.axis_types))


class BaseMesh(SetOnce):
    """What Mesh and AbstractMesh share: names, sizes and types of the axes."""

    # `_shardings` holds the NamedShardings over this mesh by (spec, memory kind), so that they are made once.
    __slots__ = (
        "__weakref__", "_shardings", "_sizes", "_str", "_types", "axis_names", "axis_sizes", "axis_types", "size",
    )  # fmt: skip

    axis_names: tuple[Hashable, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[AxisType, ...]
    size: int
    _sizes: dict[Hashable, int]
    _types: dict[Hashable, AxisType]
    _str: str | None
    _shardings: dict[tuple[Any, ...], Any]

    def _init_axes(self, names: tuple[Hashable, ...], sizes: tuple[int, ...], types: tuple[AxisType, ...]) -> None:
        put(
            self, axis_names=names, axis_sizes=sizes, axis_types=types, size=self._size_of(sizes),
            _sizes=dict(zip(names, sizes)), _types=dict(zip(names, types)), _str=None, _shardings={},
        )  # fmt: skip

    def _size_of(self, sizes: tuple[int, ...]) -> int:
        return math.prod(sizes) if sizes else 0

    @property
    def shape(self) -> OrderedDict[Hashable, int]:
        """Axis name -> size, in order."""
        return OrderedDict(zip(self.axis_names, self.axis_sizes))

    @property
    def shape_tuple(self) -> tuple[tuple[Hashable, int], ...]:
        """((name, size), ...)."""
        return tuple(zip(self.axis_names, self.axis_sizes))

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.axis_names)

    @property
    def empty(self) -> bool:
        """Whether the mesh has neither axes nor devices."""
        return self.size == 0

    @property
    def is_scalar(self) -> bool:
        """Whether the mesh is one device without axes."""
        return self.size == 1 and not self.axis_names

    def axis_size(self, name: Hashable) -> int:
        """Size of one axis. UnknownAxisError if there is none of that name."""
        try:
            return self._sizes[name]
        except KeyError:
            raise errors.UnknownAxisError(f"axis {name!r} is not one of {self}") from None

    @property
    def abstract_device(self) -> AbstractDevice | None:
        """The kind of device that the mesh consists of or is meant for; None if that is open, or if they differ."""
        return None

    @property
    def _name_to_type(self) -> dict[Hashable, AxisType]:
        return dict(self._types)

    def _axes_of(self, kind: AxisType) -> tuple[Hashable, ...]:
        return tuple(n for n, t in zip(self.axis_names, self.axis_types) if t is kind)

    @property
    def auto_axes(self) -> tuple[Hashable, ...]:
        """The names of the axes along which propagation decides shardings."""
        return self._axes_of(AxisType.Auto)

    @property
    def explicit_axes(self) -> tuple[Hashable, ...]:
        """The names of the axes that stand in the types of values."""
        return self._axes_of(AxisType.Explicit)

    @property
    def manual_axes(self) -> tuple[Hashable, ...]:
        """The names of the axes along which each device runs code of its own (`shard_map`)."""
        return self._axes_of(AxisType.Manual)

    def _all(self, kind: AxisType) -> bool:
        return bool(self.axis_types) and all(t is kind for t in self.axis_types)

    @property
    def are_all_axes_auto(self) -> bool:
        return self._all(AxisType.Auto)

    @property
    def are_all_axes_explicit(self) -> bool:
        return self._all(AxisType.Explicit)

    @property
    def are_all_axes_manual(self) -> bool:
        return self._all(AxisType.Manual)

    def _any(self, *kinds: AxisType) -> bool:
        return any(t in kinds for t in self.axis_types)

    # JAX's names, which scripts use.
    _any_axis_auto = property(lambda self: self._any(AxisType.Auto))
    _any_axis_explicit = property(lambda self: self._any(AxisType.Explicit))
    _any_axis_manual = property(lambda self: self._any(AxisType.Manual))
    _any_axis_auto_or_manual = property(lambda self: self._any(AxisType.Auto, AxisType.Manual))
    _are_all_axes_explicit_or_manual = property(
        lambda self: bool(self.axis_types) and not self._any(AxisType.Auto)
    )  # fmt: skip

    def __str__(self) -> str:
        if self._str is None:
            axes = ", ".join(f"{n!r}: {s}" for n, s in zip(self.axis_names, self.axis_sizes))
            self._str = f"{type(self).__name__}({self._repr_of_axes(axes)}{self._repr_of_device()})"
        return self._str

    __repr__ = __str__

    def _repr_of_axes(self, axes: str) -> str:
        return f"{axes}, axis_types={self.axis_types!r}" if axes else ""

    def _repr_of_device(self) -> str:
        return ""


class AbstractMesh(BaseMesh):
    """Names, sizes and types of axes, without devices.

    >>> AbstractMesh((4, 2), ("data", "model"))
    AbstractMesh('data': 4, 'model': 2, axis_types=(Auto, Auto))

    The older form `AbstractMesh((("data", 4), ("model", 2)))` is accepted. All axes are Auto unless said otherwise.

    `abstract_device` names the kind of device that the mesh is meant for: programs staged under the mesh are lowered
    for its platform, and devices of another kind are refused. It is no part of any key: `abstract_mesh` is the mesh
    without it, the same object as that of a Mesh of these axes.

    Raises:
      MeshError: a name that is None or stands twice, a size that is no positive int, not one size and type for each
        axis; later, when asked for devices. ShardingTypeError: something else than AxisTypes, an AbstractDevice or
        pairs.
    """

    __slots__ = ("_device", "_plain")
    _interned: weakref.WeakValueDictionary[Any, AbstractMesh] = weakref.WeakValueDictionary()
    _lock = threading.RLock()

    _device: AbstractDevice | None
    _plain: AbstractMesh | None

    def __new__(
        cls,
        axis_sizes: Any,
        axis_names: Any = None,
        axis_types: Any = None,
        *,
        abstract_device: AbstractDevice | None = None,
    ) -> AbstractMesh:
        if axis_names is None:
            axis_sizes, axis_names = _split_pairs(axis_sizes)
        names = axis_names_of(axis_names)
        sizes = axis_sizes_of(axis_sizes)
        types = axis_types_of(axis_types, names, "AbstractMesh")
        if len(sizes) != len(names):
            raise errors.MeshError(
                f"AbstractMesh needs one size per axis, but got axis_sizes={sizes} and axis_names={names}"
            )
        if abstract_device is not None and not isinstance(abstract_device, AbstractDevice):
            raise errors.ShardingTypeError(
                f"abstract_device of an AbstractMesh must be a meshrt.sharding.AbstractDevice. Got {abstract_device!r}"
            )
        key = (names, sizes, types, abstract_device)
        with cls._lock:
            found = cls._interned.get(key)
            if found is None:
                found = object.__new__(cls)
                found._init_axes(names, sizes, types)
                plain = None if abstract_device is None else AbstractMesh(sizes, names, types)
                put(found, _device=abstract_device, _plain=plain)
                cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_abstract, (self.axis_sizes, self.axis_names, self.axis_types, self._device))

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without its abstract device, which is what programs are keyed by; itself if it has none."""
        return self if self._plain is None else self._plain

    @property
    def abstract_device(self) -> AbstractDevice | None:
        """The kind of device that the mesh is meant for; None if that is open."""
        return self._device

    def _repr_of_axes(self, axes: str) -> str:
        return f"{axes or '()'}, axis_types={self.axis_types!r}"

    def _repr_of_device(self) -> str:
        return "" if self._device is None else f", {self._device.describe()}"

    def update(
        self, axis_sizes: Any = None, axis_names: Any = None, axis_types: Any = None, **changes: Any
    ) -> AbstractMesh:
        """A mesh with some of these, or `abstract_device`, replaced. What is raised is what `AbstractMesh` raises."""
        return AbstractMesh(
            self.axis_sizes if axis_sizes is None else axis_sizes,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
            abstract_device=changes.pop("abstract_device", self._device),
            **changes,
        )

    def update_axis_types(self, changes: Mapping[Hashable, AxisType]) -> AbstractMesh:
        """A mesh whose axes named in `changes` have other types. UnknownAxisError for a name that is no axis."""
        return self.update(axis_types=_replaced_types(self, changes))

    def _not_here(
        self, what: str, instead: str = "use a `meshrt.sharding.Mesh`, as from `meshrt.make_mesh`"
    ) -> NoReturn:
        raise errors.MeshError(f"AbstractMesh does not implement {what}, as it has no devices; {instead}")

    devices = property(lambda self: self._not_here("devices"))
    device_ids = property(lambda self: self._not_here("device_ids"))
    local_devices = property(lambda self: self._not_here("local_devices"))
    local_mesh = property(lambda self: self._not_here("local_mesh"))
    is_multi_process = property(lambda self: self._not_here("is_multi_process"))

    @property
    def _internal_device_list(self) -> None:
        return None

    def __enter__(self) -> NoReturn:
        self._not_here("__enter__", "use `with meshrt.sharding.use_abstract_mesh(mesh):`")

    def __exit__(self, *_: object) -> NoReturn:
        self._not_here("__exit__", "use `with meshrt.sharding.use_abstract_mesh(mesh):`")


def _rebuild_abstract(sizes: Any, names: Any, types: Any, device: AbstractDevice | None) -> AbstractMesh:
    return AbstractMesh(sizes, names, types, abstract_device=device)


def _split_pairs(pairs: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    ok = isinstance(pairs, Sequence) and all(isinstance(p, Sequence) and len(p) == 2 for p in pairs)
    if not ok:
        raise errors.ShardingTypeError(
            "AbstractMesh takes axis_sizes and axis_names, as in AbstractMesh((4, 2), ('x', 'y')), or one tuple of "
            f"(name, size) pairs. Got {pairs!r}"
        )
    return tuple(s for _, s in pairs), tuple(n for n, _ in pairs)


class Mesh(BaseMesh):
    """Devices arranged along named axes.

    >>> print(Mesh(np.array(meshrt.devices()).reshape(4, 2), ("data", "model")))
    Mesh('data': 4, 'model': 2, axis_types=(Auto, Auto))

    Devices may be any hashable objects as long as nothing is run on them. `with mesh:`, or `mesh` as a decorator,
    makes it the mesh of the context, as `set_mesh` does.

    Args:
      devices: an array or nested sequences of devices, with a dimension for each axis.
      axis_names: one name, or a sequence of them.
      axis_types: one AxisType for each axis, or one for all; all Auto by default.

    Raises:
      MeshError: not one name for each dimension, a name that is None or stands twice, no devices, a device twice, or
        not one type for each axis.
      ShardingTypeError: types that are no AxisTypes, or devices that cannot be hashed.
      MeshContextError: `with mesh:` inside a traced function.
    """

    # `source` is the user's line that made the mesh first, for messages.
    __slots__ = ("_abstract", "_devices", "_entered", "flat_devices", "source")
    _interned: weakref.WeakValueDictionary[Any, Mesh] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    flat_devices: tuple[Any, ...]
    source: Source
    _devices: np.ndarray
    _abstract: AbstractMesh
    _entered: threading.local

    def __new__(cls, devices: Any, axis_names: Any, axis_types: Any = None) -> Mesh:
        array = np.array(devices, dtype=object)  # a copy: a mesh never changes
        names = axis_names_of(axis_names)
        types = axis_types_of(axis_types, names, "Mesh")
        if array.ndim != len(names):
            raise errors.MeshError(
                "Mesh requires the ndim of its first argument (`devices`) to equal the length of its second argument "
                f"(`axis_names`), but got devices.ndim == {array.ndim} and len(axis_names) == {len(names)}. "
                "Reshape the devices, or use meshrt.make_mesh(axis_shapes, axis_names)."
            )
        flat = tuple(array.flat)
        if not names and flat == (None,):  # np.empty((), object)
            return empty_mesh
        _check_devices(flat, array.shape)
        key = (flat, array.shape, names, types)
        with cls._lock:
            found = cls._interned.get(key)
            if found is None:
                found = object.__new__(cls)
                array.flags.writeable = False
                plain = AbstractMesh(array.shape, names, types) if names else empty_abstract_mesh
                entered, source = threading.local(), capture()
                put(found, _devices=array, flat_devices=flat, _abstract=plain, _entered=entered, source=source)
                found._init_axes(names, array.shape, types)
                cls._interned[key] = found
        return found

    def _size_of(self, sizes: tuple[int, ...]) -> int:
        return len(self.flat_devices)  # one, where there is one device and no axes

    def __repr__(self) -> str:
        types = f", axis_types={self.axis_types!r}" if self.axis_names else ""
        return f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names!r}{types})"

    @property
    def devices(self) -> np.ndarray:
        """The devices, a read-only object array of the mesh's shape."""
        return self._devices

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The same axes without devices."""
        return self._abstract

    @property
    def abstract_device(self) -> AbstractDevice | None:
        """The kind of device that the mesh consists of; None if they differ."""
        kinds = {AbstractDevice.of(d) for d in self.flat_devices}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def loose_key(self) -> Any:
        """What calls under `with mesh:` are keyed by, whose results are committed to less than under `set_mesh`."""
        return self._entered

    # JAX's names, which scripts use.
    _flat_devices_tuple = property(lambda self: self.flat_devices)
    _flat_devices_set = property(lambda self: set(self.flat_devices))
    _local_devices_set = property(lambda self: set(self.local_devices))

    @property
    def _internal_device_list(self) -> Any:
        """jaxlib's list of the devices, one object for all meshes over them. ShardingTypeError of mock devices."""
        for d in self.flat_devices:
            if not isinstance(d, jaxlib_api.Device):
                raise errors.ShardingTypeError(f"{self} holds {d!r}, which is no device of a runtime")
        return jaxlib_api.device_list(self.flat_devices)

    @property
    def device_ids(self) -> np.ndarray:
        """The ids of the devices, in the mesh's shape."""
        return np.array([d.id for d in self.flat_devices]).reshape(self.axis_sizes)

    @property
    def local_devices(self) -> list[Any]:
        """The devices of this process, in mesh order."""
        return [d for d in self.flat_devices if d.process_index == d.client.process_index()]

    @property
    def is_multi_process(self) -> bool:
        """Whether devices of several processes take part."""
        return len(self.local_devices) != len(self.flat_devices)

    @property
    def local_mesh(self) -> Mesh:
        """The part of this process. MeshError if it has none of the devices, or they are no contiguous block."""
        here = self.flat_devices[0].client.process_index() if self.flat_devices else 0
        mine = np.array([d.process_index == here for d in self.flat_devices]).reshape(self.axis_sizes)
        if not mine.any():
            raise errors.MeshError(f"none of the devices of {self} belongs to this process ({here})")
        ranges = [np.flatnonzero(mine.any(axis=tuple(a for a in range(mine.ndim) if a != i))) for i in range(mine.ndim)]
        block = np.ix_(*[np.arange(r[0], r[-1] + 1) for r in ranges])
        if not mine[block].all() or mine[block].size != mine.sum():
            raise errors.MeshError(
                f"the devices connected to a single host must form a contiguous subcube of the global device mesh for "
                f"local_mesh, but those of process {here} are not one in {self}; order the devices by process"
            )
        return Mesh(self._devices[block], self.axis_names, self.axis_types)

    def reshaped(self, axes: AbstractMesh) -> Mesh:
        """The same devices in the same order along other axes, which must be of as many devices."""
        if axes is self._abstract:
            return self
        return Mesh(self._devices.reshape(axes.axis_sizes), axes.axis_names, axes.axis_types)

    def update(self, devices: Any = None, axis_names: Any = None, axis_types: Any = None) -> Mesh:
        """A mesh with some of these replaced. What is raised is what `Mesh` raises."""
        return Mesh(
            self._devices if devices is None else devices,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
        )

    def update_axis_types(self, changes: Mapping[Hashable, AxisType]) -> Mesh:
        """A mesh whose axes named in `changes` have other types. UnknownAxisError for a name that is no axis."""
        return Mesh(self._devices, self.axis_names, _replaced_types(self, changes))

    def __reduce__(self) -> tuple[Any, ...]:
        if not all(isinstance(d, jaxlib_api.Device) for d in self.flat_devices):
            return (Mesh, (self._devices, self.axis_names, self.axis_types))
        platform = self.flat_devices[0].platform if self.flat_devices else None
        ids = tuple(d.id for d in self.flat_devices)
        return (_unpickle, (platform, ids, self.axis_sizes, self.axis_names, self.axis_types))

    def __enter__(self) -> Mesh:
        if _state.context.tracing:
            raise errors.MeshContextError(
                "`with mesh:` can only be used outside of `meshrt.jit`. Set the mesh around the call of the function."
            )
        previous = _state.context.swap(self, self._abstract, capture(), False, loose=True)
        self._entered.__dict__.setdefault("stack", []).append(previous)
        return self

    def __exit__(self, *_: object) -> None:
        _state.context.swap(*self._entered.stack.pop())

    def __call__(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """`fun` with this mesh as the mesh of the context during its calls."""

        @wraps(fun)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fun(*args, **kwargs)

        return call


def _check_devices(flat: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise errors.MeshError(f"a mesh needs at least one device, but devices has shape {shape}")
    try:
        different = len(set(flat))
    except TypeError:
        raise errors.ShardingTypeError(f"the devices of a mesh must be hashable. Got {flat!r}") from None
    if different != len(flat):
        twice = next(d for d in flat if flat.count(d) > 1)
        raise errors.MeshError(f"a mesh holds each device once, but {twice} stands in it twice")


def _unpickle(
    platform: str | None,
    ids: tuple[int, ...],
    sizes: tuple[int, ...],
    names: tuple[Hashable, ...],
    types: tuple[AxisType, ...],
) -> Mesh:
    if platform is None:
        return empty_mesh
    devices = np.array(lookup_by_id(platform, ids, "a pickled mesh"), dtype=object)
    return Mesh(devices.reshape(sizes), names, types)


empty_abstract_mesh = AbstractMesh((), ())
empty_mesh = object.__new__(Mesh)
empty_mesh._devices, empty_mesh.flat_devices = np.empty((0,), dtype=object), ()
empty_mesh._init_axes((), (), ())
empty_mesh._abstract, empty_mesh._entered, empty_mesh.source = empty_abstract_mesh, threading.local(), UNKNOWN
