"""Whether a process slept: it was stopped, its container was frozen, or its machine stood still.

Clocks go on meanwhile, and who wakes up finds that nobody has been heard of for long, by itself. Whoever waits for
others with a clock asks here whenever it looks at it, and leaves such times out.
"""

from __future__ import annotations

__all__ = ["Naps"]

_LONG_S = 3.0  # Chosen: under load a thread may wait some seconds for its turn, and that need not be left out


class Naps:
    """Asked at least once in `every_s` while the process is awake.

    >>> naps = Naps()
    >>> [naps.slept(now) for now in (0.0, 1.0, 1.5, 21.5, 22.0)]
    [0.0, 0.0, 0.0, 19.0, 0.0]
    """

    def __init__(self, every_s: float = 1.0):
        self._every_s = every_s
        self._asked_at: float | None = None

    def slept(self, now: float) -> float:
        """The seconds since it was asked last in which the process cannot have been awake; 0 if there were but few."""
        before, self._asked_at = self._asked_at, now
        over = 0.0 if before is None else now - before - self._every_s
        return over if over > _LONG_S else 0.0
