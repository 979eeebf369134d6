"""Choosing how to split an operation: which mesh axes each of its factors gets.

Factors are the loops of the operation (batch, rows, columns, contraction, ...). Splitting a pass-through factor costs
nothing, splitting a reduced factor leaves a partial sum. Every axis that some operand or the result uses can go to one
of the factors it stands at, or to none; what a choice costs is read off the reshard plans it needs, plus the time that
computing redundantly takes on the topology, in bytes that could be sent meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from propagation.program import Value

from ..emit import Ref
from ..layout import Dims
from ..reshard import runs_of
from .context import SOFT, Context
from .state import State

__all__ = [
    "MUCH", "PASS", "REDUCE", "WHOLE", "Choice", "Factors", "arranged", "choose", "gathered", "layout_of",
    "note_gathered", "sent", "work_of",
]  # fmt: skip

PASS, REDUCE, WHOLE = 0, 1, 2
CHOICE_LIMIT = 600
MUCH = 0.8  # what a choice against propagation's may cost at most, as a part of the best one with it


class Factors(NamedTuple):
    """The factors of an operation.

    sizes     size of each factor
    kinds     PASS, REDUCE (summed over, operands only) or WHOLE (must stay in one piece)
    operands  per operand, per dimension, its factor; -1 for a dimension that must be whole
    results   the same for results
    even      factors whose axes must divide their size
    dealt     factors to which axes may go that stand elsewhere, where what has them is whole: cutting costs nothing
    idle      factors along which nothing is computed: of the rows of a table, those that are asked for are touched
    """

    sizes: tuple[int, ...]
    kinds: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    even: frozenset[int] = frozenset()
    dealt: tuple[int, ...] = ()
    idle: frozenset[int] = frozenset()


class Choice(NamedTuple):
    """The layouts that follow from an assignment of axes to factors. `pending` are the axes of reduced factors."""

    assigned: tuple[tuple[int, ...], ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    pending: tuple[int, ...]
    bytes: float


Border = Callable[[Context, tuple[Dims, ...]], float]


def choose(
    ctx: Context, factors: Factors, operands: Sequence[Value], results: Sequence[Value], byte_per_work: float,
    border: Border | None = None,
) -> Choice:  # fmt: skip
    """The cheapest assignment. `byte_per_work` prices one element of the factors' product computed on a device;
    `border`, a value that hashes, tells the bytes that operands laid out so still lack, as a window's borders."""
    states = [ctx.state(v) for v in operands]
    wants = [ctx.want(v) for v in results]
    key = (
        factors,
        tuple((_seen(ctx, s) or s.dims, s.partial and (s.partial.dims, tuple(s.partial.parts))) for s in states),
        tuple(wants),
        tuple(s.bits for s in states),
        tuple(v.type.dtype for v in results),
    )
    local = tuple(tuple(r) for s in states for r in _local_versions(ctx, s))
    key = (*key, local, border, tuple(map(ctx.runs_since, states)))
    if any(s.recipe is not None for s in states):  # what they cost depends on what they are made of
        return _choose(ctx, factors, operands, results, states, wants, byte_per_work, border)
    found = ctx.decisions.get(key)
    if found is None:
        found = ctx.decisions[key] = _choose(ctx, factors, operands, results, states, wants, byte_per_work, border)
    return found


def _seen(ctx: Context, state: State) -> tuple[Dims, ...]:
    """The layouts of a value's versions, and those of another value that has the same pieces in one of them."""
    out = tuple(state.versions)
    for ref in state.versions.values():
        out += ctx.journal.layouts(ref, state.shape)
    return out


def _local_versions(ctx: Context, state):
    region = ctx.region
    while region is not state.home and region is not None:
        known = region.known.get(state)
        if known:
            yield known
        region = region.parent


