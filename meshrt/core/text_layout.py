"""Text that is broken into lines where it does not fit on one (after Oppen and Wadler).

A document is a string, a `Break`, a `Group`, a `Nested` or a list of documents. A group stands on one line if it fits
there; if it does not, each break that is not inside a further group is a new line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["WIDTH", "Break", "Document", "Group", "Nested", "Note", "coloured", "laid_out"]

WIDTH = 80


class Break(NamedTuple):
    """Where a line may end; `flat` stands there if none does."""

    flat: str = " "


class Group(NamedTuple):
    """Parts that stand on one line, if they fit."""

    parts: Sequence[Document]


class Nested(NamedTuple):
    """Parts whose lines begin so much deeper than those around."""

    indent: int
    parts: Sequence[Document]


class Note(NamedTuple):
    """What is said of the line that this stands in, behind it: notes stand in one column."""

    text: str


Document = str | Break | Group | Nested | Note | list["Document"]


def laid_out(document: Document, width: int = WIDTH) -> str:
    """The text of a document.

    >>> print(laid_out(Group(["f(", Nested(2, [Break(""), "x,", Break(), "y"]), Break(""), ")"]), 4))
    f(
      x,
      y
    )
    """
    out: list[str] = []
    notes: list[tuple[int, str]] = []
    column = line = 0
    rest: list[tuple[int, bool, Document]] = [(0, False, document)]
    while rest:
        indent, flat, part = rest.pop()
        if isinstance(part, str):
            out.append(part)
            line += part.count("\n")
            column = len(part) - part.rindex("\n") - 1 if "\n" in part else column + len(part)
        elif isinstance(part, Break):
            out.append(part.flat if flat else "\n" + " " * indent)
            line += not flat
            column = column + len(part.flat) if flat else indent
        elif isinstance(part, Note):
            notes.append((line, part.text))
        elif isinstance(part, Group):
            flat = flat or _fits(part.parts, width - column)
            rest += [(indent, flat, p) for p in reversed(part.parts)]
        elif isinstance(part, Nested):
            rest += [(indent + part.indent, flat, p) for p in reversed(part.parts)]
        else:
            rest += [(indent, flat, p) for p in reversed(part)]
    return _with_notes("".join(out), notes) if notes else "".join(out)


def _with_notes(text: str, notes: Sequence[tuple[int, str]]) -> str:
    """Lines with their notes behind them; the second one of a line has a line of its own."""
    lines = text.split("\n")
    column = max(len(lines[i]) for i, _ in notes)
    said: dict[int, list[str]] = {}
    for i, note in notes:
        said.setdefault(i, []).append(note)
    written = []
    for i, line in enumerate(lines):
        first, *more = said.get(i, [""])
        written.append(f"{line:{column}} # {first}" if first else line)
        written += [f"{'':{column}} # {note}" for note in more]
    return "\n".join(written)


# In the text of a program: its own words, and the types of variables.
_WORDS = re.compile(r"(?<=\{ )lambda(?= )|(?<= )let(?=\s)|\bin (?=\()")
_TYPES = re.compile(r"(?<=\b[a-z])(:\w+(?:<[^>]*>)?\[[^\]]*\])|(?<=\b[a-z]{2})(:\w+(?:<[^>]*>)?\[[^\]]*\])")


def coloured(text: str) -> str:
    """The text of a program with escape sequences that colour its words and types on a terminal."""
    text = _WORDS.sub(lambda found: f"\x1b[34;1m{found[0]}\x1b[39;22m", text)
    return _TYPES.sub(lambda found: f"\x1b[35m{found[0]}\x1b[39m", text)


def _fits(parts: Sequence[Document], room: int) -> bool:
    """Whether the parts take no more than so many characters on one line."""
    rest = list(reversed(parts))
    while rest and room >= 0:
        part = rest.pop()
        if isinstance(part, str | Break):
            room -= len(part if isinstance(part, str) else part.flat)
        elif not isinstance(part, Note):
            rest += reversed(part.parts if isinstance(part, Group | Nested) else part)
    return room >= 0
