"""Sums over split dimensions that are multiples of each other are reduced once.

What does not vary along the summed dimensions is taken out of the sum: sum(a * b * c) with such a c is c * sum(a * b).
The gradients of a normalisation sum the same product several times, scaled differently; and the sum of a tensor less
its own mean follows from the sum that the mean was made of.

With an infinite c, sum(a * c) is not c * sum(a): of an a of both signs it is NaN. So c has to be known as finite; or
each device sums its own a * c as well, and instead of that sum it says in one byte of what kind it is, if it is not
finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from propagation.attributes import integers
from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims
from .context import Context
from .ranges import is_finite, is_positive
from .state import Partial, State

__all__ = [
    "MANY",
    "Product",
    "applies",
    "bound",
    "guarded",
    "is_awaited",
    "is_exact",
    "known_sum",
    "note",
    "product",
    "scaled",
]

LARGEST = 16
MANY = 1 << 8
_TYPES = ("f32", "f64")  # narrower types could overflow once a small factor is taken out


@dataclass(slots=True)
class Product:
    """A tensor as (-1 if `negative`) * the product of `varying` and of `fixed` / `below`, the last two the same at all
    positions along the summed dimensions."""

    varying: list[State] = field(default_factory=list)
    fixed: list[State] = field(default_factory=list)
    below: list[State] = field(default_factory=list)
    negative: bool = False

    @property
    def is_scaled(self) -> bool:
        return bool(self.fixed or self.below or self.negative)

    def key(self, reduced: tuple[int, ...]) -> tuple:
        """Equal for sums of the same varying part."""
        return ("sum", reduced, *sorted(self.varying, key=id))


def product(state: State, reduced: tuple[int, ...]) -> Product | None:
    """`state` as a product; None if nothing in it varies, or its type is too narrow."""
    if state.dtype not in _TYPES:
        return None
    out, todo = Product(), [(state, True)]
    while todo:
        s, above = todo.pop()
        name = s.origin[0].name if s.origin is not None else ""
        if _is_fixed(s, reduced):
            (out.fixed if above else out.below).append(s)
        elif not above:
            return None
        elif name == "stablehlo.multiply":
            todo += [(x, True) for x in s.origin[1]]
        elif name == "stablehlo.divide" and _is_fixed(s.origin[1][1], reduced):
            todo += [(s.origin[1][0], True), (s.origin[1][1], False)]
        elif name == "stablehlo.negate":
            out.negative = not out.negative
            todo.append((s.origin[1][0], True))
        elif name == "chlo.square":
            todo += [(s.origin[1][0], True)] * 2
        else:
            out.varying.append(s)
        if len(todo) + len(out.varying) + len(out.fixed) > LARGEST:
            return None
    return out if out.varying else None


def _is_fixed(state: State, reduced: tuple[int, ...]) -> bool:
    """Whether a tensor is the same at all positions along some dimensions."""
    if state.origin is None or state.origin[0].name != "stablehlo.broadcast_in_dim":
        return False
    op, (inner,) = state.origin
    place = list(integers(op.attrs["broadcast_dimensions"])) if inner.shape else []
    for d in reduced:
        if d in place:
            j = place.index(d)
            if inner.shape[j] != 1 and not _is_fixed(inner, (j,)):
                return False
    return True


def is_exact(ctx: Context, found: Product) -> bool:
    """Whether all factors are finite and all divisors are not zero, so that what is not finite stays what it is."""
    of = lambda s: s.origin[0].results[0]
    return all(is_finite(ctx.program, of(s)) for s in found.fixed) and all(
        is_positive(ctx.program, of(s)) for s in found.below
    )


def is_awaited(ctx: Context, op: Op, found: Product) -> bool:
    """Whether one of the next sums of the block, along the same dimensions, is another multiple of the same one."""
    key = ("sums", op.parent)
    sums = ctx.decisions.get(key)
    if sums is None:
        sums = ctx.decisions[key] = [
            o for o in op.parent.ops if o.name == "stablehlo.reduce" and o.regions[0].ops[0].name == "stablehlo.add"
        ]
    reduced = tuple(integers(op.attrs["dimensions"]))
    mine = sorted(map(id, found.varying))
    at = next((i for i, o in enumerate(sums, 1) if o.results[0] is op.results[0]), len(sums))
    return any(
        o.attrs["dimensions"] == op.attrs["dimensions"] and _varying(ctx, o.operands[0], reduced) == mine
        for o in sums[at : at + LARGEST]
    )


def _varying(ctx: Context, value: Value, reduced: tuple[int, ...]) -> list[int]:
    """The varying part of a product, which need not be made yet: sorted identities of its states."""
    out: list[int] = []
    todo = [value]
    while todo and len(out) + len(todo) <= LARGEST:
        v = todo.pop()
        name = v.op.name if v.op is not None else ""
        if name == "stablehlo.broadcast_in_dim" and _repeats(v.op, reduced):
            continue
        if name == "stablehlo.multiply":
            todo += v.op.operands
        elif name in ("stablehlo.divide", "stablehlo.negate"):
            todo.append(v.op.operands[0])
        elif name == "chlo.square":
            todo += [v.op.operands[0]] * 2
        else:
            out.append(id(ctx.env.get(v)))
    return sorted(out)


def _repeats(op: Op, reduced: tuple[int, ...]) -> bool:
    """Whether a broadcast makes the same at all positions along some dimensions."""
    inner = op.operands[0].type.shape
    place = list(integers(op.attrs["broadcast_dimensions"])) if inner else []
    return all(d not in place or inner[place.index(d)] == 1 for d in reduced)


def note(ctx: Context, found: Product, reduced: tuple[int, ...], total: State) -> None:
    """Remembers the sum of the varying part."""
    ctx.region.known.setdefault(found.key(reduced), total)


def known_sum(ctx: Context, found: Product, reduced: tuple[int, ...], out: Dims) -> Ref | None:
    """The sum of the varying part, laid out as `out`, if an equal one was made."""
    total = ctx.region.lookup(found.key(reduced))
    if total is not None:
        return ctx.get_state(total, out)
    return _of_centred(ctx, found, reduced, out)


def _of_centred(ctx: Context, found: Product, reduced: tuple[int, ...], out: Dims) -> Ref | None:
    """sum(a - mean) = sum(a) - n * mean, for the mean that was made of that sum."""
    (centred, *more) = found.varying
    if more or centred.origin is None or centred.origin[0].name != "stablehlo.subtract":
        return None
    a, mean = centred.origin[1]
    total = ctx.region.lookup(("sum", reduced, a))
    if total is None or not _is_fixed(mean, reduced) or not _made_of(mean, total):
        return None
    n = math.prod(a.shape[d] for d in reduced)
    row = _row(ctx, mean, reduced, out)
    count = ctx.realiser.constant(ctx.region, row.shape, row.dtype, f"{float(n)!r}")
    less = ctx.emit("stablehlo.multiply", (count, row), row.shape, row.dtype)
    return ctx.emit("stablehlo.subtract", (ctx.get_state(total, out), less), row.shape, row.dtype)


def _made_of(state: State, total: State) -> bool:
    """Whether `state` is `total` over a number, repeated."""
    for _ in range(LARGEST):
        if state is total:
            return True
        if state.origin is None:
            return False
        op, operands = state.origin
        if op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.divide", "stablehlo.multiply"):
            return False
        state = operands[0]
    return False


def scaled(ctx: Context, found: Product, reduced: tuple[int, ...], total: Ref, out: Dims) -> Ref:
    """The sum of the whole product, given that of its varying part."""
    for names, name in ((found.fixed, "multiply"), (found.below, "divide")):
        for s in names:
            row = _row(ctx, s, reduced, out)
            total = ctx.emit(f"stablehlo.{name}", (total, row), total.shape, total.dtype)
    if found.negative:
        total = ctx.emit("stablehlo.negate", (total,), total.shape, total.dtype)
    return total


def _row(ctx: Context, state: State, reduced: tuple[int, ...], out: Dims) -> Ref:
    """A tensor that is the same along the summed dimensions, without these."""
    kept = iter(out)
    dims = tuple(() if d in reduced else next(kept) for d in range(len(state.shape)))
    ref = ctx.get_state(state, dims)
    for d in reduced:
        ref = ctx.realiser.cut(ctx.region, ref, d, 0, 1, ctx.loc)
    shape = tuple(n for d, n in enumerate(ref.shape) if d not in reduced)
    return ctx.realiser.reshape(ctx.region, ref, shape, ctx.loc)


def applies(ctx: Context, found: Product, dims: Dims) -> bool:
    """Whether the varying part is at hand as `dims`."""
    return all(not ctx.move_bytes(s, dims) and (s.versions or s.make) for s in found.varying)


def bound(ctx: Context, op: Op, found: Product, out: Dims, pending: tuple[int, ...], ref: Ref) -> Ref:
    """The sum of the varying part, complete and remembered; `ref` is this device's part of it."""
    result = op.results[0]
    total = State(result.type.shape, result.type.dtype, ctx.region, 2)
    total.partial = Partial("add", out, {pending: ref}, op=op)
    note(ctx, found, tuple(integers(op.attrs["dimensions"])), total)
    return ctx.get_state(total, out)


