"""Why a program communicates: of each collective the axes that it is over, back to the annotations that brought them
to what its operation reads and writes.

Asked for `train.py:7` of `h @ w` with w split over "model" in its rows, it answers

all_reduce over model, 256 B (train.py:7): dot_general: partial sum
  dimension 1 of f32[32,64] of tanh (train.py:6) got axis 'model' through dot_general (train.py:7) from dimension 0 of w
    dimension 0 of w (f32[64,8]) is annotated with axis 'model' by the user
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from propagation.log import ProvenanceStep
from propagation.program import Func, Op, Value, source
from propagation.reasons import axes_text

__all__ = ["chains_behind", "explain_sent", "explained"]

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
    lines: dict[str, None] = {}
    for sent in made.sent():
        where, cause = origin(sent.collective)
        if query not in (_EVERY, sent.collective.kind) and not is_at(where, query):
            continue
        axes = made.axes(sent.collective)
        over = f" over {made.axes_text(sent.collective)}" if axes else ""
        place = f" ({where})" if where else ""
        head = f"{sent.collective.kind}{over}, {human(sent.collective.bytes)}{place}: "
        head += cause.removeprefix("stablehlo.")
        lines["\n".join([head, *_because(propagated, sent, frozenset(a.name for a in axes), names)])] = None
    return [line for text in lines for line in text.splitlines()]


def _because(propagated: Propagated, sent: Sent, axes: frozenset[str], names: Names) -> list[str]:
    op = sent.collective.op
    asked = _asked_for(op, axes)
    if asked is not None:
        where = source(asked)
        return ["  the program itself asks for it, in a manual computation" + (f" ({where})" if where else "")]
    chains = [] if op is None else chains_behind(propagated, op, axes)
    if not chains:
        return ["  no annotation is behind it: nothing nearby is split over what it is over"]
    lines = ["  " * (1 + (i > 0)) + names.line(step) for chain in chains for i, step in enumerate(chain)]
    return [*_constrained(propagated, op), *lines]


def _constrained(propagated: Propagated, op: Op | Func | None) -> Iterator[str]:
    """What a constraint that has values moved asks for."""
    if not isinstance(op, Op) or op.name not in CONSTRAINTS:
        return
    sharding, where = propagated.sharding(op.results[0]), source(op)
    split = [(d, entry.axes) for d, entry in enumerate(sharding.dims if sharding is not None else ()) if entry.axes]
    what = ", ".join(f"dimension {d} split over {axes_text(axes)}" for d, axes in split)
    place = f" ({where})" if where else ""
    yield f"  the constraint{place} asks for {type_text(op.results[0])} with {what or 'no dimension split'}"


def _asked_for(op: Op | Func | None, axes: frozenset[str]) -> Op | None:
    """The manual computation within which the program wrote a collective over its axes (over groups of its own if they
    are none); None if it did not."""
    around = op.parent_op if isinstance(op, Op) else None
    while isinstance(around, Op):
        if around.name == "sdy.manual_computation" and (not axes or not axes.isdisjoint(around.data["manual_axes"])):
            return around
        around = around.parent_op
    return None


def chains_behind(propagated: Propagated, op: Op | Func, axes: frozenset[str]) -> list[list[ProvenanceStep]]:
    """How these axes came to what an operation reads and writes; of those where it has none of them, to what is
    computed before it."""
    for values in _further(op):
        found: dict[tuple[int, int, str], list[ProvenanceStep]] = {}
        for value in values:
            sharding = propagated.sharding(value)
            for dim, entry in enumerate(sharding.dims if sharding is not None else ()):
                if any(a.name in axes for a in entry.axes):
                    for chain in propagated.explain(value, dim):
                        if chain[0].axis.name in axes:
                            found[value.index, dim, chain[0].axis.name] = chain
        if found:
            return list(found.values())
    return []


def _further(op: Op | Func) -> Iterator[Sequence[Value]]:
    """The values of an operation, then step by step those of the operations before it."""
    here = op.returned if isinstance(op, Func) else (*op.operands, *op.results)
    seen: set[Op] = set()
    while here and len(seen) < FAR:
        yield here
        before = [o for o in dict.fromkeys(v.op for v in here) if o is not None and o not in seen]
        seen.update(before)
        here = tuple(v for o in before for v in o.operands)
