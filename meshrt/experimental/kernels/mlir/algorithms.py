"""Products by an algorithm that a program names (`lax.DotAlgorithmPreset`), as products of what it multiplies: of
operands that are converted first, or of parts of them that are added up."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshrt import lax
from meshrt.core.jaxpr import Eqn
from meshrt.experimental.kernels.mlir.walk import Walk
from meshrt.primitives import contract
from meshrt.primitives.precision import DotAlgorithm, DotAlgorithmPreset, Precision, preset_of

__all__ = ["SMALLEST", "converted_first", "in_parts", "preset_asked"]

_F32, _BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)

# The last of the products of parts that an algorithm adds up: which parts they are, counted from the largest, together.
SMALLEST = {"BF16_BF16_F32_X3": 1, "BF16_BF16_F32_X6": 2, "BF16_BF16_F32_X9": 4}


def preset_asked(walk: Walk, eqn: Eqn, examples: str) -> DotAlgorithmPreset | None:
    """The algorithm that a product is asked for; None for none, or for any."""
    asked = eqn.params.get("precision")
    if not isinstance(asked, DotAlgorithm | DotAlgorithmPreset):
        return None
    preset = preset_of(asked)
    if preset is None:
        walk.refuse(f"there is no {asked} here: give one of lax.DotAlgorithmPreset, as {examples}")
    return None if preset is DotAlgorithmPreset.DEFAULT else preset


def _result_type(x: Any, y: Any, preferred: Any) -> np.dtype:
    return np.dtype(preferred or np.result_type(x.dtype, y.dtype))


def converted_first(x: Any, y: Any, *, precision: Any, preferred_element_type: Any = None, to: Any, **how: Any) -> Any:
    """The product of operands converted `to` the type that the algorithm `precision` multiplies."""
    preset: Any = preset_of(precision)
    made = contract.dot_general_p.bind(
        lax.convert_element_type(x, to), lax.convert_element_type(y, to), precision=precision,
        preferred_element_type=np.dtype(preset.accumulation_type), **how,
    )  # fmt: skip
    return lax.convert_element_type(made, _result_type(x, y, preferred_element_type))


def in_parts(x: Any, y: Any, *, precision: Any, preferred_element_type: Any = None, **how: Any) -> Any:
    """The sum of products of what bfloat16 holds of the operands, of what that leaves, and of the rest of both."""
    preset = None if isinstance(precision, Precision | tuple) else preset_of(precision)
    last = SMALLEST["BF16_BF16_F32_X3" if preset is None else preset.name]
    left, right = _bfloat16_parts(x), _bfloat16_parts(y)
    pairs = [(i, j) for i in range(len(left)) for j in range(len(right)) if i + j <= last]
    algorithm = {"precision": DotAlgorithmPreset.BF16_BF16_F32, "preferred_element_type": _F32}
    found: Any = None
    for i, j in sorted(pairs, key=sum, reverse=True):  # the smallest first: beside what is large they are rounded
        if i + j == 0 and found is not None:
            # What an infinity leaves is NaN, and its products with the rests of the other operand have either sign.
            is_finite = lax.lt(lax.abs(found), lax.full(found.shape, np.inf, _F32))
            found = lax.select(is_finite, found, lax.full(found.shape, 0, _F32))
        product = contract.dot_general_p.bind(left[i], right[j], **algorithm, **how)
        found = product if found is None else lax.add(found, product)
    return lax.convert_element_type(found, _result_type(x, y, preferred_element_type))


def _bfloat16_parts(x: Any) -> list[Any]:
    """Three numbers whose sum is `x`, each of 8 bits that those before leave out; `x` alone where it has no more."""
    if x.dtype == _BF16:
        return [x]
    rest, parts = lax.convert_element_type(x, _F32), []
    for _ in range(3):
        parts.append(lax.convert_element_type(rest, _BF16))
        rest = lax.sub(rest, lax.convert_element_type(parts[-1], _F32))
    return parts
