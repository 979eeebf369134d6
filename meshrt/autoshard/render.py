"""Suggestions and plans for the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from collectives.findings import human, human_time
from meshrt.autoshard import search
from meshrt.autoshard.figures import Figures
from meshrt.autoshard.plan import MeshRow, Plan
from meshrt.autoshard.suggest import Suggestion, mesh_text
from meshrt.inspect.annotations import axes_text
from meshrt.inspect.render import clean, table

__all__ = ["progress_of", "render_plan", "render_suggestion", "time_text"]


@contextlib.contextmanager
def progress_of(out: Console, budget: float, is_shown: bool) -> Iterator[search.Progress | None]:
    """A bar of the search's time on the terminal while the block runs; nothing where nobody looks."""
    if not is_shown:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as bars:
        task = bars.add_task("searching", total=budget)

        def show(judged: int, best: search.Candidate) -> None:
            text = best.figures.why or time_text(best.figures)
            bars.update(task, completed=bars.tasks[0].elapsed or 0.0, description=f"{judged} layouts, best {text}")

        yield show


def time_text(figures: Figures) -> str:
    """`80 ms (61 to 94 ms)`: predicted, and with everything hidden and nothing hidden."""
    low, high = figures.bounds
    return f"{human_time(figures.seconds)} ({human_time(low)} to {human_time(high)})"


def render_suggestion(found: Suggestion, out: Console) -> None:
    """Figures of before and after, and the axes of all arguments."""
    out.print(clean(f"{found.name} over {mesh_text(found.mesh)} on {found.topology}"), markup=False)
    out.print(_figures_table((("now", found.now), ("replicated", found.replicated), ("suggested", found.suggested))))
    rows = table("arguments")
    for name in ("pattern", "type", "now", "suggested"):
        rows.add_column(name, overflow="fold")
    for row in found.rows:
        count = "" if row.count == 1 else f" x{row.count}"
        rows.add_row(clean(row.pattern) + count, row.type, axes_text(row.now), axes_text(row.suggested))
    out.print(rows)
    end = "nothing better is one change away" if found.is_complete else "the time was up"
    judged = "1 layout" if found.judged == 1 else f"{found.judged} layouts"
    out.print(f"{judged} judged in {found.seconds:.1f} s; {end}")
    if found.suggested.why is not None:
        out.print(clean(f"no layout could be made: {found.suggested.why}"), markup=False)
    elif not found.fits and found.memory is not None:
        out.print(f"none fits into {human(found.memory)}; the smallest holds {human(found.suggested.peak)}")


def render_plan(plan: Plan, out: Console) -> None:
    """The meshes, the best first, and how time goes with the number of devices where that differs."""
    is_searched = any(row.found is not None for row in plan.rows)
    made = table(f"{clean(plan.name)}: predicted per device and step")
    is_compiled = any(row.compiled is not None for row in plan.rows)
    names = ["mesh", "on", "time", "computing", "waiting", "sent", "memory"]
    names += ["as annotated"] * is_searched + ["compiled: memory", "time"] * is_compiled
    for name in names:
        made.add_column(name, justify="left" if name in ("mesh", "on") else "right", overflow="fold")
    for row in plan.rows:
        cells = _mesh_cells(row, is_searched)
        made.add_row(*cells, *(_compiler_cells(row) if is_compiled else []))
    out.print(made)
    for row in plan.rows:
        if row.best.why is not None:
            out.print(f"{mesh_text(row.mesh)}: {clean(row.best.why)}", markup=False)
        elif row.compiled is not None and row.compiled.why is not None:
            out.print(f"{mesh_text(row.mesh)}, compiled: {clean(row.compiled.why)}", markup=False)
    if plan.memory is not None and any(row.fits is False for row in plan.rows):
        out.print(f"! does not fit into {human(plan.memory)}")
    sizes = [row for row in plan.best_by_size() if row.best.why is None]
    if len(sizes) > 1:
        out.print(_scaling_table(sizes))


def _mesh_cells(row: MeshRow, is_searched: bool) -> list[str]:
    f = row.best
    if f.why is not None:
        return [mesh_text(row.mesh), row.topology, "not possible", *[""] * (5 if is_searched else 4)]
    memory = human(f.peak) + ("" if row.fits else " !")
    cells = [
        mesh_text(row.mesh), row.topology, time_text(f), human_time(f.computing), human_time(f.exposed), human(f.bytes),
        memory,
    ]  # fmt: skip
    if is_searched:
        cells.append(row.figures.why[:30] if row.figures.why is not None else human_time(row.figures.seconds))
    return cells


def _compiler_cells(row: MeshRow) -> list[str]:
    """What the compiler says of memory, with how far the estimate is from it, and of time."""
    made = row.compiled
    if made is None or made.why is not None:
        return ["" if made is None else "refused", ""]
    error = f" ({row.figures.peak / made.peak - 1:+.0%} estimated)" if made.peak else ""
    return [human(made.peak) + error, "-" if made.seconds is None else human_time(made.seconds)]


def _scaling_table(rows: Sequence[MeshRow]) -> Table:
    """The time of the best mesh of each size, its bar, and how much of the smallest one's speed per device is left."""
    made = table("best mesh by number of devices")
    for name in ("devices", "mesh", "time", "efficiency", ""):
        made.add_column(name, justify="right" if name in ("devices", "time", "efficiency") else "left")
    first = rows[0]
    slowest = max(row.best.seconds for row in rows)
    for row in rows:
        seconds = row.best.seconds
        efficiency = first.best.seconds * first.devices / (seconds * row.devices)
        bar = "\u2588" * max(1, round(_BAR * seconds / slowest))
        made.add_row(str(row.devices), mesh_text(row.mesh), human_time(seconds), f"{efficiency:.0%}", bar)
    return made


_BAR = 30  # columns of the longest bar


def _figures_table(rows: Sequence[tuple[str, Figures]]) -> Table:
    made = table("predicted per device and step")
    for name in ("", "time", "computing", "waiting", "sent", "memory"):
        made.add_column(name, justify="left" if not name else "right", overflow="fold")
    for name, f in rows:
        if f.why is None:
            made.add_row(
                name, time_text(f), human_time(f.computing), human_time(f.exposed), human(f.bytes), human(f.peak)
            )
        else:
            made.add_row(name, clean(f.why[:60]), "", "", "", "")
    return made
