"""Buffers as spans of time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ..ir.program import LocalValue

__all__ = ["Span", "totals"]


class Span(NamedTuple):
    """A buffer that lives from item `first` of a region to item `last`, both included: that of a value, or of a copy of
    one in another order of dimensions."""

    value: LocalValue
    bytes: float
    first: int
    last: int
    is_copy: bool = False


def totals(spans: Sequence[Span], items: int) -> list[float]:
    """Bytes that live while each of a region's items runs."""
    change = [0.0] * (items + 1)
    for span in spans:
        change[span.first] += span.bytes
        change[span.last + 1] -= span.bytes
    return list(itertools.accumulate(change))[:items]
