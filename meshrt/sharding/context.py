"""The mesh of the context: what `set_mesh` sets and `get_mesh` and `get_abstract_mesh` read, per thread.

There is one context. `with mesh:`, `set_mesh(mesh)`, `with set_mesh(mesh):` and `use_abstract_mesh` all set it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from meshrt import errors
from meshrt.sharding import _state
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh, empty_abstract_mesh, empty_mesh

__all__ = ["context_source", "get_abstract_mesh", "get_mesh", "set_mesh", "tracing_mesh", "use_abstract_mesh"]


def _caller(depth: int) -> str:
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class set_mesh:
    """Makes `mesh` the mesh of the context: until further notice when called, for a block when used with `with`.

    `set_mesh(None)` clears it. Not inside a traced function: there the mesh is part of the function's type.

    Raises:
      ShardingTypeError: `mesh` is not a Mesh. MeshContextError: inside a traced function, or Manual axes.
    """

    __slots__ = ("_previous", "mesh")

    def __init__(self, mesh: Mesh | None):
        if mesh is not None and not isinstance(mesh, Mesh):
            hint = (
                " An AbstractMesh belongs to meshrt.sharding.use_abstract_mesh."
                if isinstance(mesh, AbstractMesh)
                else ""
            )
            raise errors.ShardingTypeError(f"Expected mesh of type `meshrt.sharding.Mesh`. Got {mesh!r}.{hint}")
        if _state.context.tracing:
            raise errors.MeshContextError(
                "`set_mesh` can only be used outside of `meshrt.jit`. Set the mesh around the call of the function."
            )
        if mesh is not None and AxisType.Manual in mesh.axis_types:
            raise errors.MeshContextError(
                f"{mesh!r} has Manual axes {mesh.manual_axes}, which is not allowed with `set_mesh`; use Auto axes, "
                "and shard_map to make them manual for one function"
            )
        self.mesh = mesh
        abstract = mesh.abstract_mesh if mesh is not None else None
        self._previous = _state.context.swap(mesh, abstract, _caller(2), False)

    def __enter__(self) -> Mesh | None:
        return self.mesh

    def __exit__(self, *_: object) -> None:
        _state.context.swap(*self._previous)


def get_mesh() -> Mesh:
    """The mesh of the context; an empty one if none is set. MeshContextError inside a traced function."""
    if _state.context.tracing:
        raise errors.MeshContextError(
            "`get_mesh` can only be used outside of `meshrt.jit`. Maybe you want `meshrt.sharding.get_abstract_mesh()`?"
        )
    mesh = _state.context.concrete
    return empty_mesh if mesh is None else mesh


def get_abstract_mesh() -> AbstractMesh:
    """The mesh of the context without devices; inside a traced function the one it is traced for."""
    mesh = _state.context.abstract
    return empty_abstract_mesh if mesh is None else mesh


def context_source() -> str | None:
    """The user's line that set the mesh of the context, for messages."""
    return _state.context.where


class use_abstract_mesh:
    """Makes an AbstractMesh the mesh of the context for a block.

    Raises:
      ShardingTypeError: not an AbstractMesh. MeshContextError: the context has a mesh of other sizes.
    """

    __slots__ = ("_previous", "mesh")

    def __init__(self, mesh: AbstractMesh):
        if not isinstance(mesh, AbstractMesh):
            raise errors.ShardingTypeError(
                f"Expected mesh of type `meshrt.sharding.AbstractMesh`. Got {mesh!r}; a Mesh has `.abstract_mesh`"
            )
        self.mesh = mesh

    def __enter__(self) -> AbstractMesh:
        context = _state.context
        current = context.abstract
        if current is not None and not current.empty and not self.mesh.empty and current.size != self.mesh.size:
            raise errors.MeshContextError(
                f"use_abstract_mesh cannot change the size of the mesh. The context has {current!r} (set at "
                f"{context.where}), the new one is {self.mesh!r}"
            )
        concrete = context.concrete
        if concrete is not None and concrete.abstract_mesh is not self.mesh:
            concrete = None if concrete.axis_names != self.mesh.axis_names else concrete
        self._previous = context.swap(concrete, self.mesh, _caller(2), context.tracing)
        return self.mesh

    def __exit__(self, *_: object) -> None:
        _state.context.swap(*self._previous)


@contextmanager
def tracing_mesh(mesh: AbstractMesh | None) -> Iterator[None]:
    """For tracers: the context in which a function is traced for `mesh`; concrete meshes are out of reach."""
    context = _state.context
    previous = context.swap(context.concrete, mesh, context.where, True)
    try:
        yield
    finally:
        context.swap(*previous)
