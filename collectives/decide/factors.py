"""Choosing how to split an operation: which mesh axes each of its factors gets.

Factors are the loops of the operation: of a matrix product lhs[m, k] @ rhs[k, n] they are m, n (pass-through: splitting
them costs nothing) and k (reduced: splitting it leaves a partial sum). Every axis that splits some operand or is wanted
for the result may go to one of the factors at which it stands there, or to none. All such assignments are priced, by
the reshard plans that they need for operands and results, plus the time that redundant computation takes on the
topology, in bytes that could be sent meanwhile.

With lhs f32[1024@x, 512], rhs f32[512, 256@x] and the result wanted [1024@x, 256], axis x stands at m and at n: for m,
rhs is all-gathered; for n, lhs is moved by an all-to-all and the result back; the cheaper one wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from propagation.program import Op, Value

from ..heuristics import ASSIGNMENTS, ELSEWHERE_SHARE, EQUAL_COST_BYTES, LOOKAHEAD_USES, RESHARD_LATER_SHARE
from ..ir.program import LocalValue, Region
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import State
from ..plan.decisions import Way
from ..reshard.planner import runs_of
from .candidate import Candidate, as_propagated

__all__ = [
    "PASS", "REDUCE", "WHOLE", "Choice", "Factors", "Splits", "arranged", "followed", "gathered", "layout_of",
    "note_gathered", "sent", "work_of",
]  # fmt: skip

PASS, REDUCE, WHOLE = 0, 1, 2


class Factors(NamedTuple):
    """The factors of an operation.

    sizes     size of each factor
    kinds     PASS, REDUCE (summed over, operands only) or WHOLE (must not be split)
    operands  per operand, per dimension, its factor; -1 for a dimension that must be whole
    results   the same for results
    even      factors whose axes must divide their size
    dealt     factors to which axes may go although no tensor has them there: those that count the look-ups of a gather,
              whose indices are replicated mostly, so that splitting them is a local slice
    idle      factors along which nothing is computed: the rows of a table, of which a gather touches only some
    """

    sizes: tuple[int, ...]
    kinds: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    even: frozenset[int] = frozenset()
    dealt: tuple[int, ...] = ()
    idle: frozenset[int] = frozenset()


class Choice(NamedTuple):
    """The layouts that follow from an assignment of axes to factors. `pending` are the axes of reduced factors, over
    which results are unreduced; `bytes` is its price, and `number` that of its way among those that were weighed."""

    assigned: tuple[tuple[int, ...], ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    pending: tuple[int, ...]
    bytes: float
    number: int = 0


class Border(Protocol):
    """Prices the borders (halos) that operands laid out so still lack: bytes that a device receives for them."""

    def __call__(self, ctx: Context, layouts: Sequence[Dims], /) -> float: ...

    def __hash__(self) -> int: ...


class Splits(NamedTuple):
    """All candidates that splitting the loops of an operation gives: one for each assignment of axes to its factors.

    operands, results   the values that the factors are of
    byte_per_work       prices one element of the product of all factors' sizes, computed on a device
    write               writes the operation as it was chosen and binds the results
    border              adds the halos that operands in given layouts still need
    gathers             axes that would need an all-to-all are gathered instead where that sends less, although all
                        devices of these axes then compute the same
    """

    factors: Factors
    operands: Sequence[Value]
    results: Sequence[Value]
    byte_per_work: float
    write: Callable[[Choice], None]
    border: Border | None = None
    gathers: bool = False

    def best(self, ctx: Context) -> tuple[Choice, tuple[Way, ...]]:
        """The cheapest, and all ways that were weighed."""
        found = _known(ctx, self.factors, self.operands, self.results, self.byte_per_work, self.border)
        if self.gathers and ctx.options.allow_full_gather:
            return self._gathered_instead(ctx, *found)
        return found

    def _gathered_instead(
        self, ctx: Context, choice: Choice, ways: tuple[Way, ...]
    ) -> tuple[Choice, tuple[Way, ...]]:  # fmt: skip
        """The choice without the axes that stand at dimensions which must be whole, if that sends less: all-gathering
        one operand may be less than an all-to-all of it and an all-gather of every result. Axes that split some operand
        along a factor stay: its work is distributed already."""
        lost, dealt = set[int](), set[int]()
        for v, fs in zip(self.operands, self.factors.operands):
            for f, atoms in zip(fs, ctx.state(v).dims or ()):
                (lost if f < 0 or self.factors.kinds[f] == WHOLE else dealt).update(atoms)
        assigned = tuple(tuple(a for a in atoms if a in dealt or a not in lost) for atoms in choice.assigned)
        if assigned == choice.assigned:
            return choice, ways
        work = _Work(self.byte_per_work, self.border, list(ways))
        fewer = _cost(ctx, self.factors, assigned, self.operands, self.results, work, None)
        assert fewer is not None  # without a limit every assignment has a price
        size = lambda c: sent(ctx, self.operands, self.results, c)
        return (fewer if size(fewer) < size(choice) else choice), tuple(work.ways)


_Found = tuple[Choice, tuple[Way, ...]]


def _known(
    ctx: Context, factors: Factors, operands: Sequence[Value], results: Sequence[Value], byte_per_work: float,
    border: Border | None,
) -> _Found:  # fmt: skip
    """What was found before where all that decides was the same, else what is found now. Of what comes after the
    operation, which the look-ahead sees, only the next users count: layers that are alike are decided alike."""
    states = [ctx.state(v) for v in operands]
    wants = [ctx.want(v) for v in results]
    key = (
        factors,
        tuple((_seen(ctx, s) or s.dims, s.partial and (s.partial.dims, tuple(s.partial.parts))) for s in states),
        tuple(wants),
        tuple((s.shape, s.itemsize) for s in states),
        tuple((v.type.shape, v.type.dtype, _used(ctx, v)) for v in results),
        tuple(tuple(r) for s in states for r in _local_versions(ctx, s)),
        byte_per_work,
        border,
        tuple(map(ctx.runs_since, states)),
        tuple([ctx.promised(v) if len(v.uses) > 1 else None for v in operands]),
    )
    if any(s.recipe is not None for s in states):  # their cost depends on where the sources of their recomputation are
        return _found(ctx, factors, operands, results, states, wants, byte_per_work, border)
    found = ctx.decisions.get(key)
    if found is None:
        found = ctx.decisions[key] = _found(ctx, factors, operands, results, states, wants, byte_per_work, border)
    return found


def _found(
    ctx: Context, factors: Factors, operands: Sequence[Value], results: Sequence[Value], states: Sequence[State],
    wants: Sequence[Dims], byte_per_work: float, border: Border | None,
) -> _Found:  # fmt: skip
    ways: list[Way] = []
    choice = _choose(ctx, factors, operands, results, states, wants, _Work(byte_per_work, border, ways))
    return choice, tuple(ways)


def _used(ctx: Context, value: Value) -> tuple[Any, ...]:
    """Who uses a result: the operations that the look-ahead follows, with the layouts in which their results are
    wanted; and where it ends."""
    followed = value.uses if len(value.uses) <= LOOKAHEAD_USES else ()
    users = tuple([(use.op.name, use.number, tuple(map(ctx.want, use.op.results))) for use in followed])
    return len(value.uses), users, ctx.ends.get(value)


def _seen(ctx: Context, state: State) -> tuple[Dims, ...]:
    """The layouts of a value's versions, and of other values that share one of these versions."""
    out = tuple(state.versions)
    for ref in state.versions.values():
        out += tuple(ctx.siblings.of(ref, state.shape, ctx.region))
    return out


