"""Several meshes over the same devices in the same order: one mesh whose axes make up the axes of all.

Numbering the devices major to minor, an axis of a mesh walks through a range of strides: in a 4x2 mesh ("x", "y"), y
has the strides from 1 to 2, x those from 2 to 8. Cutting every axis at the bounds of all others gives axes that each
mesh can be written in, if the bounds divide each other: 4x2 and 8 have 4x2 in common, 4x2 and 2x4 have 2x2x2, and 2x3
and 3x2 nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from meshrt.sharding.mesh import AbstractMesh, BaseMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of

__all__ = ["as_seen_on", "common_mesh", "over"]


class _Range(NamedTuple):
    """An axis and the strides that it covers: it has `high // low` places, `low` devices apart."""

    name: Hashable
    low: int
    high: int


def _ranges(mesh: BaseMesh) -> list[_Range]:
    """The axes of more than one place, major to minor."""
    found, low = [], 1
    for name, size in reversed(mesh.shape_tuple):
        if size > 1:
            found.append(_Range(name, low, low * size))
        low *= size
    return found[::-1]


def _bounds(meshes: Iterable[BaseMesh]) -> list[int]:
    """Every stride at which an axis of some mesh begins or ends, the smallest first."""
    return sorted({bound for mesh in meshes for _, low, high in _ranges(mesh) for bound in (low, high)})


def common_mesh(meshes: Sequence[AbstractMesh]) -> AbstractMesh | None:
    """The coarsest mesh in which all can be written: one of them if possible. None if there is none.

    Where an axis `x` has to be cut, the parts are called `x.0`, `x.1`, ..., major to minor.
    """
    bounds = _bounds(meshes)
    if len({mesh.size for mesh in meshes}) > 1 or any(high % low for low, high in itertools.pairwise(bounds)):
        return None
    for mesh in meshes:
        if _bounds([mesh]) == bounds:
            return mesh
    names: list[Hashable] = []
    sizes: list[int] = []
    taken = set(meshes[0].axis_names)
    for name, low, high in _ranges(meshes[0]):
        inside = [b for b in bounds if low <= b <= high][::-1]
        parts = [b // a for b, a in itertools.pairwise(inside)]
        sizes += parts
        names += [name] if len(parts) == 1 else _fresh(name, len(parts), taken)
    return AbstractMesh(tuple(sizes), tuple(names))


def _fresh(axis: Hashable, count: int, taken: set[Hashable]) -> list[str]:
    name = str(axis)
    while any(f"{name}.{i}" in taken for i in range(count)):
        name += "_"
    made = [f"{name}.{i}" for i in range(count)]
    taken.update(made)
    return made


def over(sharding: NamedSharding, mesh: AbstractMesh) -> NamedSharding:
    """The same layout over `mesh`, in which the mesh of `sharding` can be written."""
    pieces = _ranges(mesh)
    within = {r.name: tuple(p.name for p in pieces if r.low <= p.low and p.high <= r.high)
              for r in _ranges(sharding.mesh)}  # fmt: skip
    entries = [
        entry if entry is UNCONSTRAINED else tuple(n for axis in axes_of(entry) for n in within.get(axis, ())) or None
        for entry in sharding.spec.partitions
    ]
    return sharding.update(mesh=mesh, spec=PartitionSpec(*entries))


def as_seen_on(sharding: NamedSharding, mesh: BaseMesh) -> NamedSharding | None:
    """The same layout over `mesh`, whose axes those of `sharding` make up; None if it uses only a part of one."""
    place = {r.name: r for r in _ranges(sharding.mesh)}
    whole = {r.high: r for r in _ranges(mesh)}
    entries = []
    for entry in sharding.spec.partitions:
        pieces = [place[a] for a in axes_of(entry) if a in place]
        axes: list[Hashable] = []
        while pieces:
            axis = whole.get(pieces[0].high)
            if axis is None:
                return None
            reached = axis.high
            while reached > axis.low:
                if not pieces or pieces[0].high != reached:
                    return None
                reached = pieces.pop(0).low
            axes.append(axis.name)
        entries.append(tuple(axes) or None)
    return sharding.update(mesh=mesh, spec=PartitionSpec(*entries))
