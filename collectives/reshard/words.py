"""Integers that hold the bits of numbers: as such they arrive where sums of numbers would lose signs of zeros,
subnormal numbers and payloads of NaNs."""

from __future__ import annotations

from ..ir.attributes import NONE
from ..ir.program import LocalValue, Region

__all__ = ["WORDS", "as_word", "of_word"]

_EIGHT = ("E3M4", "E4M3", "E4M3B11FNUZ", "E4M3FN", "E4M3FNUZ", "E5M2", "E5M2FNUZ", "E8M0FNU")
WORDS = {"bf16": "i16", "f16": "i16", "f32": "i32", "f64": "i64", **{f"f8{name}": "i8" for name in _EIGHT}}


def as_word(region: Region, x: LocalValue, loc: str) -> LocalValue:
    """The bits of floating-point numbers; other values as they are."""
    word = WORDS.get(x.dtype)
    return x if word is None else region.shared("stablehlo.bitcast_convert", (x,), x.shape, word, NONE, loc)


def of_word(region: Region, x: LocalValue, dtype: str, loc: str) -> LocalValue:
    """The numbers, of the element type `dtype`, whose bits `as_word` gave."""
    return x if x.dtype == dtype else region.shared("stablehlo.bitcast_convert", (x,), x.shape, dtype, NONE, loc)
