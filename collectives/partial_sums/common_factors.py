"""Common factors of all-reduces: sums over split dimensions that are multiples of each other are all-reduced once.

By the distributive law a factor that does not vary along the summed dimensions leaves the sum: sum(a * b * c) with such
a c is c * sum(a * b). The gradient of a layer norm over a split dimension sums the same product g * x several times
with different factors: one all-reduce instead of three. And sum(x - mean), with the mean made of sum(x), is sum(x) - n
* mean, without any communication.

With an infinite c, sum(a * c) is not c * sum(a): for an a of both signs it is NaN. So c has to be known as finite
(`value_ranges`); or each device also sums its own a * c, and the devices exchange, in one byte per element, whether
any of these local sums is infinite or NaN, and of which sign (`guarded`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from propagation.attributes import integers
from propagation.program import Op, Value

from ..analysis.value_ranges import is_finite, is_positive
from ..heuristics import PRODUCT_FACTORS
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Partial, State

__all__ = [
    "CODED_DEVICES",
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

CODED_DEVICES = 1 << 8  # devices whose codes `guarded` can add up: each half of a 16-bit code counts to 255
_TYPES = ("f32", "f64")  # narrower types could overflow once a small factor is taken out of the sum


@dataclass(slots=True)
class Product:
    """A tensor as a product: `varying` * `fixed` / `below`, times -1 if `negative`. Factors in `fixed` and divisors in
    `below` are constant along the summed dimensions (broadcasts into them)."""

    varying: list[State] = field(default_factory=list)
    fixed: list[State] = field(default_factory=list)
    below: list[State] = field(default_factory=list)
    negative: bool = False

    @property
    def is_scaled(self) -> bool:
        return bool(self.fixed or self.below or self.negative)

    def key(self, reduced: tuple[int, ...]) -> tuple[Any, ...]:
        """Equal for sums of the same varying part."""
        return ("sum", reduced, *sorted(self.varying, key=id))


def product(state: State, reduced: tuple[int, ...]) -> Product | None:
    """`state`, to be summed over dimensions `reduced`, as a product. None if all of it is constant along these, or its
    type is too narrow."""
    if state.dtype not in _TYPES:
        return None
    out, todo = Product(), [(state, True)]
    while todo:
        s, above = todo.pop()
        name, made_of = ("", ()) if s.origin is None else (s.origin[0].name, s.origin[1])
        if _is_fixed(s, reduced):
            (out.fixed if above else out.below).append(s)
        elif not above:
            return None
        elif name == "stablehlo.multiply":
            todo += [(x, True) for x in made_of]
        elif name == "stablehlo.divide" and _is_fixed(made_of[1], reduced):
            todo += [(made_of[0], True), (made_of[1], False)]
        elif name == "stablehlo.negate":
            out.negative = not out.negative
            todo.append((made_of[0], True))
        elif name == "chlo.square":
            todo += [(made_of[0], True)] * 2
        else:
            out.varying.append(s)
        if len(todo) + len(out.varying) + len(out.fixed) > PRODUCT_FACTORS:
            return None
    return out if out.varying else None


def _is_fixed(state: State, reduced: tuple[int, ...]) -> bool:
    """Whether a tensor is constant along some dimensions: broadcast into them."""
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
    """Whether all factors are known to be finite and all divisors not to be zero: then the distributive law keeps
    infinities and NaNs as they are."""
    of = lambda s: s.origin[0].results[0]
    return all(is_finite(ctx.program, of(s)) for s in found.fixed) and all(
        is_positive(ctx.program, of(s)) for s in found.below
    )


def is_awaited(ctx: Context, op: Op, found: Product) -> bool:
    """Whether a later sum of the block, along the same dimensions, is another multiple of the same product: only then
    it pays to all-reduce the product by itself."""
    key = ("sums", op.parent)
    sums = ctx.decisions.get(key)
    if sums is None:
        assert op.parent is not None
        reductions = [o for o in op.parent.ops if o.name == "stablehlo.reduce"]
        adding = [o for o in reductions if o.regions[0].ops[0].name == "stablehlo.add"]
        sums = ctx.decisions[key] = adding, {o.results[0]: i for i, o in enumerate(adding, 1)}
    reduced = tuple(integers(op.attrs["dimensions"]))
    mine = sorted(map(id, found.varying))
    adding, behind = sums  # and how many of them come up to each result
    at = behind.get(op.results[0], len(adding))
    return any(
        o.attrs["dimensions"] == op.attrs["dimensions"] and _varying(ctx, o.operands[0], reduced) == mine
        for o in adding[at : at + PRODUCT_FACTORS]
    )


def _varying(ctx: Context, value: Value, reduced: tuple[int, ...]) -> list[int]:
    """The varying part of a product whose operations need not be partitioned yet: sorted identities of its states."""
    out: list[int] = []
    todo = [value]
    while todo and len(out) + len(todo) <= PRODUCT_FACTORS:
        v = todo.pop()
        op = v.op
        if op is None:
            out.append(id(ctx.env.get(v)))
        elif op.name == "stablehlo.broadcast_in_dim" and _repeats(op, reduced):
            continue
        elif op.name == "stablehlo.multiply":
            todo += op.operands
        elif op.name in ("stablehlo.divide", "stablehlo.negate"):
            todo.append(op.operands[0])
        elif op.name == "chlo.square":
            todo += [op.operands[0]] * 2
        else:
            out.append(id(ctx.env.get(v)))
    return sorted(out)


def _repeats(op: Op, reduced: tuple[int, ...]) -> bool:
    """Whether the result of a broadcast is constant along some dimensions."""
    inner = op.operands[0].type.shape
    place = list(integers(op.attrs["broadcast_dimensions"])) if inner else []
    return all(d not in place or inner[place.index(d)] == 1 for d in reduced)


def note(ctx: Context, found: Product, reduced: tuple[int, ...], total: State) -> None:
    """Remembers `total`, the sum of the varying part, for later sums that are multiples of it."""
    ctx.region.known.setdefault(found.key(reduced), total)


def known_sum(ctx: Context, found: Product, reduced: tuple[int, ...], out: Dims) -> LocalValue | None:
    """The sum of the varying part, laid out as `out`, if an equal one was reduced before."""
    total = ctx.region.lookup(found.key(reduced))
    if total is not None:
        return ctx.get_state(total, out)
    return _of_centred(ctx, found, reduced, out)


def _of_centred(ctx: Context, found: Product, reduced: tuple[int, ...], out: Dims) -> LocalValue | None:
    """sum(a - mean) as sum(a) - n * mean, if the mean was computed from a known sum(a)."""
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
    """Whether `state` is computed from `total` by dividing or multiplying, and broadcast."""
    for _ in range(PRODUCT_FACTORS):
        if state is total:
            return True
        if state.origin is None:
            return False
        op, operands = state.origin
        if op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.divide", "stablehlo.multiply"):
            return False
        state = operands[0]
    return False


def scaled(ctx: Context, found: Product, reduced: tuple[int, ...], total: LocalValue, out: Dims) -> LocalValue:
    """The sum of the whole product, given that of its varying part."""
    for names, name in ((found.fixed, "multiply"), (found.below, "divide")):
        for s in names:
            row = _row(ctx, s, reduced, out)
            total = ctx.emit(f"stablehlo.{name}", (total, row), total.shape, total.dtype)
    if found.negative:
        total = ctx.emit("stablehlo.negate", (total,), total.shape, total.dtype)
    return total


def _row(ctx: Context, state: State, reduced: tuple[int, ...], out: Dims) -> LocalValue:
    """A tensor that is constant along the summed dimensions, without these dimensions."""
    kept = iter(out)
    dims = tuple(() if d in reduced else next(kept) for d in range(len(state.shape)))
    ref = ctx.get_state(state, dims)
    for d in reduced:
        ref = ctx.realiser.cut(ctx.region, ref, d, 0, 1, ctx.loc)
    shape = tuple(n for d, n in enumerate(ref.shape) if d not in reduced)
    return ctx.realiser.reshape(ctx.region, ref, shape, ctx.loc)


def applies(ctx: Context, found: Product, dims: Dims) -> bool:
    """Whether the factors of the varying part are there in layout `dims`, without communication."""
    return all(not ctx.move_bytes(s, dims) and (s.versions or s.make) for s in found.varying)


def bound(ctx: Context, op: Op, found: Product, out: Dims, pending: tuple[int, ...], ref: LocalValue) -> LocalValue:
    """All-reduces the sum of the varying part, of which `ref` is this device's addend, and remembers it."""
    result = op.results[0]
    total = State(result.type.shape, result.type.dtype, ctx.region, 2, ctx.changed)
    total.partial = Partial("add", out, {pending: ref}, op=op)
    note(ctx, found, tuple(integers(op.attrs["dimensions"])), total)
    return ctx.get_state(total, out)


