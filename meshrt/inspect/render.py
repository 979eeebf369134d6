"""Tables of a report for the terminal.

Texts from a module are data: control characters in them are shown, not obeyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collectives.plan import human
from meshrt.inspect.model import CollectiveRow, Report, ValueRow

__all__ = ["clean", "collectives_table", "console", "render", "shorten", "table", "values_table"]


def console(stderr: bool = False) -> Console:
    """A console that writes plain, unwrapped text where the output is not a terminal."""
    import sys

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=200, soft_wrap=True, color_system=None)


def clean(text: str) -> str:
    """`text` with control characters escaped."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def shorten(where: str | None) -> str:
    """A source line with its path relative to the current directory, if it is below it, else with the file's name."""
    if not where:
        return "-"
    path, colon, line = where.rpartition(":")
    try:
        return f"{Path(path).relative_to(Path.cwd())}{colon}{line}"
    except ValueError:
        return clean(f"{Path(path).name}{colon}{line}" if path else where)


def table(title: str, plain: bool) -> Table:
    """An empty table; `plain` ones have no frame and never fold."""
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD if plain else box.ROUNDED,
        pad_edge=not plain,
    )


def _table(title: str, columns: Sequence[tuple[str, str]], plain: bool) -> Table:
    made = table(title, plain)
    for name, justify in columns:
        made.add_column(name, justify=justify, overflow="fold", no_wrap=plain)
    return made


def values_table(title: str, rows: Sequence[ValueRow], plain: bool = False) -> Table:
    """Arguments, results or parameters with their shardings and sizes."""
    made = _table(
        title,
        (("name", "left"), ("type", "left"), ("sharding", "left"), ("bytes", "right"), ("per device", "right")),
        plain,
    )
    for r in rows:
        made.add_row(
            Text(clean(r.name)),
            Text(clean(r.type)),
            Text(clean(r.sharding)),
            human(r.global_bytes),
            human(r.device_bytes),
        )
    total, local = sum(r.global_bytes for r in rows), sum(r.device_bytes for r in rows)
    made.add_section()
    made.add_row(Text("total"), "", "", human(total), human(local))
    return made


def collectives_table(title: str, rows: Iterable[CollectiveRow], plain: bool = False, causes: bool = True) -> Table:
    """Collectives in program order; equal ones from one line are one row with their number in `count`."""
    columns = [
        ("kind", "left"),
        ("axes", "left"),
        ("groups", "right"),
        ("bytes", "right"),
        ("times", "right"),
        ("total", "right"),
        ("source", "left"),
    ]
    made = _table(title, [*columns, ("cause", "left")] if causes else columns, plain)
    merged: dict[CollectiveRow, int] = {}
    for row in rows:
        merged[row] = merged.get(row, 0) + 1
    total = 0.0
    for r, count in merged.items():
        total += r.total * count
        times = "?" if r.times is None else f"{r.times}" if count == 1 else f"{count} x {r.times}"
        cells = [
            r.kind,
            clean(r.axes) or "-",
            f"{r.groups} x {r.group_size}",
            human(r.bytes),
            times,
            human(r.total * count),
            Text(shorten(r.where)),
        ]
        made.add_row(*cells, *([Text(clean(r.cause))] if causes else []))
    made.add_section()
    made.add_row(
        "total",
        "",
        "",
        "",
        str(sum((r.times or 1) * n for r, n in merged.items())),
        human(total),
        "",
        *([""] if causes else []),
    )
    return made


def render(report: Report, out: Console) -> None:
    """The whole report."""
    plain = not out.is_terminal
    axes = ", ".join(f"{n}={s}" for n, s in report.mesh) or "no mesh"
    out.print(Text(f"{clean(report.name)}: {report.devices} devices ({clean(axes)})", style="bold"))
    out.print(values_table("Arguments", report.arguments, plain))
    out.print(values_table("Results", report.results, plain))
    if report.collectives:
        out.print(collectives_table("Collectives, bytes sent per device", report.collectives, plain))
    else:
        out.print("No collectives: every device works on its own.")
    for finding in report.findings:
        out.print(
            Text(
                f"finding: {shorten(finding.where)}: {clean(finding.message)} ({human(finding.bytes)} per device)",
                style="yellow",
            )
        )
    for line in report.explanations:
        out.print(Text(clean(line)))
    unknown = sum(1 for c in report.collectives if c.times is None)
    note = f"; {unknown} in loops of unknown length count once" if unknown else ""
    out.print(Text(f"{human(report.bytes)} sent per device and run{note}"))
