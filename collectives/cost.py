"""What a collective costs: bytes each device sends, and time on a topology.

The formulas are those of bandwidth-optimal ring algorithms; n is the group size, b the bytes of a device's operand.
The busiest device counts.
"""

from __future__ import annotations

import math

from .network import Link

__all__ = ["ITEM_BITS", "item_bytes", "seconds", "sent_bytes"]

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

    `kind` is all_gather, reduce_scatter, all_reduce, all_to_all or collective_permute (whose operand is the payload
    of a device that sends to another).
    """
    if kind == "collective_permute":
        return operand
    if n <= 1:
        return 0.0
    if kind == "all_gather":
        return (n - 1) * operand
    if kind in ("reduce_scatter", "all_to_all"):
        return (n - 1) / n * operand
    if kind == "all_reduce":
        return 2 * (n - 1) / n * operand
    raise ValueError(f"unknown collective {kind!r}")


def seconds(kind: str, n: int, operand: float, link: Link) -> float:
    """Predicted time: latency of the algorithm's steps plus bytes over what the link gives such a collective.

    A ring collective takes `link.rounds` steps, on a switch the logarithm of the group's size.
    """
    if kind == "collective_permute":
        return link.latency + operand / (link.shift or link.bandwidth)
    if n <= 1:
        return 0.0
    rounds = link.rounds if link.rounds is not None else math.ceil(math.log2(n))
    if kind == "all_to_all":
        steps = link.rounds if link.rounds is not None else 1
        return steps * link.latency + sent_bytes(kind, n, operand) / (link.exchange or link.bandwidth)
    steps = rounds * (2 if kind == "all_reduce" else 1)
    return steps * link.latency + sent_bytes(kind, n, operand) / link.bandwidth
