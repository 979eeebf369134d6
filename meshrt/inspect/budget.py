"""Limits on what a program may send and hold, kept in a TOML file beside the program for `meshrt inspect --check`.

    ["train.py:step"]
    bytes_sent = 1048576        # by the busiest device per run of the program
    peak_memory = 8388608       # bytes of a device, as estimated before compiling
    replicated = 65536          # bytes of arguments that every device holds whole
    collectives.all_gather = 4  # how many may run; kinds that are not named must not occur

A limit that is left out is not checked.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectives.findings import human
from collectives.kinds import kinds
from meshrt.errors import InspectError
from meshrt.inspect.model import Report
from meshrt.inspect.totals import by_kind, by_line

__all__ = ["Budget", "Excess", "budget_of", "check", "read_budgets", "write_budget"]

_LIMITS = ("bytes_sent", "peak_memory", "replicated")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one program; None where there is none. `collectives` maps kinds to how many may run, None for any."""

    bytes_sent: float | None = None
    peak_memory: float | None = None
    replicated: float | None = None
    collectives: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that a program is above, and the lines that count most in it."""

    what: str
    limit: float
    found: float
    lines: tuple[str, ...]

    def __str__(self) -> str:
        sizes = (f"{n:.0f}" if self.what in kinds() else human(n) for n in (self.found, self.limit))
        head = "{}: {}, budget {}".format(self.what.replace("_", " "), *sizes)
        return "\n".join([head, *(f"  {line}" for line in self.lines)])


def budget_of(report: Report) -> Budget:
    """What a program sends and holds now, as its limits."""
    totals = report.as_json()["totals"]
    counts = {t.key: t.count for t in sorted(by_kind(report), key=lambda t: t.key)}
    peak = totals["peak_bytes_per_device"]
    return Budget(totals["bytes_sent_per_device"], peak, totals["replicated_argument_bytes"], counts)


def check(report: Report, budget: Budget) -> tuple[Excess, ...]:
    """The limits that a report is above."""
    now, found = budget_of(report), []
    lines = {
        "bytes_sent": lambda: [f"{t.key}: {human(t.bytes)}" for t in by_line(report)],
        "peak_memory": lambda: [] if report.memory is None else [
            f"{h.where or h.what}: {h.what} {h.type}, {human(h.bytes)}" for h in report.memory.alive
        ],
        "replicated": lambda: [
            f"{v.name} {v.type}: {human(v.device_bytes)}"
            for v in sorted(report.arguments, key=lambda v: -v.device_bytes) if v.is_replicated
        ],
    }  # fmt: skip
    for name in _LIMITS:
        limit, value = getattr(budget, name), getattr(now, name)
        if limit is not None and value is not None and value > limit:
            found.append(Excess(name, limit, value, tuple(lines[name]()[:_SHOWN])))
    for kind, count in (now.collectives or {}).items():
        limit = None if budget.collectives is None else budget.collectives.get(kind, 0)
        if limit is not None and count > limit:
            of_kind = [c for c in report.collectives if c.kind == kind]
            rows = [f"{c.where or '?'}: {c.cause}, {c.times or 1} times {human(c.bytes)}" for c in of_kind]
            found.append(Excess(kind, limit, count, tuple(rows[:_SHOWN])))
    return tuple(found)


_SHOWN = 8  # lines of an excess


def read_budgets(path: Path) -> dict[str, Budget]:
    """The budgets of a file by program. InspectError for what is none."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InspectError(f"{path}: {e.strerror or e}; `--update` writes one") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InspectError(f"{path}: not TOML: {e}") from e
    return {name: _budget(path, name, table) for name, table in data.items()}


def _budget(path: Path, name: str, table: Any) -> Budget:
    if not isinstance(table, dict):
        raise InspectError(f'{path}: {name} is no table; limits stand below a program, ["train.py:step"]')
    for key, value in table.items():
        if key == "collectives":
            continue
        if key not in _LIMITS:
            raise InspectError(f"{path}: {name}.{key} is no limit; there are {', '.join(_LIMITS)} and collectives")
        _number(path, f"{name}.{key}", value)
    counts = table.get("collectives")
    for kind, value in (counts or {}).items():
        if kind not in kinds():
            raise InspectError(f"{path}: {name}.collectives.{kind} is no collective; there are {', '.join(kinds())}")
        _number(path, f"{name}.collectives.{kind}", value)
    return Budget(collectives=counts, **{k: v for k, v in table.items() if k in _LIMITS})


def _number(path: Path, key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InspectError(f"{path}: {key} = {value!r} is no limit; give a number that is not negative")


def write_budget(path: Path, name: str, budget: Budget) -> None:
    """Puts the budget of a program into a file, which keeps those of other programs. The file is replaced whole."""
    budgets = read_budgets(path) if path.exists() else {}
    budgets[name] = budget
    text = "\n".join(_table(n, b) for n, b in budgets.items())
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _table(name: str, budget: Budget) -> str:
    lines = [f"[{json.dumps(name)}]"]
    lines += [f"{key} = {_text(getattr(budget, key))}" for key in _LIMITS if getattr(budget, key) is not None]
    if budget.collectives is not None:
        counts = ", ".join(f"{kind} = {_text(n)}" for kind, n in budget.collectives.items())
        lines.append(f"collectives = {{ {counts} }}" if counts else "collectives = {}")
    return "\n".join(lines) + "\n"


def _text(n: float) -> str:
    return str(int(n)) if float(n).is_integer() else repr(float(n))
