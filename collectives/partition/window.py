"""Convolutions and windows: batch and feature dimensions stay split, dimensions a window moves over are made whole."""

from __future__ import annotations

import functools

from propagation.attributes import conv_dims, integer, integers, pairs
from propagation.program import Op

from .batch import apply
from .context import Context
from .factors import PASS, REDUCE, WHOLE, Factors, choose

_WHY = "a window moves over this dimension"


def reduce_window(ctx: Context, op: Op) -> None:
    """Dimensions with a trivial window pass through."""
    count = len(op.results)
    shape, out = op.operands[0].type.shape, op.results[0].type.shape
    window = integers(op.attrs["window_dimensions"])
    trivial = tuple(k == 1 and n == m for k, n, m in zip(window, shape, out))
    trivial = tuple(t and not _shifts(op, d) for d, t in enumerate(trivial))
    kinds = tuple(PASS if t else WHOLE for t in trivial)
    every = tuple(d if t else -1 for d, t in enumerate(trivial))
    factors = Factors(shape, kinds, (every,) * count + ((),) * count, (every,) * count)
    apply(ctx, op, factors, _WHY)


def _shifts(op: Op, d: int) -> bool:
    """Whether a window of one element still moves elements along `d`."""
    for name in ("window_strides", "base_dilations"):
        if name in op.attrs and integers(op.attrs[name])[d] != 1:
            return True
    return "padding" in op.attrs and pairs(op.attrs["padding"])[d] != (0, 0)


def select_and_scatter(ctx: Context, op: Op) -> None:
    """Gradient of a window: dimensions with a trivial window pass through."""
    operand, src = op.operands[0].type.shape, op.operands[1].type.shape
    window = integers(op.attrs["window_dimensions"]) if "window_dimensions" in op.attrs else (1,) * len(operand)
    every = tuple(d if k == 1 and n == m else -1 for d, (k, n, m) in enumerate(zip(window, operand, src)))
    kinds = tuple(PASS if f >= 0 else WHOLE for f in every)
    apply(ctx, op, Factors(operand, kinds, (every, every, ()), (every,)), _WHY)


@functools.lru_cache(maxsize=1024)
def _conv_factors(d, lhs, rhs, out, batch_groups: int, feature_groups: int) -> Factors:
    """Batch and output features pass, input features are contracted; with groups, the group dimension passes as a
    whole number of groups per device."""
    sizes, kinds = [], []

    def factor(n: int, kind: int) -> int:
        sizes.append(n)
        kinds.append(kind)
        return len(sizes) - 1

    left, right, result = [-1] * len(lhs), [-1] * len(rhs), [-1] * len(out)
    if batch_groups > 1:
        f = factor(batch_groups, PASS)
        left[d.input_batch] = right[d.kernel_output_feature] = result[d.output_feature] = f
        left[d.input_feature] = right[d.kernel_input_feature] = factor(lhs[d.input_feature], REDUCE)
    elif feature_groups > 1:
        left[d.input_batch] = result[d.output_batch] = factor(lhs[d.input_batch], PASS)
        f = factor(feature_groups, PASS)
        left[d.input_feature] = right[d.kernel_output_feature] = result[d.output_feature] = f
    else:
        left[d.input_batch] = result[d.output_batch] = factor(lhs[d.input_batch], PASS)
        left[d.input_feature] = right[d.kernel_input_feature] = factor(lhs[d.input_feature], REDUCE)
        right[d.kernel_output_feature] = result[d.output_feature] = factor(out[d.output_feature], PASS)
    even = frozenset(range(len(sizes))) if batch_groups * feature_groups > 1 else frozenset()
    return Factors(tuple(sizes), tuple(kinds), (tuple(left), tuple(right)), (tuple(result),), even)


def convolution(ctx: Context, op: Op) -> None:
    """A split contraction (input features) leaves a partial sum; spatial dimensions are made whole."""
    lhs, rhs = op.operands
    result = op.results[0]
    d = conv_dims(op.attrs["dimension_numbers"])
    groups = {k: integer(op.attrs[k]) for k in ("batch_group_count", "feature_group_count")}
    factors = _conv_factors(
        d, lhs.type.shape, rhs.type.shape, result.type.shape, groups["batch_group_count"],
        groups["feature_group_count"],
    )  # fmt: skip
    per_element = 2 * ctx.byte_per_flop
    for i in d.kernel_spatial:
        per_element *= rhs.type.shape[i]
    for i in d.output_spatial:
        per_element *= result.type.shape[i]
    choice = choose(ctx, factors, (lhs, rhs), (result,), per_element)
    operands = []
    contracted = ((d.input_feature,), (d.kernel_input_feature,))
    for v, dims, f, c in zip((lhs, rhs), choice.operands, factors.operands, contracted):
        have = ctx.state(v).dims
        lost = have is not None and any(a and i < 0 for a, i in zip(have, f))
        ref = ctx.gathered(v, dims, _WHY) if lost else ctx.get(v, dims)
        operands.append(ctx.masked(ref, v.type.shape, dims, c))
    text = ctx.attr_text(op, skip=tuple(groups))
    for name, count in groups.items():
        if count > 1:
            count //= ctx.atoms.product(choice.results[0][d.output_feature])
        text += f", {name} = {count} : i64"
    ref = ctx.local_copy(op, operands, [ctx.piece_shape(result, choice.results[0])], attrs=text)[0]
    ctx.bind_partial(result, choice.results[0], {choice.pending: ref})


PARTITION = {
    "stablehlo.convolution": convolution,
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.select_and_scatter": select_and_scatter,
}
