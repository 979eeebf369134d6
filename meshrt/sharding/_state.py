"""The mesh context of the current thread: plain data below every other module of this package."""

from __future__ import annotations

import threading
from typing import Any

Saved = tuple[Any, Any, Any, bool, Any, bool]


class _Context(threading.local):
    """What `set_mesh`, `with mesh:`, `use_abstract_mesh` and traces have set in this thread.

    concrete   a Mesh or None
    abstract   an AbstractMesh or None, without its device
    where      the user's line that set them, a `core.source.Source`
    tracing    whether a function is being traced (then only the abstract mesh may be asked for)
    device     the AbstractDevice that the abstract mesh was given, or None
    loose      whether arrays lie on the mesh only because it is in context, committed to nothing: under `with mesh:`
    key        what calls are keyed by: `concrete` (its `loose_key` where it is loose), or where there is none the
               abstract mesh with its device
    """

    concrete: Any
    abstract: Any
    where: Any
    tracing: bool
    device: Any
    loose: bool
    key: Any

    def __init__(self) -> None:  # once in each thread
        self.concrete = self.abstract = self.where = self.device = self.key = None
        self.tracing = self.loose = False

    def swap(
        self, concrete: Any, abstract: Any, where: Any, tracing: bool, device: Any = None, loose: bool = False
    ) -> Saved:
        """Sets all and returns the previous ones."""
        here = self.__dict__  # this thread's; each attribute of a local costs a look for the thread
        previous = (here["concrete"], here["abstract"], here["where"], here["tracing"], here["device"], here["loose"])
        here["concrete"], here["abstract"], here["where"] = concrete, abstract, where
        here["tracing"], here["device"], here["loose"] = tracing, device, loose
        if concrete is not None:
            here["key"] = concrete.loose_key if loose else concrete
        else:
            here["key"] = abstract if device is None else (abstract, device)
        return previous


context = _Context()
