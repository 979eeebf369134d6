"""Several meshes over the same devices in the same order: one mesh whose axes make up the axes of all.

Where bounds do not divide, an axis of the program's mesh covers all of them, and shardings over the users' meshes are
over parts of it: 2x3 ("a", "b") and 3x2 ("c", "d") are written over one axis "a*b" of 6, "b" as "a*b":(2)3.

Numbering the devices major to minor, an axis of a mesh walks through a range of strides: in a 4x2 mesh ("x", "y"), y
has the strides from 1 to 2, x those from 2 to 8. Cutting every axis at the bounds of all others gives axes that each
mesh can be written in, if the bounds divide each other: 4x2 and 8 have 4x2 in common, 4x2 and 2x4 have 2x2x2, and 2x3
and 3x2 nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from meshrt import errors
from meshrt.sharding.mesh import AbstractMesh, BaseMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of

__all__ = [
    "Part", "as_seen_on", "axes_over", "common_mesh", "is_refinement", "joint_mesh", "over", "parts_over", "with_parts",
]  # fmt: skip

# A part of a mesh axis as Shardy has it: name, the product of the parts major to it, size.
Part = tuple[Hashable, int, int]


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


def joint_mesh(meshes: Sequence[AbstractMesh]) -> AbstractMesh:
    """The finest mesh of which the axes of all are parts, joined: it exists for meshes of equal size. Each axis is
    called after those of the first mesh that lie in it."""
    every = [_ranges(mesh) for mesh in meshes]
    kept = [b for b in _bounds(meshes) if all(_divides(b, r) for ranges in every for r in ranges)][::-1]
    names: list[Hashable] = []
    for high, low in itertools.pairwise(kept):
        inside = [str(r.name) for r in every[0] if r.low < high and low < r.high]
        name = "*".join(inside)
        names.append(name if name not in names else f"{name}.{len(names)}")
    return AbstractMesh(tuple(high // low for high, low in itertools.pairwise(kept)), tuple(names))


def _divides(bound: int, axis: _Range) -> bool:
    """Whether an axis can be cut there, if it has to be."""
    return not axis.low < bound < axis.high or (bound % axis.low == 0 and axis.high % bound == 0)


def parts_over(axes: Iterable[Hashable], of: BaseMesh, mesh: BaseMesh) -> list[Part]:
    """What the axes of one mesh are on another of the same devices, whose axes they are parts of; neighbours joined."""
    ranges, pieces = {r.name: r for r in _ranges(of)}, _ranges(mesh)
    found: list[Part] = []
    for axis in axes:
        own = ranges.get(axis)
        for piece in pieces if own is not None else ():
            assert own is not None
            low, high = max(own.low, piece.low), min(own.high, piece.high)
            if low >= high:
                continue
            part = piece.name, piece.high // high, high // low
            if found and found[-1][0] == piece.name and found[-1][1] * found[-1][2] == part[1]:
                part = piece.name, found[-1][1], found.pop()[2] * part[2]
            found.append(part)
    return found


def is_refinement(mesh: BaseMesh, of: BaseMesh) -> bool:
    """Whether every axis of a mesh is made up of whole axes of `mesh`."""
    return all(_is_whole(axis, of, mesh) for axis in of.axis_names)


def with_parts(mesh: AbstractMesh, dims: Sequence[Sequence[Part]]) -> NamedSharding:
    """A sharding over parts of the axes of `mesh`, as one over a mesh in which these are axes of their own."""
    sizes: list[int] = []
    names: list[Hashable] = []
    pieces: dict[Hashable, list[tuple[int, Hashable]]] = {}
    taken = set(mesh.axis_names)
    for name, size in mesh.shape_tuple:
        used = [p for parts in dims for p in parts if p[0] == name]
        bounds = sorted({1, size, *[pre for _, pre, _ in used], *[pre * n for _, pre, n in used]})
        count = max(1, len(bounds) - 1)
        made = [name] if count == 1 else _fresh(name, count, taken)
        names += made
        sizes += [high // low for low, high in itertools.pairwise(bounds)] or [size]
        pieces[name] = list(zip(bounds, made))
    entries = [
        tuple(made for name, pre, n in parts for low, made in pieces[name] if pre <= low < pre * n) or None
        for parts in dims
    ]
    while entries and entries[-1] is None:
        entries.pop()
    return NamedSharding(AbstractMesh(tuple(sizes), tuple(names)), PartitionSpec(*entries))


def _fresh(axis: Hashable, count: int, taken: set[Hashable]) -> list[str]:
    name = str(axis)
    while any(f"{name}.{i}" in taken for i in range(count)):
        name += "_"
    made = [f"{name}.{i}" for i in range(count)]
    taken.update(made)
    return made


def axes_over(axes: Sequence[Hashable], of: BaseMesh, mesh: BaseMesh) -> tuple[Hashable, ...]:
    """The axes of `mesh` that `axes`, some of another mesh over the same devices, make up together. MeshMismatchError
    if they are only a part of one."""
    covered: dict[Hashable, int] = {}
    for name, _, size in parts_over(axes, of, mesh):
        covered[name] = covered.get(name, 1) * size
    split = next((name for name, size in covered.items() if size != mesh.shape[name]), None)
    if split is not None:
        raise errors.MeshMismatchError(
            f"the axes {', '.join(map(repr, axes))} of {of} are parts of the axis {split!r} of {mesh}, over which the "
            "program is written as its meshes have no common refinement; here whole axes are needed: use meshes whose "
            "sizes divide each other, or all axes of the mesh"
        )
    return tuple(covered)


def over(sharding: NamedSharding, mesh: AbstractMesh) -> NamedSharding:
    """The same layout over `mesh`, in which the mesh of `sharding` can be written. MeshMismatchError if it splits over
    a part of an axis of `mesh`."""
    pieces = _ranges(mesh)
    split = next((a for a in sharding.spec.axes if not _is_whole(a, sharding.mesh, mesh)), None)
    if split is not None:
        raise errors.MeshMismatchError(
            f"axis {split!r} of {sharding.mesh} is a part of an axis of {mesh}, over which the program is written as "
            "its meshes have no common refinement; here whole axes are needed: use meshes whose sizes divide each other"
        )
    within = {r.name: tuple(p.name for p in pieces if r.low <= p.low and p.high <= r.high)
              for r in _ranges(sharding.mesh)}  # fmt: skip
    entries = [
        entry if entry is UNCONSTRAINED else tuple(n for axis in axes_of(entry) for n in within.get(axis, ())) or None
        for entry in sharding.spec.partitions
    ]
    return sharding.update(mesh=mesh, spec=PartitionSpec(*entries))


def _is_whole(axis: Hashable, of: BaseMesh, mesh: BaseMesh) -> bool:
    return all(size == mesh.shape[name] for name, _, size in parts_over([axis], of, mesh))


def as_seen_on(sharding: NamedSharding, mesh: BaseMesh) -> NamedSharding | None:
    """The same layout over `mesh`, whose axes those of `sharding` make up; None if it uses only a part of one."""
    sizes, entries = mesh.shape, []
    for entry in sharding.spec.partitions:
        parts = parts_over(axes_of(entry), sharding.mesh, mesh)
        if any(size != sizes[name] for name, _, size in parts):
            return None
        entries.append(tuple(name for name, _, _ in parts) or None)
    return sharding.update(mesh=mesh, spec=PartitionSpec(*entries))
