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

from jaxlib.mlir import ir

from propagation.attributes import ConvDims
from propagation.program import Op

from ..ir.program import LocalValue
from ..layouts.context import Context

__all__ = ["Local", "convolve", "padding_text"]


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


def padding_text(padding: Sequence[tuple[int, int]]) -> str:
    """The attribute `padding`."""
    rows = ", ".join(f"[{a}, {b}]" for a, b in padding)
    values = f"[{rows}]" if padding else ""
    return f"padding = dense<{values}> : tensor<{len(padding)}x2xi64>"


def convolve(ctx: Context, op: Op, local: Local, operands: Sequence[LocalValue], shape: tuple[int, ...]) -> LocalValue:
    """The convolution of the pieces `operands` to a result of `shape`, with the attributes of `op` except for those in
    `local`."""
    if _trade(local, operands, shape):
        return _traded(ctx, op, local, operands, shape)
    text = f"{ctx.attr_text(op, skip=(*local.groups, 'padding'))}, {padding_text(local.padding)}"
    for name, count in local.groups.items():
        text += f", {name} = {count} : i64"
    return ctx.local_copy(op, operands, [shape], attrs=text)[0]


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
    precision = list(map(str, ir.ArrayAttr(op.attrs["precision_config"]))) if "precision_config" in op.attrs else []
    text = [
        ctx.attr_text(op, skip=given),
        f"dimension_numbers = {_dimension_numbers(d)}",
        f"lhs_dilation = array<i64: {', '.join(map(str, local.spread))}>",
        f"rhs_dilation = array<i64: {', '.join(map(str, local.base))}>",
        f"precision_config = [{', '.join(reversed(precision))}]" if precision else "",
        padding_text(padding),
        *(f"{name} = {count} : i64" for name, count in local.groups.items()),
    ]
    out = ctx.local_copy(op, (w, x), [shape], attrs=", ".join(filter(None, text)))[0]
    attrs = f"dimensions = array<i64: {', '.join(map(str, d.output_spatial))}>"
    return ctx.emit("stablehlo.reverse", (out,), shape, out.dtype, attrs)


def _dimension_numbers(d: ConvDims) -> str:
    """The dimension numbers of the convolution with its operands swapped."""
    text = [
        _letters(d.kernel_spatial, {d.kernel_output_feature: "b", d.kernel_input_feature: "f"}),
        _letters(d.input_spatial, {d.input_feature: "i", d.input_batch: "o"}),
        _letters(d.output_spatial, {d.output_feature: "b", d.output_batch: "f"}),
    ]
    return f"#stablehlo.conv<{text[0]}x{text[1]}->{text[2]}>"


def _letters(spatial: Sequence[int], names: dict[int, str]) -> str:
    names = names | {at: str(j) for j, at in enumerate(spatial)}
    return f"[{', '.join(names[i] for i in range(len(names)))}]"
