"""The options that say which arguments a function of a file is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from meshrt.inspect.target import Hook

__all__ = ["argument_options", "hook_of", "seconds_of"]

_FACTORY = "example_arguments"


def seconds_of(text: str) -> float:
    """The type of options that take a time: `90`, `90s`, `1.5m` or `1h`, in seconds. Raises `BadParameter` for others.

    >>> seconds_of("90s"), seconds_of("1.5m")
    (90.0, 90.0)
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        found = -1.0
    if not 0.0 <= found < math.inf:
        raise click.BadParameter(f"{text!r} is no time; write it as 90, 90s, 1.5m or 1h")
    return found


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def argument_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--factory` and `--args`, which a command takes as `factory` and `written`; see `hook_of`."""
    factory = click.option(
        "--factory", "--arguments", "factory", metavar="NAME",
        help="The function of FILE.py that takes the mesh and returns FUNCTION's arguments, or their name.  "
        f"[default: {_FACTORY}]",
    )  # fmt: skip
    written = click.option(
        "--args", "written", metavar="ARGS",
        help="The arguments instead: 'f32[8@data,128],tree.json,rate=0.1'; @ names the axes that split a size, "
        "FILE.json is a tree of such texts, NAME= begins a keyword argument.",
    )  # fmt: skip
    return factory(written(command))


def hook_of(factory: str | None, written: str | None) -> Hook:
    """What both options come to. UsageError if both are given."""
    if written is None:
        return factory or _FACTORY
    if factory is not None:
        raise click.UsageError("--args writes the arguments that --factory makes; give one of them")
    from meshrt.inspect.written_arguments import WrittenArguments  # start-up time: few commands need it

    return WrittenArguments(written)
