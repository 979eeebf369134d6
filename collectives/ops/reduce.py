"""Reductions: each device reduces its piece, and the result is unreduced over the axes of the reduced dimensions.

sum of f32[1024@x, 64] over dimension 0 is a local sum of 128 rows and a pending all-reduce of 64 numbers over x, which
later operations may defer (`deferred_reduction`) or share (`common_factors`). Bodies that are no known reduction are
applied again to the gathered results of all devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from propagation.attributes import integers
from propagation.program import Op, Value

from ..analysis.constants import scalar_constant
from ..analysis.reducers import identity_literal, is_identity, reduction_kinds
from ..cost import item_bytes
from ..decide.candidate import Candidate
from ..decide.factors import PASS, REDUCE, Choice, Factors, Splits
from ..heuristics import GATHERED_REDUCTION_BYTES
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..partial_sums import common_factors, deferred_reduction
from .batch import sum_ahead

__all__: list[str] = []


@functools.lru_cache(maxsize=4096)
def _factors(shape: tuple[int, ...], reduced: tuple[int, ...], count: int) -> Factors:
    kinds = tuple(REDUCE if i in reduced else PASS for i in range(len(shape)))
    every = tuple(range(len(shape)))
    kept = tuple(i for i in every if i not in reduced)
    return Factors(shape, kinds, (every,) * count, (kept,) * count)


class _Part(NamedTuple):
    """One of the operands that are reduced together: the kind of its reduction, and the neutral element to start from
    instead of its initial value; None if that is neutral itself."""

    kind: str
    start: str | None


def _parts(op: Op, inits: Sequence[Value]) -> list[_Part] | None:
    """The reduction of each operand; None for a body of unknown kind, or a type without a neutral element."""
    out = []
    for kind, init, result in zip(reduction_kinds(op.regions[0]) or (), inits, op.results):
        dtype = result.type.dtype
        fill = identity_literal(kind, dtype)
        if fill is None:
            return None
        out.append(_Part(kind, None if is_identity(kind, dtype, scalar_constant(init)) else fill))
    return out or None


def reduce(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """Each device reduces its piece, in any layout of the operands; an operand that is still a sum is summed up part by
    part."""
    count = len(op.operands) // 2
    inputs, inits = op.operands[:count], op.operands[count:]
    reduced = tuple(integers(op.attrs["dimensions"]))
    parts = _parts(op, inits)
    is_sum = count == 1 and parts is not None and parts[0] == _Part("add", None)
    partial = deferred_reduction.deferred(ctx, inputs[0]) if is_sum else None
    if partial is not None:
        dims = partial.dims
        more = tuple(a for i in reduced for a in dims[i])
        out = tuple(d for i, d in enumerate(dims) if i not in reduced)
        local = lambda ref: _local(ctx, op, parts, [ref], dims)[0]
        yield deferred_reduction.applied(ctx, op, partial, out, local, more)
        return
    factors = _factors(inputs[0].type.shape, reduced, count)
    itemsize = sum(item_bytes(v.type.dtype) for v in inputs)
    yield Splits(factors, inputs, op.results, itemsize * ctx.redundancy, lambda choice: _write(ctx, op, parts, choice))


def _local(
    ctx: Context, op: Op, parts: Sequence[_Part] | None, refs: Sequence[LocalValue], dims: Dims
) -> list[LocalValue]:  # fmt: skip
    """Reduces one piece, starting from neutral elements: an initial value must count once, not on every device."""
    count = len(op.operands) // 2
    inputs, inits = op.operands[:count], op.operands[count:]
    reduced = integers(op.attrs["dimensions"])
    first = [ctx.get(v, ()) for v in inits]
    for i, part in enumerate(parts or ()):
        if part.start is not None:
            first[i] = ctx.realiser.constant(ctx.region, (), op.results[i].type.dtype, part.start)
    masked = [ctx.masked_with(ref, v.type.shape, dims, reduced, init) for v, ref, init in zip(inputs, refs, first)]
    kept = tuple([n for i, n in enumerate(masked[0].shape) if i not in reduced])
    return ctx.local_copy(op, [*masked, *first], [kept] * count)


def _write(ctx: Context, op: Op, parts: Sequence[_Part] | None, choice: Choice) -> None:
    """Writes a reduction of complete operands as it was chosen."""
    count = len(op.operands) // 2
    inputs, inits = op.operands[:count], op.operands[count:]
    reduced = tuple(integers(op.attrs["dimensions"]))
    if 0 in inputs[0].type.shape:  # nothing is reduced, so nothing is pending
        choice = choice._replace(pending=())
    dims, out = choice.operands[0], choice.results[0]
    summed = None
    is_plain_sum = count == 1 and parts is not None and parts[0] == _Part("add", None) and choice.pending
    alone = is_plain_sum and not deferred_reduction.saves(ctx, op.results[0], choice.pending)
    if alone and ctx.options.distribute is not False:
        summed = common_factors.product(ctx.state(inputs[0]), reduced)
    local = lambda refs, dims: _local(ctx, op, parts, refs, dims)
    if summed is not None and _factored(ctx, op, summed, choice, local):
        return
    refs = local([ctx.get(v, dims) for v in inputs], dims)
    for r, ref, init, part in zip(op.results, refs, inits, parts or ()):
        sums = {choice.pending: ref}
        if part.start is not None:
            given = ctx.realiser.splat(ctx.region, ctx.get(init, ()), ref.shape)
            sums = {choice.pending: ref, (): given} if choice.pending else {(): ctx.combine(part.kind, given, ref)}
        ctx.bind_partial(r, out, sums, part.kind)
    if parts:
        if summed is not None and not summed.is_scaled:
            common_factors.note(ctx, summed, reduced, ctx.state(op.results[0]))
        return
    if choice.pending:
        refs, out = _merge(ctx, op, refs, out, choice.pending, [ctx.get(v, ()) for v in inits])
    for r, ref in zip(op.results, refs):
        ctx.bind(r, out, ref)


def _factored(
    ctx: Context, op: Op, summed: common_factors.Product, choice: Choice,
    local: Callable[[Sequence[LocalValue], Dims], list[LocalValue]],
) -> bool:  # fmt: skip
    """Writes a sum as a multiple of a sum that is known, or that later sums are multiples of too (`common_factors`);
    False if there is none."""
    reduced = tuple(integers(op.attrs["dimensions"]))
    dims, out = choice.operands[0], choice.results[0]
    exact = ctx.options.distribute or common_factors.is_exact(ctx, summed)
    if not exact and ctx.atoms.product(choice.pending) >= common_factors.CODED_DEVICES:
        return False
    total = common_factors.known_sum(ctx, summed, reduced, out)
    if total is None:
        if not summed.is_scaled or not common_factors.applies(ctx, summed, dims):
            return False
        if not common_factors.is_awaited(ctx, op, summed):
            return False
        first, *more = [ctx.get_state(s, dims) for s in summed.varying]
        for x in more:
            first = ctx.emit("stablehlo.multiply", (first, x), first.shape, first.dtype)
        total = common_factors.bound(ctx, op, summed, out, choice.pending, local([first], dims)[0])
    result = common_factors.scaled(ctx, summed, reduced, total, out)
    if not exact:
        own = local([ctx.get(op.operands[0], dims)], dims)[0]
        result = common_factors.guarded(ctx, result, own, out, choice.pending, op.results[0].type.shape)
    ctx.bind(op.results[0], out, result)
    return True


def _merge(
    ctx: Context, op: Op, refs: Sequence[LocalValue], out: Dims, atoms: tuple[int, ...], inits: Sequence[LocalValue]
) -> tuple[list[LocalValue], Dims]:
    """Combines the devices' results, laid out as `out`, of any reduction body; what comes of it, and its layout.

    Each device is sent its part of everybody's results along some dimension, and reduces these by the same body; the
    small results stay split until somebody needs them whole. What is too small for two steps, or has no dimension that
    divides, is gathered. Either way devices' results are reduced in the order of the devices."""
    n = ctx.atoms.product(atoms)
    attrs = attributes("stablehlo.reduce", (0,))
    d = _dealt(op, refs, ctx.atoms.product, out, n)
    rows = [_gathered(ctx, ref, atoms) if d is None else _exchanged(ctx, ref, d, atoms) for ref in refs]
    layout = out if d is None else (*out[:d], (*out[d], *atoms), *out[d + 1 :])
    return ctx.local_copy(op, [*rows, *inits], [r.shape[1:] for r in rows], attrs=attrs), layout


