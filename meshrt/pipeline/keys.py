"""What the traces and programs of a jitted function are known by, the traces that several of them share, and which of
them stay.
"""

from __future__ import annotations

import contextlib
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

__all__ = ["ProgramKey", "SharedTraces", "TraceKey", "keep_latest", "note_used"]


class TraceKey(NamedTuple):
    """What a trace depends on beside the function: no device and no concrete mesh.

    `avals` are the arguments' types, with their places if the function asked for these (`meshrt.core.places`).
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
    within callers' traces. `are_placed` says that the function asks how Auto axes split what it is given.
    """

    __slots__ = ("are_placed", "nested", "records")

    def __init__(self) -> None:
        self.records: weakref.WeakValueDictionary[TraceKey, TraceRecord] = weakref.WeakValueDictionary()
        self.nested: OrderedDict[TraceKey, tuple[Jaxpr, list[Any], Any]] = OrderedDict()
        self.are_placed = False


def note_used(cache: OrderedDict[Any, Any], key: Any) -> None:
    """Notes a use, if another thread has not just dropped the entry."""
    with contextlib.suppress(KeyError):
        cache.move_to_end(key)


def keep_latest(cache: dict[Any, Any], limit: int) -> list[Any]:
    """If `cache` has more than `limit` entries, takes the oldest out until a quarter is free; returns their values."""
    excess = len(cache) - limit
    if excess <= 0:
        return []
    found = [cache.pop(key, None) for key in list(cache)[: excess + limit // 4]]
    return [value for value in found if value is not None]
