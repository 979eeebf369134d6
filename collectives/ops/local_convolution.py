"""The convolution of one device's pieces, with its operands swapped where the kernel is larger than the input.

A weight gradient convolves an image with another image. Where the second one is larger, compilers swap the operands and
reverse the window, a form for which few have fast code (XLA on CPUs falls back to loops that are fifty times slower).
Here they are swapped without a reversed window: output positions are counted from the end instead, and the output,
which is small then, is reversed. With x the input, w the kernel, and positions of both spaced by their dilations b and
d,

    out[t] = sum over j, k of x[j] w[k]  where  j b = t s + k d - low;

counted from the end, t' = T - 1 - t, that is  k d = t' s + j b - ((T - 1) s - low): a convolution of w, whose elements
are d apart, with the kernel x, whose taps are b apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from propagation.attributes import ConvDims
from propagation.program import Op

from ..ir.attributes import Array, Attribute, ConvNumbers, Integer, Integers, Pairs
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layouts.context import Context

__all__ = ["Local", "convolve"]


class Local(NamedTuple):
    """The attributes of a convolution of a device's pieces. Per spatial dimension: window stride (`step`), dilation of
    the input (`base`) and of the kernel (`spread`), padding. `groups` are the group counts by attribute; `plain` says
    that no window is reversed."""

    dims: ConvDims
    step: Sequence[int]
    base: Sequence[int]
    spread: Sequence[int]
    padding: Sequence[tuple[int, int]]
    groups: dict[str, int]
    plain: bool


def convolve(ctx: Context, op: Op, local: Local, operands: Sequence[LocalValue], shape: tuple[int, ...]) -> LocalValue:
    """The convolution of the pieces `operands` to a result of `shape`, with the attributes of `op` except for those in
    `local`."""
    if _trade(local, operands, shape):
        return _traded(ctx, op, local, operands, shape)
    attrs = ctx.attributes_of(op).without(*local.groups, "padding").also(_padding_and_groups(local, local.padding))
    return ctx.local_copy(op, operands, [shape], attrs)[0]


def _padding_and_groups(local: Local, padding: Sequence[tuple[int, int]]) -> dict[str, Attribute]:
    return {"padding": Pairs(tuple(padding)), **{name: Integer(count) for name, count in local.groups.items()}}


def _trade(local: Local, operands: Sequence[LocalValue], shape: tuple[int, ...]) -> bool:
    """Whether to swap: the kernel has more positions than the input. (An input of one position is a matrix product.)"""
    x, w = operands
    taps = math.prod(w.shape[k] for k in local.dims.kernel_spatial)
    inputs = math.prod(x.shape[i] for i in local.dims.input_spatial)
    grouped = any(count != 1 for count in local.groups.values())
    return taps > inputs > 1 and local.plain and not grouped and 0 not in (*x.shape, *w.shape, *shape)


def _traded(ctx: Context, op: Op, local: Local, operands: Sequence[LocalValue], shape: tuple[int, ...]) -> LocalValue:
    x, w = operands
    d = local.dims
    padding = []
    for i, k, o, step, base, spread, (low, _) in zip(
        d.input_spatial, d.kernel_spatial, d.output_spatial, local.step, local.base, local.spread, local.padding
    ):
        span = (shape[o] - 1) * step
        reach = span + (x.shape[i] - 1) * base - (w.shape[k] - 1) * spread
        padding.append((span - low, reach - span + low))
    given = ("padding", "dimension_numbers", "lhs_dilation", "rhs_dilation", "precision_config", *local.groups)
    known = ctx.attributes_of(op)
    swapped: dict[str, Attribute] = {
        "dimension_numbers": ConvNumbers(_swapped_dimensions(d)),
        "lhs_dilation": Integers(tuple(local.spread)),
        "rhs_dilation": Integers(tuple(local.base)),
    }
    precision = known.get("precision_config")
    if isinstance(precision, Array) and precision.members:
        swapped["precision_config"] = Array(precision.members[::-1])
    swapped |= _padding_and_groups(local, padding)
    out = ctx.local_copy(op, (w, x), [shape], known.without(*given).also(swapped))[0]
    attrs = attributes("stablehlo.reverse", tuple(d.output_spatial))
    return ctx.emit("stablehlo.reverse", (out,), shape, out.dtype, attrs)


def _swapped_dimensions(d: ConvDims) -> ConvDims:
    """The dimension numbers of the convolution with its operands swapped."""
    return ConvDims(
        input_batch=d.kernel_output_feature,
        input_feature=d.kernel_input_feature,
        input_spatial=d.kernel_spatial,
        kernel_input_feature=d.input_feature,
        kernel_output_feature=d.input_batch,
        kernel_spatial=d.input_spatial,
        output_batch=d.output_feature,
        output_feature=d.output_batch,
        output_spatial=d.output_spatial,
    )
