"""The program that `suggest` and `plan` are asked about, as the module that judges read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshrt.errors import InspectError, TargetError
from meshrt.inspect.containers import module_in
from meshrt.inspect.guard import Limits, read_file
from meshrt.inspect.target import ForeignText, Hook, lower_target, split_target
from meshrt.pipeline.names import names_of

__all__ = ["TargetProgram", "bytes_of", "read_target"]


@dataclass(frozen=True, slots=True)
class TargetProgram:
    """A StableHLO module, and the names of its arguments if they are known better than it says them."""

    name: str
    module: str | bytes
    names: tuple[str, ...] | None = None


def read_target(target: str, mesh: Mapping[str, int], hook: Hook = "example_arguments") -> TargetProgram:
    """`FILE.py:FUNCTION` over an abstract mesh, a StableHLO file, or an exported function.

    Raises:
      InspectError: it is none of these; TargetError, its subclass, if it names no function of a file.
    """
    python = split_target(target)
    if python is None:
        if target.endswith(".py"):
            raise TargetError(f"{target}: name a function of it, as in {target}:step")
        data = read_file(target, Limits())
        exported = module_in(data, target)
        return TargetProgram(target, data if exported is None else exported)
    lowered = lower_target(*python, dict(mesh), hook)
    if isinstance(lowered, ForeignText):
        return TargetProgram(target, str(lowered))
    return TargetProgram(target, lowered.module.text, tuple(names_of(lowered)[0]))


_UNITS = {
    "": 1,
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
}


def bytes_of(text: str) -> float:
    """`16GiB` as 17179869184.0. InspectError if it is not of that form."""
    number = text.rstrip("BKMGTib")
    unit = text[len(number) :]
    try:
        found = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        found = -1.0
    if not 0.0 < found < math.inf:
        raise InspectError(f"{text!r} is no number of bytes; write it as 16GiB")
    return found
