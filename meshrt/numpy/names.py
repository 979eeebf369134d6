"""The error for names that JAX has and meshrt does not have (yet)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from meshrt import errors

__all__ = ["missing"]


def missing(module: str, known: Iterable[str]) -> Callable[[str], Any]:
    """A module ``__getattr__`` that names what is closest to what was asked for."""
    known = list(known)

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        close = difflib.get_close_matches(name, known, 3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise errors.MissingFunctionError(f"module {module!r} has no attribute {name!r}: it is not implemented{hint}")

    return __getattr__
