"""Control flow: loops, branches, calls, constraints and barriers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from propagation.attributes import symbol
from propagation.program import Block, Op, Value, source

from ..emit import Ref, Region
from ..errors import UnsupportedOpError
from ..layout import Dims
from ..realise import APART
from . import batch, linear
from .bodies import called, is_written_in_place
from .carries import best
from .constant import scalar_constant
from .context import Context
from .provenance import asked
from .varying import varying

_CARRIED = "carried value {} of a loop"
LOOKS = 3  # how often a loop's body is written before the layouts of what it carries are final


# -- loops ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Carry:
    """How a loop carries a value: in layout `dims`, complete or (`pending`) as a sum still to be reduced over axes.
    A `fixed` value is returned unchanged by the body: it is not carried but used from outside. A pending sum is
    `refused` if the body, seen again, does not return it as such; a `settled` carry is not changed any more."""

    dims: Dims
    fixed: bool
    pending: tuple[int, ...] = ()
    masked: bool = False
    refused: bool = False
    settled: bool = False


def while_(ctx: Context, op: Op) -> None:
    """Carried values keep the layout that propagation gave the loop, with three exceptions: what the body returns
    unchanged stays outside, so that it is resharded once; an empty collection takes the layout of what is put in;
    a sum of partial sums is reduced once, after the loop."""
    body = op.regions[1]
    carries = []
    for r, v, ret, arg in zip(op.results, op.operands, body.terminator.operands, body.args):
        carries.append(_Carry(ctx.want(r), ret is arg))
        if ret is arg:  # each run of the body uses it: a partial sum must not be carried on inside
            ctx.state(v).uses += 2
    trips = trip_count(op)

    def settle(layouts: tuple[Dims, ...]) -> tuple[list[_Carry], list[Region]]:
        return _settle(ctx, op, [replace(c, dims=d) for c, d in zip(carries, layouts)], trips)

    carries, regions = best(ctx, op, tuple([c.dims for c in carries]), trips, settle)
    moving = [i for i, c in enumerate(carries) if not c.fixed]
    starts = [_initial(ctx, op, i, carries[i]) for i in moving]
    refs = _emit_loop(ctx, op, [ref for ref, _ in starts], regions)
    for r, v, c in zip(op.results, op.operands, carries):
        if c.fixed:
            ctx.env[r] = ctx.env[v]
            ctx.env[r].uses += len(r.uses)
    for i, ref, (_, rest) in zip(moving, refs, starts):
        r, c = op.results[i], carries[i]
        ref.type_text = None if r.type.is_tensor else r.type.text
        ctx.bind_partial(r, c.dims, {c.pending: ref, **rest}, masked=c.masked)
        summed, end = ctx.state(r).partial, ctx.state(body.terminator.operands[i]).partial
        if summed is not None and end is not None:
            summed.op = end.op


def _settle(ctx: Context, op: Op, carries: list[_Carry], trips: int | None) -> tuple[list[_Carry], list[Region]]:
    """Carries that the body agrees with, starting from given ones, and the regions written with them."""
    marks = len(ctx.findings)
    regions, looks = _loop_regions(ctx, op, carries, trips), 1
    # After LOOKS only what was refused changes, each carry once.
    while (better := _reconsider(ctx, op, carries, looks < LOOKS)) is not None:
        carries = better
        del ctx.findings[marks:]
        regions, looks = _loop_regions(ctx, op, carries, trips), looks + 1
    return carries, regions


def _emit_loop(ctx: Context, op: Op, inits, regions) -> list[Ref]:
    types = [(ref.shape, ref.dtype) for ref in inits]
    text = ctx.attr_text(op)
    return ctx.region.op(op.name, inits, types, extra=text, regions=regions, loc=ctx.loc)


def _initial(ctx: Context, op: Op, i: int, carry: _Carry) -> tuple[Ref, dict[tuple[int, ...], Ref]]:
    """The first value of a carried argument, and the parts to be added to what the loop returns. A pending sum starts
    at what is pending over the same axes already (in an outer loop, its own sum so far), else at zero."""
    value = op.operands[i]
    if not carry.pending:
        return asked(ctx, value, carry.dims, _CARRIED.format(i)), {}
    rest: dict[tuple[int, ...], Ref] = {}
    partial = ctx.state(value).partial
    if linear.deferred(ctx, value) and partial.dims == carry.dims:
        rest = dict(partial.parts)
        carry.masked |= partial.masked
    elif scalar_constant(value) != 0:
        rest[()] = ctx.get(value, carry.dims)
    start = rest.pop(carry.pending, None)
    if start is None:
        start = ctx.realiser.zero(ctx.region, ctx.piece_shape(value, carry.dims), value.type.dtype)
    return start, rest


def _loop_regions(ctx: Context, op: Op, carries: list[_Carry], trips: int | None):
    """Condition and body for a choice of carries."""
    outer, regions = ctx.region, []
    apart = _apart(ctx, op.regions[0].terminator.operands[0]) if trips is None else None
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
            ref = Ref(ctx.piece_shape(arg, carry.dims), arg.type.dtype, text)
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


def _returned(ctx: Context, value: Value, carry: _Carry, because: str) -> Ref:
    if carry.pending:
        partial = ctx.state(value).partial
        sums = partial is not None and (partial.kind, partial.dims) == ("add", carry.dims)
        if sums and set(partial.parts) == {carry.pending}:
            return partial.parts[carry.pending]
        carry.refused = True
    return asked(ctx, value, carry.dims, because)


def _reconsider(ctx: Context, op: Op, carries: list[_Carry], look: bool) -> list[_Carry] | None:
    """Better carries, now that the body has been seen, or (without `look`) such that it allows; None if there are
    none."""
    cond, body = op.regions
    out, changed = [], False
    for i, (arg, ret, v, c) in enumerate(zip(body.args, body.terminator.operands, op.operands, carries)):
        state, end = ctx.state(arg), ctx.state(ret)
        new = c
        if c.refused:
            new = _Carry(ctx.want(op.results[i]), False, settled=True)
        elif c.fixed or c.pending or c.settled or not look:
            pass
        elif not cond.args[i].uses and _accumulates(state, end):
            (pending,) = [p for p in end.partial.parts if p]
            new = _Carry(end.partial.dims, False, pending, end.partial.masked)
        elif state.hint is not None and ctx.state(v).make is not None and state.hint != c.dims:
            new = _Carry(state.hint, False)
        changed |= new is not c
        out.append(new)
    return out if changed else None


def _accumulates(state, end) -> bool:
    """Whether a body returns its argument plus one partial sum, the argument being used for nothing else."""
    if state.uses != 1 or end.uses != 1 or end.partial is None or end.partial.kind != "add":
        return False
    parts = end.partial.parts
    return len(parts) == 2 and parts.get(()) is state.versions.get(end.partial.dims)


def trip_count(op: Op) -> int | None:
    """How often a counting loop runs: `i < limit`, `i` from a constant by constant steps. None if not such a loop."""
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
    # Floating-point steps are rounded: how many it takes is not the quotient.
    if not all(type(n) is int for n in (start, end, step)) or step <= 0 or body.args[i] not in (a, b):
        return None
    return max(0, -(-(end - start) // step))


def _outside(op: Op, block: Block, value: Value) -> Value:
    """The value outside a loop that a carried but never changed argument stands for."""
    while value.is_argument and value.owner is block:
        body = op.regions[1]
        if body.terminator.operands[value.number] is not body.args[value.number]:
            return value
        value = op.operands[value.number]
    return value


# -- branches -------------------------------------------------------------------------------------------------


def case(ctx: Context, op: Op) -> None:
    """Every branch returns the layout propagation gave the result; what is gathered inside stays inside."""
    index = ctx.get(op.operands[0], ())
    layouts = [ctx.want(r) for r in op.results]
    outer, regions = ctx.region, []
    apart = _apart(ctx, op.operands[0])
    for block in op.regions:
        region = ctx.region = Region("branch", outer)
        if apart:
            region.known[APART] = apart
        ctx.block(block.ops[:-1])
        ctx.op = block.terminator
        ends = enumerate(zip(block.terminator.operands, layouts))
        out = [asked(ctx, v, dims, f"result {i} of the branches") for i, (v, dims) in ends]
        region.op("stablehlo.return", out, ())
        regions.append(region)
        ctx.region = outer
    ctx.op = op
    types = [(ctx.piece_shape(r, dims), r.type.dtype) for r, dims in zip(op.results, layouts)]
    refs = outer.op(op.name, [index], types, extra=ctx.attr_text(op), regions=regions, loc=ctx.loc)
    for r, dims, ref in zip(op.results, layouts, refs):
        ref.type_text = None if r.type.is_tensor else r.type.text
        ctx.bind(r, dims, ref)


def _apart(ctx: Context, predicate: Value) -> frozenset[int]:
    """The atoms over which devices may disagree about running what a predicate decides, and what it stands in."""
    return varying(ctx, predicate) | (ctx.region.lookup(APART) or frozenset())


# -- calls ----------------------------------------------------------------------------------------------------


def call(ctx: Context, op: Op) -> None:
    """Small callees, and those called once, are written in place; others become one function per set of layouts."""
    callee = called(ctx, op)
    if callee is None:
        name = symbol(op.attrs["callee"])
        raise UnsupportedOpError(f"call of @{name}, which the module does not define", source(op))
    if is_written_in_place(ctx, callee):
        inline(ctx, op, callee)
    else:
        _call(ctx, op, callee)


def inline(ctx: Context, op: Op, callee) -> None:
    """Writes a function in the place of an operation whose results are the function's."""
    outer = ctx.env
    for v, arg in zip(op.operands, callee.args):
        # The call is one use, which stands for all uses of the callee's argument.
        ctx.state(v).uses += max(0, len(arg.uses) - 1)
    ctx.env = {arg: outer[v] for arg, v in zip(callee.args, op.operands)}
    if ctx.calls(callee.name) > 1:
        ctx.forget_estimates()  # those of the callee's values were made for another call
    for v, r in zip(callee.returned, op.results):
        end = ctx.ends.get(r) if len(r.uses) == 1 else None
        if end is None:
            ctx.ends.pop(v, None)
            ctx.returned_as[v] = r
        else:
            ctx.ends[v] = end
    ctx.block(callee.body.ops[:-1])
    results = [ctx.env[v] for v in callee.returned]
    ctx.env = outer
    ctx.op = op
    for r, state in zip(op.results, results):
        ctx.env[r] = state
        # The callee's return is one use, which stands for all uses of the call's result.
        state.uses += max(0, len(r.uses) - 1)


