"""Paths of operations in the texts that people read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from propagation.quoting import quote

__all__ = ["named", "rooted"]

# The path of an operation, in HLO's metadata and in a location of MLIR's.
_PATH = re.compile(r'(?<=op_name=")|(?<=loc\(")(?=[^"]*"\()')

# An argument of the entry function, whose place in the text of the module nobody asks for.
_ARGUMENT = re.compile(r'(%arg(\d+): [^\n]*?) loc\("-":\d+:\d+\)(?=[,)])')


def named(text: str, names: Sequence[str]) -> str:
    """A module as text, in which the arguments of the entry function have their names as locations: `loc("x[0]")`."""
    start = text.find("func.func public @main(")
    end = text.find("\n", start)
    captured = len(_ARGUMENT.findall(text, start, end)) - len(names)  # values come first that have no names
    if start < 0 or captured < 0:
        return text

    def placed(found: re.Match[str]) -> str:
        position = int(found[2]) - captured
        return found[0] if position < 0 or not names[position] else f"{found[1]} loc({quote(names[position])})"

    return f"{text[:start]}{_ARGUMENT.sub(placed, text[start:end])}{text[end:]}"


def rooted(text: str, fun_name: str) -> str:
    """A program as text, in which the paths of operations begin with its function: `jit(f)/scope/sin`. Modules have
    them without: equal programs of functions of several names are then one to the caches."""
    return _PATH.sub(lambda _: f"jit({fun_name})/", text)
