"""`jax._src.mesh`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from meshrt.numpy.names import missing as _missing
from meshrt.sharding import AbstractMesh, AxisType, Mesh, _state, get_abstract_mesh, use_abstract_mesh
from meshrt.sharding.context import get_mesh as get_concrete_mesh
from meshrt.sharding.context import set_mesh
from meshrt.sharding.mesh import empty_abstract_mesh
from meshrt.sharding.mesh import empty_mesh as empty_concrete_mesh

__all__ = [
    "EMPTY_ENV", "AbstractMesh", "AxisType", "Mesh", "ResourceEnv", "empty_abstract_mesh", "empty_concrete_mesh",
    "get_abstract_mesh", "get_concrete_mesh", "set_mesh", "thread_resources", "use_abstract_mesh",
]  # fmt: skip


class ResourceEnv(NamedTuple):
    """What `with mesh:` sets."""

    physical_mesh: Mesh

    @property
    def empty(self) -> bool:
        """Whether there is no mesh."""
        return self.physical_mesh.empty

    @property
    def shape(self) -> dict[Hashable, int]:
        """The sizes of the axes, by their names."""
        return dict(self.physical_mesh.shape)


EMPTY_ENV = ResourceEnv(empty_concrete_mesh)


class _ThreadResources:
    """What this thread has in context; unlike `get_concrete_mesh`, also while a function is traced."""

    @property
    def env(self) -> ResourceEnv:
        mesh = _state.context.concrete
        return EMPTY_ENV if mesh is None else ResourceEnv(mesh)


thread_resources = _ThreadResources()
__getattr__ = _missing("jax._src.mesh", __all__)
