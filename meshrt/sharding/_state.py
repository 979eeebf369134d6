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

    concrete: Any
    abstract: Any
    where: Any
    tracing: bool
    device: Any
    key: Any

    def __init__(self) -> None:  # once in each thread
        self.concrete = self.abstract = self.where = self.device = self.key = None
        self.tracing = False

    def swap(self, concrete: Any, abstract: Any, where: Any, tracing: bool, device: Any = None) -> Saved:
        """Sets all and returns the previous ones."""
        here = self.__dict__  # this thread's; each attribute of a local costs a look for the thread
        previous = (here["concrete"], here["abstract"], here["where"], here["tracing"], here["device"])
        here["concrete"], here["abstract"], here["where"] = concrete, abstract, where
        here["tracing"], here["device"] = tracing, device
        here["key"] = concrete if concrete is not None else abstract if device is None else (abstract, device)
        return previous


context = _Context()
