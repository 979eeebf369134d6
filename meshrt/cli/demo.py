"""``meshrt demo``: trains a small language model here and now, and shows how it was sharded and what that cost."""

from __future__ import annotations

import click

_EPILOG = """\b
Examples:
  meshrt demo
  meshrt demo --devices 4 --mesh data=2,model=2 --steps 20
  meshrt demo --config tiny --partitioner xla
"""


@click.command(name="demo", epilog=_EPILOG)
@click.option("--devices", type=click.IntRange(min=1), metavar="N", help="Virtual CPU devices. [default: 8]")
@click.option("--mesh", metavar="data=D,model=M", help="The mesh. [default: data=4,model=2]")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Training steps. [default: 100]")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="Type of activations. [default: float32]")
@click.option(
    "--partitioner", type=click.Choice(["meshrt", "xla"]), help="Who makes the per-device program. [default: meshrt]"
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of parameters and batches. [default: 0]")
@click.option("--config", metavar="FILE", help="A TOML file, or a name in configs/train.")
def command(config: str | None, mesh: str | None, **options: object) -> None:
    """Trains a byte-level transformer on the standard library's sources, on a mesh of virtual CPU devices.

    Then shows the mesh, the parameters and the collectives with their shardings, bytes and source lines, the loss
    curve, and what it costs to move the same program to other devices.
    """
    # Start-up time: `meshrt --help` shows every command, and tables take 20 ms to import, the planner 50.
    from meshrt.demo import settings as demo_settings
    from meshrt.demo.run import run
    from meshrt.inspect.render import console
    from meshrt.inspect.target import parse_mesh

    base = demo_settings.DemoSettings() if config is None else demo_settings.read(demo_settings.find(config))
    chosen = demo_settings.override(base, mesh=None if mesh is None else parse_mesh(mesh), **options)
    run(chosen, console())
