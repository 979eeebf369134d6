"""Paths of operations in the texts that people read."""

from __future__ import annotations

import re

__all__ = ["rooted"]

# The path of an operation, in HLO's metadata and in a location of MLIR's.
_PATH = re.compile(r'(?<=op_name=")|(?<=loc\(")(?=[^"]*"\()')


def rooted(text: str, fun_name: str) -> str:
    """A program as text, in which the paths of operations begin with its function: `jit(f)/scope/sin`. Modules have
    them without: equal programs of functions of several names are then one to the caches."""
    return _PATH.sub(lambda _: f"jit({fun_name})/", text)
