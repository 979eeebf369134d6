"""Meshes and shardings as JSON, for files. Axes are named by strings there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshrt import errors
from meshrt.sharding.axes import AxisType
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, UnreducedKind

__all__ = ["mesh_from_data", "mesh_to_data", "row_to_data", "sharding_from_data", "sharding_to_data"]

_OPEN = {"open": True}


def mesh_to_data(mesh: AbstractMesh) -> dict[str, Any]:
    """Names, sizes and types of the axes. UnsupportedError if a name is not a string."""
    return {
        "names": _names(mesh.axis_names),
        "sizes": list(mesh.axis_sizes),
        "types": [t.name for t in mesh.axis_types],
    }


def mesh_from_data(data: Mapping[str, Any]) -> AbstractMesh:
    """The mesh that `mesh_to_data` wrote. KeyError, TypeError or ValueError if `data` is none."""
    types = tuple(AxisType[t] for t in data["types"])
    return AbstractMesh(tuple(data["sizes"]), tuple(_names(data["names"])), types)


def sharding_to_data(sharding: NamedSharding) -> dict[str, Any]:
    """All but the mesh. UnsupportedError if an axis is not named by a string."""
    spec = sharding.spec
    kind = spec.unreduced_kind
    return {
        "dims": [_entry(e) for e in spec.partitions],
        "unreduced": sorted(_names(spec.unreduced)),
        "reduced": sorted(_names(spec.reduced)),
        "kind": None if kind is None else kind.name,
        "memory": sharding.other_memory,
        "uneven": sharding.uneven,
    }


def row_to_data(sharding: NamedSharding | None, meshes: list[AbstractMesh]) -> dict[str, Any] | None:
    """A sharding whose mesh stands in a table, by its number there; a mesh that is not in the table yet is added."""
    if sharding is None:
        return None
    mesh = sharding.mesh.abstract_mesh
    if mesh not in meshes:
        meshes.append(mesh)
    return {"mesh": meshes.index(mesh), **sharding_to_data(sharding)}


def sharding_from_data(mesh: AbstractMesh, data: Mapping[str, Any]) -> NamedSharding:
    """The sharding that `sharding_to_data` wrote. KeyError, TypeError or ValueError if `data` is none over `mesh`."""
    dims = [UNCONSTRAINED if e == _OPEN else tuple(_names(e)) if isinstance(e, list) else e for e in data["dims"]]
    kind = None if data["kind"] is None else UnreducedKind[data["kind"]]
    spec = PartitionSpec(
        *dims, unreduced=frozenset(data["unreduced"]), reduced=frozenset(data["reduced"]), unreduced_kind=kind
    )
    return NamedSharding(mesh, spec, memory_kind=data["memory"], uneven=bool(data["uneven"]))


def _entry(entry: Any) -> Any:
    if entry is None:
        return None
    if entry is UNCONSTRAINED:
        return dict(_OPEN)
    return _names(entry) if isinstance(entry, tuple) else _names((entry,))[0]


def _names(axes: Iterable[Any]) -> list[str]:
    out = list(axes)
    for axis in out:
        if not isinstance(axis, str):
            raise errors.UnsupportedError(f"mesh axes in files must be named by strings. Got {axis!r}; rename the axis")
    return out
