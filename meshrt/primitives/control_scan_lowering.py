"""The type rule of `scan` and its lowering to `stablehlo.while`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.dimensions.expression import DimExpr, max_dim
from meshrt.core.explicit import refusal
from meshrt.core.high import unlike
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.control_staging import split3
from propagation.asm import Ref, i64_array

__all__: list[str] = []

INDEX = ShapedArray((), np.int32)


def infer(
    *avals: ShapedArray, jaxpr: Jaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, unroll: int
) -> list[ShapedArray]:
    """The types of the results: the carry, and the ys with a leading dimension of `length`."""
    consts, carry, xs = split3(avals, num_consts, num_carry)
    expected = split3(jaxpr.in_avals, num_consts, num_carry)
    for x in xs:
        if not x.is_high and (not x.shape or x.shape[0] != length):
            raise errors.ArgumentTypeError(f"scan of length {length} over an array of type {x.short()}")
    check_xs(xs)
    slices = [x.without(0) for x in xs]
    for got, want in zip((*consts, *carry, *slices), (a for part in expected for a in part), strict=True):
        if unlike(got, want):
            raise errors.ArgumentTypeError(
                f"scan: an operand of type {got.short()} where the body takes {want.short()}"
            )
    outs = jaxpr.out_avals
    return [*outs[:num_carry], *[y.batched(length) for y in outs[num_carry:]]]


def check_xs(xs: Sequence[ShapedArray]) -> None:
    """ShardingTypeError if Explicit axes split the dimension that a scan walks over."""
    if any(not x.is_high and x.explicit is not None and x.explicit.spec.partitions[0] is not None for x in xs):
        specs = ", ".join([str(x.explicit.spec) if x.explicit is not None else "P()" for x in xs])
        raise refusal(
            "scan", xs, f"0th dimension of all xs should be replicated. Got {specs}.",
            "scan over another dimension (moveaxis)",
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Lowering


def lower(ctx: LoweringContext, eqn: Eqn, *operands: Ref) -> list[Ref]:
    """`stablehlo.while` over [counter, carry..., ys...]; consts and xs are captured from the enclosing region.

    With `unroll` u the loop runs length // u times, u slices each, and the rest follows it. A loop that would run
    once or not at all is written out.
    """
    length, unroll = eqn.params["length"], eqn.params["unroll"]
    loop = _Loop(eqn, operands)
    if isinstance(length, DimExpr):  # how many trips would be left over is not known
        return loop.of_unknown_length(ctx)
    trips = length // unroll if length // unroll > 1 else 0
    if trips == 0:
        return loop.straight(ctx)
    carry, ys = loop.carry, [ctx.full(0, aval) for aval in loop.y_avals]
    carry, ys = loop.repeat(ctx, trips, unroll, carry, ys)
    for i in range(trips * unroll, length):
        at = ctx.scalar(loop.position(i), INDEX.dtype)
        carry, slices = loop.step(ctx, carry, [loop.static_slice(ctx, k, i) for k in range(len(loop.xs))])
        ys = [loop.put(ctx, buffer, y, at, k) for k, (buffer, y) in enumerate(zip(ys, slices))]
    return [*carry, *ys]


class _Loop:
    """The pieces of one scan being lowered. All shapes are physical (PRNG keys are arrays of uint32)."""

    def __init__(self, eqn: Eqn, operands: Sequence[Any]):
        p = eqn.params
        self.jaxpr: Jaxpr = p["jaxpr"]
        self.length, self.reverse = p["length"], p["reverse"]
        self.consts, self.carry, self.xs = split3(operands, p["num_consts"], p["num_carry"])
        self.x_avals = [v.aval.physical() for v in eqn.invars[p["num_consts"] + p["num_carry"] :]]
        self.y_avals = [v.aval.physical() for v in eqn.outvars[p["num_carry"] :]]
        self.num_carry = p["num_carry"]

    def position(self, i: int) -> int:
        return self.length - 1 - i if self.reverse else i

    def step(self, ctx: LoweringContext, carry: Sequence[Any], slices: Any) -> tuple[Any, Any]:
        """The body, written in place."""
        outs = ctx.jaxpr(self.jaxpr, [*self.consts, *carry, *slices])
        return outs[: self.num_carry], outs[self.num_carry :]

    def straight(self, ctx: LoweringContext) -> Any:
        carry = self.carry
        stacks: list[list[Ref]] = [[] for _ in self.y_avals]
        for i in range(self.length):
            carry, slices = self.step(ctx, carry, [self.static_slice(ctx, k, i) for k in range(len(self.xs))])
            for stack, y, aval in zip(stacks, slices, self.y_avals):
                stack.append(ctx.op("stablehlo.reshape", [y], aval.with_shape((1, *aval.shape[1:]))))
        ys = []
        for stack, aval in zip(stacks, self.y_avals):
            if not stack:
                ys.append(ctx.full(0, aval))
                continue
            stack = stack[::-1] if self.reverse else stack
            ys.append(
                ctx.op("stablehlo.concatenate", stack, aval, "dimension = 0 : i64") if len(stack) > 1 else stack[0]
            )
        return [*carry, *ys]

    def of_unknown_length(self, ctx: LoweringContext) -> Any:
        """A loop for each slice. What it reads and writes has room for one also where there may be none: the types of
        a body that never runs have to hold, too."""
        room: Any = max_dim(self.length, 1)
        ys = self.y_avals
        if room != self.length:
            fill = [ctx.full(0, a.with_shape(())) for a in self.x_avals]
            wider = [a.with_shape((room, *a.shape[1:])) for a in self.x_avals]
            self.xs = [
                ctx.op("stablehlo.pad", [x, zero], aval, _padded_behind(room - self.length, aval.ndim))
                for x, zero, aval in zip(self.xs, fill, wider)
            ]
            self.x_avals, self.y_avals = wider, [a.with_shape((room, *a.shape[1:])) for a in ys]
        carry, buffers = self.repeat(ctx, self.length, 1, self.carry, [ctx.full(0, aval) for aval in self.y_avals])
        if room != self.length:
            buffers = [ctx.op("stablehlo.slice", [b], aval, _first(aval.shape)) for b, aval in zip(buffers, ys)]
        return [*carry, *buffers]

    def repeat(self, ctx: LoweringContext, trips: Any, unroll: int, carry: Sequence[Any], ys: Any) -> tuple[Any, Any]:
        """The loop proper: the counter runs from 0 below the constant `trips` by 1."""
        types = [INDEX, *[v.aval for v in self.jaxpr.outvars[: self.num_carry]], *self.y_avals]
        start = ctx.scalar(0, INDEX.dtype)
        kinds = [r.type for r in (start, *carry, *ys)]
        test, body = ctx.body.body(kinds), ctx.body.body(kinds)
        inner = ctx.nested(test)
        test.ret([_less(inner, test.args[0], inner.size(trips, INDEX.dtype))])
        inner = ctx.nested(body, "body/closed_call")
        count, new_carry = body.args[0], body.args[1 : 1 + len(carry)]
        buffers = body.args[1 + len(carry) :]
        for j in range(unroll):
            at = self.dynamic_position(inner, count, unroll, j)
            new_carry, slices = self.step(
                inner, new_carry, [self.dynamic_slice(inner, k, at) for k in range(len(self.xs))]
            )
            buffers = [self.put(inner, b, y, at, k) for k, (b, y) in enumerate(zip(buffers, slices))]
        following = inner.op("stablehlo.add", [count, inner.scalar(1, INDEX.dtype)], INDEX)
        body.ret([following, *new_carry, *buffers], loc=ctx.loc)
        outs = ctx.ops("stablehlo.while", [start, *carry, *ys], types, regions=[test, body])
        return list(outs[1 : 1 + len(carry)]), list(outs[1 + len(carry) :])

    def dynamic_position(self, ctx: LoweringContext, count: Any, unroll: int, j: int) -> Any:
        """count·unroll + j, or its mirror image in a reversed scan."""
        at = count
        if unroll > 1:
            at = ctx.op("stablehlo.multiply", [at, ctx.scalar(unroll, INDEX.dtype)], INDEX)
        if self.reverse:
            return ctx.op("stablehlo.subtract", [ctx.size(self.length - 1 - j, INDEX.dtype), at], INDEX)
        return ctx.op("stablehlo.add", [at, ctx.scalar(j, INDEX.dtype)], INDEX) if j else at

    def dynamic_slice(self, ctx: LoweringContext, k: int, at: Any) -> Any:
        aval = self.x_avals[k]
        starts = [at, *[ctx.scalar(0, INDEX.dtype)] * (aval.ndim - 1)]
        one = aval.with_shape((1, *aval.shape[1:]))
        piece = ctx.op("stablehlo.dynamic_slice", [self.xs[k], *starts], one, f"slice_sizes = {i64_array(one.shape)}")
        return ctx.op("stablehlo.reshape", [piece], aval.with_shape(aval.shape[1:]))

    def static_slice(self, ctx: LoweringContext, k: int, i: int) -> Any:
        aval, at = self.x_avals[k], self.position(i)
        one = aval.with_shape((1, *aval.shape[1:]))
        attrs = (
            f"start_indices = {i64_array((at, *[0] * (aval.ndim - 1)))}, "
            f"limit_indices = {i64_array((at + 1, *aval.shape[1:]))}, strides = {i64_array((1,) * aval.ndim)}"
        )
        piece = ctx.op("stablehlo.slice", [self.xs[k]], one, attrs)
        return ctx.op("stablehlo.reshape", [piece], aval.with_shape(aval.shape[1:]))

    def put(self, ctx: LoweringContext, buffer: Any, y: Any, at: Any, k: int) -> Any:
        aval = self.y_avals[k]
        piece = ctx.op("stablehlo.reshape", [y], aval.with_shape((1, *aval.shape[1:])))
        starts = [at, *[ctx.scalar(0, INDEX.dtype)] * (aval.ndim - 1)]
        return ctx.op("stablehlo.dynamic_update_slice", [buffer, piece, *starts], aval)


def _padded_behind(count: Any, ndim: int) -> str:
    """The attributes of a pad by `count` at the end of the first dimension."""
    zeros = i64_array([0] * ndim)
    high = i64_array([count, *[0] * (ndim - 1)])
    return f"edge_padding_low = {zeros}, edge_padding_high = {high}, interior_padding = {zeros}"


def _first(shape: Sequence[Any]) -> str:
    """The attributes of a slice to `shape` from the start."""
    return (
        f"start_indices = {i64_array([0] * len(shape))}, limit_indices = {i64_array(shape)}, "
        f"strides = {i64_array([1] * len(shape))}"
    )


def _less(ctx: LoweringContext, x: Any, y: Any) -> Any:
    return ctx.op(
        "stablehlo.compare", [x, y], ShapedArray((), np.dtype(bool)),
        "comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type SIGNED>",
    )  # fmt: skip
