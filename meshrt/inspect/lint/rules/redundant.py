"""Annotations that propagation finds anyway."""

from __future__ import annotations

from collections.abc import Iterator

from meshrt.inspect.lint.changes import all_of, described, whole_said, without
from meshrt.inspect.lint.rule import Hit, Rule
from meshrt.inspect.lint.subject import Subject
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
            verb = "says" if len(alike) == 1 else f"and {len(alike) - 1} more of that line say"
            message = f"{described(subject, alike[0])} {verb} what propagation finds anyway"
            yield Hit(message, alike[0].where, 0.0, [change])


RULE = Rule("redundant", "An annotation says what propagation finds anyway.", "nothing", _find)
