"""What stands in regions and functions: which callees are written out where they are called, and regions of scalars.

Regions of scalars (of reductions, sorts, scatters): no device computes them by itself, so shardings mean nothing in
them. Frontends write constraints there all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from propagation.attributes import symbol
from propagation.program import Block, Func, Op, Use, Value

if TYPE_CHECKING:
    from .context import Context

__all__ = ["called", "is_written_in_place", "plain"]

INLINE_LIMIT = 40  # operations of a callee that is written out at every call rather than called

_COMPUTATIONS = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while", "sdy.manual_computation"})
_ANNOTATIONS = frozenset(
    f"sdy.{name}"
    for name in ("data_flow_edge", "propagation_barrier", "reshard", "sharding_constraint", "sharding_group")
)


def called(ctx: Context, op: Op) -> Func | None:
    """The function that a call names, if the module has it."""
    return ctx.program.funcs.get(symbol(op.attrs["callee"]))


def is_written_in_place(ctx: Context, callee: Func) -> bool:
    """Whether a function is written out at its calls: a small one, and one that is called once."""
    return ctx.calls(callee.name) <= 1 or len(callee.body.ops) <= INLINE_LIMIT


def plain(op: Op) -> Op:
    """The operation without annotations in its regions of scalars; itself if there are none."""
    if op.name in _COMPUTATIONS or not any(o.name in _ANNOTATIONS for block in op.regions for o in block.walk()):
        return op
    return _copied(op, {}, op.results)


def _copied(op: Op, names: dict[Value, Value], results=None) -> Op:
    """A copy with renamed operands; it has new results unless it is given some."""
    operands = tuple([names.get(v, v) for v in op.operands])
    copy = Op(op.name, operands, [], op._ir, op.attrs)
    copy.parent, copy.data = op.parent, op.data
    copy.regions = [_block(block, copy, names) for block in op.regions]
    if results is None:
        for i, v in enumerate(operands):
            if v is not op.operands[i]:
                v.uses.append(Use(copy, i))
        results = tuple([Value(r.index, r.type, copy, i) for i, r in enumerate(op.results)])
        names.update(zip(op.results, results))
    copy.results = results
    return copy


def _block(block: Block, owner: Op, names: dict[Value, Value]) -> Block:
    copy = Block(owner)
    copy.args = [Value(a.index, a.type, copy, i) for i, a in enumerate(block.args)]
    names.update(zip(block.args, copy.args))
    for op in block.ops:
        if op.name in _ANNOTATIONS:
            names.update((r, names.get(v, v)) for r, v in zip(op.results, op.operands))
        else:
            inner = _copied(op, names)
            inner.parent = copy
            copy.ops.append(inner)
    return copy
