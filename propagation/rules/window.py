"""Convolution, reduce_window, select_and_scatter."""

from __future__ import annotations

from ..attributes import conv_dims, integer, integers, pairs
from .builder import NEED_REPLICATION, PASS_THROUGH, PERMUTATION, REDUCTION, RuleBuilder, signature


@signature("dimension_numbers", "batch_group_count", "feature_group_count")
def convolution(op, options):
    """A spatial dimension of the input corresponds to windows (in the output) and the window (in the kernel)."""
    lhs, rhs = (v.type.shape for v in op.operands)
    out = op.results[0].type.shape
    d = conv_dims(op.attrs["dimension_numbers"])
    batch_groups = integer(op.attrs["batch_group_count"])
    feature_groups = integer(op.attrs["feature_group_count"])
    builder = RuleBuilder.of(op)
    if batch_groups > 1:
        builder.add([d.input_batch, d.kernel_output_feature], [d.output_feature], batch_groups)
    builder.add([d.input_batch, None], [d.output_batch], out[d.output_batch])
    if not options.conservative:
        for a, b, c in zip(d.input_spatial, d.kernel_spatial, d.output_spatial):
            add = _add_spatial if options.is_newest else _add_spatial_compound
            add(builder, lhs[a], out[c], rhs[b], a, b, c)
    if feature_groups > 1:
        builder.add([d.input_feature, d.kernel_output_feature], [d.output_feature], feature_groups)
    builder.add([d.input_feature, d.kernel_input_feature], [None], rhs[d.kernel_input_feature], REDUCTION)
    per_group = out[d.output_feature] // (batch_groups * feature_groups)
    if per_group > 1:
        builder.add([None, d.kernel_output_feature], [d.output_feature], per_group)
    return builder.build()


def _add_spatial(builder, input_size: int, windows: int, window: int, a: int, b: int, c: int) -> None:
    """The input goes with the larger of output and kernel; the other one has a factor of its own."""
    if windows >= window:
        parts = [(windows, [a, None], [c], PERMUTATION), (window, [None, b], [None], PERMUTATION)]
    else:
        parts = [(window, [a, b], [None], REDUCTION), (windows, [None, None], [c], PERMUTATION)]
    for size, operand_dims, result_dims, kind in parts:
        size = min(size, input_size)
        if size > 1:
            builder.add(operand_dims, result_dims, size, kind)


def _add_spatial_compound(builder, remaining: int, windows: int, window: int, a: int, b: int, c: int) -> None:
    # The larger of the two is major, so that it gets the axes first.
    parts = [(windows, [a, None], [c], PERMUTATION), (window, [a, b], [None], REDUCTION)]
    if window > windows:
        parts.reverse()
    for size, operand_dims, result_dims, kind in parts:
        size = min(size, remaining)
        if size > 1:
            builder.add(operand_dims, result_dims, size, kind)
            remaining //= size


@signature("window_dimensions", "window_strides", "padding")
def reduce_window(op, options):
    """Dimensions that the window does not move over pass through; the others exchange borders."""
    count = len(op.operands) // 2
    out = op.results[0].type.shape
    window = integers(op.attrs["window_dimensions"])
    strides = _per_dim(op, "window_strides", len(out))
    padding = pairs(op.attrs["padding"]) if "padding" in op.attrs else ((0, 0),) * len(out)
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(out):
        trivial = window[dim] == 1 and strides[dim] == 1 and padding[dim] == (0, 0)
        builder.add(
            [dim] * count + [None] * count,
            [dim] * count,
            size,
            PASS_THROUGH if trivial else PERMUTATION,
            options.conservative and not trivial,
        )
    return builder.build()


def _per_dim(op, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    return integers(op.attrs[name]) if name in op.attrs else (default,) * rank


@signature("window_dimensions", "window_strides", "padding")
def select_and_scatter(op, options):
    """Operand and result share shape; the source has one element per window."""
    operand, source = op.operands[0].type.shape, op.operands[1].type.shape
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(operand):
        if size == source[dim]:
            builder.add([dim, dim, None], [dim], size)
        else:
            builder.add([None, dim, None], [None], source[dim], NEED_REPLICATION, options.conservative)
            builder.add([dim, None, None], [dim], size, PERMUTATION, options.conservative)
    return builder.build()


RULES = {
    "stablehlo.convolution": convolution,
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.select_and_scatter": select_and_scatter,
}
