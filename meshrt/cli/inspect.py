"""``meshrt inspect``: what a program's arguments, results and collectives are, without running it."""

from __future__ import annotations

import json
import os

import click

from meshrt.errors import InspectError

_STAGES = click.Choice(["lowered", "propagated", "partitioned"])
_EPILOG = """\b
Examples:
  meshrt inspect examples/train_lm.py:step --mesh data=8,model=4
  meshrt inspect examples/train_lm.py:step --mesh data=8,model=4 --explain 'tokens:0'
  meshrt inspect program.mlir --json
  meshrt inspect program.mlir --stage partitioned > device.mlir
"""


@click.command(name="inspect", epilog=_EPILOG)
@click.option("--mesh", metavar="AXIS=N,...", help="The mesh, for FILE.py:FUNCTION. No devices are needed.")
@click.option("--arguments", "hook", default="example_arguments", show_default=True, metavar="NAME",
              help="The function of FILE.py that takes the mesh and returns FUNCTION's arguments.")  # fmt: skip
@click.option("--stage", type=_STAGES, help="Print the program at this stage instead of the report.")
@click.option(
    "--explain", metavar="VALUE:DIM", help="Say why a dimension is sharded: of an argument, a result or FILE:LINE."
)
@click.option("--topology", metavar="FILE", help="Bandwidths and latencies, as in configs/topologies.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, metavar="S",
              help="Give up on a foreign file after S seconds.")  # fmt: skip
@click.argument("target")
def command(
    target: str,
    mesh: str | None,
    hook: str,
    stage: str | None,
    explain: str | None,
    topology: str | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Shows arguments, results and collectives of TARGET with their shardings, bytes and causes.

    TARGET is a StableHLO file (text or bytecode, from any compiler; - is standard input) whose shardings are written
    with the sdy dialect, or FILE.py:FUNCTION with --mesh: a jitted function and a function example_arguments(mesh)
    beside it. Nothing is compiled or run.
    """
    # Start-up time: `meshrt --help` shows every command, and the planner takes 50 ms to import.
    from meshrt.inspect.guard import Limits, inspect_file, open_regular
    from meshrt.inspect.model import Report
    from meshrt.inspect.target import parse_mesh, split_target

    if topology is not None and os.path.exists(topology):
        open_regular(topology, "a file as in configs/topologies, or a name such as v5e:4x4").close()
    python = split_target(target)
    if python is not None:
        if mesh is None:
            raise click.UsageError(f"{target} needs a mesh, such as --mesh data=4,model=2")
        from meshrt.inspect.program import inspect_function  # start-up time, as above

        reply = inspect_function(*python, parse_mesh(mesh), hook, stage, explain, topology)
    else:
        if mesh is not None:
            raise click.UsageError("--mesh goes with FILE.py:FUNCTION; a StableHLO file names its own mesh")
        if target.endswith(".py"):
            raise InspectError(f"{target}: name a function of it, as in {target}:step")
        reply = inspect_file(target, stage, explain, topology, Limits(seconds=timeout))
    if "text" in reply:
        click.echo(reply["text"], nl=False)
    elif as_json:
        click.echo(json.dumps(reply["report"], indent=1))
    else:
        from meshrt.inspect.render import console, render  # start-up time: --json needs no tables

        render(Report.from_json(reply["report"]), console())