def _call(ctx: Context, op: Op, callee) -> None:
    layouts = tuple(ctx.want(a) for a in callee.args)
    outs = tuple(ctx.want(v) for v in callee.returned)
    apart = ctx.region.lookup(APART) or frozenset()
    key = (callee.name, layouts, outs, ctx.manual, apart)
    function = ctx.callees.get(key)
    if function is None:
        # A bare identifier, also for names like "<lambda>"; functions are counted before those that they call.
        name = re.sub(r"^\d|[^\w.$]", "_", callee.name, flags=re.ASCII) + f"_{len(ctx.builder.functions)}"
        function = ctx.callees[key] = ctx.function(callee, layouts, outs, name, False, apart=apart)
        ctx.op = op
    operands = [
        asked(ctx, v, dims, f"argument {i} of @{callee.name}") for i, (v, dims) in enumerate(zip(op.operands, layouts))
    ]
    types = [(ref.shape, ref.dtype) for ref in function.results]
    refs = ctx.region.op("func.call", operands, types, f"callee = @{function.name}", loc=ctx.loc)
    for r, dims, ref in zip(op.results, outs, refs):
        ref.type_text = None if r.type.is_tensor else r.type.text
        ctx.bind(r, dims, ref)


# -- annotations ----------------------------------------------------------------------------------------------


