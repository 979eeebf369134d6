"""What the demo shows after training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshrt import dtypes, tree
from meshrt.demo.curve import draw
from meshrt.demo.training import Move, StepReport, Trainer
from meshrt.errors import counted
from meshrt.inspect.model import CollectiveRow, ValueRow, collective_rows
from meshrt.inspect.render import COLLECTIVES_NOTE, collectives_table, table, values_table
from meshrt.runtime.hlo import axes_of_groups, collectives

__all__ = ["show"]


def show(out: Console, trainer: Trainer, history: Sequence[StepReport], move: Move) -> None:
    """Mesh, parameters, collectives, loss curve, and the cost of moving to other devices."""
    out.print(mesh_table(trainer))
    out.print(values_table(out, "Parameters", parameter_rows(trainer)))
    rows, origin = communication_rows(trainer)
    out.print(collectives_table(out, f"Collectives of one step ({origin})", rows))
    out.print(Text(COLLECTIVES_NOTE, style="dim"))
    out.print()
    out.print(Text("Loss (nats per byte)", style="bold"))
    losses = [r.loss for r in history]
    for line in draw(losses, braille=_has_braille(out)):
        out.print(Text(line))
    ends = f"step 1 ... {len(losses)}: {losses[0]:.4f} -> {losses[-1]:.4f}"
    out.print(Text(f"{'':9}{ends}  (a uniform guess: {math.log(256):.4f})"))
    show_move(out, trainer, move)


def mesh_table(trainer: Trainer) -> Table:
    """Which device stands where."""
    mesh = trainer.mesh
    axes = ", ".join(f"{n}={s}" for n, s in mesh.shape.items())
    rows, columns = mesh.axis_names
    grid = table(f"Mesh {axes} on {counted(mesh.size, f'{mesh.devices.flat[0].platform} device')}")
    grid.add_column(f"{rows} \\ {columns}")
    for j in range(mesh.devices.shape[1]):
        grid.add_column(str(j), justify="right")
    for i, line in enumerate(mesh.devices):
        grid.add_row(str(i), *[str(d.id) for d in line])
    return grid


def parameter_rows(trainer: Trainer) -> list[ValueRow]:
    """One row per parameter array, as it lies on the devices."""
    rows = []
    for path, x in tree.leaves_with_path(trainer.state["params"]):
        size, spec = x.dtype.itemsize, x.sharding.spec
        axes = ["+".join([e] if isinstance(e, str) else e) if e else "-" for e in spec]
        axes += ["-"] * (x.ndim - len(axes))
        name = ".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)
        local = math.prod(x.sharding.shard_shape(x.shape)) * size
        text = f"({', '.join(axes)})" if any(a != "-" for a in axes) else "replicated"
        kind = f"{dtypes.short_dtype_name(x.dtype)}[{','.join(map(str, x.shape))}]"
        rows.append(ValueRow(name, kind, text, x.size * size, local))
    return rows


def communication_rows(trainer: Trainer) -> tuple[Sequence[CollectiveRow], str]:
    """The collectives of a step and where they were read: our plan, or the HLO that XLA's partitioner made."""
    lowered = trainer.lowered()
    if trainer.settings.partitioner == "meshrt":
        return collective_rows(lowered.partition().plan), "the partitioner's plan"
    axes = tuple((str(name), size) for name, size in trainer.mesh.shape.items())
    found = collectives(lowered.compile().as_text(), trainer.mesh.size)
    rows = [
        CollectiveRow(
            c.kind,
            axes_of_groups(c.groups, axes),
            len(c.groups),
            c.group_size,
            c.bytes,
            c.times,
            None,
            c.op_name or "",
            0.0,
        )
        for c in found
    ]
    return rows, "XLA's partitioner, read from the compiled program"


def show_move(out: Console, trainer: Trainer, move: Move) -> None:
    """How often each station of the pipeline ran on other devices, and how long the first step there took."""
    extra = max(0.0, move.first_seconds - move.next_seconds)
    counts = ", ".join(f"{k} {v}" for k, v in move.counts.items())
    out.print(Text(f"Moving to {move.description}", style="bold"))
    out.print(Text(f"  stations run: {counts}"))
    out.print(Text(
        f"  first step there {move.first_seconds * 1e3:.0f} ms, the next {move.next_seconds * 1e3:.0f} ms: moving cost "
        f"about {extra * 1e3:.0f} ms"
    ))  # fmt: skip
    out.print(Text(f"  (tracing to loading took {trainer.compile_seconds * 1e3:.0f} ms at the start)"))


def _has_braille(out: Console) -> bool:
    try:
        "⣿┤".encode(out.encoding)
    except UnicodeEncodeError:
        return False
    return True


def progress_text(report: StepReport, steps: int, tokens: int) -> str:
    """One plain line of progress."""
    done = max(report.number - 1, 0)
    rate = f"{done * tokens / report.seconds:,.0f} tokens/s" if done and report.seconds > 0 else "compiled"
    return f"step {report.number:4d}/{steps}  loss {report.loss:.5f}  {rate}"


def progress_columns() -> list[Any]:
    """The columns of the progress bar."""
    # Start-up time: only a demo with a terminal shows a bar.
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    return [
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
    ]  # fmt: skip
