"""One visit of an operation: from the shardings around it to the new ones. A pure function of (rule, directions,
strategy, shardings), so the driver remembers its results."""

from __future__ import annotations

from dataclasses import dataclass

from .axes import Axes
from .factors import STRATEGIES
from .model import Mesh, OpRule, TensorSharding
from .projection import TensorState, back_project, project

__all__ = ["Conflict", "Decision", "common_mesh", "decide"]


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
    the tensor that the new axes came from. `before` are the shardings that were visited; they are kept here, once for
    all visits that met the same, rather than with every event of the log."""

    changes: tuple[tuple[int, TensorSharding], ...]
    sources: tuple[tuple[int, int, int], ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    before: tuple[TensorSharding | None, ...] = ()


_NOTHING = Decision(())


def common_mesh(shardings) -> Mesh | None:
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


def decide(rule: OpRule, directions, strategy: str, conservative: bool, shardings) -> Decision:
    """Visits an operation once. `shardings` lists those of operands, then results; None: not annotated."""
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

    def watch(factor, wanted, tensor, granted, reason):
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
    return Decision(tuple(changes), _sources(changes, states, before), tuple(conflicts), tuple(shardings))


def _tensor_sizes(rule: OpRule, mappings) -> list[int]:
    """The element count of each tensor in factor space."""
    out = []
    for mapping in mappings:
        size = 1
        for f in {f for dim in mapping for f in dim}:
            size *= rule.sizes[f]
        out.append(size)
    return out


def _sources(changes, states: list[TensorState], before) -> tuple[tuple[int, int, int], ...]:
    """(changed tensor, factor, source tensor): the source is the first tensor that had the axes already."""
    out = []
    for t, _ in changes:
        for f, axes in enumerate(states[t].axes):
            if axes is None or axes == before[t][f]:
                continue
            last = axes[-1]
            source = next(
                (
                    s
                    for s, old in enumerate(before)
                    if s != t
                    and old[f]
                    and any(a.name == last.name and a.pre <= last.pre and a.end >= last.end for a in old[f])
                ),
                -1,
            )
            out.append((t, f, source))
    return tuple(out)
