"""``meshrt run``: a script in this process, with meshrt in JAX's place if asked for."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

import click

from meshrt.errors import ConfigError, MeshrtError

_EPILOG = """\b
Examples:
  meshrt run --as-jax train.py --steps 100
  meshrt run --as-jax -m pytest tests
"""


# What follows TARGET belongs to the script, options included.
@click.command(name="run", epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--as-jax", "as_jax", is_flag=True, help="`import jax` gives meshrt, in the script and its libraries.")
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(as_jax: bool, module: bool, target: str, arguments: tuple[str, ...]) -> int:
    """Runs TARGET, a Python script, in this process as `python TARGET ARGUMENTS` would.

    With --as-jax, `import jax` gives meshrt: neither the script nor the libraries it uses are changed. The exit code is
    the script's.
    """
    if not module and not Path(target).exists():
        raise ConfigError(f"{target}: no such script. To run a module, write -m before its name.")
    if as_jax:
        from meshrt.compat import as_jax as install  # start-up time: `meshrt --help` shows every command

        install()
    if arguments[:1] == ("--",):  # optional, between TARGET and its arguments
        arguments = arguments[1:]
    sys.argv = [target, *arguments]
    # As Python does: a script finds the modules beside it, a module those in the current folder.
    sys.path.insert(0, str(Path.cwd() if module else Path(target).resolve().parent))
    try:
        if module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except (MeshrtError, click.ClickException):  # the script's own, which is no wrong usage of `meshrt run`
        traceback.print_exc()
        return 1
    return 0