def constraint(ctx: Context, op: Op) -> None:
    """The value in the layout that was asked for."""
    value, result = op.operands[0], op.results[0]
    state = ctx.state(value)
    if state.make is not None or state.type_text is not None:
        ctx.env[result] = state
        return
    dims = ctx.want(result)
    if state.pending and state.partial.dims == dims and ctx.sharding(result).unreduced:
        same(ctx, op)
        return
    ctx.bind(result, dims, asked(ctx, value, dims, "annotation"))
    ctx.state(result).recipe = state.recipe


def reduced(ctx: Context, op: Op) -> None:
    """A sum over devices that stands after the operation that left it to be done: the value itself, in its layout.
    Sums of what an argument holds on each device are no operation on the whole tensor, unless it is said to be one."""
    value = op.operands[0]
    sharding = ctx.sharding(value)
    if not isinstance(value.owner, Op) and not (sharding is not None and sharding.unreduced):
        raise UnsupportedOpError(
            f"{op.name} adds up what devices hold of an argument that is not declared unreduced; give the argument an "
            "unreduced sharding, or reduce it in a manual computation",
            source(op),
        )
    constraint(ctx, op)


def same(ctx: Context, op: Op) -> None:
    """Operations that only speak to propagation."""
    for v, r in zip(op.operands, op.results):
        ctx.env[r] = state = ctx.env[v]
        state.uses += max(0, len(r.uses) - 1)


