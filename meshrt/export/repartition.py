"""Exported functions over meshes of other sizes: 8 devices for 4, for 1, or 2 for 8.

What is stored is the program before it was split, so it says over which axes values are split, and not into how many
parts. Over another mesh only the sizes of the axes are others. Axes are the axes of their names; if the meshes have
none in common, those in the same places. Axes that the other mesh does not have split nothing, and what it has besides
is free for propagation. What devices do by themselves is written for their number, and is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxlib.mlir import ir

from meshrt import config, errors
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.core.types import ShapedArray
from meshrt.export.artifact import newest_version, read_artifact, write_artifact
from meshrt.export.record import Record, argument_names, split_types
from meshrt.lowering.legalize import operations
from meshrt.pipeline.keys import keep_latest
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, axes_of
from propagation.ops import COMMUNICATING, having
from propagation.sdy_text import axes_in, mesh_text, read_mesh

__all__ = ["Axes", "check_boundary", "over_mesh", "repartitioned", "require_mesh"]

R = TypeVar("R", bound=Record)

# For axes of the exported mesh, which axis of another they are; None for those that split nothing there.
Axes = Mapping[Hashable, Hashable | None]

# Operations that are written for so many devices.
_OF_DEVICES = {
    **dict.fromkeys(COMMUNICATING, "a collective"),
    **dict.fromkeys(having("device_id"), "a device's number"),
    "sdy.manual_computation": "a shard_map",
}


def over_mesh(exported: R, mesh: Mesh | AbstractMesh | None) -> R:
    """The exported function for a call over a mesh, or on one device without a mesh: itself where it is for as many
    devices, which then are the same devices under other names, or says nothing of devices.

    Raises:
      As `repartitioned`.
    """
    count = 1 if mesh is None else _devices(mesh)
    return exported if exported.nr_devices in (1, count) else repartitioned(exported, mesh)


def require_mesh(mesh: Any, where: str) -> AbstractMesh:
    """The axes of a mesh. ArgumentTypeError for what is none, given to the method `where`."""
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise errors.ArgumentTypeError(
            f"{where} takes a Mesh or an AbstractMesh, such as AbstractMesh((4,), ('data',)). Got {mesh!r}"
        )
    return mesh.abstract_mesh


def _devices(mesh: Mesh | AbstractMesh) -> int:
    """One where there are no axes: on no mesh, or in a region where all are Manual."""
    return math.prod(mesh.axis_sizes)


def repartitioned(exported: R, mesh: Mesh | AbstractMesh | None, axes: Axes | None = None) -> R:
    """The exported function over a mesh of other sizes, once for equal ones.

    Raises:
      MeshMismatchError: the module is written for its number of devices, or splits over parts of axes.
      IndivisibleError: a size does not divide into the parts that it has there.
      ArgumentValueError: `axes` names an axis that is not there, or one twice.
      UnsupportedError: the module has shardings over meshes with other axes than its own.
    """
    mesh = AbstractMesh((), ()) if mesh is None else mesh.abstract_mesh
    if exported.mesh is None:
        return exported
    key = mesh, None if axes is None else tuple(axes.items())
    found: R | None = exported.repartitioned.get(key)
    if found is None:
        found = exported.repartitioned[key] = _made(exported, mesh, axes)
        keep_latest(exported.repartitioned, config.settings.cached_traces)
    return found


def _made(exported: R, mesh: AbstractMesh, axes: Axes | None) -> R:
    assert exported.mesh is not None
    sizes = _Sizes.of(exported, exported.mesh, mesh, axes)
    if tuple(sizes.named.items()) == exported.mesh.shape_tuple:
        return exported
    ins, outs = (tuple(map(sizes.sharding, s)) for s in (exported.in_shardings, exported.out_shardings))
    module = read_artifact(exported.mlir_module_serialized, trusted=exported._is_trusted)
    _resize(module, sizes)
    version = exported.stablehlo_version or newest_version()  # files of JAX's do not say theirs
    found = dataclasses.replace(
        exported,
        in_avals=split_types([a.update(sharding=None) for a in exported.in_avals], ins),
        out_avals=split_types([a.update(sharding=None) for a in exported.out_avals], outs),
        in_shardings=ins, out_shardings=outs, nr_devices=_devices(mesh), executables=(),
        mlir_module_serialized=write_artifact(str(module.operation.get_asm(enable_debug_info=True)), version),
        stablehlo_version=version,
        mesh=sizes.mesh(exported.mesh) if mesh.axis_names else None,
        is_repartitioned=True,
        _get_vjp=(lambda _: repartitioned(exported.vjp(), mesh, axes)) if exported.has_vjp() else None,
    )  # fmt: skip
    check_boundary(found, found.in_avals, found.out_avals)
    return found


@dataclass(frozen=True)
class _Sizes:
    """The sizes that axes have over another mesh, in its order: under their own names, and those that it has besides.
    Axes of the exported mesh that are not among them split nothing."""

    exported: Record
    own: AbstractMesh
    named: Mapping[Hashable, int]

    @staticmethod
    def of(exported: Record, own: AbstractMesh, mesh: AbstractMesh, axes: Axes | None) -> _Sizes:
        if axes is None:
            shared = [n for n in own.axis_names if n in mesh.axis_names]
            meant = list(zip(shared, shared) if shared else zip(own.axis_names, mesh.axis_names))
        else:
            meant = [(n, there) for n, there in axes.items() if there is not None]
        back = {there: n for n, there in meant}
        known = set(back) <= set(mesh.axis_names) and set(axes or ()) <= set(own.axis_names)
        if not known or len(back) < len(meant):
            raise errors.ArgumentValueError(
                f"axes={axes!r} of {exported.fun_name}: it names for axes of {own}, the function's, the ones that they "
                f"are in {mesh}, different ones, or None for those that split nothing there"
            )
        taken = set(own.axis_names)
        named: dict[Hashable, int] = {}
        for there, size in mesh.shape_tuple:
            name = back.get(there, there)
            while there not in back and name in taken:
                name = f"{name}_"
            taken.add(name)
            named[name] = size
        return _Sizes(exported, own, named)

    def mesh(self, of: AbstractMesh) -> AbstractMesh:
        """A mesh of these sizes; axes have the types that they have in `of`, which has those of the function's."""
        if set(of.axis_names) != set(self.own.axis_names):
            raise errors.UnsupportedError(
                f"{self.exported.fun_name} has shardings over {of} beside its mesh {self.own}, and can be called on "
                f"{self.own.size} devices only: export it with shardings over one mesh"
            )
        others = AxisType.Auto if AxisType.Auto in of.axis_types else of.axis_types[0]
        types = tuple(of._types.get(n, others) for n in self.named)
        return AbstractMesh(tuple(self.named.values()), tuple(self.named), types)

    def sharding(self, sharding: NamedSharding | None) -> NamedSharding | None:
        if sharding is None or not self.named:
            return None
        mesh, spec = self.mesh(sharding.mesh.abstract_mesh), sharding.spec
        is_open = AxisType.Auto in mesh.axis_types

        def kept(axes: Iterable[Hashable]) -> tuple[Hashable, ...]:
            return tuple(a for a in axes if a in self.named)

        def entry(e: Any) -> Any:
            return (e if is_open else None) if e is UNCONSTRAINED else kept(axes_of(e)) or None

        sums = {k: frozenset(kept(getattr(spec, k))) for k in ("unreduced", "reduced")}
        return sharding.update(mesh=mesh, spec=spec.update(partitions=[entry(e) for e in spec.partitions], **sums))

    @property
    def devices(self) -> int:
        return math.prod(self.named.values())

    def refused(self, why: str) -> errors.MeshMismatchError:
        """What is raised where the module cannot mean the same over these sizes."""
        count = self.own.size
        if self.devices == count:
            there = ", ".join(f"{name!r}: {size}" for name, size in self.named.items())
            said = f"over {self.own} and is asked for over axes ({there})"
        else:
            said = f"for {count} devices and is called in a context with {self.devices} devices"
        return errors.MeshMismatchError(
            f"Function {self.exported.fun_name} was exported {said}, which is not allowed as {why}. Place its "
            f"arguments on a mesh of {count} devices, with exported.in_shardings_jax(mesh), or export it for this mesh"
        )


