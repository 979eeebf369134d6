"""Tables of a report for the terminal.

Texts from a module are data: control characters in them are shown, not obeyed.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collectives.findings import human, human_time, humans
from meshrt.errors import counted
from meshrt.inspect.changes import Change, CollectiveChange, Comparison
from meshrt.inspect.grid import Column, Grid
from meshrt.inspect.model import CollectiveRow, FindingRow, KernelRow, LintRow, MemoryRow, RemedyRow, Report, ValueRow
from meshrt.inspect.totals import by_axes, by_line, other_branches
from propagation.quoting import printable as clean

__all__ = [
    "COLLECTIVES_NOTE", "clean", "collectives_table", "console", "figures_text", "memory_table", "render",
    "render_changes", "shorten", "table", "values_table",
]  # fmt: skip

_PLAIN_WIDTH = 200
_UNLIMITED = 100_000  # columns


class Terminal(Console):
    """rich's console; an output that nobody reads any more is an error to its caller, as for files."""

    def on_broken_pipe(self) -> None:
        """Says so, while rich, whose own ends the process with exit code 1, handles the error that it came from."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(stderr: bool = False) -> Console:
    """A console that writes plain text where the output is not a terminal: as wide as $COLUMNS says, else nothing is
    folded or cut."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Terminal(stderr=stderr, highlight=False)
    width = _columns()
    return Terminal(
        stderr=stderr, highlight=False, width=width or _UNLIMITED, soft_wrap=width is None, color_system=None
    )


def _columns() -> int | None:
    """What $COLUMNS asks for."""
    columns = os.environ.get("COLUMNS", "")
    return (int(columns) or None) if columns.isdecimal() else None


def shorten(where: str | None) -> str:
    """A source line with its path relative to the current directory, if it is below it, else with the file's name."""
    if not where:
        return "-"
    path, colon, line = where.rpartition(":")
    near = _relative(path, os.getcwd())
    if near is not None:
        return clean(f"{near}{colon}{line}")
    return clean(f"{Path(path).name}{colon}{line}" if path else where)


@functools.lru_cache(maxsize=256)
def _relative(path: str, folder: str) -> str | None:
    """A path relative to a folder, None if it is not below it; by both. Thousands of lines are of a few files."""
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else None


def table(title: str) -> Table:
    """An empty table without a frame: width is scarce in a terminal."""
    return Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )


def fitting(out: Console, layouts: Iterable[Grid]) -> Grid:
    """The first of `layouts` (the widest first) that fits the console; the last one if none does. No more of them are
    made than are looked at, if they are a generator's."""
    chosen = None
    for chosen in layouts:
        if chosen.width <= _room(out):
            break
    assert chosen is not None
    return chosen


def _room(out: Console) -> int:
    """Columns to lay tables out for: the terminal's, else $COLUMNS, else enough for every table."""
    return out.width if out.is_terminal else _columns() or _PLAIN_WIDTH


def _table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], totals: Sequence[str]) -> Grid:
    return Grid(title, columns, [tuple(map(_cell, row)) for row in rows], totals, table)


def _cell(text: str) -> str:
    """A cell; its second line stays one."""
    return text if text.isprintable() else "\n".join(map(clean, text.split("\n", 1)))


_VALUES: Sequence[Column] = (
    ("name", "left"), ("type", "left"), ("sharding", "left"), ("bytes", "right"), ("per device", "right"),
)  # fmt: skip


def values_table(out: Console, title: str, rows: Sequence[ValueRow]) -> Grid:
    """Arguments, results or parameters with their shardings and sizes, as wide as the console has room for.

    Where it is too narrow for all columns, the size of the whole value is left out first (its type tells it); where
    that is still too wide, the type moves into the name's cell, below the name.
    """
    total, local = (human(sum(size)) for size in ([r.global_bytes for r in rows], [r.device_bytes for r in rows]))
    name, kind, sharding, _, part = _VALUES
    wide = [(clean(r.name), r.type, r.sharding, human(r.global_bytes), human(r.device_bytes)) for r in rows]
    return fitting(out, (
        _table(title, _VALUES, wide, ("total", "", "", total, local)),
        _table(title, (name, kind, sharding, part), [(*r[:3], r[4]) for r in wide], ("total", "", "", local)),
        _table(title, (name, sharding, part), [(f"{r[0]}\n{r[1]}", r[2], r[4]) for r in wide], ("total", "", local)),
    ))  # fmt: skip


