"""The mesh of the context: what `set_mesh` sets and `get_mesh` and `get_abstract_mesh` read, per thread.

There is one context. `with mesh:`, `set_mesh(mesh)`, `with set_mesh(mesh):` and `use_abstract_mesh` all set it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshrt import errors
from meshrt.core.source import capture
from meshrt.sharding import _state
from meshrt.sharding.axes import AbstractDevice
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh, empty_abstract_mesh, empty_mesh

__all__ = [
    "context_device", "context_source", "get_abstract_mesh", "get_described_mesh", "get_mesh",
    "off_other_devices", "set_mesh", "tracing_mesh", "use_abstract_mesh",
]  # fmt: skip


class set_mesh:
    """Makes `mesh` the mesh of the context: until further notice when called, for a block when used with `with`.

    `set_mesh(None)` clears it. Not inside a traced function: there the mesh is part of the function's type.

    Raises:
      ShardingTypeError: `mesh` is not a Mesh. MeshContextError: inside a traced function, or Manual axes.

    >>> with meshrt.set_mesh(meshrt.make_mesh((4, 2), ("data", "model"))):
    ...     meshrt.get_mesh().shape_tuple
    (('data', 4), ('model', 2))
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
                f"{mesh} has Manual axes {mesh.manual_axes}, which is not allowed with `set_mesh`; use Auto axes, "
                "and shard_map to make them manual for one function"
            )
        self.mesh = mesh
        if mesh is None or mesh.empty:
            self._previous = _state.context.swap(None, None, None, False)
        else:
            self._previous = _state.context.swap(mesh, mesh.abstract_mesh, capture(), False)

    def __enter__(self) -> Mesh | None:
        return self.mesh

    def __exit__(self, *_: object) -> None:
        _state.context.swap(*self._previous)


def get_mesh() -> Mesh:
    """The mesh of the context; an empty one if none is set. MeshContextError inside a traced function.

    >>> meshrt.get_mesh().empty
    True
    """
    if _state.context.tracing:
        raise errors.MeshContextError(
            "`get_mesh` can only be used outside of `meshrt.jit`. Maybe you want `meshrt.sharding.get_abstract_mesh()`?"
        )
    mesh = _state.context.concrete
    return empty_mesh if mesh is None else mesh


def get_abstract_mesh() -> AbstractMesh:
    """The mesh of the context without devices, as types and keys know it; inside a traced function the one it is
    traced for. An empty one (`.empty`) if there is none."""
    mesh: AbstractMesh | None = _state.context.abstract
    return empty_abstract_mesh if mesh is None else mesh


def get_described_mesh() -> AbstractMesh:
    """As `get_abstract_mesh`, with the abstract device that `use_abstract_mesh` was given: what users are shown.

    >>> meshrt.sharding.get_abstract_mesh().empty
    True
    """
    device = _state.context.device
    return get_abstract_mesh() if device is None else get_abstract_mesh().update(abstract_device=device)


def context_source() -> str | None:
    """The user's line that set the mesh of the context, for messages."""
    where = _state.context.where
    return None if where is None else str(where)


def context_device() -> AbstractDevice | None:
    """The kind of device that the AbstractMesh of the context is meant for; None if that is open."""
    found: AbstractDevice | None = _state.context.device
    return found


class use_abstract_mesh:
    """Makes an AbstractMesh the mesh of the context for a block.

    If the context has a Mesh, its devices stay, in their order, along the new axes. Where it has none, functions are
    traced for the AbstractMesh, and lowered for the platform of its `abstract_device`; running them needs devices from
    their arguments.

    Raises:
      ShardingTypeError: not an AbstractMesh. MeshContextError: the context has a mesh of another size.

    >>> with meshrt.sharding.use_abstract_mesh(meshrt.sharding.AbstractMesh((16,), ("x",))):
    ...     meshrt.sharding.get_abstract_mesh().size
    16
    """

    __slots__ = ("_previous", "mesh")

    def __init__(self, mesh: AbstractMesh):
        if not isinstance(mesh, AbstractMesh):
            raise errors.ShardingTypeError(
                f"Expected mesh of type `meshrt.sharding.AbstractMesh`. Got {mesh!r}; a Mesh has `.abstract_mesh`"
            )
        self.mesh = mesh

    def __enter__(self) -> AbstractMesh:
        context, mesh = _state.context, self.mesh
        current = context.abstract
        if current is not None and not current.empty and not mesh.empty and current.size != mesh.size:
            raise errors.MeshContextError(
                f"use_abstract_mesh cannot change the size of the mesh. The context has {current!r} with size "
                f"{current.size} (set at {context_source()}), the new one is {mesh} with size {mesh.size}; leave "
                "the first context before"
            )
        if mesh.empty:
            self._previous = context.swap(None, None, None, context.tracing)
        else:
            concrete = None if context.concrete is None else context.concrete.reshaped(mesh.abstract_mesh)
            where = capture()
            self._previous = context.swap(
                concrete, mesh.abstract_mesh, where, context.tracing, mesh.abstract_device, context.loose
            )
        return mesh

    def __exit__(self, *_: object) -> None:
        _state.context.swap(*self._previous)


@contextmanager
def off_other_devices(sharding: Any) -> Iterator[None]:
    """A block about an array of a concrete `sharding`, outside of traces: a mesh in context that is over other devices
    says nothing of it."""
    around = _state.context.concrete
    if around is None or _state.context.tracing or around.flat_devices == sharding.device_assignment:
        yield
        return
    previous = _state.context.swap(None, None, None, False)
    try:
        yield
    finally:
        _state.context.swap(*previous)


@contextmanager
def tracing_mesh(mesh: AbstractMesh | None) -> Iterator[None]:
    """For tracers: the context in which a function is traced for `mesh`; concrete meshes are out of reach."""
    context = _state.context
    concrete, _, where, _, _, loose, _ = context.saved()
    previous = context.swap(concrete, mesh, where, True, loose=loose)
    try:
        yield
    finally:
        context.swap(*previous)
