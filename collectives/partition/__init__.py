"""The partitioner: how each operation runs on pieces of its operands. One file per family of operations, mirroring
`propagation.rules`.

A family file exports `PARTITION = {"stablehlo.name": function}`; the functions take the `Context` and the operation,
choose layouts, write the operation on one device's pieces with the collectives that it needs, and bind every result.
Files are collected by walking this package, so adding a family edits no list. A file without `PARTITION` is plumbing:

  state, context, writing   what is known of every value; resharding on demand; writing operations (start reading here)
  factors, lookahead        choosing layouts by what they send, now and at later operations
  linear, lookups           deferred reductions (partial sums); results of masked lookups
  intervals, window_reach, shared_halos   halo exchange and shifts along split dimensions
  rearrange, recompute      operations that move elements; recomputing instead of resharding
  loop_layouts, loop_invariant, value_numbering, common_sums   optimisations across operations
  associative_scan, scan_trees, static_indices, progressions, ranges, varying   analyses and what follows from them
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
