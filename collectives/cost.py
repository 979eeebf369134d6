"""What a collective costs: bytes each device sends, and time on a topology.

The formulas are those of bandwidth-optimal ring algorithms (`kinds` has one for each collective). The busiest device
counts.
"""

from __future__ import annotations

import math

from .kinds import kind_of
from .network import Link

__all__ = ["ITEM_BITS", "item_bytes", "seconds", "seconds_to_send", "sent_bytes"]

ITEM_BITS = {
    "i1": 8, "i2": 2, "ui2": 2, "i4": 4, "ui4": 4, "i8": 8, "ui8": 8, "i16": 16, "ui16": 16, "i32": 32,
    "ui32": 32, "i64": 64, "ui64": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "tf32": 32,
    "complex<f32>": 64, "complex<f64>": 128,
    "f8E4M3": 8, "f8E3M4": 8, "f8E4M3FN": 8, "f8E4M3FNUZ": 8, "f8E4M3B11FNUZ": 8, "f8E5M2": 8, "f8E5M2FNUZ": 8,
    "f8E8M0FNU": 8, "f4E2M1FN": 4, "f6E2M3FN": 6, "f6E3M2FN": 6,
}  # fmt: skip


_ITEM_BYTES = {dtype: bits / 8 for dtype, bits in ITEM_BITS.items()}


def item_bytes(dtype: str) -> float:
    """Bytes of one element (below one for packed types). Element types of other dialects count as one byte."""
    return _ITEM_BYTES.get(dtype, 1.0)


def sent_bytes(kind: str, n: int, operand: float) -> float:
    """Bytes one device sends in a collective over groups of `n` with `operand` bytes per device.

    `kind` is the name of one of `kinds`; the operand of a permute is the payload of a device that sends to another.
    """
    k = kind_of(kind)
    return 0.0 if n <= 1 and not k.pairs else k.sent(n, operand)


def seconds(kind: str, n: int, operand: float, link: Link) -> float:
    """Predicted time of a collective over groups of `n` with `operand` bytes per device."""
    return seconds_to_send(kind, n, sent_bytes(kind, n, operand), link)


def seconds_to_send(kind: str, n: int, sent: float, link: Link) -> float:
    """Predicted time of a collective in which a device sends `sent` bytes: latency of the algorithm's steps plus bytes
    over what the link gives such a collective.

    A ring takes `link.rounds` steps each time that it goes around, on a switch the logarithm of the group's size; an
    exchange as many, on a switch one; a shift one.
    """
    k = kind_of(kind)
    if k.pattern == "shift":
        return link.latency + sent / (link.shift or link.bandwidth)
    if n <= 1:
        return 0.0
    if k.pattern == "exchange":
        steps = link.rounds if link.rounds is not None else 1
        return steps * link.latency + sent / (link.exchange or link.bandwidth)
    rounds = link.rounds if link.rounds is not None else math.ceil(math.log2(n))
    return k.phases * rounds * link.latency + sent / link.bandwidth
