"""What changed between two reports: figures, shardings of arguments and results, collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectives.findings import human_time
from meshrt.errors import InspectError
from meshrt.inspect.files import read_json
from meshrt.inspect.model import CollectiveRow, Report, ValueRow

__all__ = ["Change", "CollectiveChange", "Comparison", "compare", "read_report"]


@dataclass(frozen=True, slots=True)
class Change:
    """Something that has another value now; None where it was not there, or is no more."""

    what: str
    before: str | float | None
    after: str | float | None


@dataclass(frozen=True, slots=True)
class CollectiveChange:
    """A collective that runs more or less often, or sends more or less: `count` and `bytes` are (before, after) per run
    of the program. `because` says what of the programs causes that, where they were there to be asked."""

    kind: str
    axes: str
    where: str | None
    cause: str
    count: tuple[int, int]
    bytes: tuple[float, float]
    because: tuple[str, ...] = ()

    @property
    def growth(self) -> float:
        """Bytes per run of the program that are sent more than before; less than 0 where fewer are."""
        return self.bytes[1] - self.bytes[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of two reports, `figures` being totals, `shardings` those of arguments and results by name;
    `collectives` begin with those whose bytes changed most."""

    before: str
    after: str
    figures: tuple[Change, ...]
    shardings: tuple[Change, ...]
    collectives: tuple[CollectiveChange, ...]

    @staticmethod
    def from_json(data: dict[str, Any]) -> Comparison:
        """The inverse of `dataclasses.asdict`."""
        pairs: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: {
            k: tuple(v) if isinstance(v, list) else v for k, v in row.items()
        }
        return Comparison(
            data["before"], data["after"], tuple(Change(**row) for row in data["figures"]),
            tuple(Change(**row) for row in data["shardings"]),
            tuple(CollectiveChange(**pairs(row)) for row in data["collectives"]),
        )  # fmt: skip

    @property
    def is_equal(self) -> bool:
        """Whether nothing changed."""
        return not (self.figures or self.shardings or self.collectives)


# Totals that are compared, with what they are called.
FIGURES = {
    "devices": "devices", "bytes_sent_per_device": "bytes sent per device and run",
    "peak_bytes_per_device": "peak memory per device", "argument_bytes_per_device": "arguments per device",
    "replicated_argument_bytes": "replicated arguments", "result_bytes_per_device": "results per device",
}  # fmt: skip


def read_report(path: Path) -> Report:
    """The report that `--json` wrote into a file. InspectError for what is none, or of another version."""
    data = read_json(str(path), "a report that `meshrt inspect --json` wrote")
    try:
        return Report.from_json(data)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise InspectError(
            f"{path}: no report as this version of `meshrt inspect --json` writes it ({type(e).__name__}: {e}); "
            "write it again"
        ) from e


def compare(before: Report, after: Report) -> Comparison:
    """What `after` has otherwise than `before`. Collectives are matched by kind, axes, source line and cause, wherever
    the lines' file lies; where lines were moved, those of equal kind, axes and cause are matched in their order.

    >>> from meshrt.inspect import compare, report
    >>> before, after = (report(meshrt.jit(f).lower(jnp.ones(8))) for f in (jnp.sin, jnp.cos))
    >>> compare(before, after).is_equal  # one value in, one out, nothing sent
    True
    """
    old, new = before.as_json()["totals"], after.as_json()["totals"]
    mesh = [", ".join(f"{n}={s}" for n, s in report.mesh) for report in (before, after)]
    figures = [Change("mesh", *mesh)] if mesh[0] != mesh[1] else []
    figures += [Change(text, old[key], new[key]) for key, text in FIGURES.items() if old[key] != new[key]]
    times = [None if r.timing is None else human_time(r.timing.seconds) for r in (before, after)]
    if times[0] != times[1]:
        figures.append(Change("predicted time per run", *times))
    shardings = [
        *_shardings("", before.arguments, after.arguments),
        *_shardings("result ", before.results, after.results),
    ]
    changes = _collectives(before.collectives, after.collectives)
    return Comparison(before.name, after.name, tuple(figures), tuple(shardings), changes)


def _shardings(prefix: str, before: Sequence[ValueRow], after: Sequence[ValueRow]) -> list[Change]:
    text = lambda row: None if row is None else f"{row.type} {row.sharding}"
    old, new = {row.name: row for row in before}, {row.name: row for row in after}
    names = [*new, *(name for name in old if name not in new)]
    found = [Change(prefix + name, text(old.get(name)), text(new.get(name))) for name in names]
    return [c for c in found if c.before != c.after]


@dataclass(slots=True)
class _Sum:
    """Collectives alike: an example, how many run, what they send."""

    row: CollectiveRow
    count: int = 0
    bytes: float = 0.0


def _sums(rows: Sequence[CollectiveRow]) -> dict[tuple[str, ...], _Sum]:
    found: dict[tuple[str, ...], _Sum] = {}
    for row in rows:
        line = (row.where or "").replace("\\", "/").rpartition("/")[2]
        entry = found.setdefault((row.kind, row.axes, row.cause, line), _Sum(row))
        entry.count += row.times or 1
        entry.bytes += row.total
    return found


def _collectives(before: Sequence[CollectiveRow], after: Sequence[CollectiveRow]) -> tuple[CollectiveChange, ...]:
    old, new = _sums(before), _sums(after)
    pairs: list[tuple[_Sum | None, _Sum | None]] = [(old.pop(k), new.pop(k)) for k in [*old] if k in new]
    for key in [*old]:  # the line was moved
        moved = next((k for k in new if k[:3] == key[:3]), None)
        if moved is not None:
            pairs.append((old.pop(key), new.pop(moved)))
    pairs += [(o, None) for o in old.values()] + [(None, n) for n in new.values()]
    changes = [_change(o, n) for o, n in pairs if o is None or n is None or (o.count, o.bytes) != (n.count, n.bytes)]
    return tuple(sorted(changes, key=lambda c: -abs(c.growth)))


def _change(before: _Sum | None, after: _Sum | None) -> CollectiveChange:
    shown = after or before
    assert shown is not None  # one of them is there
    o, n = (before or _Sum(shown.row)), (after or _Sum(shown.row))
    row = shown.row
    return CollectiveChange(row.kind, row.axes, row.where, row.cause, (o.count, n.count), (o.bytes, n.bytes))
