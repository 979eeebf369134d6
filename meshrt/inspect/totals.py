"""What the collectives of a report come to: by kind, by mesh axis, by source line, by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collectives.findings import human
from meshrt.inspect.model import CollectiveRow, Report
from meshrt.inspect.scopes import layer_of

__all__ = ["Total", "by_axes", "by_kind", "by_layer", "by_line", "other_branches"]


@dataclass(frozen=True, slots=True)
class Total:
    """The collectives that share a `key`. `count` is how many run, `bytes` what the busiest device of each sends in
    them, `seconds` their predicted time, all per run of the program; a loop of unknown length counts once."""

    key: str
    count: int
    bytes: float
    seconds: float


def by_kind(report: Report) -> tuple[Total, ...]:
    """Per kind of collective, the most bytes first."""
    return _totals((c.kind, c.bytes, c) for c in report.collectives)


def by_axes(report: Report) -> tuple[Total, ...]:
    """Per mesh axes that the groups run over, the most bytes first."""
    return _totals((c.axes or "-", c.bytes, c) for c in report.collectives)


def by_line(report: Report) -> tuple[Total, ...]:
    """Per source line, the most bytes first; a combined collective counts for the lines of its members."""
    return _totals(
        (where or "-", sent, c)
        for c in report.collectives
        for where, sent in ([(m.where, m.bytes) for m in c.members] or [(c.where, c.bytes)])
    )


def by_layer(report: Report) -> tuple[Total, ...]:
    """Per layer, the scopes that an operation was made in, the most bytes first; forward and backward pass are one."""
    return _totals(
        (layer_of(scope) or "-", sent, c)
        for c in report.collectives
        for scope, sent in ([(m.scope, m.bytes) for m in c.members] or [(c.scope, c.bytes)])
    )


def _totals(rows: Iterable[tuple[str, float, CollectiveRow]]) -> tuple[Total, ...]:
    """Totals of (key, bytes each time, collective): its time is shared out as its bytes are."""
    sums: dict[str, list[float]] = {}
    for key, sent, row in rows:
        times = 1 if row.times is None else row.times
        share = sent / row.bytes if row.bytes else 1.0
        total = sums.setdefault(key, [0, 0.0, 0.0])
        total[0] += times
        total[1] += sent * times
        total[2] += row.seconds * share * times
    most: Callable[[Total], float] = lambda t: -t.bytes
    return tuple(sorted((Total(k, int(n), b, s) for k, (n, b, s) in sums.items()), key=most))


def other_branches(report: Report) -> str:
    """What stands behind the bytes that a report's program sends: how few they are if it takes other branches."""
    if report.least_bytes == report.bytes:
        return ""
    return f" ({human(report.least_bytes)} at least, by which branches it takes)"
