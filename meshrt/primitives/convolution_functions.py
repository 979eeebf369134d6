"""Convolutions as users call them: dimension numbers, padding by name, transposed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import transpose
from meshrt.core.completion import asked
from meshrt.core.dimensions.arithmetic import ceil_div
from meshrt.core.types import aval_of
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import rev_p
from meshrt.primitives.convolution import ConvDimensionNumbers, conv_general_dilated_p, taken
from meshrt.primitives.precision import canonical_precision
from meshrt.primitives.windowing import (
    PaddingNameError,
    canonical_pads,
    dilated,
    padtype_to_pads,
)

__all__ = [
    "ConvDimensionNumbers", "ConvGeneralDilatedDimensionNumbers", "conv", "conv_dimension_numbers",
    "conv_general_dilated", "conv_general_permutations", "conv_transpose", "conv_with_general_padding",
]  # fmt: skip

# What `dimension_numbers` of `conv_general_dilated` may be.
ConvGeneralDilatedDimensionNumbers = tuple[str, str, str] | ConvDimensionNumbers | None


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The three specs of ConvDimensionNumbers for strings such as ("NHWC", "HWIO", "NHWC").

    Spatial dimensions are numbered, and strides and padding given, in the order in which the kernel has them.

    >>> lax.conv_general_permutations(("NHWC", "HWIO", "NHWC"))
    ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    lhs, rhs, out = dimension_numbers
    spatial = [c for c in rhs if c not in "OI"]
    specs = []
    for name, leading in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        if sorted(name) != sorted([*leading, *spatial]) or len(set(name)) != len(name):
            raise errors.ArgumentShapeError(
                f"convolution dimension_numbers {tuple(dimension_numbers)!r}: {name!r} must hold {leading[0]!r}, "
                f"{leading[1]!r} and the kernel's spatial dimensions {''.join(spatial)!r}, each once"
            )
        specs.append(tuple(name.index(c) for c in (*leading, *spatial)))
    return tuple(specs)


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """`dimension_numbers` (None, three strings or ConvDimensionNumbers) for operands of these shapes.

    Args:
      lhs_shape: the shape of the left operand.
      rhs_shape: the shape of the window.
      dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.

    >>> lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 5), ("NHWC", "HWIO", "NHWC")).lhs_spec
    (0, 3, 1, 2)
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return ConvDimensionNumbers(*(tuple(map(int, s)) for s in dimension_numbers))
    ndim = len(lhs_shape)
    if ndim != len(rhs_shape):
        raise errors.ArgumentShapeError(
            f"convolution requires lhs and rhs ndim to be equal, got {ndim} and {len(rhs_shape)}. The shapes are "
            f"{lhs_shape} and {rhs_shape}"
        )
    if dimension_numbers is None:
        same = tuple(range(ndim))
        return ConvDimensionNumbers(same, same, same)
    names = dimension_numbers
    if (
        not isinstance(names, list | tuple)
        or len(names) != 3
        or any(not isinstance(s, str) or len(s) != ndim for s in names)
    ):
        raise errors.ArgumentShapeError(
            f"convolution dimension_numbers must be None, three strings of {ndim} letters or ConvDimensionNumbers; "
            f"each must have len equal to the ndim of lhs and rhs, got {dimension_numbers!r}"
        )
    return ConvDimensionNumbers(*conv_general_permutations(names))


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The convolution (without flipping) of `lhs` with the kernel `rhs`.

    `dimension_numbers` is None (batch, feature, spatial; out, in, spatial), three strings, or ConvDimensionNumbers.
    `padding` is "SAME", "SAME_LOWER", "VALID" or a (low, high) pair per spatial dimension. Complex operands are
    convolved by their parts.

    Args:
      lhs: the left array.
      rhs: the right array.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension (the only form where `lhs_dilation` is not 1).
      lhs_dilation: the distance between elements of `lhs`.
      rhs_dilation: the distance between elements of `rhs`.
      dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.
      feature_group_count: groups of features that are convolved apart.
      batch_group_count: groups of the batch that are convolved apart.
      precision: a `Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.
      out_sharding: the sharding of the result over Explicit axes.

    >>> lax.conv_general_dilated(jnp.ones((1, 8, 8, 3)), jnp.ones((3, 3, 3, 5)), (2, 2), "SAME",
    ...     dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 4, 4, 5)
    """
    a, b = aval_of(lhs), aval_of(rhs)
    numbers = conv_dimension_numbers(a.shape, b.shape, dimension_numbers)
    ones = (1,) * (a.ndim - 2)
    strides = tuple(map(int, window_strides))
    lhs_dilation = ones if lhs_dilation is None else tuple(map(int, lhs_dilation))
    rhs_dilation = ones if rhs_dilation is None else tuple(map(int, rhs_dilation))
    if len(strides) != a.ndim - 2 and a.ndim == b.ndim:
        raise errors.ArgumentShapeError(
            "conv_general_dilated window and window_strides must have the same number of dimensions, but window has "
            f"{a.ndim - 2} and window_strides {len(strides)}: {tuple(strides)}"
        )
    for key, count in {"feature_group_count": feature_group_count, "batch_group_count": batch_group_count}.items():
        if count < 1:
            raise errors.ArgumentValueError(f"conv_general_dilated {key} must be a positive integer, got {count}.")
    if any(s < 1 for s in strides):
        raise errors.ArgumentTypeError(
            f"conv_general_dilated window_strides must have every element be strictly positive, got {strides}."
        )
    if isinstance(padding, str):
        if any(d != 1 for d in lhs_dilation):
            raise errors.ArgumentValueError(
                "String padding is not implemented for transposed convolution using this op: lhs_dilation is "
                f"{lhs_dilation}, padding {padding!r}; give (low, high) for each dimension, or use conv_transpose"
            )
        window = [dilated(n, d) for n, d in zip(taken(b.shape, numbers.rhs_spec[2:]), rhs_dilation)]
        padding = padtype_to_pads(taken(a.shape, numbers.lhs_spec[2:]), window, strides, padding)
    preferred = None if preferred_element_type is None else np.dtype(dtypes.canonicalize_dtype(preferred_element_type))
    if preferred is not None:
        _check_preferred(a.dtype, preferred)
    params = {
        "window_strides": strides, "padding": canonical_pads(padding, a.ndim - 2), "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation, "dimension_numbers": numbers, "feature_group_count": int(feature_group_count),
        "batch_group_count": int(batch_group_count), "precision": canonical_precision(precision),
        "preferred_element_type": preferred,
    }  # fmt: skip
    params.update(asked(out_sharding, a.ndim, "conv_general_dilated"))
    if dtypes.issubdtype(a.dtype, np.complexfloating):
        return _complex_convolution(lhs, rhs, params)
    return conv_general_dilated_p.bind(lhs, rhs, **params)


def _check_preferred(dtype: np.dtype, preferred: np.dtype) -> None:
    """The dtype of results is of the operands' kind (or floating for integers) and sign, and at least as wide."""
    kinds = (np.signedinteger, np.unsignedinteger, np.floating, np.complexfloating)
    of, to = (next((k for k in kinds if dtypes.issubdtype(d, k)), None) for d in (dtype, preferred))
    integers = (np.signedinteger, np.unsignedinteger)
    problem = None
    if dtypes.itemsize_bits(preferred) < dtypes.itemsize_bits(dtype):
        problem = "`preferred_element_type` must not be narrower than the original type."
    elif of in integers and to in integers:
        if of is np.signedinteger and to is not of:
            problem = "`preferred_element_type` must have the same signedness as the original type."
    elif of is not None and of is not to and not (of in integers and to is np.floating):
        problem = (
            "Input type is incompatible with `preferred_element_type`. The compatible combinations of (input_type, "
            "preferred_element_type) are (integral, integral), (integral, floating), (floating, floating), (complex, "
            "complex)."
        )
    if problem:
        raise errors.ArgumentTypeError(
            f"conv_general_dilated: {problem} Got {preferred} for operands of {dtype}; convert with astype"
        )


def _complex_convolution(lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
    if params["preferred_element_type"] not in (None, aval_of(lhs).dtype):
        raise errors.UnsupportedError("a complex convolution cannot have another preferred_element_type")
    params = {**params, "preferred_element_type": None}
    (a, b), (c, d) = ((ew.real_p.bind(x), ew.imag_p.bind(x)) for x in (lhs, rhs))
    convolve = lambda x, y: conv_general_dilated_p.bind(x, y, **params)
    real = ew.sub_p.bind(convolve(a, c), convolve(b, d))
    return ew.complex_p.bind(real, ew.add_p.bind(convolve(a, d), convolve(b, c)))


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`conv_general_dilated` with default layouts and without dilation.

    Args:
      lhs: the left array.
      rhs: the right array.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      precision: a `Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> lax.conv(jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 2, 2)), (1, 1), "VALID").shape
    (1, 1, 3, 3)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`conv_general_dilated` with default layouts.

    Args:
      lhs: the left array.
      rhs: the right array.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      lhs_dilation: the distance between elements of `lhs`.
      rhs_dilation: the distance between elements of `rhs`.
      precision: a `Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> lax.conv_with_general_padding(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), (1,), [(1, 0)], None, None).shape
    (1, 1, 4)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


def transposed_pads(extent: int, stride: int, padding: Any) -> tuple[int, int]:
    """The padding of a transposed convolution, from that of the forward one."""
    if padding == "SAME":
        total = extent + stride - 2
        before = extent - 1 if stride > extent - 1 else ceil_div(total, 2)
        return before, total - before
    if padding == "VALID":
        total = extent + stride - 2 + max(extent - stride, 0)
        return extent - 1, total - (extent - 1)
    if isinstance(padding, str):
        raise PaddingNameError(f"conv_transpose: Unrecognized padding type: expected 'VALID' or 'SAME', got {padding}")
    low, high = padding
    return extent - 1 - low, extent - 1 - high


_TRANSPOSE_LAYOUTS = {
    2: ("NC", "IO", "NC"), 3: ("NHC", "HIO", "NHC"), 4: ("NHWC", "HWIO", "NHWC"), 5: ("NHWDC", "HWDIO", "NHWDC"),
}  # fmt: skip


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Any:
    """The transposed (fractionally strided) convolution: spatial sizes grow by `strides`.

    "SAME" and "VALID" mean the padding of the forward convolution, and so do pairs with `use_consistent_padding`;
    otherwise pairs pad the dilated operand. `transpose_kernel` flips the kernel and exchanges its features, which gives
    the gradient of the forward convolution. Layouts default to channels last.

    Args:
      lhs: the left array.
      rhs: the right array.
      strides: the distance at which results of neighbouring elements lie.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      rhs_dilation: the distance between elements of `rhs`.
      dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.
      transpose_kernel: turn the window round and exchange its features, as the gradient of a convolution does.
      precision: a `Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.
      use_consistent_padding: pad as the gradient of a convolution with the same padding does.

    >>> lax.conv_transpose(jnp.ones((1, 4, 3)), jnp.ones((2, 3, 5)), (2,), "SAME").shape
    (1, 8, 5)
    """
    a, b = aval_of(lhs), aval_of(rhs)
    if a.ndim != b.ndim or a.ndim < 2 or (dimension_numbers is None and a.ndim not in _TRANSPOSE_LAYOUTS):
        raise errors.ArgumentShapeError(
            f"conv_transpose needs an operand and a kernel of one rank (2 to 5 without dimension_numbers), but got "
            f"{a.short()} and {b.short()}"
        )
    names = _TRANSPOSE_LAYOUTS[a.ndim] if dimension_numbers is None else dimension_numbers
    numbers = conv_dimension_numbers(a.shape, b.shape, names)
    spatial = tuple(numbers.rhs_spec[2:])
    spread = (1,) * len(spatial) if rhs_dilation is None else tuple(rhs_dilation)
    if use_consistent_padding or isinstance(padding, str):
        given = [padding] * len(strides) if isinstance(padding, str) else padding
        extents = [dilated(n, d) for n, d in zip(taken(b.shape, spatial), spread)]
        padding = [transposed_pads(e, s, q) for e, s, q in zip(extents, strides, given)]
    if transpose_kernel:
        rhs = rev_p.bind(rhs, dimensions=spatial)
        order = list(range(b.ndim))
        out, into = numbers.rhs_spec[:2]
        order[out], order[into] = into, out
        rhs = transpose(rhs, order)
    return conv_general_dilated(
        lhs, rhs, (1,) * len(spatial), padding, tuple(strides), spread, numbers, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip
