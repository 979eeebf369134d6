"""Annotations that propagation finds anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshrt.inspect.lint.changes import Change, all_of, described, whole_said, without
from meshrt.inspect.lint.rule import Hit, Rule, is_better
from meshrt.inspect.lint.subject import Subject, Trial
from propagation.annotation_sites import Said

__all__ = ["RULE"]


def _find(subject: Subject) -> Iterator[Hit]:
    """Constraints. Annotations of arguments and results say where arrays lie, whether or not propagation would find the
    same; what holds a value whole is there to keep others from splitting it."""
    inside = [s for s in subject.said if s.kind in ("constraint", "value")]
    for alike in _grouped(inside, lambda said: said.where):
        hit, change = _hit(subject, alike)
        callers = _grouped(alike, lambda said: said.lines)
        trial = subject.tried(change.key, change.edit) if len(callers) > 1 else None
        if len(callers) == 1 or (trial is not None and is_better(RULE, subject.base, trial)):
            callers = [alike]  # the line itself may go
        for some in callers:
            if not all(map(whole_said, some)):
                yield hit if some is alike else _hit(subject, some)[0]


def _grouped(said: Sequence[Said], key: Callable[[Said], object]) -> list[list[Said]]:
    """Annotations by what is known of where they were written: one line of a program may constrain many values."""
    found: dict[object, list[Said]] = {}
    for each in said:
        found.setdefault(key(each) or each, []).append(each)
    return list(found.values())


def _hit(subject: Subject, alike: Sequence[Said]) -> tuple[Hit, Change]:
    change = all_of([c for said in alike for c in without(subject, said)])
    more = "" if len(alike) == 1 else f" and {len(alike) - 1} more of that line"
    message = f"{described(subject, alike[0])}{more} {_what(subject, alike, change)}"
    return Hit(message, alike[0].where, 0.0, [change]), change


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
