"""Convolution, reduce_window, select_and_scatter."""

from __future__ import annotations

from ..attributes import conv_dims, integer, integers, pairs
from ..graph import Op
from ..model import FactorType, OpRule
from .builder import NEED_REPLICATION, PASS_THROUGH, PERMUTATION, REDUCTION, Dims, RuleBuilder, signature
from .options import RuleOptions


@signature("dimension_numbers", "batch_group_count", "feature_group_count")
def convolution(op: Op, options: RuleOptions) -> OpRule:
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
            _add_spatial(builder, (lhs[a], out[c], rhs[b]), (a, b, c), options.is_newest)
    if feature_groups > 1:
        builder.add([d.input_feature, d.kernel_output_feature], [d.output_feature], feature_groups)
    builder.add([d.input_feature, d.kernel_input_feature], [None], rhs[d.kernel_input_feature], REDUCTION)
    per_group = out[d.output_feature] // (batch_groups * feature_groups)
    if per_group > 1:
        builder.add([None, d.kernel_output_feature], [d.output_feature], per_group)
    return builder.build()


def _add_spatial(builder: RuleBuilder, sizes: tuple[int, int, int], dims: tuple[int, int, int], newest: bool) -> None:
    """The factors of a spatial dimension; `sizes` are those of the input, the output (windows) and the kernel (window).

    The input's dimension has two, of which the larger is major, so that it gets the axes first: one of the windows,
    shared with the output, and one of the window, over which the products are summed, shared with the kernel. Strides
    of 2 over 16 positions with a kernel of 4 leave 7 windows and 16 // 7 = 2 positions of a window. Where nothing is
    left for the minor one, as with stride 1, only one side corresponds to the input; the other has a factor of its own
    in the newest version, and none before.
    """
    (size, windows, window), (a, b, c) = sizes, dims
    parts: list[tuple[int, Dims, Dims, FactorType]] = [
        (windows, [a, None], [c], PERMUTATION),
        (window, [a, b], [None], REDUCTION),
    ]
    alone: list[tuple[Dims, Dims]] = [([None, None], [c]), ([None, b], [None])]
    order = (1, 0) if window > windows else (0, 1)
    remaining = size
    for i in order:
        whole, operand_dims, result_dims, kind = parts[i]
        part = min(whole, remaining)
        if part > 1:
            builder.add(operand_dims, result_dims, part, kind)
            remaining //= part
        elif newest and whole > 1:
            builder.add(*alone[i], whole, PERMUTATION)


@signature("window_dimensions", "window_strides", "padding")
def reduce_window(op: Op, options: RuleOptions) -> OpRule:
    """Dimensions that the window does not move over pass through; the others exchange borders."""
    count = len(op.operands) // 2
    out = op.results[0].type.shape
    still = _still_dims(op, len(out))
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(out):
        builder.add(
            [dim] * count + [None] * count,
            [dim] * count,
            size,
            PASS_THROUGH if still[dim] else PERMUTATION,
            options.conservative and not still[dim],
        )
    return builder.build()


def _still_dims(op: Op, rank: int) -> list[bool]:
    """For each dimension, whether the window does not move over it: of size 1, with stride 1, without padding."""
    window = integers(op.attrs["window_dimensions"])
    strides = integers(op.attrs["window_strides"]) if "window_strides" in op.attrs else (1,) * rank
    padding = pairs(op.attrs["padding"]) if "padding" in op.attrs else ((0, 0),) * rank
    return [w == s == 1 and p == (0, 0) for w, s, p in zip(window, strides, padding)]


@signature("window_dimensions", "window_strides", "padding")
def select_and_scatter(op: Op, options: RuleOptions) -> OpRule:
    """Operand and result share shape; the source has one element per window."""
    operand, source = op.operands[0].type.shape, op.operands[1].type.shape
    still = _still_dims(op, len(operand))
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(operand):
        if still[dim]:
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
