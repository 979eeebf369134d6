"""Realises shardings: a propagated module becomes a per-device program with explicit collectives.

>>> partitioned = partition(text)                      # doctest: +SKIP
>>> print(partitioned.plan.as_text())                  # doctest: +SKIP
"""

from __future__ import annotations

import operator
import os
from typing import Any

from jaxlib.mlir.ir import Module

from propagation import Propagated
from propagation.errors import UnsupportedModuleError
from propagation.gc_pause import collector_paused
from propagation.pipeline import check_types
from propagation.program import Program, read, source

from . import errors
from .alternatives import cheapest
from .annotations import Annotated, KnownShardings, Propagation
from .findings import Finding
from .module import PartitionedProgram, partition_program
from .network import Link, Network
from .options import Options
from .plan.communication import Alternative, CommunicationPlan, Origin, PlanEntry
from .plan.memory import Held, MemoryPlan, Moment
from .planning import PlannedReshard, PlannedStep, plan_reshard
from .reordered import in_xla_order
from .spec import as_mesh, as_sharding
from .topology import Topology, load
from .within_memory import noted

__all__ = [
    "Alternative",
    "CommunicationPlan",
    "Finding",
    "Held",
    "Link",
    "MemoryPlan",
    "Moment",
    "Network",
    "Options",
    "Origin",
    "PartitionedProgram",
    "PlanEntry",
    "PlannedReshard",
    "PlannedStep",
    "Topology",
    "as_mesh",
    "as_sharding",
    "errors",
    "partition",
    "plan_reshard",
]


def partition(
    propagated: Propagated | Program | Module | str | bytes,
    topology: Topology | str | os.PathLike[str] | None = None,
    **options: Any,
) -> PartitionedProgram:
    """Turns a propagated program into one device's program.

    `propagated` is what `propagation.run` returns, or a module that carries closed `sdy` shardings already (text,
    bytecode, an `ir.Module` or a `propagation.program.Program`). `topology` is one, or what `topology.load` reads: a
    file, or a name as `v5e:16x16`; the mesh is laid over it. `options` are the fields of `Options`.

    The result's @main takes and returns one device's pieces; its collectives have `replica_groups` over the device
    numbers of the flattened mesh: replica i is the device at position i of the mesh.

    Raises subclasses of `errors.CollectivesError`: `InputError` for what is no program, `OptionError` for an option or
    value that there is not, `TopologyError` for a topology that is none or does not hold the mesh, `DeviceMemoryError`
    where the device's memory is known and too small, `UnsupportedOpError` and `UnsupportedShardingError` for what
    cannot be split, `MeshMismatchError` and `GroupsError` for a program that contradicts itself, `UnreducedResultError`
    and `FullGatherError` for what options forbid. Also those of `propagation.errors`, for text or bytecode that is no
    module, for shapes that are not static and for partial values that are not sums.

    >>> import collectives, propagation
    >>> text = meshrt.jit(jnp.sin).lower(jnp.ones(8)).as_text()
    >>> collectives.partition(propagation.run(text)).plan.counts
    {}
    """
    if isinstance(propagated, str | bytes | Module):
        propagated = read(propagated)
    elif not isinstance(propagated, Program | Propagated):
        raise errors.InputError(
            f"a {type(propagated).__name__} is no program; give what propagation.run returned, or a module as text, "
            "bytecode, ir.Module or propagation.program.Program"
        )
    chosen = Options.of(options)
    if isinstance(propagated, Program):
        check_types(propagated)
    _check_static(propagated if isinstance(propagated, Program) else propagated.program)
    with collector_paused():  # nearly all that is made here lives on in the result
        known: KnownShardings = Annotated(propagated) if isinstance(propagated, Program) else Propagation(propagated)
        _check_sums(known)
        if not chosen.reorder:
            return noted(partition_program(known.program, known, _topology(topology), chosen))
        known = in_xla_order(known)
        return cheapest(known, _topology(topology), chosen)


_TYPE = operator.attrgetter("type")


def _check_static(program: Program) -> None:
    """Raises `UnsupportedModuleError` if a value's shape is not known: pieces of it have no size."""
    unknown = {t for t in set(map(_TYPE, program.values)) if t.is_tensor and not t.is_static}
    for value in program.values if unknown else ():
        if value.type in unknown:
            raise UnsupportedModuleError(
                f"partitioning needs static shapes, found {value.type.text}; refine the module's shapes first",
                None if value.op is None else source(value.op),
            )


def _check_sums(known: KnownShardings) -> None:
    """Raises `UnsupportedModuleError` for partial values that combine by something else than a sum."""
    for sharding in {*known.shardings.table, *known.results()}:
        if sharding is not None and sharding.reduction != "sum":
            raise UnsupportedModuleError(
                f"{sharding.to_text()} over {', '.join(a.name for a in sharding.unreduced)} leaves its "
                f"{sharding.reduction} to be taken; only sums may be left. Put an sdy.all_reduce behind the value"
            )


def _topology(topology: Topology | str | os.PathLike[str] | None) -> Topology | None:
    if isinstance(topology, str | os.PathLike):
        return load(os.fspath(topology))
    if topology is None or isinstance(topology, Topology):
        return topology
    raise errors.TopologyError(f"{topology!r} is no topology; give one, a file, or a name as v5e:16x16")
