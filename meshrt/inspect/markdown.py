"""A report, or what changed between two, as GitHub-flavoured Markdown: for a pull request or a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.findings import human, human_time, humans
from meshrt.errors import counted
from meshrt.inspect.changes import FIGURES, Change, CollectiveChange, Comparison
from meshrt.inspect.model import FindingRow, LintRow, Report, ValueRow
from meshrt.inspect.render import clean, figures_text, shorten
from meshrt.inspect.totals import Total, by_axes, by_line, other_branches

__all__ = ["comparison_markdown", "report_markdown"]

_SHOWN = 30  # rows of a table; the rest is counted
_ESCAPED = {c: f"\\{c}" for c in "\\`*_{}[]<>|!~&$"} | {c: f"{c}&#8203;" for c in "@#"}


def report_markdown(report: Report) -> str:
    """The whole report, long tables folded."""
    totals = report.as_json()["totals"]
    seconds = totals["seconds_sending"]
    devices = counted(report.devices, "device")
    lines = [
        f"### {_text(report.name)}", "",
        f"{devices}, mesh {_text(', '.join(f'{n}={s}' for n, s in report.mesh) or 'none')}: "
        f"**{human(report.bytes)}** sent per device and run{other_branches(report)} ({human_time(seconds)} predicted)"
        + ("" if report.memory is None else f", **{human(report.memory.peak_bytes)}** held at most (estimated)")
        + ("" if report.timing is None else f", **{human_time(report.timing.seconds)}** per run (predicted)"),
        "",
    ]  # fmt: skip
    lines += [f"- :warning: {_at(f)}{_text(f.message)}{_cost(f)}" for f in report.findings]
    lines += _lint(report.lint or ())
    lines += _folded("Collectives", _table(
        ("kind", "axes", "bytes", "times", "source", "cause"),
        [
            (c.kind, c.axes or "-", human(c.bytes), "?" if c.times is None else str(c.times), shorten(c.where), c.cause)
            for c in report.collectives
        ],
    ))  # fmt: skip
    lines += _folded("Sent per source line", _totals("source", by_line(report)))
    lines += _folded("Sent per mesh axis", _totals("axes", by_axes(report)))
    lines += _folded("Arguments", _values(report.arguments))
    lines += _folded("Results", _values(report.results))
    if report.memory is not None:
        held = [(h.what, h.type, str(h.count), human(h.bytes), shorten(h.where)) for h in report.memory.alive]
        lines += _folded("Held at the peak", _table(("what", "type", "count", "bytes", "source"), held))
    lines += _folded("Kernels", _table(
        ("kernel", "grid", "held by a core", "copies", "copied", "sent", "source"),
        [
            (
                k.name, "x".join(map(str, k.grid)) or "-", ", ".join(f"{m.memory} {human(m.bytes)}" for m in k.memory),
                str(k.copies), human(k.moved), human(k.sent), shorten(k.where),
            )
            for k in report.kernels
        ],
    ))  # fmt: skip
    lines += [_text(line) for line in report.explanations]
    return "\n".join(lines).rstrip() + "\n"


def _lint(rows: Sequence[LintRow]) -> list[str]:
    lines = []
    for row in rows:
        lines.append(f"- :bulb: {_at(row)}{_text(row.message)} `{row.rule}`{_cost(row)}")
        if row.remedy is not None:
            lines.append(f"  - {_text(row.remedy.text)}: {figures_text(row.remedy)}")
    return [*lines, ""] if lines else []


def _at(row: FindingRow | LintRow) -> str:
    return f"{_text(shorten(row.where))}: " if row.where else ""


def _cost(row: FindingRow | LintRow) -> str:
    return f" ({human(row.bytes)})" if row.bytes else ""


def comparison_markdown(comparison: Comparison) -> str:
    """What changed, as the comment of a pull request."""
    lines = [f"### {_text(comparison.after)}", ""]
    if comparison.is_equal:
        return "\n".join([*lines, f"Shardings, communication and memory are those of {_text(comparison.before)}.", ""])
    figures = [(c.what, *_figures(c), _share(c)) for c in comparison.figures]
    lines += _table(("", "before", "after", "change"), figures) if figures else []
    collectives = [
        (c.kind, c.axes or "-", *_counts(c), shorten(c.where), c.cause, "; ".join(c.because))
        for c in comparison.collectives
    ]
    lines += _folded(
        "Collectives", _table(("kind", "axes", "run", "sent", "source", "cause", "because of"), collectives), True
    )
    shardings = [(c.what, str(c.before or "-"), str(c.after or "-")) for c in comparison.shardings]
    lines += _folded("Shardings", _table(("value", "before", "after"), shardings), True)
    return "\n".join(lines).rstrip() + "\n"


def _counts(change: CollectiveChange) -> tuple[str, str]:
    runs, sent = change.count, change.bytes
    return f"{runs[0]} → {runs[1]}", " → ".join(humans(*sent))


def _figures(change: Change) -> list[str]:
    before, after = change.before, change.after
    numbers = [v for v in (before, after) if isinstance(v, int | float)]
    if change.what == FIGURES["devices"] or len(numbers) < 2:
        return [_figure(change.what, v) for v in (before, after)]
    return humans(*numbers)


def _figure(what: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value or "-")
    return str(value) if what == FIGURES["devices"] else human(value)


def _share(change: Change) -> str:
    before, after = change.before, change.after
    if not isinstance(before, int | float) or not isinstance(after, int | float) or not before:
        return ""
    return f"{(after - before) / before:+.1%}"


def _values(rows: Sequence[ValueRow]) -> list[str]:
    cells = [(v.name, v.type, v.sharding, v.device_type, human(v.device_bytes)) for v in rows]
    return _table(("name", "type", "sharding", "per device", "bytes"), cells)


def _totals(key: str, rows: Sequence[Total]) -> list[str]:
    name = shorten if key == "source" else str
    cells = [(name(t.key), str(t.count), human(t.bytes), human_time(t.seconds)) for t in rows]
    return _table((key, "run", "bytes", "time"), cells)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(map(_text, line))} |" for line in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        lines.append(f"| and {len(rows) - _SHOWN} more |" + " |" * (len(head) - 1))
    return [*lines, ""]


def _folded(title: str, table: list[str], is_open: bool = False) -> list[str]:
    if not table:
        return []
    count = len(table) - 3
    return [f"<details{' open' if is_open else ''}><summary>{title} ({count})</summary>", "", *table, "</details>", ""]


def _text(text: str) -> str:
    """Text of a program, in which nothing is markup. What follows an `@` or a `#` would be looked up as a person or an
    issue even behind a backslash, so a space without width stands between."""
    return "".join(_ESCAPED.get(c, c) for c in clean(text))
