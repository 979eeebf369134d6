"""The attributes of a program's operations: as those of the program being written, and numbered for value numbering,
where equal attributes must compare fast."""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir

from propagation.attributes import conv_dims, dot_dims, gather_dims, scatter_dims
from propagation.graph import TextAttribute
from propagation.program import Op

from ..ir.attributes import (
    NONE,
    Array,
    Attribute,
    Attributes,
    ConvNumbers,
    DotNumbers,
    Enum,
    Flag,
    Flags,
    GatherNumbers,
    Given,
    Integer,
    Integers,
    ScatterNumbers,
    String,
    Symbol,
)

__all__ = ["GivenAttributes", "typed"]


class GivenAttributes:
    """Reads each attribute once, and each combination of them that operations have. What was found of the operation
    that was asked about last is at hand: whoever writes an operation has asked before whether it is known."""

    __slots__ = ("_decoded", "_last", "_last_of", "_signatures", "_texts", "_typed")

    def __init__(self) -> None:
        self._texts: dict[str, Any] = {}
        self._typed: dict[str, Any] = {}
        self._decoded: dict[tuple[Any, ...], tuple[int, Attributes]] = {}
        self._signatures: dict[tuple[Any, ...], int] = {}
        self._last_of: Op | None = None
        self._last: tuple[int, Attributes] = (0, NONE)

    def signature(self, op: Op) -> int:
        """A number for the operation's attributes: equal for equal ones. Shardings and other annotations do not
        count."""
        if op is not self._last_of:
            attrs = op.attrs
            self._last_of, self._last = op, self._decode(attrs) if attrs else _NO_ATTRIBUTES
        return self._last[0]

    def of(self, op: Op) -> Attributes:
        """The operation's attributes without shardings."""
        if op is not self._last_of:
            self.signature(op)
        return self._last[1]

    def _decode(self, attrs: dict[str, Any]) -> tuple[int, Attributes]:
        """The number and the value of attributes, made once for all equal ones."""
        key = tuple(attrs.items())
        found = self._decoded.get(key)
        if found is None:
            own = tuple([item for item in key if not item[0].startswith(("sdy.", "mhlo."))])
            number = self._signatures.setdefault(own, len(self._signatures) + 1) if own else 0
            kept = {name: self.one(a) for name, a in key if not name.startswith(("sdy.", "mhlo.sharding"))}
            found = self._decoded[key] = number, Attributes.of(kept)
        return found

    def one(self, attr: Any) -> Attribute:
        """An attribute as a value of the program being written."""
        found = self._typed.get(attr)
        if found is None:
            found = self._typed[attr] = typed(attr)
        return found

    def text(self, attr: Any) -> str:
        """An attribute as MLIR text, printed once."""
        text = self._texts.get(attr)
        if text is None:
            text = self._texts[attr] = str(attr)
        return text


_NO_ATTRIBUTES = (0, NONE)
_ENUM = re.compile(r"#stablehlo<(\w+) (\w+)>")


def typed(attr: Any) -> Attribute:
    """An attribute as one of our classes, if there is one that prints as it does."""
    if isinstance(attr, TextAttribute | ir.DenseElementsAttr):
        return Given(attr)  # constants may be large: they are printed where the program is
    found = _read(attr)
    return found if found is not None and found.text == str(attr) else Given(attr)


def _read(attr: Any) -> Attribute | None:
    match attr:
        case ir.DenseI64ArrayAttr():
            return Integers(tuple(attr))
        case ir.DenseBoolArrayAttr():
            return Flags(tuple(attr))
        case ir.BoolAttr():
            return Flag(attr.value)
        case ir.IntegerAttr():
            return Integer(attr.value)
        case ir.StringAttr():
            return String(attr.value)
        case ir.FlatSymbolRefAttr():
            return Symbol(attr.value)
        case ir.ArrayAttr():
            return Array(tuple([typed(a) for a in attr]))
    text = str(attr)
    if (enum := _ENUM.fullmatch(text)) is not None:
        return Enum(enum[1], enum[2])
    if text.startswith("#stablehlo.dot<"):
        return DotNumbers(dot_dims(attr))
    if text.startswith("#stablehlo.gather<"):
        return GatherNumbers(gather_dims(attr))
    if text.startswith("#stablehlo.scatter<"):
        return ScatterNumbers(scatter_dims(attr))
    return ConvNumbers(conv_dims(attr)) if text.startswith("#stablehlo.conv<") else None
