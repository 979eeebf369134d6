"""The partitioner: one file per family of operations, mirroring `propagation.rules`.

A family file exports `PARTITION = {"stablehlo.name": function}`; the functions take the `Context` and the operation
and bind every result. A file without one is plumbing. Files are collected by walking this package, so adding a family
edits no list.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

__all__ = ["rules"]


@functools.cache
def rules() -> dict[str, Callable]:
    """Operation name to the function that partitions it."""
    table: dict[str, Callable] = {}
    for info in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{info.name}")
        for name, function in getattr(family, "PARTITION", {}).items():
            if name in table:
                raise RuntimeError(f"{name} has partitioning rules in two families; remove the one in {info.name}")
            table[name] = function
    return table