def guarded(ctx: Context, result: Ref, own: Ref, out: Dims, pending: tuple[int, ...], shape) -> Ref:
    """`result`, a multiple of a known sum laid out as `out`, but where the sum itself is not finite: `own` are this
    device's sums, to be added over `pending`, fewer than `MANY` devices. Each adds to a small number: for +inf in its
    lower half, for -inf in the upper half, and for NaN in both."""
    width = 4 if ctx.atoms.product(pending) < 1 << 4 else 8
    dtype = f"ui{2 * width}"
    number = lambda n: ctx.realiser.constant(ctx.region, own.shape, dtype, str(n))
    real = lambda literal: ctx.realiser.constant(ctx.region, own.shape, own.dtype, literal)
    inf, minus, nan = (real(_literal(own.dtype, x)) for x in (math.inf, -math.inf, math.nan))

    def select(test: Ref, yes: Ref, no: Ref) -> Ref:
        return ctx.emit("stablehlo.select", (test, yes, no), yes.shape, yes.dtype)

    def compare(a: Ref, b: Ref, direction: str) -> Ref:
        attrs = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        return ctx.emit("stablehlo.compare", (a, b), a.shape, "i1", attrs)

    above, below, both = number(1), number(1 << width), number(1 + (1 << width))
    code = select(compare(own, minus, "EQ"), below, number(0))
    code = select(compare(own, inf, "EQ"), above, code)
    code = select(compare(own, own, "NE"), both, code)
    code = ctx.reshard(shape, code, out, out, pending, cause="kinds of sums that are not finite")
    up = compare(ctx.emit("stablehlo.and", (code, number((1 << width) - 1)), code.shape, dtype), number(0), "NE")
    down = compare(code, number(1 << width), "GE")
    result = select(up, inf, result)
    return select(down, select(up, nan, minus), result)


def _literal(dtype: str, number: float) -> str:
    """A float that is no finite number, as MLIR writes its bits."""
    kind = np.float32 if dtype == "f32" else np.float64
    bits = np.array(number, kind).view(f"u{np.dtype(kind).itemsize}")
    return f"0x{int(bits):0{2 * np.dtype(kind).itemsize}X}"
