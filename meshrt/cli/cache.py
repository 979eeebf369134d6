"""``meshrt cache``: what is kept in the directory of compiled programs, whether it is sound, and away with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from meshrt.errors import ConfigError, counted

if TYPE_CHECKING:
    from meshrt.runtime.disk_cache import DiskCache, Entry

_EPILOG = """\b
Examples:
  meshrt cache ls
  meshrt cache verify --dir ~/.cache/meshrt --remove
  meshrt cache clear --older-than 30
"""

_directory = click.option("--dir", "directory", metavar="DIR", help="The directory. [default: compilation_cache_dir]")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(name="cache", epilog=_EPILOG)
def command() -> None:
    """Lists, checks or empties the directory of compiled programs (MESHRT_COMPILATION_CACHE_DIR)."""


@command.command()
@_directory
@_as_json
def ls(directory: str | None, as_json: bool) -> None:
    """Lists the entries, that used last first."""
    disk = _opened(directory)
    _show(disk, disk.entries(), as_json)


@command.command()
@click.option("--remove", is_flag=True, help="Remove the entries that are damaged.")
@_directory
@_as_json
def verify(directory: str | None, as_json: bool, remove: bool) -> int:
    """Reads every entry and compares its checksum. Exit code 1 if one is damaged."""
    disk = _opened(directory)
    found = disk.entries(check=True)
    damaged = [e for e in found if e.problem is not None]
    if as_json:
        _show(disk, damaged, True)
    else:
        for entry in damaged:
            click.echo(f"{disk.path(entry.name)}: {entry.problem}")
        click.echo(f"{counted(len(found), 'entry')}, {len(damaged)} damaged")
    if remove:
        for entry in damaged:
            disk.remove(entry.name)
    return 1 if damaged else 0


@command.command()
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Only what was not used for so long.")
@_directory
@_as_json
def clear(directory: str | None, as_json: bool, older_than: float | None) -> None:
    """Removes the entries."""
    disk = _opened(directory)
    found = disk.entries()
    before = None if older_than is None else time.time() - 86400 * older_than
    gone = [e for e in found if (before is None or e.used < before) and disk.remove(e.name)]
    if before is None:
        disk.clear()  # with what processes that were killed have left
    size = sum(e.size for e in gone)
    if as_json:
        click.echo(json.dumps({"directory": str(disk.root), "removed": len(gone), "bytes": size}))
    else:
        click.echo(f"removed {len(gone)} of {len(found)} entries, {_bytes(size)}, from {disk.root}")


def _opened(directory: str | None) -> DiskCache:
    # Start-up time: `meshrt --help` shows every command.
    from meshrt.config import settings
    from meshrt.runtime.disk_cache import DiskCache, checked_directory

    name = directory or settings.compilation_cache_dir
    if name is None:
        raise ConfigError(
            "no directory of compiled programs is set: give --dir DIR, or set MESHRT_COMPILATION_CACHE_DIR to the one "
            "that your programs use"
        )
    return DiskCache(checked_directory(name, make=False))


_COLUMNS: tuple[tuple[str, str, Callable[[Entry], str]], ...] = (
    ("program", "left", lambda e: e.program if e.problem is None else f"damaged: {e.problem}"),
    ("kind", "left", lambda e: e.name.rpartition(".")[2]),
    ("platform", "left", lambda e: e.platform),
    ("jaxlib", "left", lambda e: e.jaxlib),
    ("size", "right", lambda e: _bytes(e.size)),
    ("age", "right", lambda e: _age(time.time() - e.created)),
    ("used", "right", lambda e: _age(time.time() - e.used)),
    ("hits", "right", lambda e: str(e.hits)),
    ("key", "left", lambda e: e.name[:12]),
)


def _show(disk: DiskCache, entries: list[Entry], as_json: bool) -> None:
    total = sum(e.size for e in entries)
    if as_json:
        rows = [e.as_json() for e in entries]
        click.echo(json.dumps({"directory": str(disk.root), "bytes": total, "entries": rows}, indent=2))
        return
    # Start-up time: tables take 20 ms to import.
    from meshrt.inspect.render import clean, console, table

    made = table(f"{disk.root}: {counted(len(entries), 'entry')}, {_bytes(total)}")
    for title, justify, _ in _COLUMNS:
        side: Any = justify
        made.add_column(title, justify=side, overflow="fold")
    for entry in entries:
        made.add_row(*[clean(text(entry)) for _, _, text in _COLUMNS])
    console().print(made)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
