"""The mesh that a call of `shard_map` is over, and the axes that it makes Manual: what was given, or is in context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core.source import capture
from meshrt.primitives.shard_map_region import Region
from meshrt.primitives.shard_map_specs import check_specs
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import context_source, get_abstract_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.spec import Infer

__all__: list[str] = []


class Mapped(NamedTuple):
    """A function and what `shard_map` was told of it."""

    fun: Callable[..., Any]
    mesh: Any
    in_specs: Any
    out_specs: Any
    axis_names: Any
    check_vma: bool
    reshard_inputs: bool
    called: str


def region_of(mapped: Mapped) -> Region:
    """The mesh and the axes of a call. Raises for those that do not fit the context, and for specs of other axes."""
    mesh = _mesh(mapped)
    names = mapped.axis_names
    if not isinstance(names, frozenset | set):
        raise errors.ArgumentTypeError(
            f"`axis_names` argument of shard_map should be of type `frozenset` or `set`. Got type: {type(names)}"
        )
    manual = frozenset(names) or frozenset(mesh.axis_names)
    if not manual <= set(mesh.axis_names):
        raise errors.ArgumentValueError(
            f"meshrt.{mapped.called} requires axis_names={set(manual)} to be a subset of "
            f"mesh.axis_names={mesh.axis_names}"
        )
    already = [a for a in mesh.axis_names if a in names and mesh._types[a] is AxisType.Manual]
    if already:
        raise errors.ArgumentValueError(
            f"{mapped.called} at {capture()} is to make {', '.join(map(repr, already))} manual, which an enclosing "
            f"shard_map has done already ({mesh}); leave {'it' if len(already) == 1 else 'them'} out of axis_names"
        )
    manual = frozenset(a for a in manual if mesh._types[a] is not AxisType.Manual)
    if mapped.in_specs is Infer:
        other = [a for a in manual if mesh._types[a] is not AxisType.Explicit]
        if other:
            kinds = ", ".join(str(mesh._types[a]) for a in other)
            what = "in_axes was not specified" if mapped.called == "smap" else (
                "shard_map in_specs argument must be a pytree of `meshrt.sharding.PartitionSpec` instances, but it was "
                "not given"
            )  # fmt: skip
            raise errors.ArgumentTypeError(
                f"{what} when axis_names={sorted(map(str, manual))} are of type {kinds}; specs can be read from the "
                "types of arguments over Explicit axes only"
            )
    else:
        check_specs("in_specs", mapped.in_specs, mesh, manual)
    check_specs("out_specs", mapped.out_specs, mesh, manual)
    new = tuple(str(a) for a in mesh.axis_names if a in manual)
    return Region(mesh, new, bool(mapped.check_vma))


def region_over(mesh: Mesh | AbstractMesh) -> Region:
    """The region of a body that is written for one device of a mesh, all of whose axes are Manual in it."""
    return region_of(Mapped(region_over, mesh, (), (), frozenset(), True, False, "core_map"))


def _mesh(mapped: Mapped) -> Mesh | AbstractMesh:
    around = get_abstract_mesh()
    mesh = mapped.mesh
    if mesh is None:
        if around.empty:
            raise errors.MeshContextError(
                "The context mesh cannot be empty. Use `meshrt.set_mesh(mesh)` to enter into a mesh context, or pass "
                f"mesh= to {mapped.called} (called at {capture()})"
            )
        concrete = mesh_context.concrete
        if concrete is not None and concrete.abstract_mesh is around:
            return concrete.abstract_mesh
        return around
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise errors.ArgumentTypeError(
            "shard_map requires a `meshrt.sharding.Mesh` or a `meshrt.sharding.AbstractMesh` instance for its mesh "
            f"argument, but got {mesh!r} of type {type(mesh)}"
        )
    if mesh.empty:
        raise errors.MeshError(f"shard_map requires a non-empty mesh. Got {mesh!r}")
    if around.empty or around is mesh.abstract_mesh:
        return mesh
    if around.manual_axes and around.shape_tuple == mesh.shape_tuple:
        return around  # inside another shard_map over this mesh
    if around.manual_axes or context_source() is not None:
        where = f", set at {context_source()}" if context_source() is not None else ""
        raise errors.MeshMismatchError(
            f"The context mesh {around!r}{where} should match the mesh passed to shard_map {mesh} at {capture()}; "
            "leave the argument out, or enter the mesh with `with meshrt.set_mesh(mesh):`"
        )
    return mesh
