"""Control flow: loops, branches, calls, manual computations, constraints and barriers."""

from __future__ import annotations

from propagation.attributes import symbol
from propagation.program import Block, Op, Value, source

from ..emit import Ref, Region
from ..errors import UnsupportedOpError, UnsupportedShardingError
from ..layout import Dims, replicated
from .constant import scalar_constant
from .context import Context

INLINE_LIMIT = 40  # operations of a callee that is written out at every call rather than called


# -- loops ----------------------------------------------------------------------------------------------------


def while_(ctx: Context, op: Op) -> None:
    """Carried values keep the layout that propagation gave the loop. A value the body returns unchanged is not
    resharded inside: its versions are made once, outside."""
    cond, body = op.regions
    layouts = [ctx.want(r) for r in op.results]
    fixed = [ret is arg for ret, arg in zip(body.terminator.operands, body.args)]
    inits = [ctx.get(v, dims) for v, dims in zip(op.operands, layouts)]
    trips = trip_count(op)
    outer = ctx.region
    regions = []
    for block, is_body in ((cond, False), (body, True)):
        region = _region(ctx, "loop", block, layouts, trips if is_body else None if trips is None else trips + 1)
        for arg, ref, dims, v, same in zip(block.args, region.args, layouts, op.operands, fixed):
            if same:
                ctx.env[arg] = ctx.env[v]
            else:
                ctx.bind(arg, dims, ref)
                ctx.env[arg].home = region
        ctx.region = region
        ctx.block(block.ops[:-1])
        ctx.op = block.terminator
        if is_body:
            out = [
                ref if same else ctx.get(v, dims)
                for v, dims, ref, same in zip(block.terminator.operands, layouts, region.args, fixed)
            ]
        else:
            out = [ctx.get(block.terminator.operands[0], ())]
        region.op("stablehlo.return", out, ())
        regions.append(region)
        ctx.region = outer
    ctx.op = op
    types = [(ref.shape, ref.dtype) for ref in inits]
    refs = outer.op(op.name, inits, types, extra=ctx.attr_text(op), regions=regions, loc=ctx.loc)
    for r, dims, ref, init in zip(op.results, layouts, refs, inits):
        ref.type_text = init.type_text
        ctx.bind(r, dims, ref)


