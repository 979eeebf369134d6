"""``meshrt plan``: which mesh is best for a program on some hardware, and what a step takes there."""

from __future__ import annotations

import json
import math
import sys

import click

from meshrt.cli._arguments import argument_options, hook_of, seconds_of

_EPILOG = """\b
Examples:
  meshrt plan examples/train_lm.py:step --topology v5e:2x4 --axes data,model
  meshrt plan examples/train_lm.py:step --topology v5e:2x4 --mesh data=8,model=1 --mesh data=4,model=2
  meshrt plan examples/train_lm.py:step --topology v5e:2x4 --axes data,model --compile
  meshrt plan examples/train_lm.py:step --topology v5e --axes data,model --devices 4,8,16 --search 20
"""


@click.command(name="plan", epilog=_EPILOG)
@click.option("--topology", required=True, metavar="NAME", help="The hardware, as in v5e:4x4, h100:8, or a file.")
@click.option("--axes", metavar="AXIS,...", help="Look at every way to lay these axes over the devices.")
@click.option("--mesh", "meshes", multiple=True, metavar="AXIS=N,...", help="A mesh to look at; again for more.")
@click.option("--devices", metavar="N,...", help="Numbers of devices to look at, with --axes.")
@click.option("--memory", metavar="SIZE", help="What a device may hold, as in 16GiB.  [default: 92 % of what it has]")
@click.option("--search", "budget", type=seconds_of, default="0", metavar="TIME",
              help="Search for shardings of the arguments for so long on each mesh, as suggest does.")  # fmt: skip
@click.option("--compile", "is_compiled", is_flag=True,
              help="Ask the hardware's own compiler too (extras tpu, cuda12-compiler).")  # fmt: skip
@argument_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.argument("target")
def command(
    target: str,
    topology: str,
    axes: str | None,
    meshes: tuple[str, ...],
    devices: str | None,
    memory: str | None,
    budget: float,
    is_compiled: bool,
    factory: str | None,
    written: str | None,
    as_json: bool,
) -> int:
    """Predicts the time and the memory of a step of TARGET over several meshes.

    TARGET is what `meshrt inspect` takes. Times come from a roofline of what devices compute and from the links that
    their messages take; in brackets stands what they would be if everything that can be hidden behind computing was,
    and if nothing was. Nothing is compiled or run. The exit code is 1 if the program fits into the memory of no mesh.
    """
    # Start-up time: `meshrt --help` shows every command.
    from meshrt.autoshard.compiled import compiled_figures
    from meshrt.autoshard.plan import mesh_splits, plan_meshes, shape_of, sized
    from meshrt.autoshard.render import render_plan
    from meshrt.autoshard.suggest import laid, mesh_text
    from meshrt.autoshard.target import bytes_of, read_target
    from meshrt.errors import InspectError
    from meshrt.inspect.render import console
    from meshrt.inspect.target import parse_mesh

    if not axes and not meshes:
        raise click.UsageError("say which meshes: --axes data,model for all of them, or --mesh data=4,model=2")
    shape_of(topology)  # there is one of that name
    chosen = [(parse_mesh(m), topology) for m in meshes]
    for named, _ in chosen:
        laid(topology, named)  # it has as many devices
    names = [n.strip() for n in axes.split(",")] if axes else []
    if len(set(names)) < len(names) or not all(n.isidentifier() for n in names):
        raise click.UsageError(f"--axes {axes!r}: expected names that differ, such as data,model")
    if names:
        for name in [sized(topology, int(n)) for n in _numbers(devices)] or [topology]:
            shape = shape_of(name)
            if not shape:
                raise click.UsageError(f"{name} has no size: write it as in v5e:4x4, or give --devices")
            chosen += [(m, name) for m in mesh_splits(math.prod(shape), names)]

    def show(done: int, mesh: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{done + 1} of {len(chosen)}: {mesh}\x1b[K", err=True, nl=False)

    limit = None if memory is None else bytes_of(memory)
    hook = hook_of(factory, written)
    read = lambda mesh: read_target(target, mesh, hook)
    compiled = (lambda mesh, where: compiled_figures(target, mesh, where, hook)) if is_compiled else None
    plan = plan_meshes(target, read, chosen, memory=limit, budget=budget, progress=show, compiled=compiled)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    if all(row.best.why is not None for row in plan.rows):
        mesh, why = plan.rows[0].mesh, plan.rows[0].best.why
        raise InspectError(f"{target} over {mesh_text(mesh)}: {why}")
    if as_json:
        click.echo(json.dumps(plan.as_json(), indent=1))
    else:
        render_plan(plan, console())
    return 0 if any(row.fits for row in plan.rows) else 1


def _numbers(text: str | None) -> list[int]:
    """`4,8` as [4, 8]."""
    found = [t.strip() for t in text.split(",")] if text else []
    if not all(t.isdecimal() and int(t) for t in found):
        raise click.UsageError(f"--devices {text!r}: expected numbers, such as 4,8,16")
    return [int(t) for t in found]
