"""Taking the cheapest of the ways to do an operation, and noting what the others would have cost."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from propagation.program import Op

from ..heuristics import EQUAL_COST_BYTES
from ..layouts.context import Context, Rule
from ..plan.decisions import Decision, Way
from .candidate import Candidate
from .factors import Splits

__all__ = ["Candidates", "Settled", "rule_of", "take"]

# What a family exports for an operation: the ways in which it may be done, of which the first wins between equals.
Candidates: TypeAlias = Callable[[Context, Op], Iterable[Candidate | Splits]]

# Writes an operation at once, and says that it did, where its only candidate needs no weighing.
Settled: TypeAlias = Callable[[Context, Op], bool]


def rule_of(*offered: Candidates, settled: Settled | None = None) -> Rule:
    """The rule that takes the cheapest of the candidates that these functions offer, and writes it. A single one may
    say where there is nothing to choose (`settled`); where others offer ways too, all are weighed."""

    if len(offered) == 1:
        (candidates,) = offered
        if settled is None:
            return lambda ctx, op: take(ctx, op, candidates(ctx, op))()

        def quick(ctx: Context, op: Op) -> None:
            if not settled(ctx, op):
                take(ctx, op, candidates(ctx, op))()

        return quick

    def rule(ctx: Context, op: Op) -> None:
        take(ctx, op, itertools.chain.from_iterable([candidates(ctx, op) for candidates in offered]))()

    return rule


def take(ctx: Context, op: Op, candidates: Iterable[Candidate | Splits]) -> Callable[[], None]:
    """What writes the cheapest of the candidates. A single one is neither weighed nor noted."""
    found = list(candidates)
    if len(found) == 1 and isinstance(found[0], Candidate):
        return _writer(found[0])
    ways: list[Way] = []
    best, number = math.inf, 0
    write: Callable[[], None] | None = None
    writes: Callable[[], None]
    for candidate in found:
        if isinstance(candidate, Splits):
            choice, split = candidate.best(ctx)
            cost, at, writes = choice.bytes, len(ways) + choice.number, functools.partial(candidate.write, choice)
            ways += split
        else:
            way = _weighed(ctx, op, candidate, best)
            cost, at, writes = math.inf if way.later is None else way.cost, len(ways), _writer(candidate)
            ways.append(way)
        if write is None or cost < best - EQUAL_COST_BYTES:
            best, number, write = cost, at, writes
    assert write is not None, f"no way was found to do {op.name}"
    if len(ways) > 1:
        ctx.chosen.append(Decision(op, number, tuple(ways)))
    return write


def _writer(candidate: Candidate) -> Callable[[], None]:
    assert candidate.write is not None, "candidates of the look-ahead are not taken"
    return candidate.write


def _weighed(ctx: Context, op: Op, candidate: Candidate, best: float) -> Way:
    """The candidate with what it costs; without looking ahead if it is known not to be cheaper than `best`."""
    now = candidate.work + candidate.price(ctx.message) if candidate.sent else candidate.work
    pairs = zip(op.operands, candidate.operands)
    for value, dims in pairs if len(op.operands) < 2 else dict.fromkeys(pairs):  # what is used twice travels once
        if dims is not None:
            now += ctx.move_cost(value, dims)
    later: float | None = None
    if now < best - EQUAL_COST_BYTES:
        later = 0.0
        for result, dims in zip(op.results, candidate.results):
            if dims is not None:
                later += sum([ctx.later_cost(result, dims, part) for part in candidate.pending])
    return Way(candidate.operands, candidate.results, candidate.pending, now, later)
