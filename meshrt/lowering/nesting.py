"""How many calls stand within one another in the functions of a module."""

from __future__ import annotations

from meshrt.heuristics import NESTED_CALLS

__all__ = ["Nesting"]


class Nesting:
    """The height of each function, a function without calls having height 1, while functions are written.

    >>> nesting = Nesting()
    >>> nesting.begin(), nesting.end("leaf"), nesting.begin(), nesting.note("leaf"), nesting.end("caller")
    (None, None, None, None, None)
    >>> nesting.is_deep("caller")
    False
    """

    def __init__(self) -> None:
        self._heights: dict[str, int] = {}
        self._open = [0]  # of the functions being written, the module's `@main` first

    def begin(self) -> None:
        """A function is begun, while the one before is still being written."""
        self._open.append(0)

    def end(self, symbol: str) -> None:
        """The function that was begun last is written."""
        self._heights[symbol] = self._open.pop() + 1

    def note(self, symbol: str) -> None:
        """The function being written calls this one."""
        self._open[-1] = max(self._open[-1], self._heights[symbol])

    def is_deep(self, symbol: str) -> bool:
        """Whether one more call around it is more than compilers take: its body is then written in place."""
        return self._heights[symbol] >= NESTED_CALLS
