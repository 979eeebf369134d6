"""Comments in a program's source that say what lint shall not tell.

    w = jax.lax.with_sharding_constraint(w, P())  # meshrt: ignore
    # meshrt: ignore=whole-gather,conflict
    h = x @ w

A comment stands on the line that lint names, or alone on the one above. Without names it holds for every rule.
"""

from __future__ import annotations

import functools
import os
import re
import stat

__all__ = ["is_ignored"]

_COMMENT = re.compile(r"#\s*meshrt:\s*ignore(?:\s*=\s*([\w, -]+))?")
_LONGEST = 4 << 20  # bytes of a source file; a module may name any file, and what is no source is not read


def is_ignored(rule: str, where: str | None) -> bool:
    """Whether a comment at a source line, `FILE:LINE`, asks that a rule be silent. What cannot be read has none."""
    path, _, line = (where or "").rpartition(":")
    if not path or not line.isdecimal():
        return False
    number, lines = int(line) - 1, _lines(path)
    if not 0 <= number < len(lines):
        return False
    above = lines[number - 1].strip() if number else ""
    return any(_silences(rule, text) for text in (lines[number], above if above.startswith("#") else ""))


def _silences(rule: str, text: str) -> bool:
    found = _COMMENT.search(text)
    if found is None:
        return False
    return found[1] is None or rule in [name.strip() for name in found[1].split(",")]


@functools.lru_cache(maxsize=64)
def _lines(path: str) -> tuple[str, ...]:
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LONGEST:
            return ()
        with open(path, encoding="utf-8", errors="replace") as file:
            return tuple(file)
    except (OSError, ValueError):  # (a name with a zero byte)
        return ()
