"""The mesh context of the current thread: plain data below every other module of this package."""

from __future__ import annotations

import threading
from typing import Any


class _Context(threading.local):
    """What `set_mesh`, `use_abstract_mesh` and traces have set in this thread.

    `concrete` is a Mesh or None, `abstract` an AbstractMesh or None, `where` the user's line that set them,
    `tracing` whether a function is being traced (then only the abstract mesh may be asked for).
    """

    concrete: Any = None
    abstract: Any = None
    where: str | None = None
    tracing: bool = False

    def swap(self, concrete: Any, abstract: Any, where: str | None, tracing: bool) -> tuple[Any, Any, str | None, bool]:
        """Sets all four and returns the previous ones."""
        previous = (self.concrete, self.abstract, self.where, self.tracing)
        self.concrete, self.abstract, self.where, self.tracing = concrete, abstract, where, tracing
        return previous


context = _Context()
