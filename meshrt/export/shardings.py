"""What an exported module says of shardings, over the mesh of the program that calls it.

The meshes have the same devices, as programs see them, and their axes other names or other sizes: each axis of the
exported mesh is an axis of the program's, several of them together, or a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from meshrt import errors
from meshrt.lowering.context import ModuleLowering
from meshrt.sharding.common import parts_over
from meshrt.sharding.mesh import AbstractMesh
from propagation.sdy_text import axes_in, axis_text, read_mesh

__all__ = ["ShardingTexts"]

_MESH = re.compile(r'@(?:"(?:[^"\\]|\\.)*"|[\w.$-]+)(?=, \[)')
_AXES = re.compile(r'\{((?:"(?:[^"\\]|\\.)*"(?::\(\d+\)\d+)?(?:, )?)+)(\??)\}')
# What sdy has no words for: axes that are all gone, or of size 1.
_NOTHING = re.compile(r", (?:replicated|unreduced)=(?:[a-z]+ ?)?\{\}")


class ShardingTexts:
    """Translates attributes of the sdy dialect. `apply`: whether the program has a mesh; else they are dropped."""

    def __init__(self, lowering: ModuleLowering, mesh: AbstractMesh | None, here: AbstractMesh | None):
        """From `mesh` to `here`, some or all axes of the program's mesh."""
        self.lowering, self.mesh, self.here = lowering, mesh, here
        self.apply = here is not None and mesh is not None

    def declare(self, meshes: Iterable[Any]) -> None:
        """Looks at the meshes of the module. UnsupportedError for one with other axes than the function's."""
        if not self.apply or self.mesh is None:
            return
        own = {str(name): size for name, size in self.mesh.shape_tuple}
        for op in meshes:
            found = read_mesh(str(op.attributes["mesh"]))
            if any(own.get(name, 1) != size for name, size in found.axes):
                raise errors.UnsupportedError(
                    f"the exported module has a mesh {found.axes} beside that of its function, {self.mesh}: export it "
                    "with shardings over one mesh"
                )

    def translated(self, name: str, text: str) -> str:
        """An attribute over the program's mesh; empty where that has none."""
        if not self.apply:
            return ""
        if name == "manual_axes":
            for axis in axes_in(text):
                self._require_whole(axis.name)
        symbol = f"@{self.lowering.mesh_symbol(self.lowering.mesh or self._here)}"
        return _NOTHING.sub("", _AXES.sub(self._axes, _MESH.sub(symbol, text)))

    @property
    def _here(self) -> AbstractMesh:
        if self.here is None:
            raise errors.InternalError("a sharding is translated for a program without a mesh")
        return self.here

    def _require_whole(self, name: str) -> None:
        """A program for each device along an axis runs along whole axes. UnsupportedError if there is a part of one."""
        sizes = self._here.shape
        for own, _, size in parts_over([name], self.mesh, self._here) if self.mesh is not None else ():
            if sizes[own] != size:
                raise errors.UnsupportedError(
                    f"the exported module has a shard_map over axis {name!r} of size {size}, which in {self._here} is "
                    f"a part of axis {own!r}: call it with a mesh like {self.mesh}"
                )

    def _axes(self, found: re.Match[str]) -> str:
        texts = []
        for axis in axes_in(found[1]):
            texts += self._axis(axis.name, None if axis.size is None else (axis.pre, axis.size))
        return f"{{{', '.join([*texts, *(['?'] if found[2] else [])])}}}"

    def _axis(self, name: str, part: tuple[int, int] | None) -> list[str]:
        parts = parts_over([name], self.mesh, self._here) if self.mesh is not None else []
        if part is None:
            sizes = self._here.shape
            return [axis_text(str(n)) if k == sizes[n] else axis_text(str(n), pre, k) for n, pre, k in parts]
        if len(parts) != 1:
            raise errors.UnsupportedError(
                f"the exported module splits a value over a part of axis {name!r}, and {self._here} has several axes "
                f"in its place: call it with a mesh like {self.mesh}"
            )
        (own, pre, _), (before, size) = parts[0], part
        return [axis_text(str(own), pre * before, size)]
