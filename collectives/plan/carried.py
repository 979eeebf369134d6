"""What a loop carries on in one buffer, and what it copies because the old value is still read when the new one may be
there already.

XLA decides it before it puts operations in order: the new value may take the buffer of the old one if all that reads
the old one is needed for the new one, so that it runs before in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.program import LocalOp, LocalValue
from ..ir.walker import inputs

__all__ = ["Needs"]


class Needs:
    """Which readers of a loop's arguments run before an item in any order of the items.

    Items that are not `written` to memory are part of what reads them.
    """

    def __init__(self, args: Sequence[LocalValue], items: Sequence[LocalOp], written: Callable[[LocalOp], bool]):
        self._bits: dict[LocalOp, int] = {}  # of those that read arguments from memory, one each
        self._readers: dict[LocalValue, int] = {}  # per argument the bits of its readers
        self._before: dict[LocalOp, int] = {}
        arguments = set(args)
        reads: dict[LocalOp, list[LocalValue]] = {}  # what an item that is not written reads of them
        for item in items:
            before, read = 0, []
            for value in dict.fromkeys(inputs(item)):
                if value in arguments:
                    read.append(value)
                elif value.item in self._before:
                    before |= self._before[value.item] | self._bits.get(value.item, 0)
                    read += reads.get(value.item, ())
            self._before[item] = before
            if not written(item):
                reads[item] = list(dict.fromkeys(read))
            elif read:
                self._bits[item] = 1 << len(self._bits)
                for value in read:
                    self._readers[value] = self._readers.get(value, 0) | self._bits[item]

    def all_before(self, argument: LocalValue, item: LocalOp) -> bool:
        """Whether all that reads an argument, but for `item` itself, runs before it in any order."""
        return not self._readers.get(argument, 0) & ~self._bits.get(item, 0) & ~self._before[item]
