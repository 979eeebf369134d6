"""Tensors that every device gathers whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.sends import Caused, caused, changes_for, gathered_whole
from meshrt.inspect.lint.subject import Subject
from propagation.program import Op, Value

__all__ = ["RULE"]


def _find(subject: Subject) -> Iterator[Hit]:
    """Gathers may be what a layout is about (parameters that lie apart to save memory, activations split along a
    sequence), so they are told only with a change that is better, or where an operation could not stay sharded."""
    sent = [(each, gathered_whole(subject, each)) for each in caused(subject, subject.base.partitioned.sent())]
    hits = (_hit(subject, each, values) for each, values in sent if values)
    yield from worth_telling(hits, subject.base.figures.bytes)


def _hit(subject: Subject, each: Caused, values: Sequence[Value]) -> Hit:
    refused = {f.where for f in subject.base.partitioned.findings if f.kind == "full-gather"}
    names = ", ".join(dict.fromkeys(subject.names.of(v) for v in values))
    for_what = "a result" if not isinstance(each.op, Op) else each.op.name.rpartition(".")[2]
    looped = " in every iteration of a loop" if any(s.is_looped for s in each.sent) else ""
    return Hit(
        f"{names} is gathered whole onto every device for {for_what}{looped}", each.where, each.bytes,
        changes_for(subject, each.op), is_certain=each.where is not None and each.where in refused,
    )  # fmt: skip


RULE = Rule("whole-gather", "A tensor is gathered whole onto every device.", "bytes", _find, rank=1)
