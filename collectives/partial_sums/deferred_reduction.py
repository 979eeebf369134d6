"""Deferred reductions: operations that are linear in an unreduced value (partial sums) are applied to its parts, so
that the reduction over devices happens later, once for several sums, on a smaller tensor, or as a reduce-scatter.

a @ w1 + b @ w2 with both contractions split over x: both products are partial sums over x, the add is local, and one
all-reduce follows instead of two. If the sum is then wanted split over x, it is a reduce-scatter of half the bytes.

Only values with a single use are deferred: with several, each use would reduce for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from propagation.attributes import symbol
from propagation.program import Op, Value

from ..analysis.constants import scalar_constant
from ..decide.candidate import Candidate
from ..heuristics import DEFERRED_STEPS
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Partial
from ..lookup.masked_lookup import MOVING

__all__ = ["added", "applied", "apply", "deferred", "is_added_to", "is_cut", "placed", "saves", "scaled"]

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


def deferred(ctx: Context, value: Value) -> Partial | None:
    """`value` as an unreduced sum that its only consumer may carry on without reducing it; None if it is none."""
    state = ctx.env[value]
    partial = state.partial
    if partial is None or state.uses != 1 or partial.kind != "add":  # fast exit for most values
        return None
    pending = state.pending
    return partial if pending and saves(ctx, value, pending) else None


def saves(ctx: Context, value: Value, pending: tuple[int, ...]) -> bool:
    """Whether deferring the reduction of a sum, pending over some atoms, may save bytes: whether the operations that
    follow add it to something, make it smaller, or want it split. Otherwise it is better reduced at once, so that an
    equal sum elsewhere can share it (`value_numbering`)."""
    for _ in range(DEFERRED_STEPS):
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
            return False  # it is rounded once, after the sum
        value = op.results[0]
        if _split_by(ctx.want(value), pending):
            return True
    return True


def _split_by(dims: Dims, axes: tuple[int, ...]) -> bool:
    return any(a in axes for atoms in dims for a in atoms)


def apply(
    ctx: Context, op: Op, old: Partial, dims: Dims, local: Callable[[LocalValue], LocalValue],
    more: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """Binds the result of `op` to `local(part)` of every part of the deferred operand `old`; the result is pending over
    the atoms `more` as well."""
    parts: dict[tuple[int, ...], LocalValue] = {}
    for atoms, ref in old.parts.items():
        _put(ctx, parts, tuple(sorted({*atoms, *more})), local(ref))
    ctx.bind_partial(op.results[0], dims, parts, masked=old.masked, chosen=old.chosen and op.name in MOVING)


def applied(
    ctx: Context, op: Op, old: Partial, dims: Dims, local: Callable[[LocalValue], LocalValue],
    more: tuple[int, ...] = (), others: tuple[Dims | None, ...] = (), work: float = 0.0,
) -> Candidate:  # fmt: skip
    """`apply` as a way to do an operation: its operand stays a sum. `others` are the layouts of its operands if there
    are several."""
    pending = tuple([tuple(sorted({*atoms, *more})) for atoms in old.parts])
    write = lambda: apply(ctx, op, old, dims, local, more)
    return Candidate(others or (None,) * len(op.operands), (dims,), write, pending, work=work)


def _put(ctx: Context, parts: dict[tuple[int, ...], LocalValue], atoms: tuple[int, ...], ref: LocalValue) -> None:
    """Adds `ref` to the part that is pending over `atoms`."""
    old = parts.get(atoms)
    parts[atoms] = ref if old is None else ctx.combine("add", old, ref)


def added(ctx: Context, op: Op, negate_second: bool) -> Candidate | None:
    """The way to add (subtract) operands of which one or both stay unreduced; None if both should be reduced first."""
    a, b = op.operands
    waits = [deferred(ctx, v) for v in (a, b)]
    first = waits[0] or waits[1]
    if a is b or first is None:
        return None
    # Two looked-up values are sent as their sum: half the bytes. It is exact but for the sign of two negative zeros.
    chosen = not all(waits) and first.chosen
    if chosen and negate_second and waits[1]:
        return None  # the zeros of devices that hold nothing would become negative
    dims = first.dims
    for v, wait in zip((a, b), waits):
        if wait is not None and wait.dims != dims:
            return None
        if wait is None and ctx.cost(v, dims) > 0:
            return _added_pieces(ctx, op, first, v, negate_second)
    pending = dict.fromkeys(atoms for wait in waits for atoms in (((),) if wait is None else wait.parts))
    operands = tuple([dims if wait is None else None for wait in waits])
    write = lambda: _add(ctx, op, waits, dims, negate_second, chosen)
    return Candidate(operands, (dims,), write, tuple(pending))


def _add(
    ctx: Context, op: Op, waits: Sequence[Partial | None], dims: Dims, negate_second: bool, chosen: bool
) -> None:  # fmt: skip
    """Adds (subtracts) operands part by part: unreduced ones (`waits`), and complete ones in the layout `dims`."""
    parts: dict[tuple[int, ...], LocalValue] = {}
    for second, (v, wait) in enumerate(zip(op.operands, waits)):
        mine = {(): ctx.get(v, dims)} if wait is None else wait.parts
        for atoms, ref in mine.items():
            if second and negate_second:
                if atoms in parts:
                    parts[atoms] = ctx.emit("stablehlo.subtract", (parts[atoms], ref), ref.shape, ref.dtype)
                    continue
                ref = ctx.emit("stablehlo.negate", (ref,), ref.shape, ref.dtype)
            _put(ctx, parts, atoms, ref)
    masked = any(wait is not None and wait.masked for wait in waits)
    ctx.bind_partial(op.results[0], dims, parts, masked=masked, chosen=chosen)
    still = waits[:1] if negate_second else waits
    placed = [wait.placed for wait in still if wait is not None and wait.placed is not None]
    total = ctx.state(op.results[0]).partial
    if total is not None and len(placed) == 1:
        total.placed = placed[0]


def _added_pieces(ctx: Context, op: Op, partial: Partial, value: Value, negate: bool) -> Candidate | None:
    """The way to add a complete value to an unreduced one over whose devices it is split: each device adds its piece to
    its own addend, at the positions of the piece. Only where more is added to the sum, so that all of it is reduced
    once; None elsewhere, as then the piece is better added to what is left of the sum after its reduction."""
    if partial.chosen or not is_added_to(ctx, op.results[0]):
        return None
    state = ctx.state(value)
    pending = next((atoms for atoms in partial.parts if atoms), ())
    have = next((d for d in state.versions if is_cut(ctx, state.shape, d, partial.dims, pending)), None)
    if have is None:
        return None
    operands = tuple([have if v is value else None for v in op.operands])
    write = lambda: _add_pieces(ctx, op, partial, value, negate, pending, have)
    return Candidate(operands, (partial.dims,), write, tuple(partial.parts))


def _add_pieces(
    ctx: Context, op: Op, partial: Partial, value: Value, negate: bool, pending: tuple[int, ...], have: Dims
) -> None:  # fmt: skip
    """Adds the piece of `value`, which is laid out as `have`, to the part that is pending over `pending`."""
    piece = ctx.get(value, have)
    parts = dict(partial.parts)
    if negate and value is op.operands[0]:
        parts = {k: ctx.emit("stablehlo.negate", (ref,), ref.shape, ref.dtype) for k, ref in parts.items()}
    name = "stablehlo.subtract" if negate and value is op.operands[1] else "stablehlo.add"
    parts[pending] = placed(ctx, parts[pending], piece, partial.dims, have, name)
    ctx.bind_partial(op.results[0], partial.dims, parts, masked=partial.masked)
    total = ctx.state(op.results[0]).partial
    if total is not None and name == "stablehlo.add" and partial.placed is None:
        total.placed = have, piece


def is_added_to(ctx: Context, value: Value) -> bool:
    """Whether a value's only user adds something to it, in the next operation or the next iteration of a loop."""
    while len(value.uses) == 1:
        op = value.uses[0].op
        if op.name == "func.return" and ctx.ends.get(value) is not None:  # of a loop's body, or of the program
            return op is not ctx.program.main.body.terminator
        if op.name != "func.return" or value not in ctx.returned_as:
            return op.name in ("stablehlo.add", "stablehlo.subtract", "stablehlo.return")
        value = ctx.returned_as[value]
    return False


