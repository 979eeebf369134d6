"""Calls of functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from propagation.attributes import symbol
from propagation.program import Func, Op, source

from ..analysis.bodies import called, is_written_in_place
from ..decide.candidate import Candidate
from ..errors import UnsupportedOpError
from ..ir.operations import attributes
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.provenance import asked
from ..reshard.realise import APART


def call(ctx: Context, op: Op) -> Iterator[Candidate]:
    """Small callees, and those called once, are inlined, and take operands as they are; others become one function per
    set of layouts."""
    callee = called(ctx, op)
    if callee is None:
        name = symbol(op.attrs["callee"])
        raise UnsupportedOpError(f"call of @{name}, which the module does not define", source(op))
    if is_written_in_place(ctx, op, callee):
        yield Candidate((None,) * len(op.operands), (None,) * len(op.results), partial(inline, ctx, op, callee))
        return
    ins, outs = tuple([ctx.want(a) for a in callee.args]), tuple([ctx.want(v) for v in callee.returned])
    yield Candidate(ins, outs, partial(_call, ctx, op, callee, ins, outs))


def inline(ctx: Context, op: Op, callee: Func) -> None:
    """Inlines a function in place of an operation whose operands and results are the function's."""
    outer = ctx.env
    for v, arg in zip(op.operands, callee.args):
        # The call counts as one use of the operand; the callee's argument has as many as it has.
        ctx.state(v).use(max(0, len(arg.uses) - 1))
    ctx.env = {arg: outer[v] for arg, v in zip(callee.args, op.operands)}
    if ctx.calls(callee.name) > 1:
        ctx.forget_estimates()  # estimates of the callee's values are those of another call
    for v, r in zip(callee.returned, op.results):
        end = ctx.ends.get(r) if len(r.uses) == 1 else None
        ctx.ends[v], ctx.returned_as[v] = end, r  # those of an earlier call are others
    ctx.block(callee.body.ops[:-1])
    results = [ctx.env[v] for v in callee.returned]
    ctx.env = outer
    ctx.op = op
    for r, state in zip(op.results, results):
        ctx.env[r] = state
        # The callee's return counts as one use; the call's result has as many as it has.
        state.use(max(0, len(r.uses) - 1))


def _call(ctx: Context, op: Op, callee: Func, layouts: tuple[Dims, ...], outs: tuple[Dims, ...]) -> None:
    """Calls the function that has been made of the callee for these layouts, or makes it."""
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
    told = ctx.attributes_of(op).without("callee")  # what compilers are told of the call
    refs = ctx.region.op("func.call", operands, types, attributes("func.call", function.name), told, loc=ctx.loc)
    for r, dims, ref in zip(op.results, outs, refs):
        ref.type_text = None if r.type.is_tensor else r.type.text
        ctx.bind(r, dims, ref)


CANDIDATES = {"func.call": call}
