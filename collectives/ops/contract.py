"""Contractions (dot_general): the cheapest way, in bytes, to assign mesh axes to batch, free and contracted dimensions.

lhs[m, k] @ rhs[k, n] on an axis x: split along m or n, operands and result stay where they are; split along k, the
result is a partial sum whose reduction is deferred (see `deferred_reduction`), to become an all-reduce or, where the
result is wanted split, a reduce-scatter.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from jaxlib.mlir import ir

from propagation.attributes import DotDims, dot_dims
from propagation.program import Op, Value

from ..analysis.value_ranges import is_finite
from ..decide.candidate import Candidate
from ..decide.factors import PASS, REDUCE, Choice, Factors, Splits, layout_of, work_of
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Partial
from ..partial_sums import deferred_reduction


@functools.lru_cache(maxsize=4096)
def _dot_factors(dims: DotDims, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> Factors:
    sizes: list[int] = []
    kinds: list[int] = []
    left, right, out = [-1] * len(lhs), [-1] * len(rhs), []

    def factor(size: int, kind: int) -> int:
        sizes.append(size)
        kinds.append(kind)
        return len(sizes) - 1

    for i, j in zip(dims.lhs_batch, dims.rhs_batch):
        left[i] = right[j] = factor(lhs[i], PASS)
        out.append(left[i])
    for i, j in zip(dims.lhs_contract, dims.rhs_contract):
        left[i] = right[j] = factor(lhs[i], REDUCE)
    for i, n in enumerate(lhs):
        if left[i] < 0:
            left[i] = factor(n, PASS)
            out.append(left[i])
    for j, n in enumerate(rhs):
        if right[j] < 0:
            right[j] = factor(n, PASS)
            out.append(right[j])
    return Factors(tuple(sizes), tuple(kinds), (tuple(left), tuple(right)), (tuple(out),))


def dot_general(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """lhs[batch, m, k] x rhs[batch, k, n] -> [batch, m, n]; a split contraction leaves a partial sum. An operand that
    is still unreduced may stay so."""
    a, b = op.operands
    result = op.results[0]
    dims = dot_dims(op.attrs["dot_dimension_numbers"])
    factors = _dot_factors(dims, a.type.shape, b.type.shape)

    def write(choice: Choice) -> None:
        operands = []
        for v, layout, contract in zip((a, b), choice.operands, (dims.lhs_contract, dims.rhs_contract)):
            operands.append(ctx.masked(ctx.get(v, layout), v.type.shape, layout, contract))
        out = choice.results[0]
        ref = ctx.local_one(op, operands, ctx.piece_shape(result, out))
        ctx.bind_partial(result, out, {choice.pending: ref})

    yield Splits(factors, (a, b), (result,), 2 * ctx.byte_per_flop, write)
    if ctx.options.distribute is not False:
        yield from _carried_on(ctx, op, factors, dims)


def _carried_on(ctx: Context, op: Op, factors: Factors, dims: DotDims) -> Iterator[Candidate]:
    """The ways to contract an operand that is still unreduced part by part, so that only the result is reduced:
    (sum of parts) @ b = sum of (part @ b)."""
    for position, v in enumerate(op.operands):
        other = op.operands[1 - position]
        partial = None if other is v else deferred_reduction.deferred(ctx, v)
        if partial is None or ctx.state(other).pending or partial.masked:
            continue
        if not ctx.options.distribute and not is_finite(ctx.program, other):
            continue  # inf * (p + q) is infinite where inf * p + inf * q is not a number
        yield _part_by_part(ctx, op, factors, dims, position, partial)


def _part_by_part(
    ctx: Context, op: Op, factors: Factors, dims: DotDims, position: int, partial: Partial
) -> Candidate:  # fmt: skip
    """The way to contract the unreduced operand at `position` part by part."""
    v, other = op.operands[position], op.operands[1 - position]
    assigned = _assigned(ctx, factors, position, partial, ctx.state(other).dims or ctx.want(other))
    more = tuple(a for f, k in enumerate(factors.kinds) if k == REDUCE for a in assigned[f])
    theirs = layout_of(factors.operands[1 - position], assigned)
    out = layout_of(factors.results[0], assigned)
    contracted = (dims.lhs_contract, dims.rhs_contract)

    def write() -> None:
        factor = ctx.masked(ctx.get(other, theirs), other.type.shape, theirs, contracted[1 - position])

        def local(ref: LocalValue) -> LocalValue:
            ref = ctx.masked(ref, v.type.shape, partial.dims, contracted[position])
            refs = (ref, factor) if position == 0 else (factor, ref)
            return ctx.local_copy(op, refs, [ctx.piece_shape(op.results[0], out)])[0]

        deferred_reduction.apply(ctx, op, partial, out, local, more)

    operands = (None, theirs) if position == 0 else (theirs, None)
    pending = tuple([tuple(sorted({*atoms, *more})) for atoms in partial.parts])
    work = 2 * ctx.byte_per_flop * work_of(ctx, factors, assigned) * len(partial.parts)
    return Candidate(operands, (out,), write, pending, work=work)


def _assigned(ctx: Context, factors: Factors, position: int, partial: Partial, have: Dims) -> list[tuple[int, ...]]:
    """Axes per factor: those of the unreduced operand (the one at `position`); along factors that only the other
    operand has, those that it has there, unless they are used or pending."""
    assigned: list[tuple[int, ...]] = [()] * len(factors.sizes)
    for f, atoms in zip(factors.operands[position], partial.dims):
        assigned[f] = atoms
    used = {a for atoms in (*partial.dims, *partial.parts) for a in atoms}
    for f, atoms in zip(factors.operands[1 - position], have):
        if f not in factors.operands[position] and not used & set(atoms):
            assigned[f] = atoms
    return assigned


class _Side(NamedTuple):
    """The dimensions of one operand of a contraction, seen from it: the pairs of batch and contracted ones with those
    of the other operand, its batch, contracted and free ones, and the free ones of the other."""

    pairs: tuple[tuple[int, int], ...]
    batch: tuple[int, ...]
    contract: tuple[int, ...]
    free: tuple[int, ...]
    others: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _side(d: DotDims, rank: int, other: int, left: bool) -> _Side:
    batch, contract = (d.lhs_batch, d.lhs_contract) if left else (d.rhs_batch, d.rhs_contract)
    theirs = (*d.rhs_batch, *d.rhs_contract) if left else (*d.lhs_batch, *d.lhs_contract)
    mine = (*batch, *contract)
    free = tuple([i for i in range(rank) if i not in mine])
    others = tuple([j for j in range(other) if j not in theirs])
    return _Side(tuple(zip(mine, theirs)), tuple(batch), tuple(contract), free, others)


def ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: one operand of the contraction in layout `dims`, in its wanted layout, with its contracted
    dimensions gathered, or in a layout that lets the other operand stay. That one is resharded to match along batch and
    contracted dimensions, and the result follows from both."""
    a, b = op.operands
    left = value is a
    other = b if left else a
    rank = len(other.type.shape)
    side = _side(dot_dims(op.attrs["dot_dimension_numbers"]), len(dims), rank, left)
    have = dims if a is b else ctx.env[other].dims if other in ctx.env else None
    have = ctx.want(other) if have is None else have
    theirs = {x for atoms in have for x in atoms}
    alike = [() if theirs & set(x) else x for x in dims]
    whole = list(dims)
    for i, j in side.pairs:
        alike[i] = have[j]
    for i in side.contract:
        whole[i] = ()
    for layout in dict.fromkeys((dims, ctx.want(value), tuple(whole), tuple(alike))):
        used = {x for atoms in layout for x in atoms}
        follow: list[tuple[int, ...]] = [()] * rank
        for i, j in side.pairs:
            follow[j] = layout[i]
        for j in side.others:
            if not used & set(have[j]):
                follow[j] = have[j]
        pending = tuple(sorted([x for i in side.contract for x in layout[i]]))
        batch = [layout[i] for i in side.batch]
        free, rest = [layout[i] for i in side.free], [follow[j] for j in side.others]
        if left:
            yield Candidate((layout, tuple(follow)), ((*batch, *free, *rest),), None, (pending,))
        else:
            yield Candidate((tuple(follow), layout), ((*batch, *rest, *free),), None, (pending,))


def dot(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """The old form of dot_general for vectors and matrices: contracts the last dimension of lhs with the first of
    rhs."""
    last = len(op.operands[0].type.shape) - 1
    text = f"#stablehlo.dot<lhs_contracting_dimensions = [{last}], rhs_contracting_dimensions = [0]>"
    attrs = {**op.attrs, "dot_dimension_numbers": ir.Attribute.parse(text, ctx.program.context)}
    general = Op("stablehlo.dot_general", op.operands, [], op._ir, attrs)
    general.results, general.parent = op.results, op.parent
    ctx.op = general
    return dot_general(ctx, general)


AHEAD = {"stablehlo.dot_general": ahead}

CANDIDATES = {"stablehlo.dot": dot, "stablehlo.dot_general": dot_general}