def _local_versions(ctx: Context, state: State) -> Iterator[dict[Dims, LocalValue]]:
    """The versions of a value that only regions around the current operation know."""
    region: Region | None = ctx.region
    while region is not None and region.origin is not state.home:
        known = region.known.get(state)
        if known:
            yield known
        region = region.parent


_Tensor = tuple[tuple[int, ...], Dims]  # an operand or result: (factor per dimension, layout)
_Run = tuple[int, ...]  # atoms that all layouts use together, in this order
_Assigned = tuple[tuple[int, ...], ...]  # per factor, the atoms that split it


class _Work(NamedTuple):
    """Bytes that an element of work counts as, what prices borders, and the ways that have been weighed."""

    each: float
    border: Border | None
    ways: list[Way]


def _choose(
    ctx: Context, factors: Factors, operands: Sequence[Value], results: Sequence[Value], states: Sequence[State],
    wants: Sequence[Dims], work: _Work,
) -> Choice:  # fmt: skip
    sized: list[tuple[float, tuple[int, ...], Dims]] = []
    for f, s in zip(factors.operands, states):
        if s.dims is not None:
            sized.append((math.prod(s.shape) * s.itemsize, f, s.dims))
            sized += [(math.prod(s.shape) * s.itemsize - 1, f, d) for known in _local_versions(ctx, s) for d in known]
    for f, v, w in zip(factors.results, results, wants):
        sized.append((v.type.size, f, w))
    tensors: list[_Tensor] = [(f, d) for _, f, d in sorted(sized, key=lambda t: -t[0])]
    runs = runs_of([d for _, dims in tensors for d in dims])
    runs = [r for r in runs if r]
    places = [_places(ctx, run, tensors, factors) for run in runs]
    best: Choice | None = None
    chosen: tuple[int, ...] = ()
    light = _are_light(ctx, operands, results)
    options = []
    for run, p in zip(runs, places):
        sure = len(p) == 1 and _agreed(run, p[0], tensors) and ctx.atoms.product(run) <= factors.sizes[p[0]]
        if sure:
            sure = not (light and factors.kinds[p[0]] == REDUCE) and not _has_unsplit(ctx, states, run)
        options.append(p if sure else [*p, -1])
    if math.prod(map(len, options)) > ASSIGNMENTS:
        options = [o[:2] for o in options]
    for picks in itertools.islice(itertools.product(*options), ASSIGNMENTS):
        assigned = _assign(ctx, factors, runs, picks, tensors)
        if assigned is None:
            continue
        choice = _cost(ctx, factors, assigned, operands, results, work, None if best is None else best.bytes)
        if choice is not None and (best is None or choice.bytes < best.bytes - EQUAL_COST_BYTES):
            best, chosen = choice, picks
    if best is not None and best.bytes > _heaviest(ctx, states) and not best.pending:  # one reduction is hard to beat
        best = _elsewhere(ctx, factors, runs, places, chosen, tensors, operands, results, work, best)
    if best is None:
        best = _cost(ctx, factors, ((),) * len(factors.sizes), operands, results, work, None)
        assert best is not None  # without a limit every assignment has a price
    if factors.dealt and any(
        best.assigned[f] for f in factors.dealt
    ):  # chosen for sending less, not for computing less
        plain = _choose(ctx, factors._replace(dealt=()), operands, results, states, wants, work)
        sent = [c.bytes - work_of(ctx, factors, c.assigned) * work.each for c in (best, plain)]
        best = best if sent[0] < ELSEWHERE_SHARE * sent[1] else plain
    return best


