"""Axes in scope by name: what `vmap(axis_name=...)` binds, and what manual regions (`shard_map`) bind.

A collective names axes. What a name stands for is found here while a function is traced; a program that has been traced
holds all that its operations need in their parameters.

    vmap(f, axis_name="i")        "i" is a mapped dimension: collectives over it become array operations
    shard_map(f, mesh=mesh, ...)  the Manual axes of the mesh: collectives over them are communication

Names are scoped: the innermost axis of a name is the one that is meant.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from meshrt import errors

__all__ = [
    "UNNAMED", "Here", "NamedAxis", "apart", "axes_in_scope", "axis_names", "bind_axes", "branching", "find_axes",
    "find_axis", "known_index", "laid_along", "manual_axes", "manual_mesh",
]  # fmt: skip


class _Unnamed:
    """The name of mapped dimensions that have none, by which nobody can call them; the only value of its type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "a dimension without a name"


UNNAMED = _Unnamed()

_NOTHING: frozenset[Hashable] = frozenset()


class Here:
    """The index along an axis. Equal to all others: which one it is does not make two traces differ, as one that reads
    it captures it.
    """

    __slots__ = ("index",)

    def __init__(self, index: Any):
        self.index = index

    def __eq__(self, other: object) -> bool:
        return type(other) is Here

    def __hash__(self) -> int:
        return hash(Here)


class NamedAxis(NamedTuple):
    """An axis in scope: its `size`, for Manual axes the AbstractMesh it belongs to, None for mapped dimensions.

    `is_checked`: types say over which Manual axes values vary (`shard_map(check_vma=True)`). `is_apart`: devices along
    it take different branches here. `here`: what stands for the index along it where that is a value of the program, as
    in the grid of a kernel. `along`: the mesh axes that `vmap(spmd_axis_name=...)` lays a mapped dimension
    along, which may be `UNNAMED`.
    """

    name: Hashable
    size: int
    mesh: Any = None
    is_checked: bool = False
    is_apart: bool = False
    along: tuple[Hashable, ...] = ()
    here: Here | None = None

    @property
    def is_manual(self) -> bool:
        return self.mesh is not None


# A context variable, like the current trace: threads have their own. Outermost first; hashable, as it is part of the
# keys of traces. Empty everywhere but while functions are traced under vmap with a name, or in a manual region.
_scope: ContextVar[tuple[NamedAxis, ...]] = ContextVar("meshrt_axes", default=())
axes_in_scope = _scope.get


class bind_axes:
    """Puts axes in scope inside a `with`."""

    __slots__ = ("_saved", "axes")

    def __init__(self, axes: Iterable[NamedAxis]):
        self.axes = tuple(axes)

    def __enter__(self) -> None:
        self._saved = _scope.get()
        if self.axes:
            _scope.set((*self._saved, *self.axes))

    def __exit__(self, *_: object) -> None:
        _scope.set(self._saved)


def manual_axes(mesh: Any, names: Iterable[Hashable], is_checked: bool = True) -> tuple[NamedAxis, ...]:
    """The axes `names` of a mesh (anything with `shape`, a mapping from names to sizes) as a manual region binds them.

    In the order of the mesh. `mesh` should be an AbstractMesh: it becomes part of the keys of traces.
    """
    wanted = set(names)
    return tuple(NamedAxis(n, size, mesh, is_checked) for n, size in mesh.shape.items() if n in wanted)


def branching(names: Collection[Hashable]) -> bind_axes:
    """The context in which branches are traced that devices along the Manual axes `names` choose among by themselves.

    Likewise the bodies of loops that they run different numbers of times.

    A collective in a branch would wait for devices that take another one. So what comes from outside of the branch
    varies over these axes inside of it, and the sum of its cotangents is taken outside.
    """
    return bind_axes(a._replace(is_apart=True) for a in _scope.get() if a.name in names and not a.is_apart)


def manual_mesh() -> Any:
    """The mesh of the innermost manual region, None outside of all."""
    return next((a.mesh for a in reversed(_scope.get()) if a.is_manual), None)


def apart() -> frozenset[Hashable]:
    """The Manual axes along which devices take different branches here."""
    scope = _scope.get()
    return frozenset(a.name for a in scope if a.is_apart) if scope else _NOTHING


def laid_along() -> frozenset[Hashable]:
    """The mesh axes along which dimensions are laid that enclosing `vmap(spmd_axis_name=...)`s map."""
    scope = _scope.get()
    return frozenset(name for a in scope for name in a.along) if scope else _NOTHING


def find_axis(name: Hashable, caller: str) -> NamedAxis:
    """The axis that `name` stands for; UnboundAxisError, which tells to what `caller` belongs, if there is none."""
    scope = _scope.get()
    axis: NamedAxis
    for axis in reversed(scope):
        if axis.name == name:
            return axis
    known = ", ".join(dict.fromkeys(repr(a.name) for a in scope if a.name is not UNNAMED))
    raise errors.UnboundAxisError(
        f"Found an unbound axis name: {name}. To fix this, please call {caller} under `meshrt.shard_map`"
        + f" with a mesh that has this axis, or under `meshrt.vmap(..., axis_name={name!r})`"
        + (f"; axes in scope here: {known}" if known else "")
    )


def known_index(name: Hashable) -> Here | None:
    """The index along the innermost axis of a name, where that is a value of the program."""
    return next((a.here for a in reversed(_scope.get()) if a.name == name), None)


def axis_names(axis_name: Any) -> tuple[Hashable, ...]:
    """The names in `axis_name`: one, or a tuple or list of them, major to minor."""
    if isinstance(axis_name, tuple | list):
        return tuple(axis_name)
    if isinstance(axis_name, set | frozenset):
        raise errors.ArgumentTypeError(f"axis_name must be a tuple or a str, as its order matters. Got {axis_name!r}")
    return (axis_name,)


def find_axes(names: Sequence[Hashable], caller: str) -> tuple[NamedAxis, ...]:
    """`find_axis` of several, with an error for those named twice."""
    if len(set(names)) != len(names):
        raise errors.ArgumentValueError(f"{caller} got an axis name twice: {tuple(names)}")
    return tuple(find_axis(n, caller) for n in names)
