"""Annotations that propagation finds anyway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshrt.inspect.lint.changes import Change, all_of, described, whole_said, without
from meshrt.inspect.lint.rule import Hit, Rule
from meshrt.inspect.lint.subject import Subject, Trial
from propagation.annotation_sites import Said

__all__ = ["RULE"]


def _find(subject: Subject) -> Iterator[Hit]:
    """Constraints. Annotations of arguments and results say where arrays lie, whether or not propagation would find the
    same; what holds a value whole is there to keep others from splitting it."""
    lines: dict[object, list[Said]] = {}
    for said in subject.said:
        if said.kind in ("constraint", "value"):  # one line of a program may constrain many values
            lines.setdefault(said.where or said, []).append(said)
    for alike in lines.values():
        if not all(map(whole_said, alike)):
            change = all_of([c for said in alike for c in without(subject, said)])
            more = "" if len(alike) == 1 else f" and {len(alike) - 1} more of that line"
            message = f"{described(subject, alike[0])}{more} {_what(subject, alike, change)}"
            yield Hit(message, alike[0].where, 0.0, [change])


def _what(subject: Subject, alike: Sequence[Said], change: Change) -> str:
    """Propagation may find the same without them; or the program is computed otherwise than they say, because that
    sends less, with and without them."""
    trial = subject.tried(change.key, change.edit)
    one = len(alike) == 1
    if trial is not None and not all(_found(subject, trial, said) for said in alike):
        return f"change{'s' * one} nothing: values lie otherwise there, which sends less"
    return f"say{'s' * one} what propagation finds anyway"


def _found(subject: Subject, trial: Trial, said: Said) -> bool:
    """Whether the value that an annotation is of has its sharding in a program without it."""
    value = subject.original.values[said.number]
    if said.kind == "constraint" and value.op is not None:
        value = value.op.operands[0]
    values = trial.propagated.program.values
    if value.index >= len(values):
        return False
    found = trial.propagated.sharding(values[value.index])
    return [d.axes for d in said.sharding.dims] == ([] if found is None else [d.axes for d in found.dims])


RULE = Rule("redundant", "An annotation says what propagation finds anyway.", "nothing", _find)