def _dealt(
    op: Op, refs: Sequence[LocalValue], parts: Callable[[Sequence[int]], int], out: Dims, n: int
) -> int | None:  # fmt: skip
    """The first dimension of the results along which each device may be given an equal part; None if they had better
    be gathered."""
    small = sum(math.prod(r.shape) * item_bytes(r.dtype) for r in refs) <= GATHERED_REDUCTION_BYTES
    if n <= 2 or small:
        return None
    shape = op.results[0].type.shape
    return next((d for d, size in enumerate(shape) if size % (parts(out[d]) * n) == 0), None)


def _gathered(ctx: Context, ref: LocalValue, atoms: Sequence[int]) -> LocalValue:
    """[n, *shape] on every device."""
    row = ctx.realiser.reshape(ctx.region, ref, (1, *ref.shape), ctx.loc)
    groups, shape = ctx.realiser.groups(atoms), (ctx.atoms.product(atoms), *ref.shape)
    return ctx.realiser.collective(ctx.region, "all_gather", atoms, row, shape, groups, (0,), ctx.op, _CAUSE, ctx.loc)


def _exchanged(ctx: Context, ref: LocalValue, d: int, atoms: Sequence[int]) -> LocalValue:
    """[n, ...]: of all devices' tensors the part along dimension `d` that is this device's."""
    n = ctx.atoms.product(atoms)
    row = ctx.realiser.reshape(ctx.region, ref, (1, *ref.shape), ctx.loc)
    groups, numbers = ctx.realiser.groups(atoms), (d + 1, 0, n)
    shape = (n, *ref.shape[:d], ref.shape[d] // n, *ref.shape[d + 1 :])
    return ctx.realiser.collective(
        ctx.region, "all_to_all", atoms, row, shape, groups, numbers, ctx.op, _CAUSE, ctx.loc
    )


_CAUSE = "partial results"

AHEAD = {"stablehlo.reduce": sum_ahead}

CANDIDATES = {"stablehlo.reduce": reduce}
