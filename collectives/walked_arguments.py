"""Arguments that stay split while loops inside loops gather them row by row: layers' weights in a loop over layers,
inside one over microbatches. Each turn of the outer loop gathers all rows again; gathered once, before the outer loop,
they are sent once (and their gradients' sums may then be carried whole, see `ops/control.py`).

Only rows that the plan is seen to gather: over one axis or over all that split the argument, at the size of a row's
piece. What is split for another reason, as features over the axis of tensor parallelism, stays so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from propagation.model import AxisRef, DimSharding, TensorSharding
from propagation.program import Block, Op, Program, Use, Value

from .annotations import KnownShardings
from .cost import item_bytes
from .kinds import kind_of
from .plan.communication import CommunicationPlan
from .preferences import Gathered, handed_in

__all__ = ["walked_arguments"]

_LOOP, _ROW = "stablehlo.while", "stablehlo.dynamic_slice"


def walked_arguments(known: KnownShardings, plan: CommunicationPlan) -> tuple[Gathered, ...]:
    """The split arguments whose rows `plan` gathers in loops inside loops, each with the sharding in which it is whole
    along the axes that it is gathered over."""
    if not {_LOOP, _ROW} <= set(known.program.names):
        return ()
    seen = _gathered_in_loops(plan)
    found = []
    for number, arg in enumerate(known.program.main.args) if seen else ():
        sharding = known.sharding(arg)
        rows = set() if sharding is None or sharding.is_fully_replicated else _rows(known.program, arg)
        if sharding is None or not rows:
            continue
        over = next((axes for axes in _axes(sharding) if _is_seen(seen, sharding, arg, rows, axes)), None)
        if over is not None:
            left = [tuple(a for a in d.axes if a not in over) for d in sharding.dims]
            dims = [DimSharding(axes, axes == d.axes and not axes) for axes, d in zip(left, sharding.dims)]
            found.append(Gathered(number, TensorSharding(sharding.mesh, dims)))
    return tuple(found)


def _gathered_in_loops(plan: CommunicationPlan) -> set[tuple[frozenset[str], int]]:
    """(axes, bytes sent) of the all-gathers that run more than once, the members of combined ones apart."""
    found: set[tuple[frozenset[str], int]] = set()
    for entry in plan:
        if entry.kind == "all_gather" and entry.times != 1:
            axes = frozenset(name for name, *_ in entry.mesh_axes)
            found.update((axes, round(part.bytes)) for part in entry.members or (entry,))
    return found


def _axes(sharding: TensorSharding) -> Iterable[frozenset[AxisRef]]:
    """The axes that split a tensor: all of them, then each by itself."""
    every = [a for d in sharding.dims for a in d.axes]
    return dict.fromkeys(itertools.chain([frozenset(every)], (frozenset([a]) for a in every)))


def _is_seen(
    seen: set[tuple[frozenset[str], int]], sharding: TensorSharding, arg: Value, rows: Iterable[int],
    axes: frozenset[AxisRef],
) -> bool:  # fmt: skip
    """Whether rows of that many elements are gathered over `axes`, in their type or in one of half its size."""
    names = frozenset(a.name for a in axes)
    parts = math.prod(d.factor for d in sharding.dims)
    gather, n = kind_of("all_gather"), math.prod(a.size for a in axes)
    pieces = [row * item_bytes(arg.type.dtype) / parts for row in rows]
    return any((names, round(gather.sent(n, piece * share))) in seen for piece in pieces for share in (1, 0.5))


def _rows(program: Program, arg: Value) -> set[int]:
    """The elements of the slices that loops inside loops take of an argument, at positions known at run time."""
    found: set[int] = set()
    todo, seen = [(arg, 0)], {(arg, 0)}
    while todo:
        value, loops = todo.pop()
        for use in value.uses:
            depth = loops + _loops_between(value, use)
            if use.op.name == _ROW and not use.number and depth > 1:
                found.add(use.op.results[0].type.size)
            elif inner := handed_in(program, use):
                place = (inner[-1], depth + (use.op.name == _LOOP))
                if place not in seen:  # a function may be called from many places, and they from many
                    seen.add(place)
                    todo.append(place)
    return found


def _loops_between(value: Value, use: Use) -> int:
    """How many loops stand around a use that do not stand around the value: bodies may use what lies outside."""
    home = value.owner if isinstance(value.owner, Block) else value.owner.parent
    block, loops = use.op.parent, 0
    while block is not None and block is not home:
        op = block.owner
        assert isinstance(op, Op), "values are used in their own function"
        loops += op.name == _LOOP
        block = op.parent
    return loops
