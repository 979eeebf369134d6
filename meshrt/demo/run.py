"""`meshrt demo` from settings to the last line."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from meshrt import config
from meshrt.demo.report import progress_columns, progress_text, show
from meshrt.demo.settings import DemoSettings
from meshrt.demo.training import StepReport, Trainer

__all__ = ["run"]

DEFAULT_DEVICES = 8
_LINES = 12  # of progress where the output is not a terminal


def run(settings: DemoSettings, out: Console) -> list[StepReport]:
    """Trains and shows; returns the report of every step."""
    _ask_for_devices(settings)
    config.update("partitioner", settings.partitioner)
    out.print(Text(
        f"Training a byte-level language model of {settings.model.layers} layers on this Python's standard library; "
        f"activations in {settings.dtype}, partitioned by {settings.partitioner}."
    ))  # fmt: skip
    trainer = Trainer(settings)
    history = _train(trainer, out)
    show(out, trainer, history, trainer.move())
    return history


def _ask_for_devices(settings: DemoSettings) -> None:
    """8 virtual CPU devices, unless the user, the environment or a larger mesh asks for another number."""
    if settings.devices is not None:
        config.update("num_cpu_devices", settings.devices)
    elif config.cpu_device_count() < settings.mesh_size:
        config.update("num_cpu_devices", max(DEFAULT_DEVICES, settings.mesh_size))


def _train(trainer: Trainer, out: Console) -> list[StepReport]:
    steps, tokens = trainer.settings.steps, trainer.tokens_per_step
    history = []
    if not out.is_terminal:
        out.print("compiling ...")
        for report in trainer.steps():
            history.append(report)
            if report.number in (1, steps) or report.number % max(1, steps // _LINES) == 0:
                out.print(progress_text(report, steps, tokens))
        return history
    with Progress(*progress_columns(), console=out) as progress:
        task = progress.add_task("", total=steps, loss="-", rate="compiling ...")
        for report in trainer.steps():
            history.append(report)
            rate = progress_text(report, steps, tokens).rpartition("  ")[2]
            progress.update(task, completed=report.number, loss=f"{report.loss:.4f}", rate=rate)
    return history