def guarded(
    ctx: Context, result: LocalValue, own: LocalValue, out: Dims, pending: tuple[int, ...], shape: tuple[int, ...]
) -> LocalValue:
    """`result`, a multiple of a known sum laid out as `out`, corrected where the sum proper is not finite.

    `own` are this device's addends of the sum proper, pending over fewer than `CODED_DEVICES` devices. Each device
    encodes its addend in a small integer: +inf counts 1 in the lower half of the bits, -inf 1 in the upper half, NaN 1
    in both. The sum of the codes over devices then tells whether the result is +inf (lower half only), -inf (upper
    only) or NaN.
    """
    width = 4 if ctx.atoms.product(pending) < 1 << 4 else 8
    dtype = f"ui{2 * width}"
    number = lambda n: ctx.realiser.constant(ctx.region, own.shape, dtype, str(n))
    real = lambda literal: ctx.realiser.constant(ctx.region, own.shape, own.dtype, literal)
    inf, minus, nan = (real(_literal(own.dtype, x)) for x in (math.inf, -math.inf, math.nan))

    def select(test: LocalValue, yes: LocalValue, no: LocalValue) -> LocalValue:
        return ctx.emit("stablehlo.select", (test, yes, no), yes.shape, yes.dtype)

    def compare(a: LocalValue, b: LocalValue, direction: str) -> LocalValue:
        attrs = attributes("stablehlo.compare", direction)
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
    """An infinity or NaN as MLIR writes its bits."""
    kind = np.float32 if dtype == "f32" else np.float64
    bits = np.array(number, kind).view(f"u{np.dtype(kind).itemsize}")
    return f"0x{int(bits):0{2 * np.dtype(kind).itemsize}X}"
