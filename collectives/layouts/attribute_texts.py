"""The attributes of operations: as MLIR text for the program being written, and numbered for value numbering, where
equal attributes must compare fast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from propagation.program import Op

__all__ = ["AttributeTexts"]


class AttributeTexts:
    """Prints each attribute once, and each combination of them that operations have."""

    __slots__ = ("_attributes", "_signatures", "_texts")

    def __init__(self) -> None:
        self._texts: dict = {}
        self._attributes: dict[tuple, tuple[int, str]] = {}
        self._signatures: dict[tuple, int] = {}

    def signature(self, op: Op) -> int:
        """A number for the operation's attributes: equal for equal ones. Shardings and other annotations do not
        count."""
        attrs = op.attrs
        return self._decoded(attrs)[0] if attrs else 0

    def of(self, op: Op, skip: Iterable[str] = ()) -> str:
        """The operation's attributes as text, without shardings and those in `skip`."""
        attrs = op.attrs
        if not attrs:
            return ""
        return self._attributes_text(attrs, skip) if skip else self._decoded(attrs)[1]

    def _decoded(self, attrs: dict) -> tuple[int, str]:
        """The number and the text of attributes, made once for all equal ones."""
        key = tuple(attrs.items())
        found = self._attributes.get(key)
        if found is None:
            own = tuple([item for item in key if not item[0].startswith(("sdy.", "mhlo."))])
            number = self._signatures.setdefault(own, len(self._signatures) + 1) if own else 0
            found = self._attributes[key] = number, self._attributes_text(attrs, ())
        return found

    def _attributes_text(self, attrs: dict, skip: Iterable[str]) -> str:
        out = []
        for name, attr in attrs.items():
            if name.startswith(("sdy.", "mhlo.sharding")) or name in skip:
                continue
            text = self.one(attr)
            out.append(name if text == "unit" else f"{name} = {text}" if _plain(name) else f'"{name}" = {text}')
        return ", ".join(out)

    def one(self, attr: Any) -> str:
        """An attribute as MLIR text, printed once."""
        text = self._texts.get(attr)
        if text is None:
            text = self._texts[attr] = str(attr)
        return text


def _plain(name: str) -> bool:
    return name.replace("_", "a").replace(".", "a").isalnum()
