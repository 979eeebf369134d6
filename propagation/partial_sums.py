"""How the partial results of an operation are combined whose reduction factors are split."""

from __future__ import annotations

from .graph import Op
from .ops import REDUCTIONS

__all__ = ["MAX", "MIN", "SUM", "combiners", "shardys_combiners"]

# The values of the `reduction_op` attribute of `sdy.all_reduce`.
SUM, MAX, MIN = 0, 1, 2
_KINDS = {name: row.sdy for name, row in REDUCTIONS.items() if row.sdy is not None}
_BOOLEAN = {"stablehlo.or": MAX, "stablehlo.and": MIN}


def combiners(op: Op) -> list[int | None]:
    """Per result: sum, maximum or minimum; None if partial results cannot be combined by one of these."""
    if not op.regions:
        return [SUM] * len(op.results)
    body = op.regions[0]
    count = len(op.results)
    found: list[int | None] = []
    for i, value in enumerate(body.terminator.operands):
        inner = value.op
        if inner is None or {*inner.operands} != {body.args[i], body.args[count + i]}:
            found.append(None)
            continue
        kind = _KINDS.get(inner.name)
        if kind is None and inner.results[0].type.dtype == "i1":
            kind = _BOOLEAN.get(inner.name)
        found.append(kind)
    return found


def shardys_combiners(op: Op, is_newest: bool) -> list[int | None]:
    """What Shardy assumes. Before 0.12: all are sums. Since then: what the last operation of the region says; an
    unknown one counts as a sum in a `reduce` of one result, and else as None."""
    count = len(op.results)
    if not op.regions or not is_newest:
        return [SUM] * count
    returned = [value.op.name if value.op is not None else "" for value in op.regions[0].terminator.operands]
    kinds = [_KINDS.get(name) for name in returned]
    if kinds[0] is None and count == 1 and op.name == "stablehlo.reduce":
        return [SUM]
    agree = kinds[0] == SUM or all(kind == kinds[0] for kind in kinds)
    return [kinds[0] if agree and None not in kinds else None] * count
