"""Sets of ranks that are values: a number whose bits are the ranks, so that one more or less costs a job of ten
thousand ranks what it costs one of ten. Standard library only.

>>> live = Ranks.below(4) - {2}
>>> live, 2 in live, len(live), live | {7} == {0, 1, 3, 7}
(Ranks(0, 1, 3), False, 3, True)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

__all__ = ["Ranks"]


class Ranks:
    """A frozen set of ranks. Its operators take any collection of ranks on the other side, and iterate in order."""

    __slots__ = ("_bits",)

    def __init__(self, ranks: Iterable[int] = ()):
        self._bits = _bits(ranks)

    @classmethod
    def below(cls, count: int) -> Ranks:
        """The ranks from 0 to `count` - 1."""
        return cls._of((1 << count) - 1)

    @classmethod
    def _of(cls, bits: int) -> Ranks:
        found = cls.__new__(cls)
        found._bits = bits
        return found

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and rank >= 0 and bool(self._bits >> rank & 1)

    def __iter__(self) -> Iterator[int]:
        digits = bin(self._bits)[:1:-1]  # rank 0 first
        at = digits.find("1")
        while at >= 0:
            yield at
            at = digits.find("1", at + 1)

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return bool(self._bits)

    def __or__(self, other: Collection[int]) -> Ranks:
        return self._of(self._bits | _bits(other))

    def __and__(self, other: Collection[int]) -> Ranks:
        return self._of(self._bits & _bits(other))

    def __sub__(self, other: Collection[int]) -> Ranks:
        return self._of(self._bits & ~_bits(other))

    def __rsub__(self, other: Collection[int]) -> Ranks:
        return self._of(_bits(other) & ~self._bits)

    __ror__, __rand__ = __or__, __and__

    def __le__(self, other: Collection[int]) -> bool:
        return not self._bits & ~_bits(other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ranks):
            return self._bits == other._bits
        return set(self) == other if isinstance(other, set | frozenset) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self))  # equal to a set, equal in hash

    def __repr__(self) -> str:
        return f"Ranks({', '.join(map(str, self))})"


def _bits(ranks: Iterable[int]) -> int:
    if isinstance(ranks, Ranks):
        return ranks._bits
    if isinstance(ranks, range) and ranks.start == 0 and ranks.step == 1:
        return (1 << len(ranks)) - 1
    bits = 0
    for rank in ranks:
        bits |= 1 << rank
    return bits
