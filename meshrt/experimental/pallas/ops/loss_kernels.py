"""The kernels of cross-entropy: rows (labels) by blocks of classes.

Where `head` is given, logits are computed block by block as x @ headᵀ; without it, x are the logits.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import lax
from meshrt import numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops import heuristics
from meshrt.experimental.pallas.ops.tiles import accumulator, contract, finite, positions, within
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["normalisers", "of_head", "of_hidden", "of_logits"]

Blocks = tuple[int, int] | None


def _sizes(x: Any, head: Any, blocks: tuple[int, int]) -> tuple[int, int, int]:
    """(classes, rows of a block, classes of a block)."""
    classes = x.shape[1] if head is None else head.shape[0]
    return classes, heuristics.block_of(x.shape[0], blocks[0]), heuristics.block_of(classes, blocks[1])


def normalisers(x: Any, head: Any, labels: Any, blocks: tuple[int, int]) -> tuple[Any, Any, Any]:
    """For each row its largest logit, the sum of exponentials above it, and its label's logit (0 if it is not among
    these classes), each (rows, 1)."""
    rows, acc = x.shape[0], accumulator(x)
    classes, br, bc = _sizes(x, head, blocks)
    one = pl.BlockSpec((br, 1), lambda i, j: (i, 0))
    if head is None:
        operands, specs = [x], [pl.BlockSpec((br, bc), lambda i, j: (i, j))]
    else:
        operands, specs = [x, head], [*_product_specs(x, br, bc)]
    top, total, label = pl.pallas_call(
        functools.partial(_normalisers_kernel, classes=classes, acc=acc),
        grid=(pl.cdiv(rows, br), pl.cdiv(classes, bc)),
        in_specs=[*specs, one],
        out_specs=[one] * 3,
        out_shape=[ShapeDtypeStruct((rows, 1), acc)] * 3,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=_cost(x, classes, head, 1),
        name="cross_entropy",
    )(*operands, labels)
    return top, total, label


def of_logits(x: Any, labels: Any, log: Any, cotangent: Any, blocks: tuple[int, int]) -> Any:
    """The cotangent of logits: (softmax - one hot) * cotangent."""
    classes, br, bc = _sizes(x, None, blocks)
    one, block = pl.BlockSpec((br, 1), lambda i, j: (i, 0)), pl.BlockSpec((br, bc), lambda i, j: (i, j))
    return pl.pallas_call(
        functools.partial(_logits_kernel, acc=accumulator(x)),
        grid=(pl.cdiv(x.shape[0], br), pl.cdiv(classes, bc)),
        in_specs=[block, one, one, one],
        out_specs=block,
        out_shape=ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=_cost(x, classes, None, 2),
        name="cross_entropy_logits",
    )(x, labels, log, cotangent)


def of_hidden(x: Any, head: Any, labels: Any, log: Any, cotangent: Any, blocks: tuple[int, int]) -> Any:
    """The cotangent of x: that of the logits times the head."""
    classes, br, bc = _sizes(x, head, blocks)
    one = pl.BlockSpec((br, 1), lambda i, j: (i, 0))
    wide = pl.BlockSpec((br, x.shape[1]), lambda i, j: (i, 0))
    return pl.pallas_call(
        functools.partial(_hidden_kernel, classes=classes, acc=accumulator(x)),
        grid=(pl.cdiv(x.shape[0], br), pl.cdiv(classes, bc)),
        in_specs=[*_product_specs(x, br, bc), one, one, one],
        out_specs=wide,
        out_shape=ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((br, x.shape[1]), accumulator(x))],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=_cost(x, classes, head, 2),
        name="cross_entropy_hidden",
    )(x, head, labels, log, cotangent)


def of_head(x: Any, head: Any, labels: Any, log: Any, cotangent: Any, blocks: tuple[int, int]) -> Any:
    """The cotangent of the head: that of the logits, transposed, times x."""
    classes, br, bc = _sizes(x, head, blocks)
    one = pl.BlockSpec((br, 1), lambda j, i: (i, 0))
    width = x.shape[1]
    wide = pl.BlockSpec((bc, width), lambda j, i: (j, 0))
    return pl.pallas_call(
        functools.partial(_head_kernel, rows=x.shape[0], classes=classes, acc=accumulator(x)),
        grid=(pl.cdiv(classes, bc), pl.cdiv(x.shape[0], br)),
        in_specs=[pl.BlockSpec((br, width), lambda j, i: (i, 0)), wide, one, one, one],
        out_specs=wide,
        out_shape=ShapeDtypeStruct(head.shape, head.dtype),
        scratch_shapes=[pltpu.VMEM((bc, width), accumulator(x))],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=_cost(x, classes, head, 2),
        name="cross_entropy_head",
    )(x, head, labels, log, cotangent)


def _product_specs(x: Any, br: int, bc: int) -> tuple[Any, Any]:
    width = x.shape[1]
    return pl.BlockSpec((br, width), lambda i, j: (i, 0)), pl.BlockSpec((bc, width), lambda i, j: (j, 0))


def _normalisers_kernel(*refs: Any, classes: int, acc: Any) -> None:
    *operands, labels_ref, top_ref, total_ref, label_ref = refs
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _start() -> None:
        top_ref[...] = jnp.full(top_ref.shape, -np.inf, acc)
        total_ref[...] = jnp.zeros(total_ref.shape, acc)
        label_ref[...] = jnp.zeros(label_ref.shape, acc)

    logits = _block([ref[...] for ref in operands], j, classes, acc)
    is_label = positions(j, logits.shape, 1) == labels_ref[...]
    label_ref[...] += jnp.sum(jnp.where(is_label, logits, jnp.zeros((), acc)), axis=1, keepdims=True)
    before = top_ref[...]
    top = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
    base = finite(top)
    total_ref[...] = total_ref[...] * jnp.exp(before - base) + jnp.sum(jnp.exp(logits - base), axis=1, keepdims=True)
    top_ref[...] = top


def _block(operands: list[Any], j: Any, classes: int, acc: Any) -> Any:
    """Block `j` of the logits, which (x,) are or whose factors (x, head) are; minus infinity beyond the last class."""
    logits = operands[0].astype(acc) if len(operands) == 1 else contract(operands[0], operands[1], 1, 1, acc)
    if classes % logits.shape[1] == 0:
        return logits
    return jnp.where(positions(j, logits.shape, 1) < classes, logits, np.asarray(-np.inf, acc)[()])


def _of_block(logits: Any, j: Any, labels_ref: Any, log_ref: Any, g_ref: Any, acc: Any) -> Any:
    """The cotangent of a block of logits."""
    is_label = positions(j, logits.shape, 1) == labels_ref[...]
    share = jnp.exp(logits - log_ref[...])
    return (share - lax.select(is_label, jnp.ones(logits.shape, acc), jnp.zeros(logits.shape, acc))) * g_ref[...]


def _logits_kernel(x_ref: Any, labels_ref: Any, log_ref: Any, g_ref: Any, out_ref: Any, *, acc: Any) -> None:
    made = _of_block(x_ref[...].astype(acc), pl.program_id(1), labels_ref, log_ref, g_ref, acc)
    out_ref[...] = made.astype(out_ref.dtype)


def _hidden_kernel(
    x_ref: Any, head_ref: Any, labels_ref: Any, log_ref: Any, g_ref: Any, out_ref: Any, acc_ref: Any, *, classes: int,
    acc: Any,
) -> None:  # fmt: skip
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _start() -> None:
        acc_ref[...] = jnp.zeros(acc_ref.shape, acc)

    head = within(head_ref[...], j, 0, classes)
    made = _of_block(_block([x_ref[...], head], j, classes, acc), j, labels_ref, log_ref, g_ref, acc)
    acc_ref[...] += contract(made.astype(head.dtype), head, 1, 0, acc)

    @pl.when(j == pl.num_programs(1) - 1)
    def _finish() -> None:
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def _head_kernel(
    x_ref: Any, head_ref: Any, labels_ref: Any, log_ref: Any, g_ref: Any, out_ref: Any, acc_ref: Any, *, rows: int,
    classes: int, acc: Any,
) -> None:  # fmt: skip
    j, i = pl.program_id(0), pl.program_id(1)

    @pl.when(i == 0)
    def _start() -> None:
        acc_ref[...] = jnp.zeros(acc_ref.shape, acc)

    x, log, g = (within(ref[...], i, 0, rows) for ref in (x_ref, log_ref, g_ref))
    head = within(head_ref[...], j, 0, classes)
    made = _of_block(_block([x, head], j, classes, acc), j, labels_ref, log, g, acc)
    acc_ref[...] += contract(made.astype(x.dtype), x, 0, 0, acc)

    @pl.when(i == pl.num_programs(1) - 1)
    def _finish() -> None:
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def _cost(x: Any, classes: int, head: Any, products: int) -> Any:
    pairs = x.shape[0] * classes
    if head is None:
        return pl.CostEstimate(
            flops=4 * pairs, transcendentals=pairs, bytes_accessed=products * pairs * x.dtype.itemsize
        )
    flops = 2 * products * pairs * x.shape[1]
    return pl.CostEstimate(
        flops=flops, transcendentals=pairs, bytes_accessed=(x.size + head.size) * products * x.dtype.itemsize
    )
