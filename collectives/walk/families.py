"""The rules of all families of operations.

A file of `ops` or `legalize` exports `PARTITION = {"stablehlo.name": function}`; the functions take the `Context` and
the operation, choose layouts, write the operation on one device's pieces with the collectives that it needs, and bind
every result. The two packages are walked, so adding a family edits no list. A file without `PARTITION` is plumbing.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from .. import legalize, ops
from ..layouts.context import Rule

__all__ = ["rules"]


@functools.cache
def rules() -> dict[str, Rule]:
    """Operation name to the function that partitions it."""
    table: dict[str, Rule] = {}
    for family in (*_modules(ops), *_modules(legalize)):
        for name, function in getattr(family, "PARTITION", {}).items():
            if name in table:
                where = family.__name__
                raise RuntimeError(f"{name} has partitioning rules in two families; remove the one in {where}")
            table[name] = function
    return table


def _modules(package: ModuleType) -> list[ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
