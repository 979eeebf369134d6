"""The mesh context of the current thread: plain data below every other module of this package."""

from __future__ import annotations

import threading
from typing import Any

Saved = tuple[Any, Any, Any, bool, Any, bool, bool]


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
    asked      whether anything has read `concrete` or `abstract` since they were set: a trace in which nothing did is
               the same under every mesh (`meshrt.sharding.mesh_caches`)
    """

    where: Any
    tracing: bool
    device: Any
    loose: bool
    key: Any
    asked: bool

    def __init__(self) -> None:  # once in each thread
        here = self.__dict__
        here["concrete"] = here["abstract"] = self.where = self.device = self.key = None
        self.tracing = self.loose = self.asked = False

    @property
    def concrete(self) -> Any:
        here = self.__dict__
        here["asked"] = True
        return here["concrete"]

    @property
    def abstract(self) -> Any:
        here = self.__dict__
        here["asked"] = True
        return here["abstract"]

    @property
    def unread(self) -> Any:
        """`abstract` for those who make no more of it than a key."""
        return self.__dict__["abstract"]

    def saved(self) -> Saved:
        """What `swap` takes to set all this again."""
        here = self.__dict__  # this thread's; each attribute of a local costs a look for the thread
        return (
            here["concrete"], here["abstract"], here["where"], here["tracing"], here["device"], here["loose"],
            here["asked"],
        )  # fmt: skip

    def swap(
        self, concrete: Any, abstract: Any, where: Any, tracing: bool, device: Any = None, loose: bool = False,
        asked: bool = False,
    ) -> Saved:  # fmt: skip
        """Sets all and returns the previous ones."""
        previous, here = self.saved(), self.__dict__
        here["concrete"], here["abstract"], here["where"] = concrete, abstract, where
        here["tracing"], here["device"], here["loose"], here["asked"] = tracing, device, loose, asked
        if concrete is not None:
            here["key"] = concrete.loose_key if loose else concrete
        else:
            here["key"] = abstract if device is None else (abstract, device)
        return previous


context = _Context()
