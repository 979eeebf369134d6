"""The rules of all families of operations.

A file of `ops` or `legalize` exports, by the names of operations, what to do with them:

CANDIDATES  functions that take the `Context` and the operation and yield the ways in which it may be done, of which the
            cheapest is taken and written (`collectives.decide`)
PARTITION   functions that choose layouts themselves, write the operation on one device's pieces with the collectives
            that it needs, and bind every result: families that have no candidates yet, or nothing to decide
AHEAD       for the look-ahead, functions that yield the ways which follow from one operand being in a layout;
            operations without one are taken to need their operands as propagation laid them out
BEHIND      for the look-ahead, functions that give the layouts of operands of which every device can compute its
            part of the result in a layout

The two packages are walked, so adding a family edits no list. A file without any of these is plumbing.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from .. import legalize, ops
from ..decide.candidate import Ahead, Behind
from ..decide.choosing import rule_of
from ..layouts.context import Rule

__all__ = ["ahead", "behind", "rules"]


@functools.cache
def rules() -> dict[str, Rule]:
    """Operation name to the function that partitions it."""
    table: dict[str, Rule] = {}
    for family in _families():
        decided = {name: rule_of(found) for name, found in getattr(family, "CANDIDATES", {}).items()}
        for name, function in (*decided.items(), *getattr(family, "PARTITION", {}).items()):
            if name in table:
                where = family.__name__
                raise RuntimeError(f"{name} has partitioning rules in two families; remove the one in {where}")
            table[name] = function
    return table


@functools.cache
def ahead() -> dict[str, Ahead]:
    """Operation name to the function that the look-ahead asks."""
    return {name: found for family in _families() for name, found in getattr(family, "AHEAD", {}).items()}


@functools.cache
def behind() -> dict[str, Behind]:
    """Operation name to the function that says which layouts of operands a layout of the result follows from."""
    return {name: found for family in _families() for name, found in getattr(family, "BEHIND", {}).items()}


def _families() -> list[ModuleType]:
    return [*_modules(ops), *_modules(legalize)]


def _modules(package: ModuleType) -> list[ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
