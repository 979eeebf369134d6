"""`jax._src.lazy_loader`: modules of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["attach"]


def attach(
    package_name: str, submodules: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """(`__getattr__`, `__dir__`, `__all__`) of a package with these modules."""
    names = list(submodules)

    def look_up(name: str) -> Any:
        if name in names:
            return importlib.import_module(f"{package_name}.{name}")
        raise AttributeError(f"module '{package_name}' has no attribute '{name}'")

    def listed() -> list[str]:
        return names

    return look_up, listed, names
