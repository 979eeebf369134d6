"""How often a value would be computed within one operation that reads it, and so whether it is written instead.

XLA computes an element once for each position that is asked for: operations that are elementwise ask where they are
asked, others at positions of their own. Slices and paddings of slices and paddings, as a scan makes them, multiply.
Above a limit the value is written (`FusionNodeIndexingEvaluation` in its source).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from propagation.ops import POINTWISE, REARRANGING

from ..heuristics import EMITTED_AGAIN, ROOMS_TRIED
from ..ir.program import LocalOp, LocalValue
from .fusible import is_spread, name_of

__all__ = ["Repeats", "may_repeat"]

# By the item that is written, whoever asks for elements at positions of its own, and for how many of them.
_Askers = Mapping[LocalOp, Mapping[LocalOp, int]]
_NOBODY: _Askers = {}


# What asks for elements elsewhere than its own are; a broadcast asks for fewer than there are of its own.
_ELSEWHERE = REARRANGING - frozenset(f"stablehlo.{n}" for n in ("broadcast_in_dim", "reshape", "transpose"))


def may_repeat(items: Sequence[LocalOp]) -> bool:
    """Whether there are as many items that ask for elements elsewhere as it could take to ask for one too often.

    A lower bound, which keeps small regions from being looked at: where each level doubled what is asked for with one
    item, so many levels would do. With two slices for each level it takes twice as many items.
    """
    needed = EMITTED_AGAIN.bit_length()
    for item in items:
        if item.name in _ELSEWHERE:
            needed -= 1
            if not needed:
                return True
    return False


class Repeats:
    """What is known of values, asked from the last item of a region to the first."""

    def __init__(self) -> None:
        self._askers: dict[LocalValue, _Askers] = {}

    def is_too_often(self, value: LocalValue, readers: Iterable[LocalOp], kept: set[LocalValue]) -> bool:
        """Whether a value would be computed more often than compilers allow by `readers`, of which those that give a
        value of `kept` are written."""
        askers = self._askers[value] = _merged([self._of(reader, kept) for reader in readers])
        if is_spread(value):
            return False
        return any(sum(each.values()) > EMITTED_AGAIN for each in askers.values())

    def _of(self, reader: LocalOp, kept: set[LocalValue]) -> _Askers:
        if not reader.results or any(value in kept for value in reader.results):
            return {reader: {reader: 1}}
        askers = self._askers.get(reader.results[0], _NOBODY)
        if name_of(reader) in POINTWISE or reader.name == "stablehlo.transpose":
            return askers
        return {root: {reader: sum(each.values())} for root, each in askers.items()}


def _merged(several: list[_Askers]) -> _Askers:
    """Who asks in any of several; nobody is told where that is in too many places."""
    if len(several) == 1:
        return several[0]
    found: dict[LocalOp, dict[LocalOp, int]] = {}
    for askers in several:
        for root, each in askers.items():
            found.setdefault(root, {}).update(each)
            if len(found) > ROOMS_TRIED:
                return _NOBODY
    return found
