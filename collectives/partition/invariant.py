"""Where operations of loops are written that give the same in every turn.

A weight that is transposed, cut or converted in a loop is as much a value of outside as the weight itself: moved there
it is sent once, and what the loop sends for every turn is weighed against that. Compilers move such operations out by
themselves, but not what has already become part of a collective. Only what makes nothing larger leaves the loop, and
only if it is split: else nothing of it is ever sent. What the loop also uses as it is stays: it may be sent for both.
"""

from __future__ import annotations

from propagation.program import Op

from ..emit import Region
from .context import Context

__all__ = ["region_of"]

_MOVED = frozenset(
    f"{name if '.' in name else 'stablehlo.' + name}"
    for name in ("convert", "negate", "reshape", "reverse", "sdy.reshard", "sdy.sharding_constraint", "slice",
                 "transpose")
)  # fmt: skip


def region_of(ctx: Context, op: Op) -> Region:
    """The region in which `op` is to be written: the current one, or one around loops that it does not depend on."""
    region = ctx.region
    if region.kind != "loop" or op.name not in _MOVED or len(op.operands[0].uses) > 1:
        return region
    state, result = ctx.env[op.operands[0]], op.results[0]
    if not any(state.dims or ()) or ctx.bits(result) * result.type.size > state.bytes:
        return region
    while region.kind == "loop" and region is not state.home:
        region = region.parent
    return region