def _region(ctx: Context, kind: str, block: Block, layouts, trips) -> Region:
    region = Region(kind, ctx.region, [], trips)
    for arg, dims in zip(block.args, layouts):
        text = None if arg.type.is_tensor else arg.type.text
        region.args.append(Ref(ctx.piece_shape(arg, dims), arg.type.dtype, text))
    return region


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
    if step is None or step <= 0 or body.args[i] not in (a, b):
        return None
    return max(0, -(-(int(end) - int(start)) // int(step)))


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
    for block in op.regions:
        region = ctx.region = Region("branch", outer)
        ctx.block(block.ops[:-1])
        ctx.op = block.terminator
        out = [ctx.get(v, dims) for v, dims in zip(block.terminator.operands, layouts)]
        region.op("stablehlo.return", out, ())
        regions.append(region)
        ctx.region = outer
    ctx.op = op
    types = [(ctx.piece_shape(r, dims), r.type.dtype) for r, dims in zip(op.results, layouts)]
    refs = outer.op(op.name, [index], types, extra=ctx.attr_text(op), regions=regions, loc=ctx.loc)
    for r, dims, ref in zip(op.results, layouts, refs):
        ref.type_text = None if r.type.is_tensor else r.type.text
        ctx.bind(r, dims, ref)


# -- calls ----------------------------------------------------------------------------------------------------


def call(ctx: Context, op: Op) -> None:
    """Small callees, and those called once, are written in place; others become one function per set of layouts."""
    name = symbol(op.attrs["callee"])
    callee = ctx.program.funcs.get(name)
    if callee is None:
        raise UnsupportedOpError(f"call of @{name}, which the module does not define", source(op))
    if ctx.calls(name) <= 1 or len(callee.body.ops) <= INLINE_LIMIT:
        _inline(ctx, op, callee)
    else:
        _call(ctx, op, callee)


def _inline(ctx: Context, op: Op, callee) -> None:
    outer = ctx.env
    ctx.env = {arg: outer[v] for arg, v in zip(callee.args, op.operands)}
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
    key = (callee.name, layouts, outs)
    function = ctx.callees.get(key)
    if function is None:
        function = ctx.callees[key] = ctx.function(callee, layouts, outs, f"{callee.name}_{len(ctx.callees)}", False)
        ctx.op = op
    operands = [ctx.get(v, dims) for v, dims in zip(op.operands, layouts)]
    types = [(ref.shape, ref.dtype) for ref in function.results]
    refs = ctx.region.op("func.call", operands, types, f"callee = @{function.name}", loc=ctx.loc)
    for r, dims, ref in zip(op.results, outs, refs):
        ctx.bind(r, dims, ref)


# -- manual computations --------------------------------------------------------------------------------------


def manual_computation(ctx: Context, op: Op) -> None:
    """The body is written per device along the manual axes already: it is copied into place, with the other axes
    partitioned as usual."""
    ins, outs = ctx.manual_shardings(op)
    manual = ctx.manual_atoms(op)
    body = op.regions[0]
    outer_manual, ctx.manual = ctx.manual, tuple(sorted({*ctx.manual, *manual}))
    for v, arg, s in zip(op.operands, body.args, ins):
        dims = ctx.atoms.dims(s)
        ref = ctx.get(v, dims)
        ctx.bind(arg, _without(dims, manual, op), ref)
    ctx.block(body.ops[:-1])
    ctx.op = body.terminator
    refs = []
    for v, s in zip(body.terminator.operands, outs):
        if s.unreduced:
            raise UnsupportedShardingError(
                "a manual computation returns an unreduced value; reduce it inside (psum) first", source(op)
            )
        refs.append(ctx.get(v, _without(ctx.atoms.dims(s), manual, op)))
    ctx.op, ctx.manual = op, outer_manual
    for r, ref, s in zip(op.results, refs, outs):
        ctx.bind(r, ctx.atoms.dims(s), ref)


def _without(dims: Dims, manual, op: Op) -> Dims:
    """The layout inside: manual axes are the major ones of each dimension and fall away."""
    out = []
    for atoms in dims:
        free = tuple(a for a in atoms if a not in manual)
        if atoms[len(atoms) - len(free) :] != free:
            raise UnsupportedShardingError("manual axes must be major to free axes in every dimension", source(op))
        out.append(free)
    return tuple(out)


# -- annotations ----------------------------------------------------------------------------------------------


def constraint(ctx: Context, op: Op) -> None:
    """The value in the layout that was asked for."""
    value, result = op.operands[0], op.results[0]
    state = ctx.state(value)
    if state.make is not None or state.type_text is not None:
        ctx.env[result] = state
        return
    dims = ctx.want(result)
    ctx.bind(result, dims, ctx.get(value, dims))


def same(ctx: Context, op: Op) -> None:
    """Operations that only speak to propagation."""
    for v, r in zip(op.operands, op.results):
        ctx.env[r] = ctx.env[v]


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
    operands = [ctx.whole(v) for v in op.operands]
    results = []
    for r in op.results:
        results.append(Ref(r.type.shape, r.type.dtype, None if r.type.is_tensor else r.type.text))
    from ..emit import Item

    ctx.region.add(Item(op.name, operands, results, extra=ctx.attr_text(op), loc=ctx.loc, effect=True))
    for r, ref in zip(op.results, results):
        ctx.bind(r, replicated(len(r.type.shape)), ref)


_MANUAL_COLLECTIVES = ["all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"]


def manual_collective(ctx: Context, op: Op) -> None:
    """A collective the program wrote itself: its groups are device numbers of the flattened mesh already."""
    if not ctx.manual:
        raise UnsupportedOpError(
            f"{op.name} outside of a manual computation; write it in one (shard_map), or let a sharding ask for it",
            source(op),
        )
    layouts = [replicated(len(v.type.shape)) for v in op.operands]
    operands = [ctx.gathered(v, dims, "a collective of a manual computation") for v, dims in zip(op.operands, layouts)]
    text = ctx.attr_text(op, skip=("use_global_device_ids", "channel_handle"))
    refs = ctx.local_copy(op, operands, [r.type.shape for r in op.results], attrs=text)
    kind = op.name.removeprefix("stablehlo.")
    groups = _groups(op)
    operand = sum(v.type.size * ctx.bits(v) for v in op.operands)
    ctx.own_collective(refs[0], kind, groups, operand, "written in the program")
    for r, ref in zip(op.results, refs):
        ctx.bind(r, replicated(len(r.type.shape)), ref)


def _groups(op: Op) -> tuple[int, int]:
    attr = op.attrs.get("replica_groups")
    if attr is None:
        return (1, 2)
    shape = attr.type.shape
    return (shape[0], shape[1])




PARTITION = {
    "stablehlo.while": while_,
    "stablehlo.case": case,
    "stablehlo.if": case,
    "func.call": call,
    "sdy.manual_computation": manual_computation,
    "sdy.sharding_constraint": constraint,
    "sdy.reshard": constraint,
    "sdy.propagation_barrier": same,
    "sdy.sharding_group": nothing,
    "sdy.data_flow_edge": same,
    "stablehlo.optimization_barrier": optimization_barrier,
    **{f"stablehlo.{name}": token for name in ("after_all", "create_token", "infeed", "outfeed", "send", "recv")},
    **{f"stablehlo.{name}": manual_collective for name in _MANUAL_COLLECTIVES},
}
