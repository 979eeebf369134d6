"""``meshrt suggest``: shardings for a program's arguments, found from what it computes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from meshrt.cli._arguments import argument_options, hook_of, seconds_of
from meshrt.errors import InspectError

_EPILOG = """\b
Examples:
  meshrt suggest examples/train_lm.py:step --mesh data=4,model=2 --topology v5e:2x4
  meshrt suggest program.mlir --mesh x=8 --topology h100:8 --memory 40GiB -o annotations.toml
  meshrt inspect program.mlir --annotations annotations.toml
"""


@click.command(name="suggest", epilog=_EPILOG)
@click.option("--mesh", required=True, metavar="AXIS=N,...", help="The mesh whose axes are given to the arguments.")
@click.option("--topology", required=True, metavar="NAME", help="The hardware, as in v5e:4x4, h100:8, or a file.")
@click.option("--memory", metavar="SIZE", help="What a device may hold, as in 16GiB.  [default: 92 % of what it has]")
@click.option("--budget", type=seconds_of, default="60s", show_default=True, metavar="TIME",
              help="How long to search, as in 60s or 2m.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), metavar="N",
              help="Processes that judge layouts.  [default: one per core, 8 at most]")  # fmt: skip
@argument_options
@click.option("-o", "--output", metavar="FILE", help="Write the annotations into FILE, for inspect --annotations.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.argument("target")
def command(
    target: str,
    mesh: str,
    topology: str,
    memory: str | None,
    budget: float,
    processes: int | None,
    factory: str | None,
    written: str | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Searches for shardings of TARGET's arguments that make it fast and fit into memory.

    TARGET is what `meshrt inspect` takes. Shardings that its arguments have already are one candidate among others;
    those inside of the program stay. Every candidate is judged by propagating and partitioning the program. Nothing is
    compiled or run. The exit code is 1 if nothing was found that fits.
    """
    # Start-up time: `meshrt --help` shows every command.
    from meshrt.autoshard.render import progress_of, render_suggestion
    from meshrt.autoshard.suggest import suggest
    from meshrt.autoshard.target import bytes_of, read_target
    from meshrt.inspect.files import require_writable
    from meshrt.inspect.render import console
    from meshrt.inspect.target import parse_mesh

    if not budget:
        raise click.UsageError("--budget 0: a search takes some time, such as 60s")
    axes = parse_mesh(mesh)
    if output is not None:
        require_writable(output, "-o")
    program = read_target(target, axes, hook_of(factory, written))
    limit = None if memory is None else bytes_of(memory)
    with progress_of(console(stderr=True), budget, is_shown=sys.stderr.isatty()) as progress:
        found = suggest(
            program.name, program.module, axes, topology, names=program.names, memory=limit, budget=budget,
            count=processes, progress=progress,
        )  # fmt: skip
    if output is not None and found.suggested.why is None:  # else there is none to write
        try:
            Path(output).write_text(found.as_toml(), encoding="utf-8")
        except OSError as e:
            raise InspectError(f"{output}: {e.strerror or e}") from None
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        render_suggestion(found, console())
    return 0 if found.fits else 1
