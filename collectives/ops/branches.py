"""Branches: `case` and `if`. Versions of values that are made inside one are not visible outside, since it may not run.

A result leaves all branches alike. What it costs to bring it to the layout that propagation gave it, in each branch, is
known once the branches are decided: where all of them made it in one other layout, it leaves them so if its users are
expected to cost less. A sum that is still to be taken in one or more branches, the others having zeros or sums over the
same devices, leaves them as such and is taken behind them: with what is added to it there, or as a reduce-scatter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from propagation.program import Op, Value

from ..analysis.constants import scalar_constant
from ..analysis.divergence import apart_over
from ..decide.candidate import Candidate
from ..heuristics import EQUAL_COST_BYTES
from ..ir.program import LocalValue, Region
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.provenance import asked
from ..layouts.state import Partial
from ..partial_sums import deferred_reduction
from ..reshard.realise import APART


class _Leaves(NamedTuple):
    """How a result leaves the branches: its layout, and the atoms over which it is a sum still to be taken."""

    dims: Dims
    pending: tuple[int, ...] = ()
    masked: bool = False


def case(ctx: Context, op: Op) -> Iterator[Candidate]:
    """The index is known to every device."""
    operands = ((), *[None] * (len(op.operands) - 1))
    yield Candidate(operands, (None,) * len(op.results), partial(_write, ctx, op))


def _write(ctx: Context, op: Op) -> None:
    index = ctx.get(op.operands[0], ())
    outer, regions = ctx.region, []
    apart = apart_over(ctx, op.operands[0])
    for block in op.regions:
        region = ctx.region = Region("branch", outer)
        if apart:
            region.known[APART] = apart
        ctx.block(block.ops[:-1])
        regions.append(region)
    leaves = [_leaves(ctx, op, i, regions, apart) for i in range(len(op.results))]
    for block, region in zip(op.regions, regions):
        ctx.region, ctx.op = region, block.terminator
        ends = enumerate(zip(block.terminator.operands, leaves))
        region.op("stablehlo.return", [_returned(ctx, v, way, i) for i, (v, way) in ends], ())
    ctx.region, ctx.op = outer, op
    types = [(ctx.piece_shape(r, way.dims), r.type.dtype) for r, way in zip(op.results, leaves)]
    refs = outer.op(op.name, [index], types, extra=ctx.attributes_of(op), regions=regions, loc=ctx.loc)
    for r, way, ref in zip(op.results, leaves, refs):
        ref.type_text = None if r.type.is_tensor else r.type.text
        ctx.bind_partial(r, way.dims, {way.pending: ref}, masked=way.masked)


def _leaves(ctx: Context, op: Op, i: int, regions: list[Region], apart: frozenset[int]) -> _Leaves:
    """How result number `i` leaves the branches, whose values are known. Over the atoms `apart` devices may disagree
    about the branch."""
    result, want = op.results[i], ctx.want(op.results[i])
    ends = [block.terminator.operands[i] for block in op.regions]
    if not result.type.is_tensor:
        return _Leaves(want)
    sums = _sums(ctx, result, ends)
    if sums is not None and apart.isdisjoint(sums.pending):
        return sums
    states = [ctx.state(v) for v in ends]
    made = {s.dims for s in states if s.make is None}
    (dims,) = made if len(made) == 1 else (want,)
    if dims is None or dims == want or any(s.pending for s in states):
        return _Leaves(want)
    now = 0.0
    for state, region in zip(states, regions):
        ctx.region = region
        now = max(now, ctx.move_bytes(state, want))  # one of the branches runs
    return _Leaves(dims if ctx.later_cost(result, dims) < now - EQUAL_COST_BYTES else want)


def _sums(ctx: Context, result: Value, ends: list[Value]) -> _Leaves | None:
    """The way of a result that is a sum over the same atoms in all branches that do not return zeros; None for others,
    and where it is better taken inside."""
    found = [partial for v in ends if (partial := _sum(ctx, v)) is not None]
    zeros = [v for v in ends if ctx.state(v).make is not None and scalar_constant(v) == 0]
    first = found[0] if found else None
    if first is None or first.chosen or len(found) + len(zeros) < len(ends) or len(result.uses) != 1:
        return None
    (pending,) = first.parts
    if any((p.dims, *p.parts) != (first.dims, pending) for p in found) or any(p.chosen for p in found):
        return None
    if not deferred_reduction.saves(ctx, result, pending):
        return None
    return _Leaves(first.dims, pending, bool(zeros) or any(p.masked for p in found))


def _sum(ctx: Context, value: Value) -> Partial | None:
    """A value as a sum of one part that nothing but the branch's end uses; None if it is none."""
    state = ctx.state(value)
    partial = state.partial
    if not state.pending or partial is None or state.uses != 1 or (partial.kind, len(partial.parts)) != ("add", 1):
        return None
    return partial


def _returned(ctx: Context, value: Value, way: _Leaves, i: int) -> LocalValue:
    sum_ = ctx.state(value).partial
    if way.pending and sum_ is not None:
        return sum_.parts[way.pending]
    return asked(ctx, value, way.dims, f"result {i} of the branches")


CANDIDATES = {"stablehlo.case": case, "stablehlo.if": case}