def collectives_table(out: Console, title: str, rows: Iterable[CollectiveRow]) -> Grid:
    """Collectives in program order, as wide as the console has room for.

    Equal ones of one source line are one row, whose times are the sum. Where the console is too narrow, the groups are
    left out, then cause and axes move below source and kind.
    """
    merged: dict[CollectiveRow, int] = {}
    for row in rows:
        same = replace(row, scope="", members=tuple(replace(m, scope="") for m in row.members))
        merged[same] = merged.get(same, 0) + 1
    wide = [cells for row, count in merged.items() for cells in _collective_cells(row, count)]
    runs = str(sum((r.times or 1) * n for r, n in merged.items()))
    total = human(sum(r.total * n for r, n in merged.items()))
    sizes: Sequence[Column] = (("bytes", "right"), ("times", "right"), ("total", "right"))
    kind: Column = ("kind", "left")
    axes: Column = ("axes", "left")
    places: Sequence[Column] = (("source", "left"), ("cause", "left"))
    totals = ("", runs, total)

    def layouts() -> Iterator[Grid]:
        columns: Sequence[Column] = (kind, axes, ("groups", "right"), *sizes, *places)
        yield _table(title, columns, wide, ("total", "", "", *totals, "", ""))
        fewer = [(*r[:2], *r[3:]) for r in wide]
        yield _table(title, (kind, axes, *sizes, *places), fewer, ("total", "", *totals, "", ""))
        stacked = [(f"{r[0]}\n{r[1]}", *r[3:6], f"{r[6]}\n{r[7]}") for r in wide]
        columns = (("kind, axes", "left"), *sizes, ("source, cause", "left"))
        yield _table(title, columns, stacked, ("total", *totals, ""))

    return fitting(out, layouts())


def _collective_cells(row: CollectiveRow, count: int) -> list[tuple[str, ...]]:
    """The cells of a collective, and those of each member of a combined one below."""
    times = "?" if row.times is None else str(row.times * count)
    sizes = (f"{row.groups} of {row.group_size}", human(row.bytes), times, human(row.total * count))
    cause = lambda text: clean(text).replace("stablehlo.", "")
    whole = (row.kind, clean(row.axes) or "-", *sizes, shorten(row.where), cause(row.cause))
    members = [("  of", "", "", human(m.bytes), "", "", shorten(m.where), cause(m.cause)) for m in row.members]
    return [whole, *members]


COLLECTIVES_NOTE = (
    "bytes: what one device sends each time; times: per run, so that a collective in a loop counts once for each "
    "iteration; total: bytes x times. Each row is of the device that sends most in that collective, and what is sent "
    "per device and run of the one that sends most in all, so the rows may sum to more."
)


def render(report: Report, out: Console) -> None:
    """The whole report."""
    out.print(Text(f"{clean(report.name)}: {clean(_devices(report))}", style="bold"))
    out.print(values_table(out, "Arguments", report.arguments))
    out.print(values_table(out, "Results", report.results))
    if report.collectives:
        out.print(collectives_table(out, "Collectives", report.collectives))
        out.print(Text(COLLECTIVES_NOTE, style="dim"))
    else:
        alone = "there is one device" if report.devices == 1 else "every device works on its own"
        out.print(f"No collectives: {alone}.")
    _render_totals(report, out)
    if report.kernels:
        out.print(kernels_table(out, report.kernels))
        out.print(Text(KERNELS_NOTE, style="dim"))
    if report.memory is not None:
        out.print(memory_table(out, report.memory))
        out.print(Text(MEMORY_NOTE, style="dim"))
    for finding in report.findings:
        out.print(
            Text(
                f"finding: {_at(finding.where)}{clean(finding.message)}{_cost(finding)}",
                style="yellow",
            )
        )
    for other in report.alternatives:
        out.print(Text(clean(str(other)), style="dim"))
    if report.lint is not None:
        render_lint(report.lint, out)
    for line in report.explanations:
        out.print(Text(clean(line)))
    unknown = sum(1 for c in report.collectives if c.times is None)
    note = f"; {unknown} in loops of unknown length count once" if unknown else ""
    if report.collectives:
        out.print(Text(f"{human(report.bytes)} sent per device and run{other_branches(report)}{note}"))
    if report.timing is not None:
        t = report.timing
        out.print(
            f"{human_time(t.seconds)} per run predicted: {human_time(t.computing)} computing, {human_time(t.waiting)} "
            f"waiting for messages, which take {human_time(t.sending)} one after the other"
        )