def _has_unsplit(ctx: Context, states: Sequence[State], run: _Run) -> bool:
    """Whether of each operand that a run of axes splits there is a version, too, that it does not split: gathered for
    others, and held for more of them."""
    first, found = run[0], False
    for s in states:
        versions: Iterable[Dims] = s.versions
        if s.home is not ctx.region.origin:
            versions = itertools.chain(versions, *_local_versions(ctx, s))
        split = whole = False
        for dims in versions:
            for atoms in dims:
                if first in atoms:
                    split = True
                    break
            else:
                whole = True
        if split and not whole:
            return False
        found = found or split
    return found and ctx.holds_for_others


def _are_light(ctx: Context, operands: Sequence[Value], results: Sequence[Value]) -> bool:
    """Whether gathering operands may send less than reducing results: in a loop, where operands from outside are
    gathered once for all iterations. Elsewhere gathering would only make all devices compute the same."""
    runs = [(s, ctx.runs_since(s)) for s in map(ctx.state, operands) if s.make is None]
    if all(n == 1 for _, n in runs):
        return False
    return sum(s.bytes / n for s, n in runs) < 2 * sum(ctx.itemsize(r) * r.type.size for r in results)


def _heaviest(ctx: Context, states: Sequence[State]) -> float:
    """Bytes of a device's piece of the largest operand."""
    return max((s.itemsize * ctx.elements(s.shape, s.dims) for s in states if s.dims is not None), default=0.0)


def _elsewhere(
    ctx: Context, factors: Factors, runs: Sequence[_Run], places: Sequence[list[int]], chosen: tuple[int, ...],
    tensors: Sequence[_Tensor], operands: Sequence[Value], results: Sequence[Value], work: _Work, best: Choice,
) -> Choice:  # fmt: skip
    """A better choice, if there is one, in which one run of axes goes to a pass-through factor where no tensor has it:
    where every other place costs an all-gather, an all-to-all to a free dimension and one back may cost less."""
    for r, run in enumerate(runs):
        n = ctx.atoms.product(run)
        for factor in tensors[0][0]:
            if factor < 0 or factor in places[r] or factor in chosen or factors.kinds[factor] != PASS:
                continue
            if factors.sizes[factor] % n:
                continue
            assigned = _assign(ctx, factors, runs, (*chosen[:r], factor, *chosen[r + 1 :]), tensors)
            choice = assigned and _cost(ctx, factors, assigned, operands, results, work, ELSEWHERE_SHARE * best.bytes)
            if choice and choice.bytes < ELSEWHERE_SHARE * best.bytes:
                best = choice
    return best


