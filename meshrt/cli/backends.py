"""``meshrt backends``: what the compilers of the platforms take."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

_EPILOG = """\b
Examples:
  meshrt backends
  meshrt backends cpu --json
"""


@click.command(name="backends", epilog=_EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print everything, with the sources, as JSON.")
@click.argument("names", nargs=-1)
def command(names: tuple[str, ...], as_json: bool) -> int:
    """Shows what the compilers of NAMES (all that are known by default) take, before a program is handed to them.

    Files in configs/backends, and in the folder of MESHRT_BACKEND_CONFIGS, change it.
    """
    # Start-up time: `meshrt --help` shows every command.
    from meshrt.lowering.capabilities import known_backends
    from meshrt.runtime import backend

    wanted = names or dict.fromkeys((*known_backends(), *backend.plugins()))
    rows = [backend.capabilities(name) for name in wanted]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1, default=dict))
        return 0
    facts = ("stable_only", "oldest", "newest_version", "chlo", "sdy", "shape", "custom_calls", "not_custom_calls",
             "not_operations", "wider", "not_dtypes")  # fmt: skip
    width = max(map(len, facts))
    for row in rows:
        click.echo(row.name)
        for fact in facts:
            click.echo(f"  {fact:{width}}  {_shown(getattr(row, fact))}")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) or "-" if isinstance(value, tuple) else str(value)
