"""Which hits are told, and with which change: each is tried, and what is not better is not given."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from meshrt.inspect.lint.changes import Change
from meshrt.inspect.lint.rule import Hit, Rule, is_better
from meshrt.inspect.lint.rules import chosen
from meshrt.inspect.lint.subject import Figures, Subject
from meshrt.inspect.lint.suppress import is_ignored
from meshrt.inspect.model import LintRow, RemedyRow

__all__ = ["lint"]

MOST_HITS = 12  # of a rule; the dearest are told
MOST_CHANGES = 10  # tried for a hit


def lint(subject: Subject, names: Iterable[str] | None = None) -> tuple[LintRow, ...]:
    """What the rules of these names (None: all) find in a program, what costs most first, each operation once for
    each line.

    Raises:
      InspectError: there is no rule of a name.
    """
    found = [(rule, *each) for rule in chosen(names) for each in _rows(subject, rule)]
    found.sort(key=lambda each: (-each[0].rank, -each[1].bytes))
    told: dict[tuple[str, ...], list[LintRow]] = {}
    places: set[str] = set()
    for rule, row, is_silent in found:
        place = f"{row.where}: {row.remedy.text if row.remedy else rule.name + row.message}"
        if place not in places:  # else a rule of a higher rank has told it
            places.add(place)
            if is_silent:
                continue
            told.setdefault((rule.name, row.remedy.text if row.remedy else place), []).append(row)
    return tuple(sorted(map(_joined, told.values()), key=lambda row: (-row.bytes, row.rule, row.where or "")))


def _joined(rows: Sequence[LintRow]) -> LintRow:
    """Rows of one rule that one change mends, as one."""
    first, *others = rows
    if not others:
        return first
    more = "1 more place" if len(others) == 1 else f"{len(others)} more places"
    message = f"{first.message}; the same change mends {more}"
    return replace(first, message=message, bytes=sum(row.bytes for row in rows))


def _rows(subject: Subject, rule: Rule) -> Iterator[tuple[LintRow, bool]]:
    """What a rule finds, and whether a comment asks that it be silent."""
    for hit in itertools.islice(rule.find(subject), MOST_HITS):
        remedy = _remedy(subject, rule, hit)
        if remedy is not None or hit.is_certain:
            where = subject.place(hit.where)
            yield LintRow(rule.name, hit.message, where, hit.bytes, remedy), is_ignored(rule.name, where)


def _remedy(subject: Subject, rule: Rule, hit: Hit) -> RemedyRow | None:
    """The best of the changes that are better."""
    best: tuple[tuple[float, ...], Change, Figures] | None = None
    for change in hit.changes[:MOST_CHANGES]:
        trial = subject.tried(change.key, change.edit)
        if trial is None or not is_better(rule, subject.base, trial):
            continue
        f = trial.figures
        score = (0.0 if rule.gain == "nothing" else getattr(f, rule.gain), f.peak, f.seconds)
        if best is None or score < best[0]:
            best = score, change, trial.figures
    if best is None:
        return None
    before, (_, change, after) = subject.base.figures, best
    times = (before.seconds, after.seconds) if subject.has_topology else (None, None)
    return RemedyRow(change.text, before.bytes, after.bytes, before.peak, after.peak, *times)
