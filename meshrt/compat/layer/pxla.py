"""`jax.interpreters.pxla`: the mesh of `with mesh:`, for programs that look it up themselves."""

from __future__ import annotations

from meshrt.compat.layer._src.mesh import thread_resources
from meshrt.numpy.names import missing as _missing

__all__ = ["Index", "MeshAxisName", "thread_resources"]

Index = tuple[slice, ...]
MeshAxisName = str
__getattr__ = _missing("jax.interpreters.pxla", __all__)
