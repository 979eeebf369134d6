"""Exported functions in files as modules to look at, in the process that parses foreign files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.export.container import MAGIC
from meshrt.export.exported import Exported
from meshrt.export.jax_format import flat_from_jax
from meshrt.export.loading import flat
from meshrt.export.planning import lowered_call
from meshrt.export.repartition import repartitioned
from meshrt.sharding.mesh import AbstractMesh

__all__ = ["module_of_export", "platform_of"]


def _read(blob: bytes) -> Exported:
    return flat(blob) if blob.startswith(MAGIC) else flat_from_jax(blob)


def platform_of(program: Any) -> str:
    """The first platform that an exported function is for: ours or JAX's, or the bytes of one."""
    found = _read(bytes(program)) if isinstance(program, bytes | bytearray | memoryview) else program
    return str(found.platforms[0]) if found.platforms else ""


def module_of_export(
    blob: bytes, mesh: Mapping[str, int] | None, sizes: Mapping[str, int] | None
) -> tuple[bytes, Mapping[str, int] | None, str]:
    """The module in a file of an exported function (ours or JAX's), the mesh that is still to be laid over it, and the
    first platform that it is for.

    Over another mesh it is partitioned again, as `Exported.over` does it, so that axes have the names that the function
    was exported with; one that says nothing of a mesh stays as it is. With symbolic sizes it is the program that calls
    it with these numbers for them, whose axes are those of `mesh`.

    Raises:
      SavedProgramError: the file is damaged. MeshMismatchError, IndivisibleError, UnsupportedError as `Exported.over`.
      ArgumentValueError: a number is missing, of no symbolic size, or none that it allows.
    """
    exported = _read(blob)
    platform = exported.platforms[0] if exported.platforms else ""
    over = exported.mesh if mesh is None else AbstractMesh(tuple(mesh.values()), tuple(mesh))
    if sizes or any(is_symbolic_shape(a.shape) for a in exported.in_avals):
        lowered = lowered_call(exported, over, sizes or {}, "--sizes {0}=8")
        return lowered.as_text(debug_info=True).encode(), None, platform
    if mesh is None or exported.mesh is None:
        return exported.mlir_module_serialized, mesh, platform
    return repartitioned(exported, over).mlir_module_serialized, None, platform
