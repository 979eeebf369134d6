"""Annotations that fight: what one asks for, another undoes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshrt.inspect.lint.changes import described
from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.sends import annotations_at, caused, changes_for
from meshrt.inspect.lint.subject import Subject
from propagation.annotation_sites import Said
from propagation.program import Op

__all__ = ["RULE"]


def _find(subject: Subject) -> Iterator[Hit]:
    """Operations that communicate to bring together what several annotations say of one value, or of dimensions that
    correspond. Most such meetings are meant (parameters that lie apart and are gathered), so they are told only with a
    change that is better."""
    met = {m.op for m in subject.propagated.missing() if isinstance(m.op, Op)}
    hits = []
    for each in caused(subject, [s for s in subject.base.partitioned.sent() if not s.collective.facts.reduces]):
        is_asked = isinstance(each.op, Op) and each.op.name in ("sdy.reshard", "sdy.sharding_constraint")
        if not is_asked and each.op not in met:
            continue
        sides = annotations_at(subject, each.op)
        if len(sides) > 1:
            message = f"{_listed(subject, sides)} disagree, and values are sent to satisfy each"
            hits.append(Hit(message, each.where, each.bytes, changes_for(subject, each.op)))
    yield from worth_telling(hits, subject.base.figures.bytes)


def _listed(subject: Subject, sides: Sequence[Said]) -> str:
    shown = [described(subject, s) for s in sides[:3]]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


RULE = Rule("conflict", "Annotations disagree, so that values are sent to and fro.", "bytes", _find, rank=2)
