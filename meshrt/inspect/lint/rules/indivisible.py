"""Dimensions that stay whole because their size does not divide."""

from __future__ import annotations

from collections.abc import Iterator

from meshrt.inspect.indivisible_annotations import undivided
from meshrt.inspect.lint.changes import moves
from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.sends import annotations_at
from meshrt.inspect.lint.subject import Subject, size_of
from propagation.program import Func

__all__ = ["RULE"]


def _find(subject: Subject) -> Iterator[Hit]:
    yield from worth_telling(_annotated(subject), 0.0)
    yield from worth_telling(_at_boundaries(subject), subject.base.figures.peak)


def _annotated(subject: Subject) -> Iterator[Hit]:
    """Annotations of arguments and results that were cut."""
    said = {(s.kind, s.number): s for s in subject.said}
    for cut in undivided(subject.propagated, subject.arg_names, subject.result_names):
        asked = said.get((cut.kind, cut.number))
        changes = [] if asked is None else list(moves(subject, asked, cut.axes))
        yield Hit(cut.message, cut.where, cut.bytes, changes, is_certain=True)


def _at_boundaries(subject: Subject) -> Iterator[Hit]:
    """Arguments and results that would be split inside of the program, but are whole at its edge: tiles are even."""
    for missing in subject.propagated.missing():
        decided = subject.propagated.log.decided(missing.value)
        if not isinstance(missing.op, Func) or missing.dim is None or decided is None:
            continue
        if missing.value.type.shape[missing.dim] % decided.dims[missing.dim].axes[0].size == 0:
            continue  # it is annotated so
        why = "; ".join(c.text(subject.names.of) for c in missing.causes)
        value = missing.value
        name = subject.names.of(value) if missing.result is None else subject.result_names[missing.result]
        sides = annotations_at(subject, missing.op)
        changes = [c for s in sides for c in moves(subject, s, [a.name for a in s.sharding.axes])]
        yield Hit(f"{name} is whole: {why}", missing.where, size_of(value), changes, is_certain=True)


RULE = Rule("indivisible", "An axis is dropped because a dimension does not divide by it.", "peak", _find, rank=2)
