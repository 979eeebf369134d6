"""What the traces and programs of a jitted function are known by, and the traces that several of them share."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from meshrt.core.axes import NamedAxis
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.types import ShapedArray
from meshrt.pipeline.options import CompilerOptions
from meshrt.pipeline.static_arguments import Static
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.sharding.mesh_caches import ANY_MESH

__all__ = ["ProgramKey", "SharedTraces", "TraceKey"]


class TraceKey(NamedTuple):
    """What a trace depends on beside the function: no device and no concrete mesh.

    `mesh` is the AbstractMesh that the function was traced for (None without one), or ANY_MESH if that did not matter
    to it. `axes` are those in scope, which collectives may name: within a caller's trace only. `within` is the mesh in
    context: a function may know it without asking, from a variable that is set along with it, so what need not matter
    is only a mesh that arguments and options name.
    """

    in_tree: Any
    static: Static
    avals: tuple[ShapedArray, ...]
    settings: tuple[Any, ...]
    mesh: Any
    axes: tuple[NamedAxis, ...] = ()
    within: Any = None

    @property
    def anywhere(self) -> TraceKey:
        """The key of a trace that did not ask for the mesh."""
        return self._replace(mesh=ANY_MESH)

    @property
    def all(self) -> Iterator[TraceKey]:
        """The keys of the traces that serve, the most likely first. Naming the mesh of the arguments in the context,
        too, changes nothing."""
        yield self.anywhere
        yield self
        if self.mesh is not None and self.within in (None, self.mesh):
            other = self._replace(within=self.mesh if self.within is None else None)
            yield other.anywhere
            yield other


class ProgramKey(NamedTuple):
    """What a compiled program depends on: `settings` are those of propagation, partitioning and compilation.

    `partition` are the options of the program that `partition(...)` gave, sorted; None for that of the settings.
    """

    record: TraceRecord
    request: LoweringRequest
    settings: tuple[Any, ...]
    options: CompilerOptions
    partition: tuple[tuple[str, Any], ...] | None


class SharedTraces:
    """The traces of one function that its drivers, one per set of options, share.

    None of the options decides what a trace is. A record is here as long as some driver keeps it; `nested` are those
    within callers' traces.
    """

    __slots__ = ("nested", "records")

    def __init__(self) -> None:
        self.records: weakref.WeakValueDictionary[TraceKey, TraceRecord] = weakref.WeakValueDictionary()
        self.nested: OrderedDict[TraceKey, tuple[Jaxpr, list[Any], Any]] = OrderedDict()
