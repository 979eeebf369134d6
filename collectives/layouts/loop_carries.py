"""Layouts of the values that a loop carries: the loop is drafted in several, and the one that sends least is adopted.

Propagation gives a carried value one sharding. In a small recurrent network, h = tanh(h @ W + x) with W split, that is
W's, and every step all-gathers h; with h replicated, W is all-gathered once before the loop and no step communicates.
What a layout costs shows only once all of the body is decided. Candidates are the layouts that values of the same shape
have in or around the loop; `_Forward` carries a candidate through the body by the sharding rules of its operations, in
place of what propagation decided there. Drafts (see `drafts`) are bounded by `heuristics.LOOP_TRIALS` and
`TRIAL_OPERATIONS`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from propagation.attributes import symbol
from propagation.model import OpRule
from propagation.program import Block, Func, Op, Value

from ..heuristics import LOOP_TRIALS, TRIAL_MEMORY_SHARE, TRIAL_OPERATIONS, TRIAL_SENT_SHARE, TRIAL_SHARE
from ..ir.program import LocalOp, Region
from ..layout import Dims, replicated
from ..plan.decisions import Decision, Way
from .context import Context
from .drafts import Draft, adopt

__all__ = ["Drafted", "best"]

Layouts = tuple[Dims, ...]


class Carry(Protocol):
    """How a loop carries a value: see `ops.control`."""

    dims: Dims
    fixed: bool
    pending: tuple[int, ...]


C = TypeVar("C", bound=Carry)


class Drafted(NamedTuple, Generic[C]):
    """A loop in a draft: how it carries its values, and its condition and body."""

    carries: list[C]
    regions: list[Region]
    draft: Draft


Settle = Callable[[Layouts, Mapping[Value, Dims]], Drafted[C]]


class _Tried(NamedTuple, Generic[C]):
    """A loop drafted with some carried layouts.

    wanted    layouts that were wanted in the body instead of propagation's
    way       what it carries, and what that costs: all its iterations, the reshards that it placed before the loop and
              those of carried values before it; later, those of results after it
    inside    bytes of its iterations alone
    held      bytes of a device's pieces of the carried values
    """

    layouts: Layouts
    wanted: Mapping[Value, Dims]
    loop: Drafted[C]
    way: Way
    inside: float
    held: float


def best(ctx: Context, op: Op, layouts: Layouts, trips: int | None, settle: Settle[C]) -> tuple[list[C], list[Region]]:
    """The carries and the regions of the loop `op`, in the layouts that send least. `settle` drafts the loop for given
    layouts, with others wanted in its body than propagation's; those of propagation are `layouts`."""
    states = [ctx.state(v) for v in op.operands]
    key = ("loop", op, layouts, tuple((s.dims, s.pending) for s in states), ctx.manual)
    known = ctx.decisions.get(key)
    if known is not None:
        decision, *given = known
        carries, regions, draft = settle(*given)
    else:
        chosen, decision = _chosen(ctx, op, layouts, trips, settle)
        ctx.decisions[key] = decision, chosen.layouts, chosen.wanted
        carries, regions, draft = chosen.loop
    adopt(ctx, draft, regions)
    if len(decision.ways) > 1:
        ctx.chosen.append(decision)
    return carries, regions


def _chosen(ctx: Context, op: Op, layouts: Layouts, trips: int | None, settle: Settle[C]) -> tuple[_Tried[C], Decision]:
    """The loop in the layouts that send least, and what the others would have sent."""
    chosen = _tried(ctx, op, layouts, {}, trips, settle)
    taken, ways = 0, [chosen.way]
    if not chosen.inside or ctx.manual:
        return chosen, Decision(op, taken, tuple(ways))
    size = _size(ctx, op.regions[1])
    if ctx.tries is None:
        ctx.tries = max(TRIAL_OPERATIONS, int(TRIAL_SHARE * len(ctx.program.ops())))
    for others, wanted in _alternatives(ctx, op, layouts, chosen.loop):
        if ctx.tries < size:
            break
        ctx.tries -= size
        tried = _tried(ctx, op, others, wanted, trips, settle)
        if tried.way.cost < TRIAL_SENT_SHARE * chosen.way.cost and tried.held <= TRIAL_MEMORY_SHARE * chosen.held:
            chosen, taken = tried, len(ways)
        ways.append(tried.way)
    return chosen, Decision(op, taken, tuple(ways))


