"""Floating-point numbers as integers of the same order, for maxima and minima over devices.

The collectives of most runtimes compare with `a < b`, by which NaN is lost or kept depending on who comes first; the
maximum of StableHLO is NaN wherever an operand is. Integers have no such gap: the bits of a float, those below the sign
inverted if it is negative, are ordered like the float; NaN becomes the largest integer for a maximum, the smallest for
a minimum, both of which read back as NaN. As many bytes travel as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.attributes import Attributes
from ..ir.operations import attributes
from ..ir.program import LocalValue, Region

if TYPE_CHECKING:
    from .realise import Realiser

__all__ = ["from_ordered", "is_ordered", "to_ordered"]

_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def is_ordered(reduction: str, dtype: str) -> bool:
    """Whether a reduction of this kind over devices is done on integers."""
    return reduction in ("max", "min") and dtype in _BITS


def to_ordered(real: Realiser, region: Region, x: LocalValue, reduction: str) -> LocalValue:
    """Integers ordered like the floats `x`."""
    bits = _BITS[x.dtype]
    key = _flip(real, region, region.shared("stablehlo.bitcast_convert", (x,), x.shape, f"i{bits}"))
    worst = 2 ** (bits - 1) - 1 if reduction == "max" else -(2 ** (bits - 1))
    nan = region.shared("stablehlo.compare", (x, x), x.shape, "i1", _direction("NE"))
    return region.shared("stablehlo.select", (nan, real.constant(region, x.shape, key.dtype, str(worst)), key), x.shape,
                         key.dtype)  # fmt: skip


def from_ordered(real: Realiser, region: Region, key: LocalValue, dtype: str) -> LocalValue:
    """The floats that integers made by `to_ordered` stand for."""
    return region.shared("stablehlo.bitcast_convert", (_flip(real, region, key),), key.shape, dtype)


def _flip(real: Realiser, region: Region, key: LocalValue) -> LocalValue:
    """The bits below the sign inverted where the sign is set; its own inverse."""
    low = 2 ** (int(key.dtype[1:]) - 1) - 1
    inverted = region.shared(
        "stablehlo.xor", (key, real.constant(region, key.shape, key.dtype, str(low))), key.shape, key.dtype
    )
    zero = real.zero(region, key.shape, key.dtype)
    negative = region.shared("stablehlo.compare", (key, zero), key.shape, "i1", _direction("LT"))
    return region.shared("stablehlo.select", (negative, inverted, key), key.shape, key.dtype)


def _direction(name: str) -> Attributes:
    return attributes("stablehlo.compare", name)
