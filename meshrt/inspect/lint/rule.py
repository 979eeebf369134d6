"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from meshrt.inspect.lint.changes import Change
from meshrt.inspect.lint.subject import Subject, Trial

__all__ = ["NOISE", "SHARE", "Gain", "Hit", "Rule", "is_better", "worth_telling"]

# What falls if a change is better: bytes sent, bytes held, predicted time, or nothing: the annotation is merely gone.
Gain = Literal["bytes", "peak", "seconds", "nothing"]
# The share of what a program sends or holds below which nothing is told. Chosen: at 1 % scalars of losses and norms
# were told of in examples/, at 5 % none.
SHARE = 0.05
# The share by which figures may rise that a change is not about. Chosen: below what the estimates are good for.
NOISE = 0.01
# The share by which a figure must fall for a change to count. Chosen, as SHARE.
BETTER = 0.05


@dataclass(frozen=True, slots=True)
class Hit:
    """`bytes` are what it costs a device, `changes` what might help. `is_certain`: it is worth knowing even where none
    does; else it is told only with a change that was found better."""

    message: str
    where: str | None
    bytes: float
    changes: Sequence[Change] = ()
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, what it says in a line, what a change must lower, and what finds its hits. Rules of a higher
    `rank` have what they find of an operation told in place of what those below find of it. A change may raise the most
    that a device holds by the share `growth`."""

    name: str
    says: str
    gain: Gain
    find: Callable[[Subject], Iterator[Hit]]
    rank: int = 0
    growth: float = NOISE


def worth_telling(hits: Iterable[Hit], total: float) -> list[Hit]:
    """Those that cost a share of `total` that is worth knowing, the dearest first."""
    return sorted((h for h in hits if h.bytes > 0 and h.bytes >= SHARE * total), key=lambda h: -h.bytes)


def is_better(rule: Rule, before: Trial, after: Trial) -> bool:
    """Whether the figure that is to fall does, and the others do not rise. Time may be bought with bytes that are sent;
    where nothing is to fall, all shardings must stay as they are."""
    old, new, gain = before.figures, after.figures, rule.gain
    if gain == "nothing":
        return old == new and _same_shardings(before, after)
    if not getattr(new, gain) < (1 - BETTER) * getattr(old, gain):
        return False
    others = () if gain == "seconds" else ("bytes", "seconds")
    kept = all(getattr(new, name) <= (1 + NOISE) * getattr(old, name) for name in others)
    return kept and new.peak <= (1 + rule.growth) * old.peak


def _same_shardings(before: Trial, after: Trial) -> bool:
    a, b = before.propagated, after.propagated
    if a.shardings.results[a.program.main] != b.shardings.results[b.program.main]:
        return False
    return all(x is y for x, y in zip(a.arg_shardings, b.arg_shardings)) and before.figures == after.figures
