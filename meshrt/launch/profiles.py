"""What ``--profile`` asks of ranks: which of them record a trace, of which steps, and where."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

from meshrt.errors import ConfigError

__all__ = ["request", "steps", "traced"]

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_STEPS = re.compile(r"(\d{1,15})(?::(\d{1,15}))?")


def traced(ranks: object, most: int = 1 << 32) -> Callable[[int], bool]:
    """Whether a rank is one of `ranks`, as "0,4-7" or "all"; None is nobody. ConfigError if it is neither, or none of
    them is in a job of `most` ranks."""
    if ranks is None:
        return lambda rank: False
    if ranks == "all":
        return lambda rank: True
    found = [_RANGE.fullmatch(part.strip()) for part in str(ranks).split(",")]
    ends = [(int(m[1]), int(m[2] or m[1])) for m in found if m is not None]
    if len(ends) < len(found) or isinstance(ranks, bool | float) or any(first > last for first, last in ends):
        raise ConfigError(f"profile = {ranks!r}: expected ranks, as in 0 or 0,4-7, or all")
    if min(first for first, _ in ends) >= most:
        raise ConfigError(f"profile = {ranks!r}: the job has ranks 0 to {most - 1} at most")
    return lambda rank: any(first <= rank <= last for first, last in ends)


def steps(asked: object) -> tuple[int | None, int]:
    """The first step, or None, and how many: of "5" or "100:105". ConfigError if it is neither."""
    found = _STEPS.fullmatch(str(asked))
    if found is not None and not isinstance(asked, bool | float):
        first, last = (None, int(found[1])) if found[2] is None else (int(found[1]), int(found[2]))
        count = last if first is None else last - first + 1
        if count > 0 and first != 0:
            return first, count
    raise ConfigError(
        f"profile_steps = {asked!r}: expected a number of steps, or the first and the last as in 100:105, from 1 on"
    )


def request(folder: str, asked: str) -> str:
    """What a rank that records is told."""
    first, count = steps(asked)
    return json.dumps({"folder": os.path.abspath(folder), "first": first, "count": count})
