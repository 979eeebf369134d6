"""Processes that come to a job which runs, or leave it, and the step at which they do: a part of the roster.

Who comes waits at the door. When all have come that were started together, or nobody else has for a while, the members
are told. So they are when some of them want to leave. Each tells at once how many boundaries between steps it has
passed, and passes no other one before it has heard where to leave off: at the first that none has passed, which is
known when all have told. So nobody waits at a boundary for one that waits for it in a step. There those who leave hand
over what they hold, before the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Growth", "Newcomer"]

_TOGETHER_S = 1.0  # Chosen: those that a launcher asks to leave hear of it within a second of each other
_QUIET_S = 10.0  # Chosen: some hosts import slower than others, and each growth costs the members a new mesh


@dataclass(slots=True)
class Newcomer:
    """A process that waits to be let in. `rank` is its number at the launcher; `batch` were started together."""

    rank: int
    batch: int
    about: Mapping[str, Any]
    heard_at: float


@dataclass
class Growth:
    """Who waits or wants to leave, and how far the members have agreed on when."""

    newcomers: dict[int, Newcomer] = field(default_factory=dict)  # by rank
    wishes: dict[int, float] = field(default_factory=dict)  # members that want to leave, and since when
    leaving: tuple[int, ...] = ()  # those of them that leave at the boundary which the members are about to agree on
    left: set[int] = field(default_factory=set)  # who of them has handed over what it held
    asked: bool = False  # the members were told that somebody waits
    passed: dict[int, int] = field(default_factory=dict)  # boundaries that each member has told
    _came_at: float = 0.0

    def come(self, newcomer: Newcomer) -> None:
        """One more waits."""
        self.newcomers[newcomer.rank] = newcomer
        self._came_at = newcomer.heard_at

    def due(self, now: float) -> bool:
        """Whether the members should hear of those who wait, or leave."""
        if self.asked:
            return False
        if self.wishes:
            return now - max(self.wishes.values()) >= _TOGETHER_S
        if not self.newcomers:
            return False
        expected = max(n.batch for n in self.newcomers.values())
        return len(self.newcomers) >= expected or now - self._came_at > _QUIET_S

    def begin(self) -> None:
        """The members are told."""
        self.asked, self.passed, self.leaving = True, {}, tuple(sorted(self.wishes))

    def end(self) -> None:
        """Nobody is to come or to go for now, or all have."""
        self.asked, self.passed, self.leaving = False, {}, ()
