"""Inlining a decomposition: an operation is replaced by a function of simpler operations, given as StableHLO text."""

from __future__ import annotations

from collections.abc import Mapping

from propagation.errors import ModuleParseError
from propagation.program import Op, read, source

from ..errors import UnsupportedOpError
from ..layout import Dims
from ..layouts.context import Context

__all__ = ["write_out"]


def write_out(ctx: Context, op: Op, text: str, layouts: Mapping[tuple[int, ...], Dims]) -> None:
    """Partitions the one function of `text`, whose arguments and results are those of `op`, in place of `op`. `layouts`
    are the wanted layouts of the values inside, by shape; values of other shapes are wanted replicated. Raises
    `UnsupportedOpError` if `text` is no module."""
    try:
        program = read(text)
    except ModuleParseError as e:  # attributes without a meaning, as groups of devices that do not exist
        raise UnsupportedOpError(f"{op.name} cannot be written out: {e}", source(op)) from None
    ctx.written_out.append(program)
    (func,) = program.funcs.values()
    for inner in func.body.ops:
        _ = inner.attrs  # fetched from its own MLIR operation, before that is replaced by `op`'s, for locations
        inner._ir = op._ir
    inside = [r for inner in func.body.ops for r in inner.results]
    ctx.set_wants({v: layouts.get(v.type.shape, ((),) * len(v.type.shape)) for v in inside})
    outer = ctx.env
    for v, arg in zip(op.operands, func.args):
        ctx.state(v).use(max(0, len(arg.uses) - 1))
    ctx.env = {arg: outer[v] for arg, v in zip(func.args, op.operands)}
    ctx.block(func.body.ops[:-1])
    states = [ctx.env[v] for v in func.returned]
    ctx.env, ctx.op = outer, op
    for r, state in zip(op.results, states):
        ctx.env[r] = state
        state.use(max(0, len(r.uses) - 1))
