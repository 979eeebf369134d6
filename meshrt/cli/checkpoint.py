"""``meshrt checkpoint``: what checkpoints there are, what one holds, whether it is sound, and away with it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshrt.errors import CheckpointNotFoundError, DamagedCheckpointError, counted

if TYPE_CHECKING:
    from meshrt.checkpoint import Checkpoint

_EPILOG = """\b
Examples:
  meshrt checkpoint ls runs/a
  meshrt checkpoint ls --leaves runs/a/step_00001000
  meshrt checkpoint verify runs/a
  meshrt checkpoint rm runs/a/step_00001000
"""

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(name="checkpoint", epilog=_EPILOG)
def command() -> None:
    """Lists, checks or removes checkpoints."""


@command.command()
@click.argument("path")
@click.option("--leaves", is_flag=True, help="The leaves of a checkpoint: path, type, bytes.")
@_as_json
def ls(path: str, leaves: bool, as_json: bool) -> None:
    """Lists the checkpoints in a directory, or shows the one at PATH."""
    found = [_opened(p) for p in _checkpoints(path)]
    if as_json:
        click.echo(json.dumps([_as_data(p, c, leaves) for p, c in found], indent=2))
        return
    # Start-up time: tables take 20 ms to import.
    from meshrt.inspect.render import clean, console, table

    made = table(f"{path}: {counted(len(found), 'checkpoint')}")
    for title, side in (("checkpoint", "left"), ("written", "left"), ("size", "right"), ("leaves", "right"),
                        ("processes", "right"), ("metadata", "left")):  # fmt: skip
        justify: Any = side
        made.add_column(title, justify=justify, overflow="fold")
    for p, c in found:
        made.add_row(*[clean(text) for text in _row(p, c)])
    console().print(made)
    if leaves:
        for _, c in found:
            if not isinstance(c, str):
                for leaf, kind in c.leaves.items():
                    click.echo(f"{leaf}  {_typed(kind)}")


@command.command()
@click.argument("path")
@_as_json
def verify(path: str, as_json: bool) -> int:
    """Reads every byte of a checkpoint, or of all in a directory, and compares checksums. Exit code 1 for damage."""
    from meshrt.checkpoint import functions  # start-up time: `meshrt --help` shows every command

    problems = {str(p): functions.verify(p, progress=not as_json) for p in _checkpoints(path)}
    if as_json:
        click.echo(json.dumps(problems, indent=2))
    else:
        for name, found in problems.items():
            click.echo(f"{name}: {'sound' if not found else f'{len(found)} damaged'}")
            for problem in found:
                click.echo(f"  {problem}")
    return 1 if any(problems.values()) else 0


@command.command()
@click.argument("paths", nargs=-1, required=True)
def rm(paths: tuple[str, ...]) -> None:
    """Removes checkpoints; refuses what is none, and one that is being read."""
    from meshrt.checkpoint import functions  # start-up time: `meshrt --help` shows every command

    for path in paths:
        functions.remove(path)
        click.echo(f"removed {path}")


def _checkpoints(path: str) -> list[Path]:
    """The checkpoint at a path, or those in a directory."""
    # Start-up time: `meshrt --help` shows every command.
    from meshrt.checkpoint.folder import committed_in, is_committed, named

    root = named(path)
    if is_committed(root):
        return [root]
    found = committed_in(root)
    if not found:
        raise CheckpointNotFoundError(f"there is no committed checkpoint at {root} or in it; check the path")
    return found


def _opened(path: Path) -> tuple[Path, Checkpoint | str]:
    """A checkpoint, or what is wrong with it."""
    from meshrt.checkpoint import functions  # start-up time: `meshrt --help` shows every command

    try:
        return path, functions.describe(path)
    except DamagedCheckpointError as e:
        return path, str(e)


def _row(path: Path, found: Checkpoint | str) -> list[str]:
    if isinstance(found, str):
        return [path.name, f"damaged: {found}", "", "", "", ""]
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.time))
    metadata = "" if found.metadata is None else json.dumps(found.metadata)
    size = sum(size for _, size in found.files)
    return [path.name, written, _bytes(size), str(len(found.leaves)), str(found.processes), metadata]


def _as_data(path: Path, found: Checkpoint | str, leaves: bool) -> dict[str, Any]:
    if isinstance(found, str):
        return {"path": str(path), "problem": found}
    about = {
        "path": str(path), "time": found.time, "bytes": found.nbytes, "processes": found.processes,
        "metadata": found.metadata, "files": dict(found.files),
    }  # fmt: skip
    return {**about, "leaves": {k: _typed(v) for k, v in found.leaves.items()}} if leaves else about


def _typed(kind: Any) -> str:
    if isinstance(kind, tuple):
        return " ".join(map(_typed, kind))
    if hasattr(kind, "shape") and hasattr(kind, "dtype"):
        return f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
    return repr(kind)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
