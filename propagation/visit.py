"""One visit of an operation: from the shardings around it to the new ones. A pure function of (rule, directions,
strategy, shardings), so the driver remembers its results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .axes import Axes, contains
from .factors import STRATEGIES
from .model import DimFactors, Mesh, OpRule, TensorSharding
from .projection import TensorState, back_project, project

__all__ = ["Conflict", "Decision", "Seen", "common_mesh", "decide"]

# The shardings of the operands, then of the results of an operation; None: not annotated.
Seen: TypeAlias = "tuple[TensorSharding | None, ...]"


@dataclass(frozen=True, slots=True)
class Conflict:
    """`tensor` (operands first, then results; -1: all of them) got `granted` of the `wanted` axes of `factor`."""

    factor: int
    wanted: Axes
    tensor: int
    granted: Axes
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`changes` are (tensor, new sharding), operands first. `sources` gives, per changed tensor and factor that grew,
    the tensor that the new axes came from. `before` are the shardings that were visited: a decision is remembered and
    shared by all visits with the same shardings, so they are stored once."""

    changes: tuple[tuple[int, TensorSharding], ...]
    sources: tuple[tuple[int, int, int], ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    before: Seen = ()


_NOTHING = Decision(())


def common_mesh(shardings: Iterable[TensorSharding | None]) -> Mesh | None:
    """The mesh of all shardings; None if there is none, they differ, or it is a single device."""
    found: Mesh | None = None
    for sharding in shardings:
        if sharding is None:
            continue
        mesh = sharding.mesh
        if mesh is found or mesh.is_empty:
            continue
        if found is None:
            found = mesh
        elif found.layout != mesh.layout:
            return None
    return None if found is None or found.is_maximal else found


def decide(rule: OpRule, directions: Sequence[int], strategy: str, conservative: bool, shardings: Seen) -> Decision:
    """Visits an operation once."""
    mesh = common_mesh(shardings)
    if mesh is None:
        return _NOTHING
    mappings = (*rule.operands, *rule.results)
    count = len(rule.operands)
    if any(s is not None and len(s.dims) != len(m) for s, m in zip(shardings, mappings)):
        return _NOTHING  # a sharding of another rank (a maximal mesh, an empty one) takes no part
    states = [project(rule, m, s) for m, s in zip(mappings, shardings)]
    before = [state.axes[:] for state in states]
    sizes = _tensor_sizes(rule, mappings)
    conflicts: list[Conflict] = []

    def watch(factor: int, wanted: Axes, tensor: int, granted: Axes, reason: str) -> None:
        conflicts.append(Conflict(factor, wanted, tensor, granted, reason))

    changed: set[int] = set()
    for step in STRATEGIES[strategy]:
        changed.update(step(rule, sizes, directions, states[:count], states[count:], conservative, mesh, watch))
    changes = []
    for t in sorted(changed):
        new = back_project(rule, mappings[t], states[t], mesh)
        old = shardings[t]
        if new is not old and not (old is None and new.is_fully_replicated):
            changes.append((t, new))
    if not changes and not conflicts:
        return _NOTHING
    return Decision(tuple(changes), _sources(changes, states, before), tuple(conflicts), shardings)


def _tensor_sizes(rule: OpRule, mappings: tuple[DimFactors, ...]) -> list[int]:
    """The element count of each tensor in factor space."""
    out = []
    for mapping in mappings:
        size = 1
        for f in {f for dim in mapping for f in dim}:
            size *= rule.sizes[f]
        out.append(size)
    return out


def _sources(
    changes: list[tuple[int, TensorSharding]], states: list[TensorState], before: list[list[Axes | None]]
) -> tuple[tuple[int, int, int], ...]:
    """(changed tensor, factor, source tensor): the source is the first tensor that had the axes already."""
    out = []
    for t, _ in changes:
        for f, axes in enumerate(states[t].axes):
            if axes is None or axes == before[t][f]:
                continue
            last = axes[-1]
            source = next(
                (s for s, old in enumerate(before) if s != t and any(contains(a, last) for a in old[f] or ())),
                -1,
            )
            out.append((t, f, source))
    return tuple(out)