def _places(ctx: Context, run: _Run, tensors: Sequence[_Tensor], factors: Factors) -> list[int]:
    """The factors that a run of axes may go to: those where some tensor has it. A run that splits a dimension which
    must be whole may also go to any pass-through factor that all operands have (by an all-to-all)."""
    out: list[int] = []
    displaced = False
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


def _agreed(run: _Run, factor: int, tensors: Sequence[_Tensor]) -> bool:
    """Whether every tensor that has the factor splits it by this run, and no other dimension does."""
    for f, dims in tensors:
        for g, atoms in zip(f, dims):
            if (run[0] in atoms) != (g == factor):
                return False
    return True


def _assign(
    ctx: Context, factors: Factors, runs: Sequence[_Run], picks: tuple[int, ...], tensors: Sequence[_Tensor]
) -> _Assigned | None:
    """Axes per factor for a pick of a factor (-1: none) for each run. Several runs at one factor are ordered as in the
    largest tensor that splits it by exactly these axes, else by some of them. None if an assignment does not fit."""
    chosen: dict[int, list[_Run]] = {}
    for run, pick in zip(runs, picks):
        if pick >= 0:
            chosen.setdefault(pick, []).append(run)
    assigned: list[tuple[int, ...]] = [()] * len(factors.sizes)
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
        # Over more devices than it has elements a factor is split only where some tensor is split so already.
        if size % n and n > size and not any((factor, assigned[factor]) in zip(f, dims) for f, dims in tensors):
            return None
    return tuple(assigned)


def layout_of(dims_factors: Sequence[int], assigned: Sequence[tuple[int, ...]]) -> Dims:
    """The layout of a tensor whose dimensions have given factors (-1 for none), of which each is split as assigned."""
    return tuple([assigned[f] if f >= 0 else () for f in dims_factors])


def gathered(
    ctx: Context, factors: Factors, operands: Sequence[Value], layouts: Sequence[Dims], why: str,
    which: slice = slice(None),
) -> list[LocalValue]:  # fmt: skip
    """The operands (`which` of them) in their layouts, with a full-gather finding for every dimension that was split
    and must be whole."""
    refs = []
    for v, dims, fs in list(zip(operands, layouts, factors.operands))[which]:
        have = ctx.state(v).dims or ((),) * len(dims)
        refs.append(ctx.gathered(v, dims, why, [i for i, f in enumerate(fs) if _is_whole(ctx, factors, f, have[i])]))
    return refs


def note_gathered(ctx: Context, factors: Factors, operands: Sequence[Value], layouts: Sequence[Dims], why: str) -> None:
    """The findings of `gathered` for operands that are fetched in another way: a lazy view is not cut out for them."""
    for v, dims, fs in zip(operands, layouts, factors.operands):
        have = ctx.state(v).dims or ((),) * len(dims)
        lost = [i for i, f in enumerate(fs) if have[i] and _is_whole(ctx, factors, f, have[i])]
        if lost:
            ctx.gathered(v, dims, why, lost)


def _is_whole(ctx: Context, factors: Factors, factor: int, atoms: tuple[int, ...]) -> bool:
    if factor < 0 or factors.kinds[factor] == WHOLE:
        return True
    return factor in factors.even and factors.sizes[factor] % ctx.atoms.product(atoms) != 0


