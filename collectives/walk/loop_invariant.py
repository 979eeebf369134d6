"""Loop-invariant code motion for operations that move data: a transpose, slice or conversion of a loop-invariant value
is written before the loop.

Compilers hoist such operations too, but not the collectives behind them: with the transposed weight defined outside of
the loop, it is all-gathered once, and not in every iteration, and prices of layouts in the loop take that into account.
Only operations leave the loop whose result is no larger than the operand and whose operand is split (else nothing of it
is ever sent), and which are its only use in the loop (else both the operand and the result might be sent).
"""

from __future__ import annotations

from propagation.program import Op

from ..ir.program import Region
from ..layouts.context import Context

__all__ = ["region_of"]

_MOVED = frozenset(
    f"{name if '.' in name else 'stablehlo.' + name}"
    for name in ("convert", "negate", "reshape", "reverse", "sdy.reshard", "sdy.sharding_constraint", "slice",
                 "transpose")
)  # fmt: skip


def region_of(ctx: Context, op: Op) -> Region:
    """The region to write `op` in: the current one, or the one around the loops in which its operand is invariant."""
    region = ctx.region
    if region.kind != "loop" or op.name not in _MOVED or len(op.operands[0].uses) > 1:
        return region
    state, result = ctx.env[op.operands[0]], op.results[0]
    if not any(state.dims or ()) or ctx.itemsize(result) * result.type.size > state.bytes:
        return region
    while region.kind == "loop" and region.origin is not state.home and region.parent is not None:
        region = region.parent
    return region
