"""`jax._src.pretty_printer`: text that is broken into lines where it does not fit (Wadler's documents)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.numpy.names import missing as _missing
from meshrt.xla.jaxlib_tools import (
    Color,
    Doc,
    Intensity,
    OutputFormat,
    brk,
    color,
    concat,
    group,
    nest,
    nil,
    source_map,
    text,
)

__all__ = [
    "Color", "Doc", "Intensity", "brk", "color", "concat", "group", "join", "keyword", "nest", "nil", "source_map",
    "text", "type_annotation",
]  # fmt: skip


def _format(
    self: Any, width: int = 80, *, use_color: bool | None = None, output_format: Any = None,
    separable_lines: bool = False, annotation_prefix: str = " # ", source_map: Any = None,
) -> str:  # fmt: skip
    """The text of a document, in lines of `width` where that can be."""
    return str(
        self._format(
            width, use_color=bool(use_color), output_format=output_format or OutputFormat.TEXT,
            separable_lines=separable_lines, annotation_prefix=annotation_prefix, source_map=source_map,
        )
    )  # fmt: skip


# The class is C++'s, and has everything but these.
Doc.format = _format
Doc.__str__ = _format


def join(sep: Any, docs: Sequence[Any]) -> Any:
    """Documents with one between each two."""
    docs = list(docs)
    if not docs:
        return nil()
    return concat([docs[0], *(part for doc in docs[1:] for part in (sep, doc))])


def type_annotation(
    child: Any, *, foreground: Any = Color.MAGENTA, background: Any = None, intensity: Any = Intensity.NORMAL
) -> Any:
    """A document in the colour of types."""
    return color(child, foreground=foreground, background=background, intensity=intensity)


def keyword(
    child: Any, *, foreground: Any = Color.BLUE, background: Any = None, intensity: Any = Intensity.BRIGHT
) -> Any:
    """A document in the colour of words of the language."""
    return color(child, foreground=foreground, background=background, intensity=intensity)


__getattr__ = _missing("jax._src.pretty_printer", __all__)
