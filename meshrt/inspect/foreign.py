"""How modules that were written elsewhere are propagated and partitioned: to be looked at, not to be run by us."""

from __future__ import annotations

from typing import Any

import collectives
from collectives.topology import Topology
from propagation import Propagated
from propagation.annotation_sites import Edit
from propagation.reopening import Module, run_opened

__all__ = ["partition_foreign", "propagate_foreign"]


def propagate_foreign(module: Module, annotate: Edit | None = None, file: str | None = None) -> Propagated:
    """`propagation.run` for a look at a module of another frontend, or at what a station of ours printed: in the order
    in which XLA decides; a module that propagation was through already is read as it was before. Raises the same."""
    return run_opened(module, annotate, xla_order=True, file=file)


def partition_foreign(
    propagated: Propagated, topology: Topology | None = None, **options: Any
) -> collectives.PartitionedProgram:
    """`collectives.partition` for a look at a module of another frontend.

    A program that we run refuses what its user has to decide. Here nobody runs anything: operands of custom calls that
    nothing is known of are gathered, as compilers do it and with a finding, and results that are declared unreduced
    leave as addends. Raises what `collectives.partition` raises.
    """
    return collectives.partition(propagated, topology, gather_custom_calls=True, unreduced_results=True, **options)
