"""``meshrt export``: a function of a Python file into a file that other processes run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from meshrt.cli._arguments import argument_options, hook_of
from meshrt.errors import InspectError, counted

_EPILOG = """\b
Examples:
  meshrt export train.py:step --mesh data=8 -o step.mexp
  meshrt export model.py:predict -o predict.mexp --platform cpu --platform cuda --vjp-order 1
  meshrt export model.py:predict -o predict.mexp --with-executable --sizes b=8 --sizes b=64
"""


@click.command(name="export", epilog=_EPILOG)
@click.option("--mesh", metavar="AXIS=N,...", help="The mesh that example_arguments gets. No devices are needed.")
@argument_options
@click.option("--platform", "platforms", multiple=True, metavar="NAME", default=("cpu",), show_default=True,
              help="Where it is to run; several may be given.")  # fmt: skip
@click.option("--vjp-order", type=click.IntRange(min=0), default=0, show_default=True, help="How many derivatives.")
@click.option("--tier", type=click.Choice(["stable", "bytecode", "text"]), default="stable", show_default=True,
              help="An artifact that other versions read, or MLIR of this one.")  # fmt: skip
@click.option("--stablehlo-version", metavar="VERSION", help="Of the artifact: 1.9.0, 4 or 12 (weeks), or current.")
@click.option("--with-executable", is_flag=True,
              help="Compile it for what is here and write that as well, for run-export --with-executable.")  # fmt: skip
@click.option("--sizes", multiple=True, metavar="NAME=N,...",
              help="A number for each symbolic size, for --with-executable; several may be given.")  # fmt: skip
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file.")
@click.argument("target")
def command(
    target: str,
    mesh: str | None,
    factory: str | None,
    written: str | None,
    platforms: tuple[str, ...],
    vjp_order: int,
    tier: str,
    stablehlo_version: str | None,
    with_executable: bool,
    sizes: tuple[str, ...],
    output: Path,
) -> int:
    """Exports TARGET, FILE.py:FUNCTION or FILE.py:CLASS.METHOD, with a function example_arguments(mesh) beside it.

    Its arguments may have symbolic sizes. `meshrt run-export` runs the file, `meshrt inspect` shows it,
    `meshrt.export.deserialize` reads it.
    """
    # Start-up time: `meshrt --help` shows every command.
    import meshrt
    from meshrt.export import export
    from meshrt.inspect.target import parse_mesh, parse_sizes, split_target, stage_target
    from meshrt.pipeline.container import write_file

    python = split_target(target)
    if python is None:
        raise click.UsageError(f"{target} names no function; write FILE.py:FUNCTION")
    path, name = python
    if sizes and not with_executable:
        raise click.UsageError("--sizes are those that --with-executable compiles for; give both")
    numbers = [parse_sizes(text) for text in sizes]
    version: str | int | None = stablehlo_version
    if stablehlo_version is not None and stablehlo_version.isdigit():
        version = int(stablehlo_version)

    def stage(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return export(function, platforms=platforms, stablehlo_version=version)(*args, **kwargs)

    def refused(function: Any, arguments: Any) -> Any:
        raise InspectError(
            f"{path}: {name} was jitted by jax; write it with jax.export, and read that with meshrt.export.from_jax"
        )

    axes = parse_mesh(mesh or "device=1")
    if with_executable:  # it is compiled for so many devices
        meshrt.config.update("num_cpu_devices", math.prod(axes.values()))
    made = stage_target(path, name, axes, hook_of(factory, written), stage, refused)
    names = sorted(made.solution.values)
    if with_executable and any(sorted(given) != names for given in numbers or [{}]):
        wanted = f"--sizes {','.join(f'{n}=8' for n in names)}" if names else "no --sizes"
        raise click.UsageError(f"code is for a number for each symbolic size of {made.fun_name}: give {wanted}")
    data = bytes(made.serialize(vjp_order, tier=tier, with_executable=numbers or with_executable))
    write_file(output, data)
    where = f"{counted(made.nr_devices, 'device')} of {', '.join(platforms)}"
    click.echo(f"{output}: {made.fun_name} for {where}, {len(data):,} bytes")
    return 0
