"""Parts of runs, as they lie on the devices that send and get them, and the rounds in which they travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Part", "Round", "in_whole"]


class Part(NamedTuple):
    """`length` elements, `stride` apart, that device `source` holds from `start` on and device `target` needs from `to`
    on. Devices are coordinates along the split dimension, positions are local."""

    source: int
    target: int
    start: int
    to: int
    length: int
    stride: int = 1


class Round(NamedTuple):
    """Parts that one collective permute sends; if `local`, parts that stay on their devices."""

    operand: int
    parts: list[Part]
    local: bool


def in_whole(parts: Sequence[Part], have: int) -> list[Part]:
    """The parts as they lie in all pieces (of `have` positions) side by side, which every device has; those that follow
    each other are one."""
    out: list[Part] = []
    for part in parts:
        new = part._replace(source=part.target, start=part.source * have + part.start)
        last = out[-1] if out else None
        if last is not None and last.target == new.target and last.stride == new.stride:
            ends = last.start + last.length * last.stride, last.to + last.length
            if ends == (new.start, new.to):
                out[-1] = last._replace(length=last.length + new.length)
                continue
        out.append(new)
    return out
