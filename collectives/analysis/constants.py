"""Constants: which number all elements of a value are, as far as the program says so."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from propagation.attributes import cached
from propagation.graph import TextAttribute
from propagation.program import Value

__all__ = ["bounds_of", "is_splat", "scalar_constant"]


def is_splat(attr: ir.Attribute | TextAttribute) -> bool:
    """Whether a constant's attribute says that all its elements are one number."""
    if isinstance(attr, TextAttribute):  # complex elements: dense<(1.0,2.0)> is a splat, dense<[(1.0,2.0), ...]> is not
        return attr.text.startswith("dense<(")
    return isinstance(attr, ir.DenseElementsAttr) and ir.DenseElementsAttr(attr).is_splat


_CONSTANTS = ("stablehlo.constant", "sdy.constant")
_KEEPING = ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape")


def scalar_constant(value: Value) -> float | int | bool | None:
    """The number that all elements of a value are, if it is a splat constant, broadcast, reshaped or converted; else
    None."""
    op = value.op
    types: list[str] = []  # element types that it is converted to, the last one first
    while op is not None and op.name in _KEEPING:
        if op.name == "stablehlo.convert":
            types.append(op.results[0].type.dtype)
        op = op.operands[0].op
    if op is None or op.name not in _CONSTANTS:
        return None
    attr = op.attrs["value"]
    number = None if isinstance(attr, TextAttribute) else _number(attr)
    for dtype in reversed(types):
        number = None if number is None else _converted(number, dtype)
    return number


_FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def _converted(number: float | int | bool, dtype: str) -> float | int | bool | None:
    """A number converted to another element type; None where the result is unknown or differs between platforms."""
    if isinstance(number, complex):
        return None
    if dtype in _FLOATS:
        with np.errstate(all="ignore"):
            return float(np.asarray(number, _FLOATS[dtype]))
    if dtype == "i1":
        return bool(number)
    width = dtype.removeprefix("u").removeprefix("i")
    if dtype.startswith(("f", "complex")) or not width.isdigit() or not np.isfinite(number):
        return None
    low, bits = (0, int(width)) if dtype.startswith("u") else (-(1 << (int(width) - 1)), int(width) - 1)
    whole = int(number)
    return whole if low <= whole < 1 << bits else None


@cached
def _number(attr: ir.Attribute) -> float | int | bool | None:
    """The element of a splat constant; None for other constants."""
    if not is_splat(attr):
        return None
    try:
        # One element is stored, whatever the shape: a copy of the array would be as large as the tensor.
        elements = np.asarray(ir.DenseElementsAttr(attr))
        return elements.flat[0].item() if elements.size else None
    except (AttributeError, TypeError, ValueError, BufferError):  # element types NumPy cannot hold: read the text
        text = str(attr)
        literal = text[text.index("<") + 1 : text.rindex("> :")]
        try:
            return float(literal)
        except ValueError:
            return _from_bits(literal, str(ir.ShapedType(attr.type).element_type))


def _from_bits(literal: str, dtype: str) -> float | None:
    """The special values that MLIR prints as bits."""
    known = {"bf16": {"0xFF80": -np.inf, "0x7F80": np.inf}, "f16": {"0xFC00": -np.inf, "0x7C00": np.inf}}
    return known.get(dtype, {}).get(literal)


def bounds_of(dtype: str) -> tuple[int, int]:
    """(least, greatest) number of an integer type; of `i1` 0 and 1."""
    width = int(dtype.lstrip("ui"))
    if dtype.startswith("ui") or width == 1:
        return 0, (1 << width) - 1
    return -(1 << (width - 1)), (1 << (width - 1)) - 1
