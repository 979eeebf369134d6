"""The public modules of the project, and the public functions and classes in them."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

from docs.site.reference import MODULES, public_names

__all__ = ["MODULES", "functions"]


def functions() -> Iterator[tuple[str, Any]]:
    """(dotted name, object) of every public function and class, each once, under its first name."""
    seen: set[int] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value = inspect.getattr_static(module, name, None)
            value = getattr(module, name) if value is None else value
            if isinstance(value, types.ModuleType) or not callable(value) or id(value) in seen:
                continue
            seen.add(id(value))
            yield f"{module_name}.{name}", value