def is_cut(ctx: Context, shape: tuple[int, ...], have: Dims, dims: Dims, pending: tuple[int, ...]) -> bool:
    """Whether `have` is `dims` cut further by all of the atoms `pending`, into equal pieces."""
    more = [atoms[len(old) :] for atoms, old in zip(have, dims)]
    if any(atoms[: len(old)] != old for atoms, old in zip(have, dims)):
        return False
    even = all(n % ctx.atoms.product(atoms) == 0 for n, atoms in zip(shape, have))
    return bool(pending) and even and sorted(a for atoms in more for a in atoms) == sorted(pending)


def placed(
    ctx: Context, whole: LocalValue, piece: LocalValue, dims: Dims, have: Dims, name: str = "stablehlo.add"
) -> LocalValue:  # fmt: skip
    """`whole`, laid out as `dims`, with this device's `piece` of a tensor laid out as `have` added at its positions."""
    starts = [
        ctx.realiser.offset(ctx.region, atoms[len(old) :], n)
        if len(atoms) > len(old)
        else ctx.realiser.index(ctx.region, 0)
        for atoms, old, n in zip(have, dims, piece.shape)
    ]
    sizes = attributes("stablehlo.dynamic_slice", piece.shape)
    mine = ctx.emit("stablehlo.dynamic_slice", (whole, *starts), piece.shape, whole.dtype, sizes)
    mine = ctx.emit(name, (mine, piece), piece.shape, whole.dtype)
    return ctx.emit("stablehlo.dynamic_update_slice", (whole, mine, *starts), whole.shape, whole.dtype)


def scaled(ctx: Context, op: Op, position: int) -> Candidate | None:
    """The way to multiply (or divide) the unreduced operand at `position` by a complete one, part by part; None if it
    is to be reduced first.

    Floating-point parts only by a known finite number: (1 + 0) / 0 is infinite, but 1/0 + 0/0 is NaN.
    """
    value = op.operands[position]
    other = op.operands[1 - position]
    partial = None if other is value else deferred(ctx, value)
    if partial is None:
        return None
    if not value.type.dtype.startswith(("i", "ui")):
        number = scalar_constant(other)
        if number is None or not number or not math.isfinite(abs(number)):
            return None
    dims = partial.dims
    if ctx.state(other).pending or ctx.cost(other, dims) > 0:
        return None

    def local(ref: LocalValue) -> LocalValue:
        factor = ctx.get(other, dims)
        operands = (ref, factor) if position == 0 else (factor, ref)
        return ctx.emit(op.name, operands, ref.shape, ref.dtype)

    operands = (None, dims) if position == 0 else (dims, None)
    return applied(ctx, op, partial, dims, local, others=operands)
