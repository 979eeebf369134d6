"""Caches of traces that know whether a trace depends on the mesh in context.

What is traced under a mesh may ask for it (`get_abstract_mesh`, a constraint by PartitionSpec, types along Explicit
axes). Most programs never do: such a trace serves under every mesh, and without one. So a cache has two kinds of
keys, without a mesh and with one, and only what asked is found by the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshrt.core.eager import EagerTrace
from meshrt.core.lojax import OpenedCache
from meshrt.sharding._state import context

__all__ = ["ANY_MESH", "mesh_reads", "note_read", "recall", "remembered"]


class _AnyMesh:
    """Stands in keys of what did not ask for the mesh in context; None is the mesh where there is none."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ANY_MESH"


ANY_MESH = _AnyMesh()
_MISSING = object()


class mesh_reads:
    """Notes in `asked` whether what runs within the block reads the mesh in context.

    >>> with mesh_reads() as reads:
    ...     empty = meshrt.sharding.get_abstract_mesh().empty
    >>> reads.asked
    True
    """

    __slots__ = ("_before", "asked")

    def __enter__(self) -> mesh_reads:
        self._before, self.asked = context.asked, False
        context.asked = False
        return self

    def __exit__(self, *_: object) -> None:
        self.asked = context.asked
        context.asked = self.asked or self._before


def note_read() -> None:
    """What is being traced depends on the mesh in context."""
    context.asked = True


def recall(cache: Mapping[Any, Any], anywhere: Any, here: Any, missing: Any = None) -> Any:
    """What `cache` has under the key `anywhere`, with ANY_MESH in it, or else under `here`, which has the mesh in
    context: then what is being traced depends on that, too. `missing` if neither is there."""
    found = cache.get(anywhere, missing)
    if found is missing:
        found = cache.get(here, missing)
        if found is not missing:
            note_read()
    return found


def remembered(
    cache: dict[Any, Any], key: Any, make: Callable[[], Any], keeps: Callable[[Any], bool] | None = None
) -> Any:
    """`make()`, or what `cache` has of it for an equal `key`: made under this mesh, or under any if it did not ask.

    Not all that is made `keeps`.
    """
    anywhere, here = (key, ANY_MESH), (key, context.unread)
    found = recall(cache, anywhere, here, _MISSING)
    if found is _MISSING:
        with mesh_reads() as reads:
            found = make()
        if keeps is None or keeps(found):
            cache[here if reads.asked else anywhere] = found
    return found


# What is evaluated in the midst of a trace is laid on the devices in context.
EagerTrace.evaluating = staticmethod(note_read)
# How users' operations on high types are lowered may depend on the mesh, too.
OpenedCache.remembered = staticmethod(remembered)
