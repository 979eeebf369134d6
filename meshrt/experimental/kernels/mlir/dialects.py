"""Where MLIR's bindings find the Python classes of a dialect's operations."""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["classes_are_in"]


def classes_are_in(dialect: str, module: ModuleType) -> None:
    """Says that `module` has the classes of a dialect, before the bindings look for them.

    They import them by a name of their own, and where nothing has that name they look in the package jax, which then is
    imported.
    """
    sys.modules.setdefault(f"jaxlib.mlir.dialects.{dialect}", module)