def nothing(ctx: Context, op: Op) -> None:
    pass


def optimization_barrier(ctx: Context, op: Op) -> None:
    """One barrier over the local pieces, so that nothing moves across it."""
    layouts = [ctx.want(r) for r in op.results]
    chosen = []
    for v, want in zip(op.operands, layouts):
        state = ctx.state(v)
        chosen.append(want if state.dims is None or state.pending or want in state.versions else state.dims)
    refs = [ctx.get(v, dims) for v, dims in zip(op.operands, chosen)]
    outs = ctx.region.op(op.name, refs, [(r.shape, r.dtype) for r in refs], loc=ctx.loc)
    for r, dims, ref, old in zip(op.results, chosen, outs, refs):
        ref.type_text = old.type_text
        ctx.bind(r, dims, ref)


def token(ctx: Context, op: Op) -> None:
    """Operations on tokens and tensors without any sharding of their own: run whole on every device."""
    batch.whole(ctx, op, "it has no sharding of its own", effect=True)


def message(ctx: Context, op: Op) -> None:
    """What leaves or enters the program (outfeed, send, ...) does so once on each device of a manual computation."""
    if not ctx.manual and ctx.atoms.count > 1:
        raise UnsupportedOpError(
            f"{op.name} outside of a manual computation would run once per device; write it in one (shard_map), or use "
            'partitioner="xla"',
            source(op),
        )
    token(ctx, op)


PARTITION = {
    "stablehlo.while": while_,
    "stablehlo.case": case,
    "stablehlo.if": case,
    "func.call": call,
    "sdy.sharding_constraint": constraint,
    "sdy.reshard": constraint,
    **{f"sdy.{name}": constraint for name in ("all_gather", "all_slice", "all_to_all", "collective_permute")},
    **{f"sdy.{name}": reduced for name in ("all_reduce", "reduce_scatter")},
    "sdy.propagation_barrier": same,
    "sdy.sharding_group": nothing,
    "sdy.data_flow_edge": same,
    "stablehlo.optimization_barrier": optimization_barrier,
    **{f"stablehlo.{name}": token for name in ("after_all", "create_token")},
    **{f"stablehlo.{name}": message for name in ("infeed", "outfeed", "send", "recv")},
}