def _choose(ctx, factors: Factors, operands, results, states, wants, byte_per_work, border) -> Choice:
    tensors: list[tuple[tuple[int, ...], Dims]] = []  # (factor per dim, layout), the largest first
    for f, s in zip(factors.operands, states):
        if s.dims is not None:
            tensors.append((math.prod(s.shape) * s.bits, f, s.dims))
            tensors += [(math.prod(s.shape) * s.bits - 1, f, d) for v in _local_versions(ctx, s) for d in v]
    for f, v, w in zip(factors.results, results, wants):
        tensors.append((v.type.size, f, w))
    tensors = [(f, d) for _, f, d in sorted(tensors, key=lambda t: -t[0])]
    runs = runs_of([d for _, dims in tensors for d in dims])
    runs = [r for r in runs if r]
    places = [_places(ctx, run, tensors, factors) for run in runs]
    work = byte_per_work, border
    best, chosen = None, ()
    light = _are_light(ctx, operands, results)
    options = []
    for run, p in zip(runs, places):
        sure = len(p) == 1 and _agreed(run, p[0], tensors) and ctx.atoms.product(run) <= factors.sizes[p[0]]
        if sure and light:
            sure = factors.kinds[p[0]] != REDUCE
        options.append(p if sure else [*p, -1])
    if math.prod(map(len, options)) > CHOICE_LIMIT:
        options = [o[:2] for o in options]
    for picks in itertools.islice(itertools.product(*options), CHOICE_LIMIT):
        assigned = _assign(ctx, factors, runs, picks, tensors)
        if assigned is None:
            continue
        choice = _cost(ctx, factors, assigned, operands, results, work, None if best is None else best.bytes)
        if choice is not None and (best is None or choice.bytes < best.bytes - 1e-6):
            best, chosen = choice, picks
    if best is not None and best.bytes > _heaviest(ctx, states) and not best.pending:  # one sum is a quick thing
        best = _elsewhere(ctx, factors, runs, places, chosen, tensors, operands, results, work, best)
    if best is None:
        none = ((),) * len(factors.sizes)
        best = _cost(ctx, factors, none, operands, results, work, None)
    if factors.dealt and any(best.assigned[f] for f in factors.dealt):  # to send less, not to compute less
        plain = _choose(ctx, factors._replace(dealt=()), operands, results, states, wants, *work)
        sent = [c.bytes - work_of(ctx, factors, c.assigned) * byte_per_work for c in (best, plain)]
        best = best if sent[0] < MUCH * sent[1] else plain
    return best


def _are_light(ctx: Context, operands: Sequence[Value], results: Sequence[Value]) -> bool:
    """Whether having operands whole may send less than adding up results: where some are moved once for many runs of a
    loop. Elsewhere it would make every device compute what they share."""
    runs = [(s, ctx.runs_since(s)) for s in map(ctx.state, operands) if s.make is None]
    if all(n == 1 for _, n in runs):
        return False
    return sum(s.bytes / n for s, n in runs) < 2 * sum(ctx.bits(r) * r.type.size for r in results)


def _heaviest(ctx, states) -> float:
    """Bytes of a device's piece of the largest operand."""
    return max((s.bits * ctx.elements(s.shape, s.dims) for s in states if s.dims is not None), default=0.0)


def _elsewhere(ctx, factors: Factors, runs, places, chosen, tensors, operands, results, work, best: Choice) -> Choice:
    """A better choice in which one run of axes goes to a factor at which it stands nowhere yet, if there is one: where
    all places cost a gather, an exchange to a free dimension and back may cost less."""
    for r, run in enumerate(runs):
        n = ctx.atoms.product(run)
        for factor in tensors[0][0]:
            if factor < 0 or factor in places[r] or factor in chosen or factors.kinds[factor] != PASS:
                continue
            if factors.sizes[factor] % n:
                continue
            assigned = _assign(ctx, factors, runs, (*chosen[:r], factor, *chosen[r + 1 :]), tensors)
            choice = assigned and _cost(ctx, factors, assigned, operands, results, work, MUCH * best.bytes)
            if choice is not None and choice.bytes < MUCH * best.bytes:
                best = choice
    return best


def _places(ctx, run, tensors, factors: Factors) -> list[int]:
    """The factors at which a run of axes stands in some tensor and may be used. A run that splits a dimension which
    must be whole may also go to a factor that all operands have."""
    out, displaced = [], False
    for f, dims in tensors:
        for factor, atoms in zip(f, dims):
            if run[0] not in atoms:
                continue
            if factor < 0 or factors.kinds[factor] == WHOLE:
                displaced = True
            elif factor not in out:
                out.append(factor)
    if displaced:
        n = ctx.atoms.product(run)
        for factor, size in enumerate(factors.sizes):
            everywhere = all(factor in f for f in factors.operands if f)
            if factors.kinds[factor] == PASS and size % n == 0 and everywhere and factor not in out:
                out.append(factor)
    out += [f for f in factors.dealt if f not in out and factors.sizes[f] % ctx.atoms.product(run) == 0]
    return out


def _agreed(run, factor: int, tensors) -> bool:
    """Whether every tensor that has the factor splits it by this run, and no other dimension does."""
    for f, dims in tensors:
        for g, atoms in zip(f, dims):
            if (run[0] in atoms) != (g == factor):
                return False
    return True


