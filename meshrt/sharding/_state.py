"""The mesh context of the current thread: plain data below every other module of this package."""

from __future__ import annotations

import threading
from typing import Any

Saved = tuple[Any, Any, Any, bool, Any]


class _Context(threading.local):
    """What `set_mesh`, `with mesh:`, `use_abstract_mesh` and traces have set in this thread.

    concrete   a Mesh or None
    abstract   an AbstractMesh or None, without its device
    where      the user's line that set them, a `core.source.Source`
    tracing    whether a function is being traced (then only the abstract mesh may be asked for)
    device     the AbstractDevice that the abstract mesh was given, or None
    key        what calls are keyed by: `concrete`, or where there is none the abstract mesh with its device
    """

    concrete: Any = None
    abstract: Any = None
    where: Any = None
    tracing: bool = False
    device: Any = None
    key: Any = None

    def swap(self, concrete: Any, abstract: Any, where: Any, tracing: bool, device: Any = None) -> Saved:
        """Sets all and returns the previous ones."""
        previous = (self.concrete, self.abstract, self.where, self.tracing, self.device)
        self.concrete, self.abstract, self.where = concrete, abstract, where
        self.tracing, self.device = tracing, device
        self.key = concrete if concrete is not None else abstract if device is None else (abstract, device)
        return previous


context = _Context()
