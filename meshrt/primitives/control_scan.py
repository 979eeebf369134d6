"""The primitive `scan`: its type, lowering, forward derivative, batching and dead-code rule.

    scan[jaxpr num_consts num_carry length reverse unroll] consts... carry... xs...  ->  carry... ys...

The body `jaxpr` maps consts, carry and one slice of each xs to carry and one slice of each ys. Reverse mode is in
`control_scan_reverse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.primitives.control_staging import body_effects, permuted, with_vars
from meshrt.primitives.reshape import i64_array
from meshrt.transforms.batching import batch_jaxpr, bring_to_front, move_dim
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.tools import WeakCache, dce, instantiate

__all__ = ["scan_p"]

INDEX = ShapedArray((), np.int32)


def split3(values: Sequence[Any], first: int, second: int) -> tuple[list[Any], list[Any], list[Any]]:
    """`values` cut into consts, carry and xs (or carry, ys with `first` 0)."""
    values = list(values)
    return values[:first], values[first : first + second], values[first + second :]


def carry_fixpoint(
    carry: Sequence[bool], step: Callable[[tuple[bool, ...]], tuple[Any, Sequence[bool]]]
) -> tuple[Any, tuple[bool, ...]]:
    """The smallest set of flagged carries that `step` maps into itself, and what `step` made of it."""
    flags = tuple(carry)
    while True:
        result, out = step(flags)
        joined = tuple(a or b for a, b in zip(flags, out))
        if joined == flags:
            return result, flags
        flags = joined


# ---------------------------------------------------------------------------------------------------------------------
# Types


def _infer(*avals, jaxpr, length, reverse, num_consts, num_carry, unroll):
    consts, carry, xs = split3(avals, num_consts, num_carry)
    expected = split3(jaxpr.in_avals, num_consts, num_carry)
    for x in xs:
        if not x.shape or x.shape[0] != length:
            raise errors.ArgumentTypeError(f"scan of length {length} over an array of type {x.str_short()}")
    slices = [x.with_shape(x.shape[1:]) for x in xs]
    for got, want in zip((*consts, *carry, *slices), (a for part in expected for a in part), strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            raise errors.ArgumentTypeError(
                f"scan: an operand of type {got.str_short()} where the body takes {want.str_short()}"
            )
    outs = jaxpr.out_avals
    return [*outs[:num_carry], *[y.with_shape((length, *y.shape)) for y in outs[num_carry:]]]


# ---------------------------------------------------------------------------------------------------------------------
# Lowering


def _lower(ctx, eqn: Eqn, *operands):
    """`stablehlo.while` over [counter, carry..., ys...]; consts and xs are captured from the enclosing region.

    With `unroll` u the loop runs length // u times, u slices each, and the rest follows it. A loop that would run
    once or not at all is written out.
    """
    length, unroll = eqn.params["length"], eqn.params["unroll"]
    loop = _Loop(eqn, operands)
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

    def step(self, ctx, carry, slices):
        """The body, written in place."""
        outs = ctx.jaxpr(self.jaxpr, [*self.consts, *carry, *slices])
        return outs[: self.num_carry], outs[self.num_carry :]

    def straight(self, ctx):
        carry, stacks = self.carry, [[] for _ in self.y_avals]
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

    def repeat(self, ctx, trips, unroll, carry, ys):
        """The loop proper: the counter runs from 0 below the constant `trips` by 1."""
        types = [INDEX, *[v.aval for v in self.jaxpr.outvars[: self.num_carry]], *self.y_avals]
        start = ctx.scalar(0, INDEX.dtype)
        kinds = [r.type for r in (start, *carry, *ys)]
        test, body = ctx.body.body(kinds), ctx.body.body(kinds)
        inner = ctx.nested(test)
        test.ret([_less(inner, test.args[0], inner.scalar(trips, INDEX.dtype))])
        inner = ctx.nested(body)
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

    def dynamic_position(self, ctx, count, unroll: int, j: int):
        """count·unroll + j, or its mirror image in a reversed scan."""
        at = count
        if unroll > 1:
            at = ctx.op("stablehlo.multiply", [at, ctx.scalar(unroll, INDEX.dtype)], INDEX)
        if self.reverse:
            return ctx.op("stablehlo.subtract", [ctx.scalar(self.length - 1 - j, INDEX.dtype), at], INDEX)
        return ctx.op("stablehlo.add", [at, ctx.scalar(j, INDEX.dtype)], INDEX) if j else at

    def dynamic_slice(self, ctx, k: int, at):
        aval = self.x_avals[k]
        starts = [at, *[ctx.scalar(0, INDEX.dtype)] * (aval.ndim - 1)]
        one = aval.with_shape((1, *aval.shape[1:]))
        piece = ctx.op("stablehlo.dynamic_slice", [self.xs[k], *starts], one, f"slice_sizes = {i64_array(one.shape)}")
        return ctx.op("stablehlo.reshape", [piece], aval.with_shape(aval.shape[1:]))

    def static_slice(self, ctx, k: int, i: int):
        aval, at = self.x_avals[k], self.position(i)
        one = aval.with_shape((1, *aval.shape[1:]))
        attrs = (
            f"start_indices = {i64_array((at, *[0] * (aval.ndim - 1)))}, "
            f"limit_indices = {i64_array((at + 1, *aval.shape[1:]))}, strides = {i64_array((1,) * aval.ndim)}"
        )
        piece = ctx.op("stablehlo.slice", [self.xs[k]], one, attrs)
        return ctx.op("stablehlo.reshape", [piece], aval.with_shape(aval.shape[1:]))

    def put(self, ctx, buffer, y, at, k: int):
        aval = self.y_avals[k]
        piece = ctx.op("stablehlo.reshape", [y], aval.with_shape((1, *aval.shape[1:])))
        starts = [at, *[ctx.scalar(0, INDEX.dtype)] * (aval.ndim - 1)]
        return ctx.op("stablehlo.dynamic_update_slice", [buffer, piece, *starts], aval)


def _less(ctx, x, y):
    return ctx.op(
        "stablehlo.compare", [x, y], ShapedArray((), np.dtype(bool)),
        "comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type SIGNED>",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Forward mode


def _jvp(primals, tangents, *, jaxpr, length, reverse, num_consts, num_carry, unroll):
    nonzero = [t is not None for t in tangents]
    nz_consts, nz_carry, nz_xs = split3(nonzero, num_consts, num_carry)
    num_ys = len(jaxpr.outvars) - num_carry

    def step(carry):
        closed, nz_out = jvp_jaxpr(jaxpr, (*nz_consts, *carry, *nz_xs), (*carry, *[False] * num_ys))
        return (closed, nz_out), nz_out[:num_carry]

    (closed, nz_out), nz_carry = carry_fixpoint(nz_carry, step)
    extra, counts = len(closed.consts), (num_consts, num_carry, len(nz_xs))
    primal_at = _ranges(extra, counts)
    tangent_at = _ranges(extra + sum(counts), (sum(nz_consts), sum(nz_carry), sum(nz_xs)))
    ins = [i for p, t in zip(primal_at, tangent_at) for i in (*p, *t)]
    y_at = _ranges(0, (num_carry, num_ys))
    ty_at = _ranges(num_carry + num_ys, (sum(nz_carry), sum(nz_out) - sum(nz_carry)))
    body = permuted(closed.jaxpr, [*range(extra), *ins], [i for p, t in zip(y_at, ty_at) for i in (*p, *t)])
    operands = list(closed.consts)
    for part, tangent, flags in zip(
        split3(primals, num_consts, num_carry), split3(tangents, num_consts, num_carry), (nz_consts, nz_carry, nz_xs)
    ):
        operands += [*part, *[instantiate(t, p) for p, t, nz in zip(part, tangent, flags) if nz]]
    outs = scan_p.bind(
        *operands, jaxpr=body, length=length, reverse=reverse, unroll=unroll,
        num_consts=extra + num_consts + sum(nz_consts), num_carry=num_carry + sum(nz_carry),
    )  # fmt: skip
    carry, t_carry, rest = split3(outs, num_carry, sum(nz_carry))
    ys, t_ys, _ = split3(rest, num_ys, len(rest))
    found = iter((*t_carry, *t_ys))
    return [*carry, *ys], [next(found) if nz else None for nz in nz_out]


def _ranges(start: int, counts: Sequence[int]) -> list[range]:
    out = []
    for n in counts:
        out.append(range(start, start + n))
        start += n
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Batching


def _batch(axis, args, dims, params):
    jaxpr, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    batched = [d is not None for d in dims]
    b_consts, b_carry, b_xs = split3(batched, num_consts, num_carry)
    num_ys = len(jaxpr.outvars) - num_carry

    def step(carry):
        closed, flags = batch_jaxpr(jaxpr, axis, (*b_consts, *carry, *b_xs), (*carry, *[False] * num_ys))
        return (closed, flags), flags[:num_carry]

    (closed, flags), b_carry = carry_fixpoint(b_carry, step)
    consts, carry, xs = split3(list(zip(args, dims)), num_consts, num_carry)
    operands = [
        *closed.consts,
        *[x if d is None else move_dim(x, d, 0) for x, d in consts],
        *[bring_to_front(axis.size, x, d) if b else x for (x, d), b in zip(carry, b_carry)],
        *[x if d is None else move_dim(x, d, 1) for x, d in xs],
    ]
    outs = scan_p.bind(*operands, **{**params, "jaxpr": closed.jaxpr, "num_consts": len(closed.consts) + num_consts})
    out_dims = [0 if f else None for f in flags[:num_carry]] + [1 if f else None for f in flags[num_carry:]]
    return outs, out_dims


# ---------------------------------------------------------------------------------------------------------------------
# Dead code

_dce_cache: WeakCache = WeakCache()


def _live_body(jaxpr: Jaxpr, num_consts: int, num_carry: int, used: tuple[bool, ...]):
    """The body without what nobody uses (None: as it is), and flags of needed consts, kept carries and needed xs."""
    used_carry, used_ys = used[:num_carry], used[num_carry:]
    flags = tuple(used_carry)
    while True:
        kept, needed = dce(jaxpr, (*flags, *used_ys))
        joined = tuple(a or b for a, b in zip(flags, needed[num_consts : num_consts + num_carry]))
        if joined == flags:
            break
        flags = joined
    consts, _, xs = split3(needed, num_consts, num_carry)
    keep = (*consts, *flags, *xs)
    if (
        all(keep)
        and all(used_ys)
        and len(kept.eqns) == len(jaxpr.eqns)
        and all(a is b for a, b in zip(kept.eqns, jaxpr.eqns))
    ):
        return None, consts, flags, xs
    return with_vars(kept, [v for v, k in zip(kept.invars, keep) if k], kept.outvars), consts, flags, xs


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    p = eqn.params
    used = tuple(used)
    key = (p["num_consts"], p["num_carry"], used)
    body, consts, carry, xs = _dce_cache.get(
        p["jaxpr"], key, lambda: _live_body(p["jaxpr"], p["num_consts"], p["num_carry"], used)
    )
    if body is None:
        return eqn
    invars = [a for a, k in zip(eqn.invars, (*consts, *carry, *xs)) if k]
    outvars = [v for v, k in zip(eqn.outvars, (*carry, *used[p["num_carry"] :])) if k]
    return eqn.replace(invars, outvars, {**p, "jaxpr": body, "num_consts": sum(consts), "num_carry": sum(carry)})


scan_p = Primitive(
    "scan", _infer, lower=_lower, jvp=_jvp, batch=_batch, batch_axis=True, multiple_results=True, cache_types=False
)
scan_p.dce = _dce
scan_p.effects_rule = lambda *avals, jaxpr, **_: body_effects(jaxpr)
