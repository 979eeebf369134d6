"""Operations written out as what StableHLO says they are: a function of simpler ones, put in their place."""

from __future__ import annotations

from collections.abc import Mapping

from propagation.errors import ModuleParseError
from propagation.program import Op, read, source

from ..errors import UnsupportedOpError
from ..layout import Dims
from .context import Context

__all__ = ["write_out"]


def write_out(ctx: Context, op: Op, text: str, layouts: Mapping[tuple[int, ...], Dims]) -> None:
    """Writes the one function of `text`, whose arguments and results are those of `op`, in its place. `layouts` says
    how values of a shape are wanted; where they do not, it is whole."""
    try:
        program = read(text)
    except ModuleParseError as e:  # attributes that say nothing, as groups of devices that do not exist
        raise UnsupportedOpError(f"{op.name} cannot be written out: {e}", source(op)) from None
    ctx.decisions.setdefault("written out", []).append(program)  # its context lives as long as this one
    (func,) = program.funcs.values()
    for inner in func.body.ops:
        _ = inner.attrs  # read from its own place, before it is given that of `op`
        inner._ir = op._ir
    inside = [r for inner in func.body.ops for r in inner.results]
    ctx.set_wants({v: layouts.get(v.type.shape, ((),) * len(v.type.shape)) for v in inside})
    outer = ctx.env
    for v, arg in zip(op.operands, func.args):
        ctx.state(v).uses += max(0, len(arg.uses) - 1)
    ctx.env = {arg: outer[v] for arg, v in zip(func.args, op.operands)}
    ctx.block(func.body.ops[:-1])
    states = [ctx.env[v] for v in func.returned]
    ctx.env, ctx.op = outer, op
    for r, state in zip(op.results, states):
        ctx.env[r] = state
        state.uses += max(0, len(r.uses) - 1)
