"""Partial sums as a state of a value: letting linear operations pass before the reduction is taken.

A value used once may stay unreduced through operations that are linear in it and do not enlarge it, so that
what is added up later is reduced once, smaller, or as a reduce-scatter. A value with several uses is reduced where
it stands: each use would otherwise reduce for itself.
"""

from __future__ import annotations

import math

from propagation.attributes import symbol
from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims
from .chosen import MOVING
from .constant import scalar_constant
from .context import Context

__all__ = ["add", "apply", "deferred", "saves", "scale"]

STEPS = 16
_SAME_SIZE = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "convert", "divide", "multiply", "negate", "reduce", "reshape", "transpose")
)
_MERGING = frozenset(
    f"{name if '.' in name else 'stablehlo.' + name}"
    for name in (
        "add", "concatenate", "dot_general", "dynamic_slice", "dynamic_update_slice", "pad",
        "reduce", "return", "scatter", "slice", "subtract", "while",
    )
)  # fmt: skip


def deferred(ctx: Context, value: Value) -> bool:
    """Whether `value` is a pending sum that its only consumer may carry on."""
    state = ctx.env[value]
    if state.partial is None or state.uses != 1 or state.partial.kind != "add":  # most values are nothing to wait for
        return False
    pending = state.pending
    return bool(pending) and saves(ctx, value, pending)


def saves(ctx: Context, value: Value, pending: tuple[int, ...]) -> bool:
    """Whether it may save anything to reduce a sum later: if what follows adds, shrinks or splits it. Reduced at once,
    it can serve an equal sum elsewhere."""
    for _ in range(STEPS):
        if len(value.uses) != 1:
            return False
        op = value.uses[0].op
        if op.name == "func.call":
            callee = ctx.program.funcs.get(symbol(op.attrs["callee"]))
            if callee is None:
                return True
            value = callee.args[value.uses[0].number]
            continue
        if op.name == "func.return":
            if value not in ctx.returned_as:
                if value in ctx.left_partial:
                    return True
                end = ctx.ends.get(value)
                return _split_by(ctx.want(value) if end is None else end[0], pending)
            value = ctx.returned_as[value]
            continue
        if op.name not in _SAME_SIZE or op.results[0].type.size != value.type.size:
            return op.name in _MERGING
        if op.results[0].type.dtype != value.type.dtype:
            return False  # what is rounded is rounded once, after the sum
        value = op.results[0]
        if _split_by(ctx.want(value), pending):
            return True
    return True


def _split_by(dims: Dims, axes: tuple[int, ...]) -> bool:
    return any(a in axes for atoms in dims for a in atoms)


def apply(ctx: Context, op: Op, value: Value, dims: Dims, local, more: tuple[int, ...] = ()) -> None:
    """Binds the result of `op` to `local(part)` of every part of a deferred value; `more` atoms become pending."""
    parts: dict[tuple[int, ...], Ref] = {}
    for atoms, ref in ctx.state(value).partial.parts.items():
        _put(ctx, parts, tuple(sorted({*atoms, *more})), local(ref))
    old = ctx.state(value).partial
    ctx.bind_partial(op.results[0], dims, parts, masked=old.masked, chosen=old.chosen and op.name in MOVING)


def _put(ctx: Context, parts: dict, atoms: tuple[int, ...], ref: Ref) -> None:
    old = parts.get(atoms)
    parts[atoms] = ref if old is None else ctx.combine("add", old, ref)


def add(ctx: Context, op: Op, negate_second: bool) -> bool:
    """Adds (subtracts) with pending operands; False if the operands should be complete."""
    a, b = op.operands
    waits = [deferred(ctx, v) for v in (a, b)]
    if a is b or not any(waits):
        return False
    # Two are sent as one sum, which is half as much. It has every number, but not the sign of two negative zeros.
    chosen = not all(waits) and ctx.state(a if waits[0] else b).partial.chosen
    if chosen and negate_second and waits[1]:
        return False  # zeros that stand for nothing would have a sign
    dims = ctx.state(a if waits[0] else b).partial.dims
    for v, wait in zip((a, b), waits):
        if wait and ctx.state(v).partial.dims != dims:
            return False
        if not wait and ctx.cost(v, dims) > 0:
            return False
    parts: dict[tuple[int, ...], Ref] = {}
    for second, (v, wait) in enumerate(zip((a, b), waits)):
        mine = ctx.state(v).partial.parts if wait else {(): ctx.get(v, dims)}
        for atoms, ref in mine.items():
            if second and negate_second:
                if atoms in parts:
                    first = parts[atoms]
                    parts[atoms] = ctx.emit("stablehlo.subtract", (first, ref), ref.shape, ref.dtype)
                    continue
                ref = ctx.emit("stablehlo.negate", (ref,), ref.shape, ref.dtype)
            _put(ctx, parts, atoms, ref)
    masked = any(wait and ctx.state(v).partial.masked for v, wait in zip((a, b), waits))
    ctx.bind_partial(op.results[0], dims, parts, masked=masked, chosen=chosen)
    return True


def scale(ctx: Context, op: Op, position: int) -> bool:
    """Multiplies (or divides) the pending operand at `position` by a complete one.

    Floating-point parts only by a number that is known: 1 + 0 over zero is infinite, but 1/0 + 0/0 is not a number.
    """
    value = op.operands[position]
    other = op.operands[1 - position]
    if other is value or not deferred(ctx, value):
        return False
    if not value.type.dtype.startswith(("i", "ui")):
        number = scalar_constant(other)
        if number is None or not number or not math.isfinite(abs(number)):
            return False
    dims = ctx.state(value).partial.dims
    if ctx.state(other).pending or ctx.cost(other, dims) > 0:
        return False
    factor = ctx.get(other, dims)

    def local(ref: Ref) -> Ref:
        operands = (ref, factor) if position == 0 else (factor, ref)
        return ctx.emit(op.name, operands, ref.shape, ref.dtype)

    apply(ctx, op, value, dims, local)
    return True