def work_of(ctx: Context, factors: Factors, assigned: Sequence[tuple[int, ...]]) -> int:
    """The work of a device: the product of its shares of all factors' sizes."""
    work = 1
    for factor, (size, atoms) in enumerate(zip(factors.sizes, assigned)):
        if factor not in factors.idle:
            work *= -(-size // ctx.atoms.product(atoms)) if atoms else size
    return work


def _cost(
    ctx: Context, factors: Factors, assigned: _Assigned, operands: Sequence[Value], results: Sequence[Value],
    work: _Work, limit: float | None,
) -> Choice | None:  # fmt: skip
    """The choice of an assignment, with its price; None if that is known to be `limit` or more."""
    choice = arranged(factors, assigned)
    now = work_of(ctx, factors, assigned) * work.each
    if work.border is not None:
        now += work.border(ctx, choice.operands)
    for v, dims in dict.fromkeys(zip(operands, choice.operands)):  # what is used twice travels once
        now += ctx.move_cost(v, dims)
        if limit is not None and now >= limit:
            work.ways.append(Way(choice.operands, choice.results, (choice.pending,), now, None))
            return None
    total = now
    for v, dims in zip(results, choice.results):
        total += ctx.later_cost(v, dims, choice.pending)
    work.ways.append(Way(choice.operands, choice.results, (choice.pending,), now, total - now))
    return choice._replace(bytes=total, number=len(work.ways) - 1)


def arranged(factors: Factors, assigned: tuple[tuple[int, ...], ...]) -> Choice:
    """The choice of an assignment, without a price."""
    ins = tuple(layout_of(f, assigned) for f in factors.operands)
    outs = tuple(layout_of(f, assigned) for f in factors.results)
    pending = tuple(sorted(a for k, atoms in zip(factors.kinds, assigned) if k == REDUCE for a in atoms))
    return Choice(assigned, ins, outs, pending, 0.0)


def followed(
    ctx: Context, op: Op, value: Value, dims: Dims, factors: Factors | None, is_masked: bool = False
) -> Iterator[Candidate]:
    """For the look-ahead: the ways to split an operation, one operand of which is `value` in layout `dims`. Along the
    factors that `dims` splits, the rest being gathered, with or without the axes of other operands; or with `value` in
    its wanted layout. With `is_masked`, what `dims` splits and must be whole may also be summed up over devices."""
    want = ctx.want(value)
    yield as_propagated(ctx, op, value)._replace(results=tuple(map(ctx.want, op.results)))
    if factors is None or op.operands.count(value) != 1:  # none: computed in an operand's layout
        return
    mine = factors.operands[op.operands.index(value)]
    kept = tuple([x if f >= 0 and factors.kinds[f] != WHOLE else () for f, x in zip(mine, dims)])
    if dims != want or kept == dims:
        assigned: list[tuple[int, ...]] = [()] * len(factors.sizes)
        for f, x in zip(mine, kept):
            if x:
                assigned[f] = x
        yield _assigned(op, factors, value, assigned)
        more = _with_others(ctx, op, factors, value, assigned)
        if more != assigned:
            yield _assigned(op, factors, value, more)
    if is_masked and kept != dims:
        pending = tuple(sorted([x for a, b in zip(dims, kept) if a != b for x in a]))
        yield Candidate((dims, *[None] * (len(op.operands) - 1)), (kept,), pending=(pending,))


def _assigned(op: Op, factors: Factors, value: Value, assigned: list[tuple[int, ...]]) -> Candidate:
    """The way in which every operand and result is split as `assigned`."""
    pending = tuple(sorted([x for k, atoms in zip(factors.kinds, assigned) if k == REDUCE for x in atoms]))
    operands = [layout_of(f, assigned) if f or v is value else None for v, f in zip(op.operands, factors.operands)]
    return Candidate(tuple(operands), tuple([layout_of(f, assigned) for f in factors.results]), pending=(pending,))


def _with_others(
    ctx: Context, op: Op, factors: Factors, value: Value, assigned: list[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """`assigned` plus the axes that other operands have at factors of their own, as far as they are still free."""
    out = list(assigned)
    used = {x for atoms in assigned for x in atoms}
    mine = factors.operands[op.operands.index(value)]
    for v, fs in zip(op.operands, factors.operands):
        have = ctx.env[v].dims if v in ctx.env else ctx.want(v)
        for f, atoms in zip(fs, have or ()):
            if atoms and f >= 0 and f not in mine and factors.kinds[f] != WHOLE and not used & set(atoms):
                out[f] = atoms
                used.update(atoms)
    return out


def sent(ctx: Context, operands: Sequence[Value], results: Sequence[Value], choice: Choice) -> float:
    """Bytes that a choice sends, for its operands now and for its results later as far as that can be estimated."""
    pairs = dict.fromkeys(zip(operands, choice.operands))
    now = sum(ctx.cost(v, dims) / ctx.runs_since(ctx.state(v)) for v, dims in pairs)
    return now + sum(_later(ctx, v, dims, choice.pending) for v, dims in zip(results, choice.results))


def _later(ctx: Context, value: Value, dims: Dims, pending: tuple[int, ...]) -> float:
    """`later_cost` without the discount."""
    end = ctx.ends.get(value) if len(value.uses) == 1 else None
    return ctx.later_cost(value, dims, pending) / (1.0 if pending else RESHARD_LATER_SHARE if end is None else end[1])
