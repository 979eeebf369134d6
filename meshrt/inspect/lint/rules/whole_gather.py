"""Tensors that every device gathers whole."""

from __future__ import annotations

from collections.abc import Iterator

from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.sends import Caused, caused, changes_for, gathered_whole
from meshrt.inspect.lint.subject import Subject
from propagation.program import Op

__all__ = ["RULE"]


def _find(subject: Subject) -> Iterator[Hit]:
    """Gathers may be what a layout is about (parameters that lie apart to save memory, activations split along a
    sequence), so they are told only with a change that is better, or where an operation could not stay sharded."""
    whole = [s for s in subject.base.partitioned.sent() if gathered_whole(subject, s.collective) is not None]
    yield from worth_telling((_hit(subject, each) for each in caused(subject, whole)), subject.base.figures.bytes)


def _hit(subject: Subject, each: Caused) -> Hit:
    values = [v for s in each.sent if (v := gathered_whole(subject, s.collective)) is not None]
    refused = {f.where for f in subject.base.partitioned.findings if f.kind == "full-gather"}
    names = ", ".join(dict.fromkeys(subject.names.of(v) for v in values))
    for_what = "a result" if not isinstance(each.op, Op) else each.op.name.rpartition(".")[2]
    looped = " in every iteration of a loop" if any(s.is_looped for s in each.sent) else ""
    return Hit(
        f"{names} is gathered whole onto every device for {for_what}{looped}", each.where, each.bytes,
        changes_for(subject, each.op), is_certain=each.where is not None and each.where in refused,
    )  # fmt: skip


RULE = Rule("whole-gather", "A tensor is gathered whole onto every device.", "bytes", _find, rank=1)
