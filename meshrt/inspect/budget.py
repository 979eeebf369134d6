"""Limits on what a program may send and hold, kept in a TOML file beside the program for `meshrt inspect --check`.

    ["train.py:step"]
    bytes_sent = 1048576        # by the busiest device per run of the program
    peak_memory = 8388608       # bytes of a device, as estimated before compiling
    replicated = 65536          # bytes of arguments that every device holds whole
    collectives.all_gather = 4  # how many may run; kinds that are not named must not occur
    lint.whole-gather = 1       # how many findings of a rule of lint there may be; of others there must be none

A limit that is left out is not checked.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectives.findings import human, humans
from collectives.kinds import kinds
from meshrt.errors import InspectError
from meshrt.inspect.files import read_toml, toml_text, writable
from meshrt.inspect.lint.rules import rule_names
from meshrt.inspect.model import Report
from meshrt.inspect.totals import by_kind, by_line

__all__ = ["Budget", "Excess", "budget_of", "check", "read_budgets", "write_budget"]

_LIMITS = ("bytes_sent", "peak_memory", "replicated")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one program; None where there is none. `collectives` maps kinds to how many may run, None for any, and
    `lint` rules to how many findings there may be, None where lint is not asked."""

    bytes_sent: float | None = None
    peak_memory: float | None = None
    replicated: float | None = None
    collectives: Mapping[str, int] | None = None
    lint: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that a program is above, and the lines that count most in it."""

    what: str
    limit: float
    found: float
    lines: tuple[str, ...]

    def __str__(self) -> str:
        both = (self.found, self.limit)
        is_count = self.what in kinds() or self.what in rule_names()
        sizes = [f"{n:.0f}" for n in both] if is_count else humans(*both)
        head = "{}: {}, budget {}".format(self.what.replace("_", " "), *sizes)
        return "\n".join([head, *(f"  {line}" for line in self.lines)])


def budget_of(report: Report) -> Budget:
    """What a program sends and holds now, as its limits."""
    totals = report.as_json()["totals"]
    counts = {t.key: t.count for t in sorted(by_kind(report), key=lambda t: t.key)}
    peak = totals["peak_bytes_per_device"]
    lint = None if report.lint is None else dict(sorted(Counter(row.rule for row in report.lint).items()))
    return Budget(totals["bytes_sent_per_device"], peak, totals["replicated_argument_bytes"], counts, lint)


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
    for rule, count in (now.lint or {}).items():
        limit = None if budget.lint is None else budget.lint.get(rule, 0)
        if limit is not None and count > limit:
            texts = [f"{row.where or '?'}: {row.message}" for row in report.lint or () if row.rule == rule]
            found.append(Excess(rule, limit, count, tuple(texts[:_SHOWN])))
    return tuple(found)


_SHOWN = 8  # lines of an excess


def read_budgets(path: Path) -> dict[str, Budget]:
    """The budgets of a file by program. InspectError for what is none."""
    if not path.exists():
        raise InspectError(f"{path}: No such file or directory; `--update` writes one")
    data = read_toml(str(path), "a file of budgets, as --update writes it")
    return {name: _budget(path, name, table) for name, table in data.items()}


def _budget(path: Path, name: str, table: Any) -> Budget:
    if not isinstance(table, dict):
        raise InspectError(f'{path}: {name} is no table; limits stand below a program, ["train.py:step"]')
    for key, value in table.items():
        if key in _COUNTED:
            _check_counts(path, f"{name}.{key}", key, value)
        elif key in _LIMITS:
            _number(path, f"{name}.{key}", value)
        else:
            raise InspectError(f"{path}: {name}.{key} is no limit; there are {', '.join([*_LIMITS, *_COUNTED])}")
    return Budget(**table)


# What is counted by name: what a name is, and which there are.
_COUNTED: Mapping[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "collectives": ("collective", kinds), "lint": ("rule", rule_names),
}  # fmt: skip


def _check_counts(path: Path, key: str, what: str, table: Any) -> None:
    kind, names = _COUNTED[what]
    if not isinstance(table, dict):
        raise InspectError(f"{path}: {key} = {table!r} is no table; write {{ {next(iter(names()))} = 1 }}")
    for name, value in table.items():
        if name not in names():
            raise InspectError(f"{path}: {key}.{name} is no {kind}; there are {', '.join(names())}")
        _number(path, f"{key}.{name}", value)


def _number(path: Path, key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InspectError(f"{path}: {key} = {value!r} is no limit; give a number that is not negative")


def write_budget(path: Path, name: str, budget: Budget) -> None:
    """Puts the budget of a program into a file, which keeps those of other programs. The file is replaced whole."""
    budgets = read_budgets(path) if path.exists() else {}
    budgets[writable(name)] = budget
    text = "\n".join(_table(n, b) for n, b in budgets.items())
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, text=True)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as f:
                f.write(text)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as e:
        raise InspectError(f"{path}: {e.strerror or e}; give --check a file that can be written") from None


def _table(name: str, budget: Budget) -> str:
    lines = [f"[{toml_text(name)}]"]
    lines += [f"{key} = {_text(getattr(budget, key))}" for key in _LIMITS if getattr(budget, key) is not None]
    for what in _COUNTED:
        table = getattr(budget, what)
        if table is not None:
            counts = ", ".join(f"{kind} = {_text(n)}" for kind, n in table.items())
            lines.append(f"{what} = {{ {counts} }}" if counts else f"{what} = {{}}")
    return "\n".join(lines) + "\n"


def _text(n: float) -> str:
    return str(int(n)) if float(n).is_integer() else repr(float(n))
