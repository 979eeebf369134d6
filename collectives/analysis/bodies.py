"""Functions and regions: which callees are inlined, and region bodies without sharding annotations.

The regions of reductions, sorts and scatters compute on scalars: shardings mean nothing there, but frontends write
constraints into them all the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from propagation.attributes import symbol
from propagation.ops import ANNOTATIONS, CONTROL
from propagation.program import Block, Func, Op, Use, Value

from ..heuristics import INLINED_OPERATIONS
from ..layouts.context import Context

__all__ = ["FRONTEND", "called", "is_written_in_place", "plain"]

FRONTEND = "mhlo.frontend_attributes"  # where frontends say what compilers should do

_STAYS_CALLED = re.compile(r'\binlineable\b"? = "false"')


def called(ctx: Context, op: Op) -> Func | None:
    """The function that a call names, if the module has it."""
    return ctx.program.funcs.get(symbol(op.attrs["callee"]))


def handed_on(ctx: Context, value: Value) -> Value:
    """The value that `value` is under another name: calls may return what they were given."""
    while isinstance(op := value.owner, Op) and op.name == "func.call" and (callee := called(ctx, op)) is not None:
        returned = handed_on(ctx, callee.body.terminator.operands[value.number])
        if returned.owner is not callee.body:
            break
        value = op.operands[returned.number]
    return value


def is_written_in_place(ctx: Context, op: Op, callee: Func) -> bool:
    """Whether the function that `op` calls is inlined: a small one, or one that is called once.

    Not where the frontend says that compilers should not do so either.
    """
    if FRONTEND in op.attrs and _STAYS_CALLED.search(str(op.attrs[FRONTEND])):
        return False
    return ctx.calls(callee.name) <= 1 or len(callee.body.ops) <= INLINED_OPERATIONS


def plain(op: Op) -> Op:
    """The operation without sharding annotations in its regions of scalars; itself if there are none."""
    if op.name in CONTROL or not any(o.name in ANNOTATIONS for block in op.regions for o in block.walk()):
        return op
    return _copied(op, {}, op.results)


def _copied(op: Op, names: dict[Value, Value], results: Sequence[Value] | None = None) -> Op:
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
        if op.name in ANNOTATIONS:
            names.update((r, names.get(v, v)) for r, v in zip(op.results, op.operands))
        else:
            inner = _copied(op, names)
            inner.parent = copy
            copy.ops.append(inner)
    return copy
