"""What the operations of a program send: collectives by what caused them, and the annotations behind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from collectives.boundary import result_cause
from collectives.ir.program import Collective
from collectives.plan.traffic import Sent
from meshrt.inspect.lint.changes import Change, moves, without
from meshrt.inspect.lint.subject import Subject, size_of
from propagation.annotation_sites import Said
from propagation.program import Func, Op, Value, source

__all__ = ["Caused", "annotations_at", "caused", "changes_for", "gathered_whole", "values_at"]


@dataclass(frozen=True, slots=True)
class Caused:
    """What an operation (or a function, for its results) has sent: its collectives."""

    op: Op | Func
    sent: tuple[Sent, ...]

    @property
    def bytes(self) -> float:
        """Per device and run."""
        return sum(s.bytes for s in self.sent)

    @property
    def where(self) -> str | None:
        return source(self.op)


def caused(subject: Subject, sent: Iterable[Sent]) -> list[Caused]:
    """Collectives by the operation that caused them, in program order."""
    found: dict[Op | Func, list[Sent]] = {}
    for each in sent:
        if each.collective.op is not None:
            found.setdefault(each.collective.op, []).append(each)
    return [Caused(op, tuple(rows)) for op, rows in found.items()]


def values_at(op: Op | Func) -> Sequence[Value]:
    """The operands and results of an operation, the results of a function."""
    return op.returned if isinstance(op, Func) else (*op.operands, *op.results)


def annotations_at(subject: Subject, op: Op | Func) -> list[Said]:
    """The annotations from which the shardings of an operation's operands and results came, and that of the operation
    itself, each once."""
    found: dict[Said, None] = {}
    is_end = isinstance(op, Func)
    numbers = set() if is_end else {v.index for v in values_at(op)}
    for said in subject.said:
        if said.number in numbers if said.kind in ("constraint", "value") else is_end and said.kind == "result":
            found[said] = None
    for value in values_at(op):
        for dim in range(value.type.rank):
            found.update(dict.fromkeys(subject.origins(value, dim)))
    return list(found)


def changes_for(subject: Subject, op: Op | Func) -> list[Change]:
    """Changes of the annotations behind an operation, those of constraints first: they are the easiest to change. What
    is asked of results stays: whoever takes them wants them so."""
    return list(_changes_for(subject, [s for s in annotations_at(subject, op) if s.kind != "result"]))


def _changes_for(subject: Subject, annotations: Sequence[Said]) -> Iterator[Change]:
    seen = set()
    for said in sorted(annotations, key=lambda s: s.kind != "constraint"):
        names = dict.fromkeys(a.name for d in said.sharding.dims for a in d.axes)
        options = [*without(subject, said)] if said.kind != "argument" else []
        for change in (*options, *moves(subject, said, names)):
            if change.key not in seen:
                seen.add(change.key)
                yield change


def gathered_whole(subject: Subject, each: Caused) -> list[Value]:
    """The values that an operation has gathered whole onto each device: by one collective, or by several that follow
    one another, each over some of the axes that a value is split over."""
    gathers = [s.collective for s in each.sent if _only_gathers(s.collective)]
    found: dict[Value, None] = {}
    for i in range(len(gathers)):
        for j in range(i + 1, len(gathers) + 1):
            values = _values_of(each.op, gathers[i:j])
            value = next((v for v in values if _bring_whole(subject, gathers[i:j], v)), None)
            if value is not None:
                found[value] = None
    return list(found)


def _values_of(op: Op | Func, gathers: Sequence[Collective]) -> Sequence[Value]:
    """The values of an operation that collectives may be for: of what a function returns each has its own."""
    func = op if isinstance(op, Func) else op.parent_op
    if not isinstance(func, Func) or (op is not func and op is not func.body.terminator):
        return values_at(op)
    causes = {c.cause for c in gathers}
    return [v for i, v in enumerate(func.returned) if causes == {result_cause(func, i)}]


def _bring_whole(subject: Subject, gathers: Sequence[Collective], value: Value) -> bool:
    """Whether these send what a value takes to be whole everywhere. One that propagation left whole may be computed
    in parts all the same."""
    sharding = subject.propagated.sharding(value)
    parts = math.prod(c.groups[1] for c in gathers)
    if sharding is None or not (sharding.is_fully_replicated or math.prod(d.factor for d in sharding.dims) == parts):
        return False
    whole = size_of(value)
    # (A dimension that does not divide is sent padded.)
    return 0.99 * whole * (parts - 1) / parts <= sum(c.bytes for c in gathers) <= 1.1 * whole


def _only_gathers(collective: Collective) -> bool:
    facts = collective.facts
    return not facts.reduces and facts.joins is not None and facts.splits is None
