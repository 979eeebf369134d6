"""`jax._src.cudnn.scaled_matmul_stablehlo`: products of quantised operands, by the functions of `jax.nn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.nn import scaled_dot_general, scaled_matmul
from meshrt.nn.scaled import BlockScaleConfig, matrices, quantized
from meshrt.numpy.names import missing as _missing

__all__ = [
    "BlockScaleConfig", "quantize", "scaled_dot_general_wrapper", "scaled_matmul_wrapper", "shape_normalization",
]  # fmt: skip


def quantize(x: Any, config: BlockScaleConfig) -> tuple[Any, Any]:
    """(elements, scales) of arrays whose last dimension has the blocks."""
    return quantized(x, config)


def shape_normalization(x: Any, dimension_numbers: tuple[Sequence[int], Sequence[int]]) -> Any:
    """`x` as a batch of matrices (batch, kept, contracted), of its (contracting, batch) dimensions."""
    contracting, batch = dimension_numbers
    return matrices(x, batch, contracting)


def scaled_matmul_wrapper(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = np.float32
) -> Any:
    """`jax.nn.scaled_matmul`."""
    return scaled_matmul(lhs, rhs, lhs_scales, rhs_scales, preferred_element_type)


def scaled_dot_general_wrapper(
    lhs: Any, rhs: Any, dimension_numbers: Any, preferred_element_type: Any = np.float32, configs: Any = None
) -> Any:
    """`jax.nn.scaled_dot_general`."""
    return scaled_dot_general(
        lhs, rhs, dimension_numbers, preferred_element_type=preferred_element_type, configs=configs
    )


__getattr__ = _missing("jax._src.cudnn.scaled_matmul_stablehlo", __all__)
