"""Rematerialization of all-gathers: a gathered value is dropped and gathered again where memory is short.

An all-gather is written once for all users of its result, which may be far apart: a weight that the forward and the
backward pass read stays gathered in between (fully sharded data parallelism gathers it twice for that reason). Where
the estimated peak is more than a device has, the users behind the peak get an all-gather of their own, behind an
`optimization_barrier` that keeps the compiler from merging the two. Its bytes are sent again, and the plan counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..heuristics import RELEASED_VALUES
from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import inputs
from ..machine import Machine, ref_bytes
from .memory import boundary, crest

__all__ = ["release"]


def release(function: LocalFunction, functions: dict[str, LocalFunction], machine: Machine) -> int:
    """Gathers values of a function's own region again, largest first, until it fits; how many."""
    if machine.memory is None:
        return 0
    fixed = boundary(function)
    for done in range(RELEASED_VALUES):
        most, at = crest(function.region, function.results, functions)
        if fixed + most <= machine.memory or not _split_one(function, at):
            return done
    return RELEASED_VALUES


def _split_one(function: LocalFunction, at: int) -> bool:
    """Splits the gather that frees most at position `at`; False if none does."""
    items = function.region.items
    kept = set(function.results)
    best: LocalOp | None = None
    freed = 0.0
    busy = set(inputs(items[at]))
    later = {r for item in items[at + 1 :] for r in inputs(item)}
    for item in items[:at]:
        c = item.collective
        if c is not None and c.facts.gathers and len(item.results) == 1:
            (r,) = item.results
            gain = ref_bytes(r) - ref_bytes(item.operands[0])
            if r in later and r not in busy and r not in kept and gain > freed:
                best, freed = item, gain
    if best is None:
        return False
    (old,) = best.results
    first = next(i for i in range(at + 1, len(items)) if old in inputs(items[i]))
    again = _again(function.region, best, items[:first])
    new = again[-1].results[0]
    _use_instead(items[first:], {old: new})
    items[first:first] = again
    return True


def _again(region: Region, gather: LocalOp, before: Sequence[LocalOp]) -> list[LocalOp]:
    """The gather once more, after the last value of `before`."""
    (x,) = gather.operands
    c = gather.communication
    anchor = next(r for item in reversed(before) for r in item.results if r.type_text is None)
    held = [LocalValue(r.shape, r.dtype) for r in (x, anchor)]
    barrier = LocalOp("stablehlo.optimization_barrier", (x, anchor), held, loc=gather.loc)
    copy = LocalOp(
        gather.name, held[:1], [LocalValue(r.shape, r.dtype) for r in gather.results], gather.attrs, loc=gather.loc
    )
    copy.collective = c._replace(cause=f"{c.cause}, gathered again to save memory")
    barrier.region = copy.region = region
    return [barrier, copy]


def _use_instead(items: Sequence[LocalOp], new: dict[LocalValue, LocalValue]) -> None:
    for item in items:
        item.operands = [new.get(r, r) for r in item.operands]
        for inner in item.regions:
            _use_instead(inner.items, new)
