"""Many seeds, ours beside theirs, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .compare import Comparison, compare
from .generator import generate
from .oracle import Oracle
from .shrink import shrink

__all__ = ["Case", "Tally", "oracle_stage", "shrink_case", "sweep"]


@dataclass(frozen=True, slots=True)
class Case:
    """One module of a sweep and its outcome."""

    seed: int
    text: str
    features: frozenset[str]
    found: Comparison


@dataclass(slots=True)
class Tally:
    """Agreement counted over the cases of a sweep.

    verdicts    modules per verdict
    operations  per operation name (agreeing, compared) operations
    features    per feature of annotations or structure (agreeing, compared) modules
    failures    the cases where we differ or raise
    refusals    per first line of its error, the modules that the real passes refuse
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    operations: dict[str, list[int]] = field(default_factory=dict)
    features: dict[str, list[int]] = field(default_factory=dict)
    failures: list[Case] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case) -> None:
        found = case.found
        self.verdicts[found.verdict] += 1
        if found.is_failure:
            self.failures.append(case)
        if found.verdict == "theirs failed":
            self.refusals[_reason(found.detail)] += 1
        if found.verdict not in ("agree", "differ"):
            return
        for name, agrees in found.rows:
            counts = self.operations.setdefault(name, [0, 0])
            counts[0] += agrees
            counts[1] += 1
        for feature in case.features:
            counts = self.features.setdefault(feature, [0, 0])
            counts[0] += found.verdict == "agree"
            counts[1] += 1

    def merge(self, other: Tally) -> None:
        """Adds the counts of another tally, as of another process."""
        self.verdicts += other.verdicts
        self.refusals += other.refusals
        self.failures += other.failures
        for mine, theirs in ((self.operations, other.operations), (self.features, other.features)):
            for name, (agreeing, compared) in theirs.items():
                counts = mine.setdefault(name, [0, 0])
                counts[0] += agreeing
                counts[1] += compared

    @property
    def compared(self) -> int:
        return self.verdicts["agree"] + self.verdicts["differ"]

    def as_text(self) -> str:
        """The verdicts, then a table of agreement per operation and per feature."""
        lines = [f"{self.verdicts['agree']} of {self.compared} modules agree in every value's sharding"]
        lines += [f"  {count} {verdict}" for verdict, count in sorted(self.verdicts.items()) if verdict != "agree"]
        lines += [f"    {count} {reason}" for reason, count in self.refusals.most_common()]
        for title, counts in (("operation", self.operations), ("feature", self.features)):
            lines += ["", f"{title:36} {'agree':>9} {'compared':>9}"]
            lines += [f"{name:36} {a:9} {n:9}{'' if a == n else '  <'}" for name, (a, n) in sorted(counts.items())]
        return "\n".join(lines)


def _reason(detail: str) -> str:
    lines = [line for line in detail.splitlines() if "error:" in line] or detail.splitlines()
    return lines[0].split("error:")[-1].split(": ", 1)[-1].strip()[:90]


def oracle_stage(stage: str, dedup_functions_fully: bool = False, **_: Any) -> str:
    """What the oracle calls one of our stages with these options."""
    return f"dedup-{stage}" if dedup_functions_fully else stage


def sweep(
    seeds: Iterable[int],
    stage: str = "closed",
    features: bool = True,
    each: Callable[[Case], None] = lambda case: None,
    **options: Any,
) -> Tally:
    """Compares the modules of `seeds` after `stage`. `each` is called with every case, `options` go to
    `propagation.run`."""
    tally = Tally()
    judge = oracle_stage(stage, **options)
    with Oracle() as oracle:
        for seed in seeds:
            text, used = generate(seed, features=features)
            case = Case(seed, text, used, compare(text, oracle(judge, text), stage, **options))
            tally.add(case)
            each(case)
    return tally


def shrink_case(case: Case, stage: str = "closed", limit: int = 2000, **options: Any) -> str:
    """A minimal module that fails as `case` does: a module on which we raise stays one on which we raise."""
    judge = oracle_stage(stage, **options)
    with Oracle() as oracle:

        def fails(text: str) -> bool:
            found = compare(text, oracle(judge, text), stage, **options)
            return found.verdict == case.found.verdict and found.is_failure

        return shrink(case.text, fails, limit)
