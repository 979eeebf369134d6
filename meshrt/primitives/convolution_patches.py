"""Convolutions whose kernel is the identity or differs from place to place, and shapes of convolutions' results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import transpose
from meshrt.core.types import aval_of
from meshrt.primitives.contract import dot_general
from meshrt.primitives.convolution_functions import (
    conv_dimension_numbers,
    conv_general_dilated,
    conv_general_permutations,
    transposed_pads,
)
from meshrt.primitives.precision import Precision, canonical_precision
from meshrt.primitives.windowing import padtype_to_pads, window_positions

__all__ = [
    "conv_general_dilated_local", "conv_general_dilated_patches", "conv_general_shape_tuple", "conv_shape_tuple",
    "conv_transpose_shape_tuple",
]  # fmt: skip


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """What `conv_general_dilated` would multiply with its kernel: at each place the window of shape `filter_shape`.

    The result's feature dimension holds the windows flattened, channel by channel: [n, c, h, w] with windows of 2x3
    gives [n, c * 6, places..., places...]. Windows have the order of the kernel's spatial dimensions.

    Args:
      lhs: the left array.
      filter_shape: sizes of the window.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      lhs_dilation: the distance between elements of `lhs`.
      rhs_dilation: the distance between elements of `rhs`.
      dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.
      precision: a `Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> lax.conv_general_dilated_patches(jnp.ones((1, 1, 4)), (2,), (1,), "VALID").shape
    (1, 2, 3)
    """
    aval, window = aval_of(lhs), tuple(map(int, filter_shape))
    numbers = conv_dimension_numbers(aval.shape, (1, 1, *window), dimension_numbers)
    channels, size = aval.shape[numbers.lhs_spec[1]], math.prod(window)
    # One output feature for each channel and element of the window, which that element alone reaches.
    taps = np.broadcast_to(np.eye(size, dtype=aval.dtype), (channels, size, size))
    kernel = taps.reshape(channels * size, 1, *window)
    if isinstance(precision, Precision):
        precision = (precision, Precision.DEFAULT)
    return conv_general_dilated(
        lhs, np.moveaxis(kernel, (0, 1), numbers.rhs_spec[:2]), window_strides, padding, lhs_dilation, rhs_dilation,
        numbers, feature_group_count=channels, precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_general_dilated_local(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
) -> Any:
    """A convolution with a kernel for each place of the result.

    The kernel's spatial dimensions are the result's, and its input dimension holds windows as
    `conv_general_dilated_patches` flattens them: [out, c * 6, places..., places...] for windows of 2x3.

    Args:
      lhs: the left array.
      rhs: the right array.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      filter_shape: sizes of the window.
      lhs_dilation: the distance between elements of `lhs`.
      rhs_dilation: the distance between elements of `rhs`.
      dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.
      precision: a `Precision`, its name, or one for each operand.

    >>> lax.conv_general_dilated_local(jnp.ones((1, 1, 4)), jnp.ones((2, 2, 3)), (1,), "VALID", (2,)).shape
    (1, 2, 3)
    """
    found = canonical_precision(precision)
    patches = conv_general_dilated_patches(
        lhs, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
        found[0] if type(found) is tuple else found,
    )  # fmt: skip
    numbers = conv_dimension_numbers(aval_of(lhs).shape, (1, 1, *filter_shape), dimension_numbers)
    places = sorted(zip(numbers.out_spec[2:], numbers.rhs_spec[2:]))
    batch = tuple(p for p, _ in places), tuple(q for _, q in places)
    out = dot_general(patches, rhs, (((numbers.out_spec[1],), (numbers.rhs_spec[1],)), batch), precision)
    # [places..., batch, features], to the order that was asked for.
    ndim = aval_of(out).ndim
    given = [*batch[0], *numbers.out_spec[:2]]
    return transpose(out, [given.index(d) for d in range(ndim)])


# ---------------------------------------------------------------------------------------------------------------------
# Shapes


def conv_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    strides: Sequence[int],
    pads: str | Sequence[tuple[int, int]],
    batch_group_count: int = 1,
) -> tuple[int, ...]:
    """The shape of a convolution with default layouts: [batch, features, spatial...] with [out, in, spatial...].

    >>> lax.conv_shape_tuple((1, 3, 8, 8), (5, 3, 3, 3), (1, 1), [(0, 0), (0, 0)])
    (1, 5, 6, 6)
    """
    spatial, window = lhs_shape[2:], rhs_shape[2:]
    given = padtype_to_pads(spatial, window, strides, pads) if isinstance(pads, str) else pads
    if len(given) != len(spatial):
        raise errors.ArgumentTypeError(
            f"a convolution with {len(spatial)} spatial dimensions needs as many (low, high) pads, but got {len(given)}"
        )
    padded = [n + sum(p) for n, p in zip(spatial, given)]
    if any(n < 0 for n in padded):
        raise errors.ArgumentValueError(f"the padding {given} takes away more than the sizes {tuple(spatial)} have")
    places = [window_positions(n, w, s) for n, w, s in zip(padded, window, strides)]
    return (int(lhs_shape[0] // batch_group_count), int(rhs_shape[0]), *map(int, places))


def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """The shape of a convolution with the layouts of `dimension_numbers`, such as ("NHWC", "HWIO", "NHWC").

    Args:
      lhs_shape: the shape of the left operand.
      rhs_shape: the shape of the window.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.

    >>> lax.conv_general_shape_tuple((1, 8, 8, 3), (3, 3, 3, 5), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (1, 4, 4, 5)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    made = conv_shape_tuple([lhs_shape[d] for d in lhs], [rhs_shape[d] for d in rhs], window_strides, padding)
    return tuple(made[out.index(d)] for d in range(len(out)))


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """The shape of a transposed convolution; pairs pad the dilated operand.

    Args:
      lhs_shape: the shape of the left operand.
      rhs_shape: the shape of the window.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.

    >>> lax.conv_transpose_shape_tuple((1, 8, 8, 3), (3, 3, 3, 5), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (1, 16, 16, 5)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    window = [rhs_shape[d] for d in rhs[2:]]
    pads: Any = padding
    if isinstance(padding, str):
        pads = [transposed_pads(n, s, padding) for n, s in zip(window, window_strides)]
    sizes = [
        (lhs_shape[d] - 1) * s - n + 2 + int(np.sum(p)) for d, n, s, p in zip(lhs[2:], window, window_strides, pads)
    ]
    made = (lhs_shape[lhs[0]], rhs_shape[rhs[0]], *sizes)
    return tuple(int(made[out.index(d)]) for d in range(len(out)))
