"""Values that change their layout in every iteration of a loop."""

from __future__ import annotations

from collections.abc import Iterator

from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.sends import caused, changes_for
from meshrt.inspect.lint.subject import Subject
from propagation.program import Func, Op

__all__ = ["RULE"]


def _find(subject: Subject) -> Iterator[Hit]:
    """The carry of a loop whose body leaves it in another layout than it takes is told in any case, the rest only with
    a change that is better: a block of a model may well gather its activations."""
    looped = [s for s in subject.base.partitioned.sent() if s.is_looped and not s.collective.facts.reduces]
    hits = []
    for each in caused(subject, looped):
        what = "a result" if isinstance(each.op, Func) else each.op.name.rpartition(".")[2]
        is_carry = isinstance(each.op, Op) and each.op.name == "stablehlo.return"
        text = "a value that the loop carries" if is_carry else f"a value that {what} takes or makes"
        kinds = ", ".join(dict.fromkeys(s.collective.kind for s in each.sent))
        times = each.sent[0].times
        count = "an unknown number of times" if times is None else f"{times} times"
        message = f"{text} changes its layout in every iteration of a loop, {count} ({kinds})"
        hits.append(Hit(message, each.where, each.bytes, changes_for(subject, each.op), is_carry))
    yield from worth_telling(hits, subject.base.figures.bytes)


RULE = Rule("loop-reshard", "A value is resharded in every iteration of a loop.", "bytes", _find, rank=1)
