"""Where a jitted call runs: one mesh and one list of devices, gathered from everything that names one.

Arguments, `in_shardings`, `out_shardings`, constraints inside the function and the mesh in context must agree on the
devices and their order where they name any. Meshes of several shapes over them have a common mesh that the program is
written for (`meshrt.sharding.common`). An AbstractMesh agrees with any Mesh of its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from meshrt import errors, tree_util
from meshrt._tree_paths import calling
from meshrt.core.types import ShapedArray
from meshrt.pipeline.box_contents import result_of
from meshrt.pipeline.options import JitOptions
from meshrt.pipeline.origins import Origin, made_at, on, said, way_out
from meshrt.pipeline.requested import (
    at_boundary,
    broadcast_in,
    canonical,
    check_added_up,
    check_layout,
    check_memory,
    chooses_layout,
    is_sharding,
    layout_asked,
    memories,
    memory_of,
    own_layout,
    settled,
    untyped,
)
from meshrt.pipeline.several_meshes import check_apart
from meshrt.pipeline.static_arguments import Static, bound
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.pipeline.written import Written, written
from meshrt.primitives.layout_constraint import constrained_layouts
from meshrt.primitives.sharding import Caller
from meshrt.runtime import backend
from meshrt.runtime.array import Array
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.axes import AbstractDevice, AxisType
from meshrt.sharding.common import common_mesh, joint_mesh
from meshrt.sharding.context import context_device, context_source, get_described_mesh
from meshrt.sharding.layout import Format, Layout
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import mesh_of
from meshrt.transforms.arguments import argument_paths
from meshrt.transforms.high import spread_over

__all__ = ["Placement", "Wanted", "resolve"]


class Placement(NamedTuple):
    """The devices of a call: those of a Mesh, one that was named, or the default one; None as long as only an
    AbstractMesh is known."""

    mesh: Mesh | None
    device: Any
    devices: tuple[Any, ...] | None


class Jitted(Protocol):
    """The function that is called, with what `jit` was told of it."""

    @property
    def fun(self) -> Callable[..., Any]: ...

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> JitOptions: ...


def resolve(function: Jitted, leaves: Sequence[Any], avals: Sequence[ShapedArray], tree: Any, static: Static) -> Wanted:
    """What the arguments (without the static ones), the options of `jit` and the context ask for."""
    wanted = Wanted(function, tree, avals, static)
    wanted.add_context()
    wanted.within = wanted.traced_for
    given = broadcast_in(function.name, function.options.in_shardings, tree, wanted.path)
    for i, (leaf, aval) in enumerate(zip(leaves, avals)):
        wanted.add_argument(i, leaf, aval, given[i] if given is not None else None)
    wanted.add_out_shardings(function.options.out_shardings)
    return wanted


class Wanted:
    """Collects meshes and devices with their origins; `finish` checks that they agree."""

    def __init__(self, function: Jitted, tree: Any, avals: Sequence[ShapedArray], static: Static):
        self.function, self.tree, self.avals, self.static = function, tree, avals, static
        self.taken: Sequence[bool] | None = None  # of which arguments it counts where they lie; of all of them
        self.pinned = function.options.place  # the one device that jit was told to run it on
        # Every mesh that was named, with where it was; concrete ones over the same devices may differ in shape.
        self.meshes: dict[AbstractMesh, Any] = {}
        self.has_context = False  # whether the first of them is that in context
        # Whether more than the mesh in context says where the program runs.
        self.is_placed = False
        self.within: AbstractMesh | None = None  # what the context alone would have the function traced for
        self.concrete: Mesh | None = None
        self.concrete_origin: Origin = ""
        # The AbstractMesh in context where the context has no devices: functions are traced for it.
        self.ambient: AbstractMesh | None = None
        # Whether arguments or the context say types along Explicit axes. `in_shardings` and `out_shardings` do not:
        # they say where values lie, and how they are split on the way is found as along Auto axes.
        self.is_typed = False
        # The kinds of device that AbstractMeshes are meant for.
        self.meant: list[tuple[AbstractDevice, Origin]] = []
        self.device: Any = None
        self.device_origin: Origin = ""
        # Of the arguments, as they were written; and canonical.
        self.chosen: list[NamedSharding | None] = []
        self.arg_shardings: list[NamedSharding | None] = []
        # Those of arrays among the arguments as they are, by position, and the meshes of these arrays' types: who is
        # told by `in_shardings` to take an array elsewhere takes it with its type.
        self.committed: dict[int, NamedSharding] = {}
        self.over: dict[int, AbstractMesh] = {}
        self._paths: list[str] | None = None
        # The kinds of memory in which arguments are taken, and results given where that was asked.
        self.arg_memories: list[str] = []
        self.out_memories: tuple[str | None, ...] = ()
        # The layouts that `out_shardings` ask for, by result; empty if none.
        self.layouts: tuple[Layout | None, ...] = ()
        # Those that `in_shardings` ask for, or arguments have; the one device that `out_shardings` name, by result.
        self.arg_layouts: list[Layout | None] = []
        # Of which arguments and results the compiler chooses it.
        self.auto_args: tuple[int, ...] = ()
        self.auto_outs: tuple[int, ...] = ()
        self.singles: dict[int, SingleDeviceSharding] = {}

    @property
    def mesh(self) -> AbstractMesh | None:
        """The mesh that was named first."""
        return next(iter(self.meshes), None)

    @property
    def traced_for(self) -> AbstractMesh | None:
        """The mesh that `get_abstract_mesh` gives inside the function."""
        found = self.mesh if self.meshes else self.ambient
        if found is None or (self.is_typed and len(self.meshes) > 1 and not self.has_context):
            return None  # each type names its own
        return found.abstract_mesh if self.is_typed else untyped(found.abstract_mesh)

    def path(self, i: int) -> str:
        if self._paths is None:
            self._paths = argument_paths(bound(self.function.fun, self.static), self.tree)
        return self._paths[i]

    # -- collecting ----------------------------------------------------------------------------------------------------

    def add_mesh(
        self,
        mesh: Mesh | AbstractMesh,
        origin: Origin,
        is_typing: bool = True,
        is_within: bool = False,
        is_followed: bool = False,
    ) -> None:
        """`origin` is a text or a function that makes it (names of arguments are computed only for errors);
        `is_typing` says whether values have types over the mesh because of it. One that the program `is_within` moves
        its values to is over the devices that they are on. One whose values the program `is_followed` for, those of an
        argument, may differ from that in context: a reshard may take them (`meshrt.pipeline.several_meshes`)."""
        self.is_placed = True
        if isinstance(mesh, Mesh) and mesh.is_scalar:
            return self.add_device(mesh.flat_devices[0], origin)
        abstract = mesh.abstract_mesh
        if is_typing:
            self.note_types(abstract)
        if isinstance(mesh, Mesh):
            if self.concrete is None:
                self.concrete, self.concrete_origin = mesh, origin
            elif self.concrete is not mesh and self.concrete.flat_devices != mesh.flat_devices:
                raise self._incompatible(self.concrete_origin, self.concrete, origin, mesh)
        else:
            self.note_meant(mesh, origin)
        if abstract in self.meshes:
            return
        if isinstance(mesh, Mesh):
            origin = partial(made_at, mesh, origin)
        if not is_typing and self.mesh is not None and abstract.shape_tuple == self.mesh.shape_tuple:
            return  # types of axes are no matter of where values lie
        explicit = self.mesh is not None and AxisType.Explicit in (*abstract.axis_types, *self.mesh.axis_types)
        if explicit and self.has_context and is_typing and not (is_within or is_followed):
            raise self._mismatch(
                abstract, origin, "types are over the mesh in context where Explicit axes are involved"
            )
        if self.meshes and not is_within and not (isinstance(mesh, Mesh) and self.concrete is not mesh):
            self._check_same_places(abstract, origin, explicit)
        self.meshes[abstract] = origin

    def _check_same_places(self, mesh: AbstractMesh, origin: Origin, explicit: bool) -> None:
        """An AbstractMesh is over the devices of the others, in their order, if it has as many: propagation asks how
        values are laid out, not what axes are called. Types along Explicit axes do."""
        assert self.mesh is not None
        if explicit:
            raise self._mismatch(mesh, origin, "an AbstractMesh names no devices, so how the two relate is unknown")
        if mesh.size != self.mesh.size:
            raise self._mismatch(mesh, origin, f"they have {self.mesh.size} and {mesh.size} devices")

    def note_types(self, mesh: AbstractMesh) -> None:
        """Remembers that values have types over a mesh."""
        self.is_typed = self.is_typed or AxisType.Explicit in mesh.axis_types

    def note_meant(self, mesh: AbstractMesh, origin: Origin) -> None:
        """Remembers the kind of device that an AbstractMesh is for."""
        if mesh.abstract_device is not None:
            self.meant.append((mesh.abstract_device, origin))

    def _mismatch(self, mesh: AbstractMesh, origin: Origin, why: str) -> errors.MeshMismatchError:
        first, second = said(next(iter(self.meshes.values()))), said(origin)
        return errors.MeshMismatchError(
            f"{second} uses {mesh}, but {first} uses {self.mesh}: {why}. {way_out(first, second)}"
        )

    def _common(self) -> AbstractMesh | None:
        """The mesh of the program: the one that was named, or one in which all those named can be written, with
        Explicit axes if one of them has some."""
        found = self._one_for_all()
        if len(self.meshes) < 2 or found is None or not any(m.explicit_axes for m in self.meshes):
            return found
        return found.update_axis_types(dict.fromkeys(found.axis_names, AxisType.Explicit))

    def _one_for_all(self) -> AbstractMesh | None:
        found: AbstractMesh | None = None
        for i, (mesh, origin) in enumerate(self.meshes.items()):
            found = common_mesh(list(self.meshes)[: i + 1]) if i else mesh
            if found is None:
                if len({m.size for m in self.meshes}) > 1:
                    sizes = " and ".join(str(m.size) for m in self.meshes)
                    raise self._mismatch(mesh, origin, f"they have {sizes} devices")
                return joint_mesh(list(self.meshes))
        return found

    def add_device(self, device: Any, origin: Origin) -> None:
        if self.device is None:
            self.device, self.device_origin = device, origin
        elif self.device != device:
            raise self._incompatible(self.device_origin, (self.device,), origin, (device,))

    def _incompatible(
        self, one: Origin, its: Mesh | Sequence[Any], other: Origin, others: Mesh | Sequence[Any]
    ) -> errors.DeviceAssignmentMismatchError:
        first, second = said(one), said(other)
        why, fix = "one program runs on one set of devices", way_out(first, second)
        if isinstance(its, Mesh) and isinstance(others, Mesh) and set(its.flat_devices) == set(others.flat_devices):
            why = "these are the same devices in a different order, and one program runs on them in one order"
            fix = (
                f"Make both meshes from one list of devices, or bring the data of {second} into the order of "
                f"{first} before the call: meshrt.device_put(x, NamedSharding(mesh, x.sharding.spec)) with that mesh, "
                "which moves shards between devices"
            )
        return errors.DeviceAssignmentMismatchError(
            f"Received incompatible devices for jitted computation {self.function.name}. Got {first} with {on(its)} "
            f"and {second} with {on(others)}: {why}. {fix}"
        )

    def _check_kinds(self, devices: Sequence[Any]) -> None:
        """Whether the devices are of the kinds that AbstractMeshes were meant for."""
        there = AbstractDevice.of(devices[0])
        for meant, origin in self.meant:
            if (meant.platform, meant.device_kind) != (there.platform, there.device_kind):
                raise errors.DeviceAssignmentMismatchError(
                    f"{said(origin)} is over an AbstractMesh for {meant}, but {self.function.name} runs on {there}; "
                    "build the AbstractMesh for that device, or without abstract_device"
                )

    def add_context(self) -> None:
        # An abstract mesh in context names no devices, so it decides only what PartitionSpecs refer to.
        mesh = mesh_context.concrete
        if mesh is not None and not mesh.empty:
            self.add_mesh(mesh, lambda: f"the mesh in context (set at {context_source()})")
            self.has_context = self.mesh is not None
            self.is_placed = mesh.is_multi_process
        elif mesh_context.abstract is not None:
            self.ambient = get_described_mesh()
        if self.pinned is not None:
            by = "device" if self.function.options.backend is None else "backend"
            self.add_device(self.pinned, f"jit({by}=...)")

    def add_argument(self, i: int, leaf: Any, aval: ShapedArray, given: Any) -> None:
        origin = lambda: f"argument {self.path(i)} of {self.function.name} with shape {aval.short()}"
        sharding = getattr(leaf, "sharding", None) if type(leaf) is Array or not hasattr(leaf, "__array__") else None
        if isinstance(sharding, NamedSharding):
            if sharding.mesh.is_scalar:
                sharding = SingleDeviceSharding(sharding.device_assignment[0])
            elif sharding.mesh.empty:  # a type that says nothing, `meshrt.typeof(x)`
                sharding = None
        committed = isinstance(sharding, Sharding) and (type(leaf) is not Array or leaf.committed)
        chosen: NamedSharding | None = None
        if given is not None and committed and type(leaf) is Array:
            check_layout(given, leaf, origin)
        is_open = getattr(given, "sharding", given) is None  # as a Format may leave it
        if not is_open:
            if type(leaf) is Array:
                check_memory(given, leaf, origin)
            chosen = self._given(given, aval, origin)
            check_added_up(chosen, aval, origin)
        stays = settled(self._there(chosen), given, sharding, aval, origin) if committed and not is_open else sharding
        if committed and self.pinned is None:
            if isinstance(sharding, NamedSharding):
                self.over[i] = sharding.mesh.abstract_mesh
                self.note_types(self.over[i])
            if isinstance(stays, NamedSharding):
                self.committed[i] = stays
                if is_open or (i in self.over and self.over[i].explicit_axes):
                    self.add_mesh(stays.mesh, origin, is_followed=True)
                chosen = stays if is_open else chosen
            elif is_open and isinstance(stays, SingleDeviceSharding):
                self.add_device(stays.device_assignment[0], origin)
        self.chosen.append(chosen)
        self.arg_shardings.append(None if chosen is None else at_boundary(chosen, aval, origin))
        self.arg_memories.append(memory_of(given) or memory_of(sharding) or "device")
        self.arg_layouts.append(layout_asked(given) or (own_layout(leaf) if committed else None))
        if chooses_layout(given, aval):
            self.auto_args += (i,)

    def _there(self, chosen: NamedSharding | None) -> NamedSharding | None:
        """A PartitionSpec that jit was given means the mesh in context, and its devices if it has some."""
        mesh = mesh_context.concrete
        if chosen is None or mesh is None or mesh.empty or chosen.mesh is not mesh.abstract_mesh:
            return chosen
        return chosen.update(mesh=mesh)

    def _given(self, given: Any, aval: ShapedArray, origin: Origin) -> NamedSharding | None:
        """A sharding given to jit as a NamedSharding; a single device is noted and returns None."""
        if isinstance(given, Format):
            if isinstance(given.layout, Layout):
                given.layout.check_rank(aval.shape, said(origin))
            if given.sharding is None:
                return None
            given = given.sharding
        if isinstance(given, PartitionSpec):
            context_mesh = get_described_mesh()
            if self.mesh is None and not context_mesh.empty:
                self.add_mesh(context_mesh, lambda: f"the mesh in context (set at {context_source()})", False)
            if self.mesh is None:
                raise errors.MeshContextError(
                    f"jit requires a non-empty mesh in context if it is given a PartitionSpec, here {given} for "
                    f"{said(origin)}: enter one with `with meshrt.set_mesh(mesh):` or pass NamedSharding(mesh, spec)"
                )
            self.is_placed = True
            try:
                return NamedSharding(self.mesh, given)
            except errors.ShardingError as e:
                raise type(e)(f"jit was given {given} for {said(origin)}: {e}") from None
        if isinstance(given, SingleDeviceSharding) or (isinstance(given, NamedSharding) and given.mesh.is_scalar):
            self.add_device(given.device_assignment[0], origin)
            return None
        if isinstance(given, NamedSharding):
            self.add_mesh(given.mesh, origin, False)
            return given
        raise errors.ArgumentTypeError(
            f"jit takes NamedShardings, PartitionSpecs, Formats or None as shardings, got {given!r} for {said(origin)}"
        )

    def add_out_shardings(self, out_shardings: Any) -> None:
        for s in tree_util.tree_leaves(out_shardings, is_leaf=is_sharding):
            s = s.sharding if isinstance(s, Format) else s
            if isinstance(s, NamedSharding):
                self.add_mesh(s.mesh, f"out_shardings of {self.function.name}", False)

    # -- finishing -----------------------------------------------------------------------------------------------------

    def finish(
        self, record: TraceRecord, places: Mapping[Any, tuple[str, Any]], donated: tuple[bool, ...], ahead: bool
    ) -> tuple[Placement, LoweringRequest, Written]:
        """Where the call runs and what is asked of its trace. `places` are the meshes and devices that the function
        itself names (`meshrt.primitives.sharding.placements_of`). `ahead` of time the device that the AbstractMesh in
        context is meant for says the platform where nothing names a device."""
        if self.ambient is not None and self.ambient.abstract_mesh in places and self.mesh is None:
            self.add_mesh(self.ambient, lambda: f"the mesh in context (set at {context_source()})")
        self.is_placed = self.is_placed or bool(places)
        if self.is_typed:
            check_apart(record.closed.jaxpr, self.over, self.mesh if self.has_context else None, self.meshes)
        for place, (called, where) in places.items():
            if isinstance(place, Mesh):
                self.add_mesh(place, f"{called} at {where}", called in _TYPING)
            elif not isinstance(place, AbstractMesh | Caller):
                self.add_device(place.device_assignment[0], f"{called} at {where}")
        for place, (called, where) in places.items():
            if isinstance(place, AbstractMesh):
                if called in _TYPING:
                    self.note_types(place)
                # That of a constraint asks for no devices, and asks nothing of a program on one device.
                if any(m.shape_tuple == place.shape_tuple for m in self.meshes):
                    self.note_meant(place, f"{called} at {where}")
                    continue  # that of a region where axes have other types
                if self.mesh is not None or called in ("shard_map", "reshard"):
                    self.add_mesh(place, f"{called} at {where}", is_within=called == "reshard")
        known = mesh_of(record.closed.out_avals)
        if known is not None:
            self.note_types(known)
            if self.mesh is None:
                self.add_mesh(known, f"a result of {self.function.name}")
        asked = self._out_shardings(record)
        if self.mesh is not None and self.device is not None and self.concrete is not None:
            if self.concrete.flat_devices != (self.device,):
                raise self._incompatible(
                    self.device_origin, (self.device,), self.concrete_origin, self.concrete.flat_devices
                )
        mesh = self._common()
        placement = self._placement(mesh)
        if placement.devices is not None and self.meant:
            self._check_kinds(placement.devices)
        platform = self._platform(placement, ahead)
        outs = tuple(None if s is None else canonical(s, a) for s, a in zip(asked, record.closed.out_avals))
        written_for = mesh if mesh is None or self.is_typed else untyped(mesh)
        request = LoweringRequest(
            written_for, tuple(self.arg_shardings), outs, donated, platform, self.function.options.keep_unused,
            tuple(self.meshes) if len(self.meshes) > 1 or written_for is not mesh else (),
            self._callers(places, placement), *memories(self.arg_memories, self.out_memories, record.out_avals),
            auto_args=self.auto_args, auto_outs=self.auto_outs,
        )  # fmt: skip
        return placement, request, self._written(record, asked)

    def _callers(self, places: Mapping[Any, tuple[str, Any]], placement: Placement) -> tuple[int, ...]:
        """Where the devices that make calls stand among those of the program."""
        found = []
        for place, (called, where) in places.items():
            if not isinstance(place, Caller):
                continue
            devices = placement.devices
            if devices is None or place.device not in devices:
                which = "of a mesh without devices" if devices is None else f"{[d.id for d in devices]}"
                raise errors.ArgumentValueError(
                    f"Sharding provided to {called} at {where} specifies a device {place.device} that is not in the "
                    f"device assignment of {self.function.name}, which runs on the devices {which}; name one of them, "
                    "or leave sharding= out, and the first one calls"
                )
            found.append(devices.index(place.device))
        return tuple(found)

    def _written(self, record: TraceRecord, asked: tuple[NamedSharding | None, ...]) -> Written:
        keep_unused = self.function.options.keep_unused
        outs = tuple(self.singles.get(i, s) for i, s in enumerate(asked))
        args = tuple(self.chosen) if self.meshes else ()
        layouts = self.layouts, tuple(self.arg_layouts) if any(self.arg_layouts) else ()
        for i, sharding in self.committed.items():
            if keep_unused or record.needed[i]:
                return written(outs, sharding, self.avals[i].ndim, *layouts, args=args)
        return written(outs, None, -1, *layouts, named=self.device is not None, args=args)

    def _platform(self, placement: Placement, ahead: bool) -> str:
        meant = self.meant[0][0] if self.meant else context_device()
        open_ = placement.devices is None or (ahead and self.device is None and self.concrete is None)
        if meant is not None and open_:
            return backend.platform_of(meant)
        return backend.platform_of(placement.devices[0]) if placement.devices else backend.default_platform()

    def _placement(self, mesh: AbstractMesh | None) -> Placement:
        if mesh is not None:
            concrete = self.concrete
            if concrete is None:
                return Placement(None, None, None)
            return Placement(concrete.reshaped(mesh), None, concrete.flat_devices)
        device = self.device if self.device is not None else backend.default_device()
        return Placement(None, self.device, (device,))

    def _out_shardings(self, record: TraceRecord) -> tuple[NamedSharding | None, ...]:
        """What was asked for each result, as it was written; by `jit`, else by the function itself."""
        avals = record.closed.out_avals
        given = self.function.options.out_shardings
        if given is None:
            own = getattr(self.function.fun, "result_shardings", None)
            given = None if own is None else own()
        if given is None:
            self.layouts = constrained_layouts(record.closed.jaxpr)
            return (None,) * len(avals)
        try:
            flat = spread_over(given, result_of(record.out_tree), is_sharding)
            flat += [None] * (len(avals) - len(flat))  # what the function writes to its arguments
        except errors.TreeError as e:
            raise errors.TreeError(
                f"out_shardings of {self.function.name} must be a pytree prefix of its result: "
                f"{calling(e, 'out_shardings')}"
            ) from None
        outs: list[NamedSharding | None] = []
        for i, (s, aval) in enumerate(zip(flat, avals)):
            origin = lambda i=i: f"{record.out_paths()[i]} of {self.function.name}"
            outs.append(None if s is None else self._given(s, aval, origin))
            if outs[-1] is not None:
                at_boundary(outs[-1], aval, origin)  # raises if it does not fit
        layouts = tuple(map(layout_asked, flat))
        self.layouts = layouts if any(layouts) else ()
        self.auto_outs = tuple(i for i, (s, a) in enumerate(zip(flat, avals)) if chooses_layout(s, a))
        self.out_memories = tuple(None if s is None else memory_of(s) or "device" for s in flat)
        bare = enumerate(getattr(s, "sharding", s) for s in flat)
        self.singles = {i: s for i, s in bare if isinstance(s, SingleDeviceSharding)}
        return tuple(outs)


# Those who name a mesh inside of a program because types are over it.
_TYPING = frozenset(("reshard", "shard_map"))