def _assign(ctx, factors: Factors, runs, picks, tensors):
    """Axes per factor, ordered as the largest tensor that splits it so has them, or those with more or fewer axes; None
    if an assignment does not fit."""
    chosen: dict[int, list] = {}
    for run, pick in zip(runs, picks):
        if pick >= 0:
            chosen.setdefault(pick, []).append(run)
    assigned = [()] * len(factors.sizes)
    for factor, members in chosen.items():
        every = {a for m in members for a in m}
        alike = (atoms for f, dims in tensors for g, atoms in zip(f, dims) if g == factor and set(atoms) == every)
        ordered: list[int] = list(next(alike, ()))
        for f, dims in tensors:
            for g, atoms in zip(f, dims):
                if g == factor:
                    ordered += [a for a in atoms if a not in ordered and any(a in m for m in members)]
        ordered += [a for m in members for a in m if a not in ordered]
        assigned[factor] = tuple(ordered)
        n, size = ctx.atoms.product(ordered), factors.sizes[factor]
        if size % n and factor in factors.even:
            return None
        # Among more devices than there are positions it is dealt only where some tensor is so already.
        if size % n and n > size and not any((factor, assigned[factor]) in zip(f, dims) for f, dims in tensors):
            return None
    return tuple(assigned)


def layout_of(dims_factors: Sequence[int], assigned) -> Dims:
    return tuple([assigned[f] if f >= 0 else () for f in dims_factors])


def gathered(
    ctx: Context, factors: Factors, operands: Sequence[Value], layouts: Sequence[Dims], why: str,
    which: slice = slice(None),
) -> list[Ref]:  # fmt: skip
    """The operands (`which` of them) in their layouts, with a finding where a dimension was split that has to be in one
    piece."""
    refs = []
    for v, dims, fs in list(zip(operands, layouts, factors.operands))[which]:
        have = ctx.state(v).dims or ((),) * len(dims)
        refs.append(ctx.gathered(v, dims, why, [i for i, f in enumerate(fs) if _is_whole(ctx, factors, f, have[i])]))
    return refs


def note_gathered(ctx: Context, factors: Factors, operands: Sequence[Value], layouts: Sequence[Dims], why: str) -> None:
    """The findings of `gathered`, for operands that may be fetched in another way: what is a stretch of another tensor
    is not cut out of it."""
    for v, dims, fs in zip(operands, layouts, factors.operands):
        have = ctx.state(v).dims or ((),) * len(dims)
        lost = [i for i, f in enumerate(fs) if have[i] and _is_whole(ctx, factors, f, have[i])]
        if lost:
            ctx.gathered(v, dims, why, lost)


def _is_whole(ctx: Context, factors: Factors, factor: int, atoms: tuple[int, ...]) -> bool:
    if factor < 0 or factors.kinds[factor] == WHOLE:
        return True
    return factor in factors.even and factors.sizes[factor] % ctx.atoms.product(atoms) != 0


def work_of(ctx: Context, factors: Factors, assigned) -> int:
    """Elements of the factors' product that a device computes."""
    work = 1
    for factor, (size, atoms) in enumerate(zip(factors.sizes, assigned)):
        if factor not in factors.idle:
            work *= -(-size // ctx.atoms.product(atoms)) if atoms else size
    return work


def _cost(ctx, factors: Factors, assigned, operands, results, work, limit) -> Choice | None:
    byte_per_work, border = work
    choice = arranged(factors, assigned)
    total = work_of(ctx, factors, assigned) * byte_per_work
    if border is not None:
        total += border(ctx, choice.operands)
    for v, dims in zip(operands, choice.operands):
        total += ctx.move_cost(v, dims)
        if limit is not None and total >= limit:
            return None
    for v, dims in zip(results, choice.results):
        total += ctx.later_cost(v, dims, choice.pending)
    return choice._replace(bytes=total)


def arranged(factors: Factors, assigned: tuple[tuple[int, ...], ...]) -> Choice:
    """The choice that assigns axes to factors so, without a price."""
    ins = tuple(layout_of(f, assigned) for f in factors.operands)
    outs = tuple(layout_of(f, assigned) for f in factors.results)
    pending = tuple(sorted(a for k, atoms in zip(factors.kinds, assigned) if k == REDUCE for a in atoms))
    return Choice(assigned, ins, outs, pending, 0.0)


def sent(ctx: Context, operands: Sequence[Value], results: Sequence[Value], choice: Choice) -> float:
    """Bytes that a choice makes devices send, now and later, as far as they can be told."""
    now = sum(ctx.cost(v, dims) / ctx.runs_since(ctx.state(v)) for v, dims in zip(operands, choice.operands))
    return now + sum(_later(ctx, v, dims, choice.pending) for v, dims in zip(results, choice.results))


def _later(ctx: Context, value: Value, dims: Dims, pending: tuple[int, ...]) -> float:
    """`later_cost` in full."""
    end = ctx.ends.get(value) if len(value.uses) == 1 else None
    return ctx.later_cost(value, dims, pending) / (1.0 if pending else SOFT if end is None else end[1])
