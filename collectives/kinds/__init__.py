"""The collectives: one file per kind, which holds everything that is to be known of it.

A file exports `KIND`, a `CollectiveKind`; files are collected by walking this package, so that a new collective is one
file here and its test. The cost model, the plan, the passes, the partitioner and the readers of compiled programs look
up what they need by the kind's name, by its operation or by its name in HLO:

>>> kind_of("all_gather").sent(8, 1024.0)      # bytes that a device sends, in groups of 8, of an operand of 1 KiB
7168.0
>>> kind_of("all_gather").transpose, kind_of("all_gather").gathers
('reduce_scatter', True)

What the reshard planner can do with a collective (`moves.py`) is no fact of the kind but a choice of the planner.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from .record import CollectiveKind

__all__ = ["CollectiveKind", "by_hlo", "by_op", "kind_of", "kinds"]


@functools.cache
def kinds() -> dict[str, CollectiveKind]:
    """Every kind by its name."""
    table: dict[str, CollectiveKind] = {}
    for info in pkgutil.iter_modules(__path__):
        kind = getattr(importlib.import_module(f"{__name__}.{info.name}"), "KIND", None)
        if kind is not None:
            if kind.name in table:
                raise RuntimeError(f"two files define the collective {kind.name}; remove the one in {info.name}.py")
            table[kind.name] = kind
    return table


def kind_of(name: str) -> CollectiveKind:
    """The kind of this name. Raises `ValueError` if there is none."""
    found = kinds().get(name)
    if found is None:
        raise ValueError(f"unknown collective {name!r}; there are {', '.join(kinds())}")
    return found


@functools.cache
def by_op() -> dict[str, CollectiveKind]:
    """The kinds that have an operation, by its name: `stablehlo.all_gather`."""
    return {kind.op: kind for kind in kinds().values() if kind.op is not None}


@functools.cache
def by_hlo() -> dict[str, CollectiveKind]:
    """Every kind by its name in compiled programs: `all-gather`."""
    return {kind.hlo: kind for kind in kinds().values()}