# ---------------------------------------------------------------------------------------------------------------------
# The module


def _resize(module: ir.Module, sizes: _Sizes) -> None:
    """Gives the meshes of a module these sizes, in place. Axes that split nothing have the size 1.

    Raises:
      MeshMismatchError, UnsupportedError as `repartitioned`.
    """
    own = dict(sizes.own.shape_tuple)
    gone = [n for n in own if n not in sizes.named]
    with module.context:
        for op in operations(module):
            if op.name in _OF_DEVICES:
                raise sizes.refused(f"it has {_OF_DEVICES[op.name]} ({op.name}), which is written for its devices")
            if op.name == "sdy.mesh":
                names = _axes_of_mesh(op, sizes)
                kept = [n for n in (*sizes.named, *gone) if n in names or (set(names) == set(own) and n not in own)]
                text = mesh_text((str(n), sizes.named.get(n, 1)) for n in kept)
                op.attributes["mesh"] = ir.Attribute.parse(f"#sdy.mesh{text}")
            else:
                _check_attributes(op, sizes)
        if "mhlo.num_partitions" in module.operation.attributes:
            module.operation.attributes["mhlo.num_partitions"] = ir.Attribute.parse(f"{sizes.devices} : i32")


def _axes_of_mesh(op: Any, sizes: _Sizes) -> list[str]:
    found = read_mesh(str(op.attributes["mesh"]))
    if found.device_ids is not None or any(sizes.own.shape.get(n) != k for n, k in found.axes):
        raise errors.UnsupportedError(
            f"{sizes.exported.fun_name} has a mesh {op.attributes['mesh']!s} beside that of its function, "
            f"{sizes.own}, and can be called on {sizes.own.size} devices only: export it with shardings over one mesh"
        )
    return [n for n, _ in found.axes]


