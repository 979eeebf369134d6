"""Names that are looked up when they are asked for: modules of packages, and those that JAX has and meshrt has not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from meshrt import errors

__all__ = ["missing", "submodules"]


def missing(module: str, known: Iterable[str]) -> Callable[[str], Any]:
    """A module ``__getattr__`` that names what is closest to what was asked for."""
    known = list(known)

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise errors.missing_name(module, name, known)

    return __getattr__


def submodules(package: str, names: Iterable[str]) -> Callable[[str], Any]:
    """A package's ``__getattr__`` that imports its modules `names` when they are first asked for."""
    names = frozenset(names)
    absent = missing(package, names)
    return lambda name: importlib.import_module(f"{package}.{name}") if name in names else absent(name)
