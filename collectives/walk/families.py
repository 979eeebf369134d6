"""The rules of all families of operations.

A file of `ops` or `legalize` exports, by the names of operations, what to do with them:

CANDIDATES  functions that take the `Context` and the operation and yield the ways in which it may be done, of which the
            cheapest is taken and written (`collectives.decide`). Several files may offer ways for one operation:
            between equally cheap ones that of the file whose name comes first is taken
SETTLED     functions that write an operation at once where nothing is to be chosen, and say whether they did: most
            operations of a program have their operands as they are wanted. What they write is what the family's
            candidates would have come to
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
from collections.abc import Iterable
from types import ModuleType

from .. import legalize, ops
from ..decide.candidate import Ahead, Behind
from ..decide.choosing import Candidates, Settled, rule_of
from ..layouts.context import Rule

__all__ = ["ahead", "behind", "joined_rules", "rules"]


@functools.cache
def rules() -> dict[str, Rule]:
    """Operation name to the function that partitions it."""
    return joined_rules(_families())


def joined_rules(families: Iterable[ModuleType]) -> dict[str, Rule]:
    """The rules that these files export. RuntimeError for an operation that one of them partitions by itself
    (`PARTITION`) and another one as well: nobody could say which is to be asked."""
    offered: dict[str, list[Candidates]] = {}
    settled: dict[str, Settled] = {}
    table: dict[str, Rule] = {}
    for family in families:
        for name, found in getattr(family, "CANDIDATES", {}).items():
            offered.setdefault(name, []).append(found)
        settled.update(getattr(family, "SETTLED", {}))
        for name, function in getattr(family, "PARTITION", {}).items():
            if name in table:
                raise RuntimeError(f"{name} has partitioning rules in two files; remove the one in {family.__name__}")
            table[name] = function
    for name, ways in offered.items():
        if name in table:
            where = ", ".join(sorted({f.__module__ for f in ways}))
            raise RuntimeError(f"{name} has a partitioning rule and candidates (in {where}); make the rule a candidate")
        table[name] = rule_of(*ways, settled=settled.get(name))
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
