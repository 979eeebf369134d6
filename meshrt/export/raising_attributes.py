"""Attributes and types of StableHLO's operations as values of Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from meshrt import errors
from meshrt.core.types import ShapedArray
from meshrt.lowering.types import dtype_of_element
from propagation.graph import attribute_of

__all__ = ["NotRaised", "array_of", "enum", "flag", "number", "numbers", "pairs", "symbol", "type_of"]

# Types whose elements MLIR's constants give away as they are.
_NATIVE = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
_HEX = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|-?\d[\d.]*(?:[eE][-+]?\d+)?")


class NotRaised(Exception):
    """The program has something in it that the operations of this library cannot say, for the caller to do without."""


def type_of(value: Any) -> ShapedArray:
    """The type of a value; NotRaised if it is no array of known sizes."""
    kind = value.type
    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        raise NotRaised(f"a value of type {kind}")
    try:
        return ShapedArray(tuple(kind.shape), dtype_of_element(str(kind.element_type)))
    except errors.UnsupportedError as e:
        raise NotRaised(str(e)) from None


def array_of(op: Any, name: str, kind: ShapedArray) -> Any:
    """The elements of an attribute, a constant of this type; where all are the same, one, as the type may be of any
    size."""
    named = next(op.attributes[i] for i in range(len(op.attributes)) if op.attributes[i].name == name)
    attr = attribute_of(op.attributes, named)
    if kind.dtype.str[1:] in _NATIVE and kind.dtype.isbuiltin == 1 and isinstance(attr, ir.DenseElementsAttr):
        view: Any = np.asarray(attr)
        return np.asarray(view[(0,) * view.ndim]) if attr.is_splat else view.reshape(kind.shape)
    text = str(attr).partition(" : ")[0]
    if not text.startswith("dense<"):  # only some elements are written out, or none
        raise NotRaised(f"the constant {text[:40]}")
    bits = _HEX.match(text)
    if bits is not None:
        elements = np.frombuffer(bytes.fromhex(bits[1]), kind.dtype)
    else:
        part = np.empty(0, kind.dtype).real.dtype
        numbers = np.asarray([_element(n, part) for n in _NUMBER.findall(text.removeprefix("dense"))], part)
        elements = numbers if kind.dtype == part else numbers.view(kind.dtype)
    if len(elements) not in (1, kind.size):
        raise NotRaised(f"a constant of type {kind.short()}")
    return elements.reshape(kind.shape if len(elements) > 1 else ())


def _element(text: str, dtype: Any) -> Any:
    if text.startswith("0x"):  # bits, of what no number in decimal is
        return np.frombuffer(bytes.fromhex(text[2:])[::-1], dtype)[0]
    return np.asarray(float(text), dtype)[()]


def numbers(op: Any, name: str, count: int, default: int) -> list[int]:
    """An attribute of integers, which may be left out."""
    if name not in op.attributes:
        return [default] * count
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def pairs(op: Any, name: str, count: int) -> list[tuple[int, int]]:
    """An attribute of pairs, such as paddings, which may be left out."""
    if name not in op.attributes:
        return [(0, 0)] * count
    found: Sequence[Any] = np.asarray(ir.DenseElementsAttr(op.attributes[name])).reshape(-1, 2).tolist()
    return [(int(a), int(b)) for a, b in found]


def number(op: Any, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def flag(op: Any, name: str) -> bool:
    return name in op.attributes and bool(ir.BoolAttr(op.attributes[name]).value)


def enum(op: Any, name: str, default: str = "") -> str:
    """The word of an attribute such as `#stablehlo<comparison_direction EQ>`."""
    if name not in op.attributes:
        return default
    return str(op.attributes[name]).rpartition(" ")[2].rstrip(">")


def symbol(attr: Any) -> str:
    return str(ir.FlatSymbolRefAttr(attr).value)
