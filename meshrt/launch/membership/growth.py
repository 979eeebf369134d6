"""Processes that come to a job which runs, and the step at which the others let them in: a part of the roster.

Who comes waits at the door. When all have come that were started together, or nobody else has for a while, the members
are told. Each tells at once how many boundaries between steps it has passed, and passes no other one before it has
heard where to leave off: at the first that none has passed, which is known when all have told. So nobody waits at a
boundary for one that waits for it in a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Growth", "Newcomer"]

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
    """Who waits, and how far the members have agreed on when to let them in."""

    newcomers: dict[int, Newcomer] = field(default_factory=dict)  # by rank
    asked: bool = False  # the members were told that somebody waits
    passed: dict[int, int] = field(default_factory=dict)  # boundaries that each member has told
    _came_at: float = 0.0

    def come(self, newcomer: Newcomer) -> None:
        """One more waits."""
        self.newcomers[newcomer.rank] = newcomer
        self._came_at = newcomer.heard_at

    def due(self, now: float) -> bool:
        """Whether the members should hear of those who wait."""
        if self.asked or not self.newcomers:
            return False
        expected = max(n.batch for n in self.newcomers.values())
        return len(self.newcomers) >= expected or now - self._came_at > _QUIET_S

    def begin(self) -> None:
        """The members are told."""
        self.asked, self.passed = True, {}

    def end(self) -> None:
        """Nobody is to be let in for now, or all have been."""
        self.asked, self.passed = False, {}