def _tried(
    ctx: Context, op: Op, layouts: Layouts, wanted: Mapping[Value, Dims], trips: int | None, settle: Settle[C]
) -> _Tried[C]:
    """The loop in given layouts, and what it sends."""
    loop = settle(layouts, wanted)
    functions = {f.name: f.region for f in loop.draft.functions}
    condition, body = loop.regions
    sent = functools.partial(_sent, functions, ctx.written_message)
    inside = sent(body) * (trips or 1) + sent(condition)
    now, later, held = inside + _outside(loop, ctx.written_message), 0.0, 0.0
    for v, r, c in zip(op.operands, op.results, loop.carries):
        if not c.fixed:
            held += ctx.itemsize(r) * ctx.elements(r.type.shape, c.dims)
            now += 0.0 if c.pending else ctx.cost(v, c.dims)
            later += ctx.later_cost(r, c.dims, c.pending)
    carried = tuple([None if c.fixed else c.dims for c in loop.carries])
    sums = tuple(dict.fromkeys(c.pending for c in loop.carries if not c.fixed))
    return _Tried(layouts, wanted, loop, Way(carried, carried, sums, now, later), inside, held)


# -- what is tried --------------------------------------------------------------------------------------------


def _alternatives(
    ctx: Context, op: Op, layouts: Layouts, base: Drafted[C]
) -> Iterator[tuple[Layouts, dict[Value, Dims]]]:
    """(carried layouts, wanted layouts in the body) to try, different from `layouts`, which gave `base`."""
    body = op.regions[1]
    found: dict[tuple[int, ...], dict[Dims, None]] = {}
    _layouts_in(ctx, body, found, set())
    for arg, v, r, c in zip(body.args, op.operands, op.results, base.carries):
        for dims in (ctx.state(v).dims if c.fixed else c.dims, ctx.want(r), ctx.goal(r)):
            if dims:  # the rows of what scans stack or take apart
                found.setdefault(arg.type.shape[1:], {}).setdefault(dims[1:])
    tried = {layouts}
    users = [list(_users(ctx, arg)) for arg in body.args]
    # Accumulators come last: most are carried unreduced, which leaves nothing to choose.
    order = sorted(range(len(body.args)), key=lambda i: (_only_adds(users[i]), -body.args[i].type.size))
    for i in order:
        arg, c = body.args[i], base.carries[i]
        shape = arg.type.shape
        if c.fixed or c.pending or not shape or _is_stack(users[i]):
            continue
        outside = [ctx.state(op.operands[i]).dims, ctx.goal(op.results[i]), replicated(len(shape))]
        for dims in (*found.get(shape, ()), *(d for d in outside if d is not None)):
            if any(n % ctx.atoms.product(a) for n, a in zip(shape, dims)):
                continue
            others, wanted = _closed(ctx, op, base, i, dims)
            if others not in tried:
                tried.add(others)
                yield others, wanted
            if len(tried) > LOOP_TRIALS:
                return


def _is_stack(users: Sequence[Op]) -> bool:
    """Whether these users of a carried value are those of a stack that a scan writes rows into or reads rows from."""
    return all(op.name.endswith(("return", "dynamic_update_slice", "dynamic_slice")) for op in users)


def _only_adds(users: Sequence[Op]) -> bool:
    """Whether these users of a carried value are those of an accumulator, to which the body only adds."""
    return [op.name for op in users] == ["stablehlo.add"]


def _users(ctx: Context, value: Value) -> Iterator[Op]:
    """The operations that use a value, also in functions that it is given to."""
    for use in value.uses:
        callee = _called(ctx, use.op)
        if callee is None:
            yield use.op
        else:
            yield from _users(ctx, callee.args[use.number])


def _called(ctx: Context, op: Op) -> Func | None:
    """The function that an operation calls, if it is a call and the module has it."""
    return ctx.program.funcs.get(symbol(op.attrs["callee"])) if op.name == "func.call" else None


def _layouts_in(ctx: Context, block: Block, found: dict[tuple[int, ...], dict[Dims, None]], seen: set[str]) -> None:
    """Adds to `found`, by shape, the layouts that propagation chose in a block and in the functions that it calls."""
    for op in block.ops:
        for r in op.results:
            if r.type.shape:
                found.setdefault(r.type.shape, {}).setdefault(ctx.want(r))
        for inner in _blocks(ctx, op, seen):
            _layouts_in(ctx, inner, found, seen)


def _blocks(ctx: Context, op: Op, seen: set[str]) -> Sequence[Block]:
    if op.name != "func.call":
        return op.regions
    name = symbol(op.attrs["callee"])
    if name in seen or name not in ctx.program.funcs:
        return ()
    seen.add(name)
    return (ctx.program.funcs[name].body,)


def _size(ctx: Context, block: Block, seen: set[str] | None = None) -> int:
    """Operations of a block and of what it calls."""
    seen = set() if seen is None else seen
    return sum(1 + sum(_size(ctx, inner, seen) for inner in _blocks(ctx, op, seen)) for op in block.ops)


