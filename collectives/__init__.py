"""Realises shardings: a propagated module becomes a per-device program with explicit collectives.

>>> partitioned = partition(text)                      # doctest: +SKIP
>>> print(partitioned.plan.as_text())                  # doctest: +SKIP
"""

from __future__ import annotations

from jaxlib.mlir import ir

from propagation.program import Program, read

from . import errors
from .annotations import Annotated, Propagation
from .module import Options, Partitioned, partition_program
from .plan import CommunicationPlan, Finding, PlanEntry
from .reshard import ReshardPlan, plan_reshard
from .topology import Link, Topology

__all__ = [
    "CommunicationPlan",
    "Finding",
    "Link",
    "Options",
    "Partitioned",
    "PlanEntry",
    "ReshardPlan",
    "Topology",
    "errors",
    "partition",
    "plan_reshard",
]


def partition(propagated, topology: Topology | None = None, **options) -> Partitioned:
    """Turns a propagated program into one device's program.

    `propagated` is what `propagation.run` returns, or a module that carries closed `sdy` shardings already (text,
    bytecode, an `ir.Module` or a `propagation.program.Program`). `options` are the fields of `Options`.

    The result's @main takes and returns one device's pieces; its collectives have `replica_groups` over the device
    numbers of the flattened mesh. Raises subclasses of `errors.CollectivesError`.
    """
    if isinstance(propagated, str | bytes | ir.Module):
        propagated = read(propagated)
    known = Annotated(propagated) if isinstance(propagated, Program) else Propagation(propagated)
    return partition_program(known.program, known, Topology() if topology is None else topology, Options(**options))
