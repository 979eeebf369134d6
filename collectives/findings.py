"""Findings: what could not stay sharded; and how amounts are written for people."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding", "human", "human_time", "humans"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the user may want to change, as text a line. `bytes` are sent per device and run of the operation,
    `where` is its source line; None if that is not known.

    >>> import collectives
    >>> print(collectives.Finding("gather", "argument 0 is gathered whole", "train.py:57", 2048))
    train.py:57: argument 0 is gathered whole (2 KiB per device)
    """

    kind: str
    message: str
    where: str | None
    bytes: float

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cost = f" ({human(self.bytes)} per device)" if self.bytes else ""
        return f"{place}{self.message}{cost}"


def human(n: float) -> str:
    """`3.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.4g} {unit}"
        n /= 1024
    raise AssertionError


def humans(*sizes: float) -> list[str]:
    """Sizes as `human` writes them, or to the byte where that would make different ones look alike.

    >>> humans(538118, 538144), humans(1024, 4096)
    (['538,118 B', '538,144 B'], ['1 KiB', '4 KiB'])
    """
    short = list(map(human, sizes))
    if len(set(short)) < len({round(n) for n in sizes}):
        return [f"{n:,.0f} B" for n in sizes]
    return short


def human_time(seconds: float) -> str:
    """`12.5 us`."""
    if seconds < 1e-12:  # differences of equal times are as small
        return "0 us"
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