def _closed(ctx: Context, op: Op, base: Drafted[C], i: int, dims: Dims) -> tuple[Layouts, dict[Value, Dims]]:
    """The carried layouts, and the wanted layouts in the body, that follow from carried value `i` being in `dims`: a
    fixed point of propagating through the body."""
    body = op.regions[1]
    layouts = [c.dims for c in base.carries]
    layouts[i] = dims
    forward = _Forward(ctx)
    for _ in range(LOOP_TRIALS):
        forward = _Forward(ctx)
        for arg, d, c in zip(body.args, layouts, base.carries):
            if not c.fixed and d != ctx.want(arg):
                forward.wants[arg] = d
        forward.block(body)
        before = tuple(layouts)
        for j, (v, c) in enumerate(zip(body.terminator.operands, base.carries)):
            if j != i and not c.fixed and v in forward.wants:
                layouts[j] = forward.wants[v]
        if tuple(layouts) == before:
            break
    return tuple(layouts), forward.wants


class _Forward:
    """Propagates layouts forward from the arguments of a block to its results by sharding rules: `wants` are those that
    differ from propagation's."""

    def __init__(self, ctx: Context):
        self.ctx = ctx
        self.wants: dict[Value, Dims] = {}

    def block(self, block: Block) -> None:
        for op in block.ops[:-1]:
            if any(v in self.wants for v in op.operands):
                self._op(op)

    def _op(self, op: Op) -> None:
        if op.name == "func.call":
            self._call(op)
            return
        rule = None if op.regions and op.name.endswith((".while", ".case", ".if")) else self.ctx.rules.rule_for(op)
        if rule is None:
            return
        given = self._factors(op, rule)
        for r, tensor in zip(op.results, rule.results):
            used: set[int] = set()
            dims: list[tuple[int, ...]] = []
            for factors, want in zip(tensor, self.ctx.want(r)):
                atoms = given.get(factors[0], ()) if factors and factors[0] in given else want
                atoms = () if factors and factors[0] in given and used & set(atoms) else atoms
                dims.append(tuple(a for a in atoms if a not in used))
                used.update(atoms)
            self._want(r, tuple(dims))

    def _factors(self, op: Op, rule: OpRule) -> dict[int, tuple[int, ...]]:
        """The axes of the factors of an operation, as its operands are split; operands in new layouts come first."""
        given: dict[int, tuple[int, ...]] = {}
        used: set[int] = set()
        rows = sorted(zip(op.operands, rule.operands), key=lambda row: (row[0] not in self.wants, -row[0].type.size))
        for v, tensor in rows:
            for factors, atoms in zip(tensor, self.wants.get(v) or self.ctx.want(v)):
                if not factors:
                    continue
                f = factors[0]
                fits = not used & set(atoms) and rule.sizes[f] % self.ctx.atoms.product(atoms) == 0
                if atoms and fits and not given.get(f):
                    given[f] = atoms
                    used.update(atoms)
                given.setdefault(f, ())
        return given

    def _call(self, op: Op) -> None:
        callee = _called(self.ctx, op)
        if callee is None:
            return
        for v, arg in zip(op.operands, callee.args):
            if v in self.wants:
                self._want(arg, self.wants[v])
        self.block(callee.body)
        for r, v in zip(op.results, callee.returned):
            if v in self.wants:
                self._want(r, self.wants[v])

    def _want(self, value: Value, dims: Dims) -> None:
        if dims != self.ctx.want(value):
            self.wants[value] = dims


# -- what is sent ---------------------------------------------------------------------------------------------


def _sent(functions: Mapping[str, Region], message: float, region: Region) -> float:
    """Bytes that one run of a region sends; each collective counts as `message` more."""
    sent = functools.partial(_sent, functions, message)
    total = 0.0
    for item in region.items:
        if item.collective is not None:
            total += item.collective.bytes + message
        if item.regions:
            total += sum(sent(r) * (r.trips or 1) for r in item.regions if r.kind != "body")
        if item.name == "func.call":
            total += sent(functions[item.callee])
    return total


def _outside(loop: Drafted[C], message: float) -> float:
    """What the collectives that its draft has around a loop for use in it send, per run of the region of the loop, as
    `_sent` counts it."""
    share: dict[LocalOp, float] = {}
    part, at = 1.0, loop.regions[0].parent
    while at is not None:
        share.update((item, part) for item in at.items)
        part /= max(1, at.trips or 1)
        at = at.parent
    total, seen = 0.0, set()
    todo = [item for r in loop.regions for item in _items(r)]
    while todo:
        item = todo.pop()
        if item.collective is not None and item in share:
            total += (item.collective.bytes + message) * share[item]
        for ref in item.operands:
            made = ref.item
            if made is not None and made in share and made not in seen:
                seen.add(made)
                todo.append(made)
    return total


def _items(region: Region) -> Iterator[LocalOp]:
    for item in region.items:
        yield item
        for inner in item.regions:
            yield from _items(inner)
