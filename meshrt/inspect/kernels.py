"""The kernels of a program, as rows of its report: what each one takes of a core, copies and computes in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import propagation
from meshrt.core.jaxpr import Eqn, Jaxpr, subjaxprs
from meshrt.core.source import Source
from meshrt.inspect.model import KernelMemoryRow, KernelRow
from meshrt.pipeline.lowered import Lowered
from meshrt.primitives.custom_partitioning import custom_partitioning_p

__all__ = ["kernel_rows"]


def kernel_rows(lowered: Lowered, propagated: propagation.Propagated) -> tuple[KernelRow, ...]:
    """A row for each kernel that one device runs, with its own pieces: those that stand in the program, and those of
    operations that their users partition, once shardings are known."""
    mesh = lowered.request.mesh
    is_split = mesh is not None and mesh.size > 1
    found = list(_kernels(lowered.record.live, is_split, None))
    for op in propagated.program.ops():
        call = (op.data or {}).get("local_call")
        if call is not None:
            found += _kernels(call.jaxpr, False, None)
    return tuple(replace(row, places=count) for row, count in Counter(map(_row, found)).items())


def _kernels(jaxpr: Jaxpr, is_split: bool, at: Source | None) -> Iterator[tuple[Eqn, Source | None]]:
    """Each kernel, with the line of the operation around it that the user called, `at`, which several calls of the same
    function do not share; else its own."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.kernel_facts is not None:
            yield eqn, at or eqn.source
        elif not (is_split and eqn.primitive is custom_partitioning_p):
            rule = eqn.params.get("rule")  # of a function with derivatives of its own
            is_library = rule is not None and getattr(rule, "is_library", False)
            around = at or (eqn.source if is_library or eqn.primitive is custom_partitioning_p else None)
            for inner in subjaxprs(eqn.params):
                yield from _kernels(inner, is_split, around)


def _row(kernel: tuple[Eqn, Source | None]) -> KernelRow:
    eqn, source = kernel
    assert eqn.primitive.kernel_facts is not None, "only kernels have rows"
    facts = eqn.primitive.kernel_facts(eqn.params)
    memory = tuple(KernelMemoryRow(name, held) for name, held in sorted(facts.memory.items()))
    cost = facts.cost
    sent = getattr(cost, "remote_bytes_transferred", 0) or 0
    where = None if source is None else str(source)
    return KernelRow(facts.name, facts.grid, memory, facts.copies, facts.moved, sent, cost.flops, where, 1)
