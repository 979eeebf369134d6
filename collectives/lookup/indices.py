"""Run-time indices (starts of dynamic slices, columns of gathers and scatters) converted to i32, the type of the
offsets of pieces, from which they are subtracted.

Programs may hold indices in any integer type. They are clamped in their own type before they are converted: 2^32 as
i64, or 2^31 as ui32, is far beyond the end, and must not wrap around to an index near the start."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.constants import bounds_of
from ..ir.attributes import Dense
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layouts.context import Context

__all__ = ["along", "along_refs", "fits", "start", "starts", "within_reach"]


def fits(dtype: str) -> bool:
    """Whether i32 holds every number of a type."""
    low, high = bounds_of(dtype)
    return low >= -(1 << 31) and high < 1 << 31


def start(ctx: Context, x: LocalValue, last: int) -> LocalValue:
    """A start index clamped to [0, last], as slices clamp it (i32)."""
    if x.dtype != "i32":
        high = min(last, bounds_of(x.dtype)[1])
        zero, end = (ctx.realiser.constant(ctx.region, (), x.dtype, _literal(n, x.dtype)) for n in (0, high))
        x = ctx.emit("stablehlo.clamp", (zero, x, end), (), x.dtype)
        return ctx.emit("stablehlo.convert", (x,), (), "i32")
    bounds = [ctx.realiser.index(ctx.region, n) for n in (0, last)]
    return ctx.emit("stablehlo.clamp", (bounds[0], x, bounds[1]), (), "i32")


def starts(ctx: Context, x: LocalValue, vector: int | None, lasts: Sequence[int]) -> LocalValue:
    """Start indices as i32, with column k along dimension `vector` clamped to [0, lasts[k]], as a gather clamps
    them."""
    return _clamped(ctx, x, vector, [0] * len(lasts), lasts)


def within_reach(ctx: Context, x: LocalValue, vector: int | None, sizes: Sequence[int]) -> LocalValue:
    """Indices as i32, of which column k indexes a dimension of sizes[k]: out-of-bounds indices stay out of bounds."""
    if x.dtype == "i32":
        return x
    if fits(x.dtype):
        return ctx.emit("stablehlo.convert", (x,), x.shape, "i32")
    return _clamped(ctx, x, vector, [-n for n in sizes], sizes)


def _clamped(ctx: Context, x: LocalValue, vector: int | None, lows: Sequence[int], highs: Sequence[int]) -> LocalValue:
    least, most = bounds_of(x.dtype)
    low = along(ctx, x.shape, vector, [max(n, least) for n in lows], x.dtype)
    high = along(ctx, x.shape, vector, [min(n, most) for n in highs], x.dtype)
    x = ctx.emit("stablehlo.clamp", (low, x, high), x.shape, x.dtype)
    return x if x.dtype == "i32" else ctx.emit("stablehlo.convert", (x,), x.shape, "i32")


def _literal(number: int, dtype: str) -> str:
    return str(bool(number)).lower() if dtype == "i1" else str(number)


def along(
    ctx: Context, shape: tuple[int, ...], vector: int | None, values: Sequence[int], dtype: str = "i32"
) -> LocalValue:
    """A tensor of `shape` that holds values[k] at position k of dimension `vector`."""
    if vector is None or len(set(values)) == 1:
        return ctx.realiser.constant(ctx.region, shape, dtype, _literal(values[0], dtype))
    elements = tuple([_literal(v, dtype) for v in values])
    value = attributes("stablehlo.constant", Dense(elements, (len(values),), dtype))
    row = ctx.region.entry("stablehlo.constant", (), (len(values),), dtype, value)
    attrs = attributes("stablehlo.broadcast_in_dim", (vector,))
    return ctx.region.shared("stablehlo.broadcast_in_dim", (row,), shape, dtype, attrs)


def along_refs(
    ctx: Context, shape: tuple[int, ...], vector: int | None, values: Sequence[LocalValue | None]
) -> LocalValue:
    """The same from i32 scalars; None stands for zero."""
    if vector is None or len(values) == 1:
        return ctx.realiser.splat(ctx.region, values[0] or ctx.realiser.index(ctx.region, 0), shape)
    parts = []
    for v in values:
        v = v or ctx.realiser.index(ctx.region, 0)
        parts.append(ctx.region.shared("stablehlo.reshape", (v,), (1,), "i32"))
    row = ctx.emit("stablehlo.concatenate", parts, (len(parts),), "i32", attributes("stablehlo.concatenate", 0))
    attrs = attributes("stablehlo.broadcast_in_dim", (vector,))
    return ctx.emit("stablehlo.broadcast_in_dim", (row,), shape, "i32", attrs)