def render_lint(rows: Sequence[LintRow], out: Console) -> None:
    """What lint found, each with the change that was tried."""
    if not rows:
        out.print("lint: nothing found")
    for row in rows:
        out.print(Text(f"lint: {_at(row.where)}{clean(row.message)} [{row.rule}]{_cost(row)}", style="yellow"))
        if row.remedy is not None:
            out.print(Text(f"  {clean(row.remedy.text)}: {figures_text(row.remedy)}"))


def _at(where: str | None) -> str:
    return f"{shorten(where)}: " if where else ""


def _cost(row: LintRow | FindingRow) -> str:
    return f" ({human(row.bytes)} per device)" if row.bytes else ""


def figures_text(remedy: RemedyRow) -> str:
    """`1 MiB -> 512 KiB sent, 3 MiB held as before`: what a change that was tried does."""
    both = lambda a, b, show, what: f"{show(a)} {what} as before" if a == b else f"{show(a)} -> {show(b)} {what}"
    parts = [both(remedy.bytes_before, remedy.bytes_after, human, "sent")]
    parts.append(both(remedy.peak_before, remedy.peak_after, human, "held"))
    if remedy.seconds_before is not None and remedy.seconds_after is not None:
        parts.append(both(remedy.seconds_before, remedy.seconds_after, human_time, "per run"))
    return ", ".join(parts)


KERNELS_NOTE = (
    "of one call on one device: bytes held in a core's memories, blocks copied to and from the device's memory, bytes "
    "of these copies, bytes sent to other devices by the kernel itself."
)


def kernels_table(out: Console, rows: Sequence[KernelRow]) -> Grid:
    """The kernels of a program, as wide as the console has room for: the operations are left out first."""
    wide = [
        (
            row.name + (f" ({row.places} places)" if row.places > 1 else ""), "x".join(map(str, row.grid)) or "-",
            ", ".join(f"{m.memory} {human(m.bytes)}" for m in row.memory) or "-", str(row.copies), human(row.moved),
            human(row.sent), f"{row.operations:,.0f}", shorten(row.where),
        )
        for row in rows
    ]  # fmt: skip
    columns: Sequence[Column] = (
        ("kernel", "left"), ("grid", "left"), ("held by a core", "left"), ("copies", "right"), ("copied", "right"),
        ("sent", "right"), ("operations", "right"), ("source", "left"),
    )  # fmt: skip
    narrow = (*columns[:6], columns[7])
    return fitting(out, (
        _table("Kernels", columns, wide, ("",) * 8),
        _table("Kernels", narrow, [(*r[:6], r[7]) for r in wide], ("",) * 7),
    ))  # fmt: skip


MEMORY_NOTE = (
    "estimated: as XLA's compiler for CPUs would run it, or with --topology in the order of the program; "
    "Compiled.memory_analysis() has the compiler's figures."
)
_SHOWN = 10  # rows of tables that are sorted by size