def _check_attributes(op: Any, sizes: _Sizes) -> None:
    """MeshMismatchError where an attribute names a part of an axis, or writes out a mesh."""
    for i in range(len(op.attributes)):
        text = str(op.attributes[i].attr)
        if "#sdy" not in text:
            continue
        part = next((a for a in axes_in(text) if a.size is not None and a.name in sizes.own.shape), None)
        if part is not None:
            raise sizes.refused(f"it splits values over a part of the axis {part.name!r}, {text}")
        if "<mesh<" in text:
            raise sizes.refused(f"it writes a mesh out, {text}")


# ---------------------------------------------------------------------------------------------------------------------
# Whether sizes divide


def check_boundary(exported: Record, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> None:
    """Whether arguments and results of these types divide into the parts that they have over the mesh, as `jit` asks;
    it takes constraints inside as they are. Symbolic sizes are left to calls. IndivisibleError names the value."""
    names = argument_names(exported.in_tree), [f"result {i}" for i in range(len(outs))]
    for where, avals, shardings in zip(names, (ins, outs), (exported.in_shardings, exported.out_shardings)):
        for name, aval, sharding in zip(where, avals, shardings, strict=True):
            if sharding is None or is_symbolic_shape(aval.shape):
                continue
            try:
                sharding.shard_shape(aval.shape)
            except errors.IndivisibleError as e:
                raise errors.IndivisibleError(
                    f"{name} of {exported.fun_name} cannot be sharded so over {exported.mesh}: {e}"
                ) from None
