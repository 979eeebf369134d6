"""Sizes and attributes of windows: what reduce_window, pooling, cumulative reductions and convolutions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.dimensions.arithmetic import ceil_div, is_surely
from meshrt.core.dimensions.expression import as_size, non_negative_dim
from propagation.asm import i64_array

__all__ = ["padtype_to_pads", "reduce_window_shape_tuple"]


class PaddingNameError(errors.ArgumentShapeError, RuntimeError):
    """A padding by a name that there is not; JAX raises a RuntimeError."""


def pairs_attribute(padding: Sequence[tuple[int, int]]) -> str:
    """`padding` as `dense<[[low, high], ...]> : tensor<nx2xi64>`."""
    rows = ", ".join([f"[{low}, {high}]" for low, high in padding])
    return f"dense<[{rows}]> : tensor<{len(padding)}x2xi64>" if padding else "dense<> : tensor<0x2xi64>"


def reduce_window_attributes(
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Sequence[tuple[int, int]] | None = None,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> str:
    """The attributes of a `stablehlo.reduce_window`."""
    ones = [1] * len(window_dimensions)
    return (
        f"base_dilations = {i64_array(base_dilation or ones)}, "
        f"padding = {pairs_attribute(padding or [(0, 0)] * len(ones))}, "
        f"window_dilations = {i64_array(window_dilation or ones)}, "
        f"window_dimensions = {i64_array(window_dimensions)}, "
        f"window_strides = {i64_array(window_strides or ones)}"
    )


def dilated(size: Any, dilation: Any) -> Any:
    """The extent of `size` elements with `dilation - 1` gaps between neighbours."""
    return non_negative_dim(1 + dilation * (size - 1)) if size != 0 else 0


def window_positions(size: Any, window: Any, stride: Any) -> Any:
    """How many windows fit into `size` elements."""
    return non_negative_dim((size - window) // stride + 1)


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: Any
) -> list[tuple[int, int]]:
    """The (low, high) padding in each dimension for "SAME", "SAME_LOWER" or "VALID".

    Args:
      in_shape: sizes of the operand.
      window_shape: sizes of the window.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.

    >>> lax.padtype_to_pads((8, 8), (3, 3), (2, 2), "SAME")
    [(0, 1), (0, 1)]
    """
    name = getattr(padding, "name", padding)
    known = ("SAME", "SAME_LOWER", "VALID")
    if not isinstance(name, str) or name.upper() not in known:
        raise PaddingNameError(
            f"Unrecognized padding type: expected 'VALID', 'SAME', or 'SAME_LOWER', got {padding}. Pairs (low, high), "
            "one per dimension, are the other form"
        )
    name = name.upper()
    if name == "VALID":
        return [(0, 0)] * len(in_shape)
    pads = []
    for n, window, stride in zip(in_shape, window_shape, window_strides):
        n, window, stride = map(as_size, (n, window, stride))
        # (Where a symbolic size turns out to be 0 there are no windows with either.)
        none = is_surely(lambda n=n: n == 0)
        total = 0 if none else non_negative_dim((ceil_div(n, stride) - 1) * stride + window - n)
        small, large = total // 2, total - total // 2
        pads.append((large, small) if name == "SAME_LOWER" else (small, large))
    return pads


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """How many windows `reduce_window` finds along each dimension.

    Args:
      operand_shape: sizes of the operand.
      window_dimensions: sizes of the window.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      base_dilation: the distance between elements of the operand.
      window_dilation: the distance between elements of the window.

    >>> lax.reduce_window_shape_tuple((4, 4), (2, 2), (2, 2), [(0, 0), (0, 0)])
    (2, 2)
    """
    ones = (1,) * len(operand_shape)
    sizes = map(dilated, operand_shape, base_dilation or ones)
    extents = map(dilated, window_dimensions, window_dilation or ones)
    return tuple(
        window_positions(n + sum(pads), extent, stride)
        for n, pads, extent, stride in zip(sizes, padding, extents, window_strides)
    )


def canonical_pads(padding: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    """Explicit padding as pairs of ints."""
    try:
        pads = tuple([(as_size(low), as_size(high)) for low, high in padding])
    except (TypeError, ValueError):
        raise errors.ArgumentShapeError(
            f"the padding argument must be a string or a sequence of (low, high) pairs of ints, got {padding!r}"
        ) from None
    if len(pads) != ndim:
        raise errors.ArgumentShapeError(
            f"Wrong number of explicit pads: expected {ndim} (low, high) pairs, got {len(pads)}: {padding!r}"
        )
    return pads


def operand_gradient_pads(
    operand_shape: Sequence[int],
    window_shape: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    padding: Sequence[tuple[int, int]],
    operand_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """How to pad the (stride-dilated) cotangent so that windows over it give the operand's gradient."""
    pads = []
    sizes = zip(operand_shape, window_shape, strides, out_shape, padding, operand_dilation, window_dilation)
    for n, window, stride, out, (low, _), base, spread in sizes:
        extent = dilated(window, spread)
        before = extent - 1 - low
        pads.append((before, dilated(n, base) + extent - 1 - dilated(out, stride) - before))
    return pads


def window_gradient_pads(
    operand_shape: Sequence[int],
    window_shape: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    padding: Sequence[tuple[int, int]],
    operand_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """How to pad the operand so that sliding the (stride-dilated) cotangent over it gives the kernel's gradient."""
    pads = []
    sizes = zip(operand_shape, window_shape, strides, out_shape, padding, operand_dilation, window_dilation)
    for n, window, stride, out, (low, _), base, spread in sizes:
        high = dilated(out, stride) - dilated(n, base) + dilated(window, spread) - low - 1
        pads.append((low, high))
    return pads