def memory_table(out: Console, memory: MemoryRow) -> Grid:
    """What a device holds when it holds most, the largest first, as wide as the console has room for."""
    title = (
        f"Memory per device: {human(memory.peak_bytes)} at most ({human(memory.argument_bytes)} arguments, "
        f"{human(memory.result_bytes)} results, {human(memory.temporary_bytes)} in between), held then"
    )
    rows = [(h.what, h.type, str(h.count), human(h.bytes), shorten(h.where)) for h in memory.alive[:_SHOWN]]
    rest = memory.alive[_SHOWN:]
    if rest:
        count, size = sum(h.count for h in rest), human(sum(h.bytes for h in rest))
        rows.append((f"and {len(rest)} more", "", str(count), size, "-"))
    what: Sequence[Column] = (("what", "left"), ("type", "left"))
    sizes: Sequence[Column] = (("count", "right"), ("bytes", "right"))
    total = human(sum(h.bytes for h in memory.alive))
    return fitting(out, (
        _table(title, (*what, *sizes, ("source", "left")), rows, ("total", "", "", total, "")),
        _table(title, (what[0], *sizes), [(f"{r[0]}\n{r[1]} {r[4]}", *r[2:4]) for r in rows], ("total", "", total)),
    ))  # fmt: skip


def _render_totals(report: Report, out: Console) -> None:
    """The source lines and the mesh axes that most is sent for, where there are several."""
    for title, key, totals in (
        ("Sent per source line", "source", by_line(report)), ("Sent per mesh axis", "axes", by_axes(report)),
    ):  # fmt: skip
        if len(totals) < 2:
            continue
        shown = [(shorten(t.key) if key == "source" else t.key, str(t.count), human(t.bytes)) for t in totals[:_SHOWN]]
        rest = totals[_SHOWN:]
        if rest:
            shown.append((f"and {len(rest)} more", str(sum(t.count for t in rest)), human(sum(t.bytes for t in rest))))
        all_of = (str(sum(t.count for t in totals)), human(sum(t.bytes for t in totals)))
        columns: Sequence[Column] = ((key, "left"), ("times", "right"), ("bytes", "right"))
        out.print(_table(title, columns, shown, ("total", *all_of)))


def render_changes(changes: Comparison, out: Console) -> None:
    """What changed between two reports."""
    out.print(Text(f"{clean(changes.after)}, compared with {clean(changes.before)}", style="bold"))
    if changes.is_equal:
        out.print("Shardings, communication and memory are the same.")
    if changes.figures:
        out.print(_changes_table("Figures", changes.figures))
    if changes.collectives:
        rows = [
            (
                f"{c.kind} {c.axes}".strip(), f"{c.count[0]} -> {c.count[1]}",
                " -> ".join(humans(*c.bytes)), f"{shorten(c.where)}\n{_reasons(c)}",
            )
            for c in changes.collectives
        ]  # fmt: skip
        growth = sum(c.growth for c in changes.collectives)
        columns: Sequence[Column] = (
            ("collective", "left"), ("times", "right"), ("bytes", "right"), ("source, cause", "left"),
        )  # fmt: skip
        total = f"{'+' if growth >= 0 else '-'}{human(abs(growth))}"
        out.print(_table("Collectives", columns, rows, ("total", "", total, "")))
    if changes.shardings:
        out.print(_changes_table("Shardings", changes.shardings))


def _reasons(change: CollectiveChange) -> str:
    return "; ".join([change.cause, *(f"because {text}" for text in change.because)])


def _changes_table(title: str, changes: Sequence[Change]) -> Table:
    made = table(title)
    for name in ("", "before", "after"):
        made.add_column(name, overflow="fold")
    for c in changes:
        both = [v for v in (c.before, c.after) if isinstance(v, float)]
        sizes = iter(humans(*both))
        cells = [next(sizes) if isinstance(v, float) else str("-" if v is None else v) for v in (c.before, c.after)]
        made.add_row(*(Text(clean(cell)) for cell in (c.what, *cells)))
    return made


def _devices(report: Report) -> str:
    if not report.mesh:
        return "a program for one device (it names no mesh)"
    axes = ", ".join(f"{n}={s}" for n, s in report.mesh)
    return f"{counted(report.devices, 'device')}, mesh {axes}"
