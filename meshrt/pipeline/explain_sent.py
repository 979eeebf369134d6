"""Why a program communicates: of each collective the axes that it is over, back to the annotations that brought them
to what its operation reads and writes.

Asked for `train.py:7` of `h @ w` with w split over "model" in its rows, it answers

all_reduce over model, 256 B (train.py:7): dot_general: partial sum
  dimension 1 of f32[32,64] of tanh (train.py:6) got axis 'model' through dot_general (train.py:7) from dimension 0 of w
    dimension 0 of w (f32[64,8]) is annotated with axis 'model' by the user
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from collectives.findings import human
from collectives.kinds import kinds
from collectives.module import PartitionedProgram
from collectives.plan.communication import origin
from collectives.plan.traffic import Sent
from meshrt.errors import InspectError
from meshrt.pipeline.explain import CONSTRAINTS, Names, explain
from meshrt.pipeline.names import type_text
from propagation import Propagated
from propagation.addresses import is_at
from propagation.annotation_sites import handed_in
from propagation.functions import callers_of, named_functions
from propagation.locations import value_source
from propagation.log import ProvenanceStep
from propagation.ops import TERMINATORS
from propagation.program import Func, Op, Value
from propagation.reasons import axes_text

__all__ = ["chains_behind", "explain_sent", "explained", "unreduced_behind"]

_EVERY = "collectives"
# Operations behind one that communicates among which a value is looked for that has the axis. Chosen: where the
# partitioner splits what propagation left whole, what it follows is near.
FAR = 64


def explained(
    made: PartitionedProgram,
    propagated: Propagated,
    query: str | None,
    arg_names: Sequence[str],
    result_names: Sequence[str],
) -> list[str]:
    """What `--explain` says: why values are sharded as they are (`explain`), and why collectives run (`explain_sent`).
    A source line stands for both. InspectError for what names nothing."""
    if query is None:
        return []
    if query == _EVERY or query in kinds():
        found = explain_sent(made, propagated, query, arg_names, result_names)
        return found or [f"nothing is sent: the program runs no {query.removesuffix('s')}"]
    sent = explain_sent(made, propagated, query, arg_names, result_names)
    try:
        return explain(propagated, query, arg_names, result_names) + sent
    except InspectError:
        if sent:  # a line may send what others compute
            return sent
        raise


def explain_sent(
    made: PartitionedProgram,
    propagated: Propagated,
    query: str,
    arg_names: Sequence[str],
    result_names: Sequence[str],
) -> list[str]:
    """Why collectives run: a line for each, and under it the steps from its axes back to annotations, as `propagated`
    took them.

    `query` is `collectives` (all), a kind such as `all_gather`, or the source line FILE:LINE of those that are meant;
    of what sends nothing there is nothing to say.
    """
    names = Names(propagated, arg_names, result_names)
    callers = callers_of(propagated.program)
    lines: dict[str, None] = {}
    for sent in made.sent():
        where, cause = origin(sent.collective)
        if query not in (_EVERY, sent.collective.kind) and not is_at(where, query):
            continue
        axes = made.axes(sent.collective)
        over = f" over {made.axes_text(sent.collective)}" if axes else ""
        op = sent.collective.op
        place = names.place(op) if op is not None else f" ({where})" if where else ""
        head = f"{sent.collective.kind}{over}, {human(sent.collective.bytes)}{place}: "
        head += cause.removeprefix("stablehlo.")
        lines["\n".join([head, *_because(propagated, sent, frozenset(a.name for a in axes), names, callers)])] = None
    return [line for text in lines for line in text.splitlines()]


def _because(
    propagated: Propagated, sent: Sent, axes: frozenset[str], names: Names, callers: Mapping[str, Sequence[Op]]
) -> list[str]:
    op = sent.collective.op
    asked = _asked_for(op, axes)
    if asked is not None:
        return ["  the program itself asks for it, in a manual computation" + names.place(asked)]
    if op is None:
        return ["  no operation of the program is known that it is for"]
    chains = chains_behind(propagated, op, axes, callers)
    lines = _chain_lines(chains, names)
    left = axes - _axes_of(chains)
    if left:
        unreduced = unreduced_behind(propagated, op, left, callers)
        lines += _unreduced_lines(propagated, unreduced, left, names)
        left -= _addend_axes(propagated, unreduced)
    if left:
        chains = _chains(propagated, _beside(op), left)
        lines += _chain_lines(chains, names)
        left -= _axes_of(chains)
    if left:
        lines += _nowhere_near(propagated, op, left, axes, names, callers)
    return [*_constrained(propagated, op, names), *lines]


def _nowhere_near(
    propagated: Propagated,
    op: Op | Func,
    left: frozenset[str],
    axes: frozenset[str],
    names: Names,
    callers: Mapping[str, Sequence[Op]],
) -> list[str]:
    """Of those axes of a collective that nothing near its operation has: what has them of all that the operation is
    connected with, or that there is nothing, so that whatever is annotated, nobody asks."""
    everything = list(_connected(propagated, op, callers))
    chains = _chains(propagated, everything, left)
    unasked = left - _axes_of(chains)
    unreduced = [v for values in everything for v in values if _addend_axes(propagated, [v]) & unasked][:1]
    lines = [*_chain_lines(chains, names), *_unreduced_lines(propagated, unreduced, unasked, names)]
    unasked -= _addend_axes(propagated, unreduced)
    if lines:
        far = ", ".join(map(repr, sorted(left - unasked)))
        lines.insert(0, f"  nothing near is split over {far}; of what is connected with it, the nearest that is:")
    if unasked:
        over = "" if unasked == axes else f" over {', '.join(map(repr, sorted(unasked)))}"
        lines.append(f"  no annotation asks for it{over}: the partitioner splits what all devices would compute alike")
    return lines


def _axes_of(chains: Sequence[Sequence[ProvenanceStep]]) -> frozenset[str]:
    return frozenset(chain[0].axis.name for chain in chains)


def _addend_axes(propagated: Propagated, values: Sequence[Value]) -> frozenset[str]:
    """The axes over which values are annotated as partial sums."""
    said = (propagated.sharding(v) for v in values)
    return frozenset(a.name for s in said if s is not None for a in s.unreduced)


def _unreduced_lines(
    propagated: Propagated, values: Sequence[Value], axes: frozenset[str], names: Names
) -> Iterator[str]:
    for value in values:
        sharding, where = propagated.sharding(value), value_source(value)
        partial = axes_text(tuple(a for a in (sharding.unreduced if sharding is not None else ()) if a.name in axes))
        place = f" ({where})" if where else ""
        yield f"  {names.of(value)} is annotated as a partial sum over {partial} by the user{place}"


def _chain_lines(chains: Sequence[Sequence[ProvenanceStep]], names: Names) -> list[str]:
    return ["  " * (1 + (i > 0)) + names.line(step) for chain in chains for i, step in enumerate(chain)]


def _constrained(propagated: Propagated, op: Op | Func | None, names: Names) -> Iterator[str]:
    """What a constraint that has values moved asks for."""
    if not isinstance(op, Op) or op.name not in CONSTRAINTS:
        return
    sharding = propagated.sharding(op.results[0])
    split = [(d, entry.axes) for d, entry in enumerate(sharding.dims if sharding is not None else ()) if entry.axes]
    what = ", ".join(f"dimension {d} split over {axes_text(axes)}" for d, axes in split)
    yield f"  the constraint{names.place(op)} asks for {type_text(op.results[0])} with {what or 'no dimension split'}"


def _asked_for(op: Op | Func | None, axes: frozenset[str]) -> Op | None:
    """The manual computation within which the program wrote a collective over its axes (over groups of its own if they
    are none); None if it did not."""
    around = op.parent_op if isinstance(op, Op) else None
    while isinstance(around, Op):
        if around.name == "sdy.manual_computation" and (not axes or not axes.isdisjoint(around.data["manual_axes"])):
            return around
        around = around.parent_op
    return None


def chains_behind(
    propagated: Propagated, op: Op | Func, axes: frozenset[str], callers: Mapping[str, Sequence[Op]] | None = None
) -> list[list[ProvenanceStep]]:
    """How these axes came to what an operation reads and writes; those that it has not, to what is computed before it.
    `callers` are those of the program (`callers_of`), if they are known already."""
    callers = callers_of(propagated.program) if callers is None else callers
    return _chains(propagated, _further(op, callers), axes)


def _chains(
    propagated: Propagated, nearby: Iterable[Sequence[Value]], axes: frozenset[str]
) -> list[list[ProvenanceStep]]:
    """How these axes came to the first of `nearby` values that have them."""
    found: dict[tuple[int, int, str], list[ProvenanceStep]] = {}
    left = axes
    for values in nearby:
        for value in values:
            sharding = propagated.sharding(value)
            for dim, entry in enumerate(sharding.dims if sharding is not None else ()):
                if any(a.name in left for a in entry.axes):
                    for chain in propagated.explain(value, dim):
                        if chain[0].axis.name in left:
                            found[value.index, dim, chain[0].axis.name] = chain
        left -= {name for *_, name in found}
        if not left:
            break
    return list(found.values())


def unreduced_behind(
    propagated: Propagated, op: Op | Func, axes: frozenset[str], callers: Mapping[str, Sequence[Op]] | None = None
) -> list[Value]:
    """The nearest values in front of an operation that are annotated as partial sums over some of these axes."""
    callers = callers_of(propagated.program) if callers is None else callers
    for values in _further(op, callers):
        shardings = ((v, propagated.sharding(v)) for v in dict.fromkeys(values))
        found = [v for v, s in shardings if s is not None and any(a.name in axes for a in s.unreduced)]
        if found:
            return found
    return []


def _further(op: Op | Func, callers: Mapping[str, Sequence[Op]]) -> Iterator[Sequence[Value]]:
    """The values of an operation, then step by step those of the operations before it: in front of a loop for one in
    its body, of a call for one in the function that is called."""
    here: Sequence[Value] = op.returned if isinstance(op, Func) else (*op.operands, *_given(op))
    seen: set[Op | Value] = set()
    while here and len(seen) < FAR:
        yield here
        before = [o for o in dict.fromkeys(v.op for v in here) if o is not None and o not in seen]
        entered = [v for v in dict.fromkeys(here) if v.op is None and v not in seen]
        seen.update(before, entered)
        here = (*(v for o in before for v in o.operands), *(w for v in entered for w in _entering(v, callers)))


def _beside(op: Op | Func) -> Iterator[Sequence[Value]]:
    """What else is computed from the values of an operation, the nearest first: of a value that is laid out once for
    several readers, one may ask for what another has undone."""
    seen: set[Value] = set()
    here = list(op.returned if isinstance(op, Func) else op.operands)
    while here and len(seen) < FAR:
        seen.update(here)
        users = dict.fromkeys(use.op for value in here for use in value.uses)
        here = list(dict.fromkeys(v for o in users for v in (*o.results, *o.operands) if v not in seen))
        yield here


def _connected(propagated: Propagated, op: Op | Func, callers: Mapping[str, Sequence[Op]]) -> Iterator[Sequence[Value]]:
    """All values that an operation is connected with, by whatever is read and given, the nearest first: through bodies
    of loops and branches and through calls, both ways."""
    funcs = propagated.program.funcs

    def around(near: Op) -> Iterator[Value]:
        yield from (*near.operands, *near.results)
        yield from (v for body in near.regions for v in body.args)
        yield from (v for name in named_functions(near) for v in (*funcs[name].args, *funcs[name].returned))

    def beside(value: Value) -> Iterator[Value]:
        if value.op is not None:
            yield from around(value.op)
        for use in value.uses:
            yield from around(use.op)
            owner = use.op.parent_op if use.op.name in TERMINATORS else None
            if isinstance(owner, Op):
                yield from owner.results
            elif owner is not None:
                yield from (call.results[use.number] for call in callers.get(owner.name, ()))
        if isinstance(value.argument_of, Op):
            yield from around(value.argument_of)
        yield from _entering(value, callers) if value.op is None else ()

    here = list(dict.fromkeys(op.returned if isinstance(op, Func) else around(op)))
    seen = set(here)
    while here:
        yield here
        here = [v for v in dict.fromkeys(v for value in here for v in beside(value)) if v not in seen]
        seen.update(here)


def _given(op: Op) -> Sequence[Value]:
    """The values that an operation gives; of what ends a body, those of the loop or branch that has it."""
    around = op.parent_op
    return around.results if op.name in TERMINATORS and isinstance(around, Op) else op.results


def _entering(value: Value, callers: Mapping[str, Sequence[Op]]) -> Iterator[Value]:
    """What enters as an argument of a body or of a function that is called."""
    owner = value.argument_of
    if isinstance(owner, Func):
        yield from (call.operands[value.number] for call in callers.get(owner.name, ()))
    elif (outer := handed_in(value)) is not None:
        yield outer
