"""Text that is broken into lines where it does not fit on one (after Oppen and Wadler).

A document is a string, a `Break`, a `Group`, a `Nested` or a list of documents. A group stands on one line if it fits
there; if it does not, each break that is not inside a further group is a new line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Break", "Document", "Group", "Nested", "laid_out"]

_WIDTH = 80


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


Document = str | Break | Group | Nested | list["Document"]


def laid_out(document: Document, width: int = _WIDTH) -> str:
    """The text of a document.

    >>> print(laid_out(Group(["f(", Nested(2, [Break(""), "x,", Break(), "y"]), Break(""), ")"]), 4))
    f(
      x,
      y
    )
    """
    out: list[str] = []
    column = 0
    rest: list[tuple[int, bool, Document]] = [(0, False, document)]
    while rest:
        indent, flat, part = rest.pop()
        if isinstance(part, str):
            out.append(part)
            column += len(part)
        elif isinstance(part, Break):
            out.append(part.flat if flat else "\n" + " " * indent)
            column = column + len(part.flat) if flat else indent
        elif isinstance(part, Group):
            flat = flat or _fits(part.parts, width - column)
            rest += [(indent, flat, p) for p in reversed(part.parts)]
        elif isinstance(part, Nested):
            rest += [(indent + part.indent, flat, p) for p in reversed(part.parts)]
        else:
            rest += [(indent, flat, p) for p in reversed(part)]
    return "".join(out)


def _fits(parts: Sequence[Document], room: int) -> bool:
    """Whether the parts take no more than so many characters on one line."""
    rest = list(reversed(parts))
    while rest and room >= 0:
        part = rest.pop()
        if isinstance(part, str | Break):
            room -= len(part if isinstance(part, str) else part.flat)
        else:
            rest += reversed(part.parts if isinstance(part, Group | Nested) else part)
    return room >= 0
