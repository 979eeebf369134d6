"""Loops. Bodies are partitioned in place; loop-invariant values are captured instead of carried, so that reshards of
them are hoisted; and accumulators of partial sums are carried unreduced: `for i: s += dot(a[i], b[i])`, each dot a
partial sum over x, is one all-reduce of s after the loop. How the body uses what it carries is known once all of it is
decided: a loop is drafted up to `LOOP_WRITES` times, and the last draft is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from propagation.program import Block, Op, Value

from ..analysis.bodies import called, handed_on
from ..analysis.constants import scalar_constant
from ..analysis.divergence import apart_over
from ..heuristics import LOOP_WRITES, MEMORY_GROWTH_BYTES
from ..ir.program import LocalValue, Region
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.drafts import drafted
from ..layouts.loop_carries import Drafted, best
from ..layouts.provenance import asked
from ..layouts.state import Partial, State
from ..partial_sums import deferred_reduction, unreduced
from ..reshard.realise import APART

_CARRIED = "carried value {} of a loop"


@dataclass(slots=True)
class _Carry:
    """How a loop carries a value.

    dims     its layout
    fixed    loop-invariant: the body returns it unchanged, so it is not carried but captured from outside
    pending  the atoms over which it is carried as an unreduced sum, to be reduced once after the loop
    masked   as in `Partial`
    refused  the body, written again with the pending sum, did not return it as one
    settled  not changed any more
    held     bytes by which it is larger so than it was
    """

    dims: Dims
    fixed: bool
    pending: tuple[int, ...] = ()
    masked: bool = False
    refused: bool = False
    settled: bool = False
    held: float = 0.0


def while_(ctx: Context, op: Op) -> None:
    """Carried values keep the layout that propagation gave the loop (or one that `loop_carries` finds cheaper), with
    three exceptions: loop-invariant values stay outside, so that they are resharded once; a stack that a scan writes
    rows into takes the layout that the rows are computed in; an accumulator of partial sums stays unreduced inside and
    is reduced once, after the loop."""
    body = op.regions[1]
    carries = []
    for r, v, ret, arg in zip(op.results, op.operands, body.terminator.operands, body.args):
        fixed = handed_on(ctx, ret) is arg
        carries.append(_Carry(ctx.want(r), fixed))
        if fixed:  # each iteration uses it: an unreduced sum must not be used part by part inside
            ctx.state(v).use(2)
    trips = trip_count(op)

    def settle(layouts: tuple[Dims, ...], wanted: Mapping[Value, Dims]) -> Drafted[_Carry]:
        return _settle(ctx, op, [replace(c, dims=d) for c, d in zip(carries, layouts)], trips, wanted)

    carries, regions = best(ctx, op, tuple([c.dims for c in carries]), trips, settle)
    moving = [i for i, c in enumerate(carries) if not c.fixed]
    starts = [_initial(ctx, op, i, carries[i]) for i in moving]
    refs = _emit_loop(ctx, op, [ref for ref, _ in starts], regions)
    for r, v, c in zip(op.results, op.operands, carries):
        if c.fixed:
            ctx.env[r] = ctx.env[v]
            ctx.env[r].use(len(r.uses))
    for i, ref, (_, rest) in zip(moving, refs, starts):
        r, c = op.results[i], carries[i]
        ref.type_text = None if r.type.is_tensor else r.type.text
        ctx.bind_partial(r, c.dims, {c.pending: ref, **rest}, masked=c.masked)
        summed, end = ctx.state(r).partial, ctx.state(body.terminator.operands[i]).partial
        if summed is not None and end is not None:
            summed.op = end.op


def _settle(
    ctx: Context, op: Op, carries: list[_Carry], trips: int | None, wanted: Mapping[Value, Dims]
) -> Drafted[_Carry]:
    """Drafts the loop, anew while its body suggests better carries, starting from given ones; the final carries and
    the draft with them."""
    looks = 0
    while True:
        looks += 1  # after LOOP_WRITES drafts only refused carries change, each once

        def write() -> tuple[list[Region], list[_Carry] | None]:
            regions = _loop_regions(ctx, op, carries, trips)
            return regions, _reconsider(ctx, op, carries, looks < LOOP_WRITES)

        (regions, better), draft = drafted(ctx, wanted, write)
        if better is None:
            return Drafted(carries, regions, draft)
        carries = better


def _emit_loop(ctx: Context, op: Op, inits: Sequence[LocalValue], regions: Sequence[Region]) -> list[LocalValue]:
    types = [(ref.shape, ref.dtype) for ref in inits]
    return ctx.region.op(op.name, inits, types, extra=ctx.attributes_of(op), regions=regions, loc=ctx.loc)


def _initial(ctx: Context, op: Op, i: int, carry: _Carry) -> tuple[LocalValue, dict[tuple[int, ...], LocalValue]]:
    """The initial value of a carried argument, and the parts to be added to the loop's result. A pending sum starts at
    the part of its operand that is pending over the same axes (in an outer loop, its own sum so far), else at zero."""
    value = op.operands[i]
    if not carry.pending:
        return asked(ctx, value, carry.dims, _CARRIED.format(i)), {}
    rest: dict[tuple[int, ...], LocalValue] = {}
    partial = deferred_reduction.deferred(ctx, value)
    if partial is not None and partial.dims == carry.dims:
        rest = dict(partial.parts)
        carry.masked |= partial.masked
    else:
        partial = None
    start = rest.pop(carry.pending, None)
    if start is None:
        start = ctx.realiser.zero(ctx.region, ctx.piece_shape(value, carry.dims), value.type.dtype)
    if not rest and partial is None and scalar_constant(value) != 0:
        state = ctx.state(value)
        cut = lambda dims: deferred_reduction.is_cut(ctx, state.shape, dims, carry.dims, carry.pending)
        have = next(filter(cut, state.versions), None)
        if have is None:
            rest[()] = ctx.get(value, carry.dims)
        else:
            start = deferred_reduction.placed(ctx, start, ctx.get(value, have), carry.dims, have)
    return start, rest


def _loop_regions(ctx: Context, op: Op, carries: list[_Carry], trips: int | None) -> list[Region]:
    """Writes condition and body for given carries."""
    outer, regions = ctx.region, []
    apart = apart_over(ctx, op.regions[0].terminator.operands[0]) if trips is None else None
    for is_body, block in enumerate(op.regions):
        count = trips if is_body else None if trips is None else trips + 1
        region = ctx.region = Region("loop", outer, (), count)
        if apart:
            region.known[APART] = apart
        for arg, carry, v in zip(block.args, carries, op.operands):
            if carry.fixed:
                ctx.env[arg] = ctx.env[v]
                continue
            text = None if arg.type.is_tensor else arg.type.text
            ref = LocalValue(ctx.piece_shape(arg, carry.dims), arg.type.dtype, text)
            region.args.append(ref)
            ctx.bind_partial(arg, carry.dims, {carry.pending: ref}, masked=carry.masked)
        if is_body:
            ctx.ends.update((v, (c.dims, 1.0)) for v, c in zip(block.terminator.operands, carries) if not c.pending)
        ctx.block(block.ops[:-1])
        ctx.op = block.terminator
        if not is_body:
            out = [ctx.get(block.terminator.operands[0], ())]
        else:
            ends = enumerate(zip(block.terminator.operands, carries))
            out = [_returned(ctx, v, c, _CARRIED.format(i)) for i, (v, c) in ends if not c.fixed]
        region.op("stablehlo.return", out, ())
        regions.append(region)
        ctx.region, ctx.op = outer, op
    return regions


def _returned(ctx: Context, value: Value, carry: _Carry, because: str) -> LocalValue:
    if carry.pending:
        partial = ctx.state(value).partial
        if partial is not None and (partial.kind, partial.dims) == ("add", carry.dims):
            if set(partial.parts) == {carry.pending}:
                return partial.parts[carry.pending]
        carry.refused = True
    return asked(ctx, value, carry.dims, because)


def _reconsider(ctx: Context, op: Op, carries: list[_Carry], look: bool) -> list[_Carry] | None:
    """Better carries, given the states that writing the body left; None if there are none. Without `look`, only carries
    that the body refused are changed."""
    cond, body = op.regions
    out, changed = [], False
    room = _room(ctx) - sum(c.held for c in carries)
    for i, (arg, ret, v, c) in enumerate(zip(body.args, body.terminator.operands, op.operands, carries)):
        state, end = ctx.state(arg), ctx.state(ret)
        new = c
        if c.refused:
            new = _Carry(ctx.want(op.results[i]), False, settled=True)
        elif c.fixed or c.pending or c.settled or not look:
            pass
        elif not cond.args[i].uses and (partial := _accumulated(state, end)) is not None:
            (pending,) = [p for p in partial.parts if p]
            held = _growth(ctx, state, c.dims, partial.dims)
            if held <= room or not partial.placed:
                new = _Carry(partial.dims, False, pending, partial.masked, held=held)
        elif not cond.args[i].uses and (rows := _stacked(ctx, op, i)) is not None:
            dims, pending, masked = rows
            held = _growth(ctx, state, c.dims, dims)
            if held <= max(0.0, room):
                new = _Carry(dims, False, pending, masked, held=held)
        elif state.hint is not None and ctx.state(v).make is not None and state.hint != c.dims:
            new = _Carry(state.hint, False)
        changed |= new is not c
        room -= new.held - c.held
        out.append(new)
    return out if changed else None


def _growth(ctx: Context, state: State, before: Dims, dims: Dims) -> float:
    """Bytes by which a value is larger in another layout."""
    return (ctx.elements(state.shape, dims) - ctx.elements(state.shape, before)) * state.itemsize


def _accumulated(state: State, end: State) -> Partial | None:
    """What a body returns (`end`) if that is its argument (`state`) plus one unreduced sum, the argument being used for
    nothing else; else None."""
    partial = end.partial
    if state.uses != 1 or end.uses != 1 or partial is None or partial.kind != "add":
        return None
    parts = partial.parts
    if len(parts) == 1 and partial.placed is not None and list(parts) != [()]:
        dims, piece = partial.placed
        return partial if state.versions.get(dims) is piece else None
    return partial if len(parts) == 2 and parts.get(()) is state.versions.get(partial.dims) else None


def _stacked(ctx: Context, op: Op, i: int) -> tuple[Dims, tuple[int, ...], bool] | None:
    """How the loop `op` carries value i unreduced (its layout, the atoms it is pending over, whether it is masked) if
    its body writes unreduced sums into it, at positions known at run time, and does nothing else with it; else None.
    Each row is then reduced with all others, in one message, or together with what is added to them after the loop:
    gradients of layers in a scan over microbatches. Only where what follows adds to the stack, or declares it
    unreduced: behind other operations, rows that are ready early are better sent early."""
    body = op.regions[1]
    arg, ret, init = body.args[i], body.terminator.operands[i], op.operands[i]
    written = _written(ctx, ret, arg)
    if written is None or ctx.state(arg).uses != 1 or ctx.state(ret).uses != 1:
        return None
    row, window = written
    rows, old = ctx.state(row).partial, row.type.shape
    if ctx.state(row).uses != 1 or rows is None or rows.kind != "add" or rows.chosen or len(rows.parts) != 1:
        return None
    split = [d for n, d in zip(old, rows.dims) if n > 1]
    if [n for n in old if n > 1] != [n for n in window if n > 1] or any(d for n, d in zip(old, rows.dims) if n == 1):
        return None
    dims = tuple([split.pop(0) if n > 1 else () for n in window])
    if any(d and n != m for n, m, d in zip(arg.type.shape, window, dims)):
        return None
    (pending,) = rows.parts
    if not pending:
        return None
    held = deferred_reduction.deferred(ctx, init)
    if scalar_constant(init) != 0 and (held is None or held.dims != dims or set(held.parts) != {pending}):
        return None  # what the loop starts from would be counted once per device
    result = op.results[i]
    declared = set(unreduced.atoms_of(ctx, ctx.sharding(result)))
    stays = set(pending) <= declared or deferred_reduction.is_added_to(ctx, result)
    return (dims, pending, rows.masked) if stays else None


def _written(ctx: Context, value: Value, stack: Value) -> tuple[Value, tuple[int, ...]] | None:
    """What is written into `stack` to make `value`, maybe in a function that is called for it, and the shape in which
    it is written there: dimensions of one position may be added or dropped before."""
    op = value.op
    if op is None or op.name == "stablehlo.dynamic_update_slice":
        return (op.operands[1], op.operands[1].type.shape) if op is not None and op.operands[0] is stack else None
    callee = called(ctx, op) if op.name == "func.call" else None
    if callee is None or op.operands.count(stack) != 1:
        return None
    place = callee.args[op.operands.index(stack)]
    found = _written(ctx, callee.body.terminator.operands[value.number], place)
    row = None if found is None else found[0]
    while row is not None and row.op is not None and row.op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
        row = row.op.operands[0]
    if found is None or row is None or row.owner is not callee.body:
        return None
    return op.operands[row.number], found[1]


def _room(ctx: Context) -> float:
    """Bytes by which a loop may raise what it carries, to reduce accumulators that are split once instead of in every
    iteration: whole, they are larger. None where memory may not grow at all."""
    if not ctx.options.memory_growth:
        return 0.0
    pieces = sum(
        ctx.itemsize(v) * ctx.elements(v.type.shape, ctx.want(v)) for v in ctx.program.main.args if v.type.is_tensor
    )
    return max(MEMORY_GROWTH_BYTES, ctx.options.memory_growth * pieces)


def trip_count(op: Op) -> int | None:
    """The trip count of a loop `for i in range(start, limit, step)` with constants; None for any other loop."""
    cond, body = op.regions
    test = cond.terminator.operands[0].op
    if test is None or test.name != "stablehlo.compare" or test.parent is not cond:
        return None
    counter, limit = test.operands
    if not counter.is_argument or counter.owner is not cond:
        return None
    i = counter.number
    end = scalar_constant(_outside(op, cond, limit))
    start = scalar_constant(op.operands[i])
    step_op = body.terminator.operands[i].op
    direction = str(test.attrs["comparison_direction"])
    if end is None or start is None or step_op is None or step_op.name != "stablehlo.add" or "LT" not in direction:
        return None
    a, b = step_op.operands
    step = scalar_constant(_outside(op, body, b if a is body.args[i] else a))
    # Only integers: sums of floating-point steps are rounded, so their number is not the quotient.
    if type(start) is not int or type(end) is not int or type(step) is not int or step <= 0:
        return None
    if body.args[i] not in (a, b):
        return None
    return max(0, -(-(end - start) // step))


def _outside(op: Op, block: Block, value: Value) -> Value:
    """The value outside of a loop that a loop-invariant argument stands for; other values as they are."""
    while value.is_argument and value.owner is block:
        body = op.regions[1]
        if body.terminator.operands[value.number] is not body.args[value.number]:
            return value
        value = op.operands[value.number]
    return value


PARTITION = {"stablehlo.while": while_}
