"""Gather and scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..attributes import gather_dims, scatter_dims
from ..graph import Op
from ..model import FactorType, OpRule
from .builder import NEED_REPLICATION, PASS_THROUGH, REDUCTION, RuleBuilder, signature
from .options import RuleOptions

Dims = Sequence[int]

_REDUCERS = {f"stablehlo.{name}" for name in ("add", "maximum", "minimum", "multiply")}
_BOOLEAN_REDUCERS = {"stablehlo.and", "stablehlo.or"}


@signature("dimension_numbers", "slice_sizes")
def gather(op: Op, options: RuleOptions) -> OpRule:
    """Operand dimensions that are taken whole pass through; those that are indexed give partial results."""
    operand = op.operands[0].type.shape
    d = gather_dims(op.attrs["dimension_numbers"])
    builder = RuleBuilder.of(op)

    def window(dim: int, out: int, size: int, n_out: int) -> None:
        if size == n_out:
            builder.add([dim, None], [out], size)
        elif n_out == 1:
            builder.add([dim, None], [None], size, REDUCTION)
            builder.add([None, None], [out], n_out, NEED_REPLICATION)
        else:
            builder.add([dim, None], [out], size, NEED_REPLICATION, True)

    def batch(dim: int | None, index_dim: int, out: int, size: int) -> None:
        builder.add([dim, index_dim], [out], size)

    shape = op.results[0].type.shape
    _walk(
        operand,
        shape,
        d.offset,
        d.collapsed_slice,
        d.operand_batching,
        d.indices_batching,
        d.index_vector,
        window,
        batch,
    )
    for dim in d.collapsed_slice:
        builder.add([dim, None], [None], operand[dim], REDUCTION if operand[dim] > 1 else NEED_REPLICATION)
    _add_index_vector(builder, op.operands[1].type.shape, d.index_vector, [None], 1)
    return builder.build()


def _walk(
    shape: Dims,
    slices: Dims,
    offset: Dims,
    collapsed: Dims,
    batching: Dims,
    indices_batching: Dims,
    index_vector: int,
    window: Callable[[int, int, int, int], None],
    batch: Callable[[int | None, int, int, int], None],
) -> None:
    """Calls `window(operand dim, slices dim, size, slice size)` or `batch(operand dim or None, indices dim, slices
    dim, size)` for each dimension of the slices (result of a gather, updates of a scatter)."""
    window_dims = iter(dim for dim in range(len(shape)) if dim not in collapsed and dim not in batching)
    position = 0
    for out, size in enumerate(slices):
        if out in offset:
            dim = next(window_dims)
            window(dim, out, shape[dim], size)
            continue
        index_dim = position if position < index_vector else position + 1
        position += 1
        is_explicit = index_dim in indices_batching
        batch(batching[indices_batching.index(index_dim)] if is_explicit else None, index_dim, out, size)


def _add_index_vector(
    builder: RuleBuilder, indices_shape: Dims, index_vector: int, before: list[None], after: int
) -> None:
    if index_vector < len(indices_shape):
        operand_dims = [*before, index_vector]
        builder.add(operand_dims, [None] * after, indices_shape[index_vector], NEED_REPLICATION)


@signature(None)
def scatter(op: Op, options: RuleOptions) -> OpRule:
    """Operands: inputs, indices, updates. Indices and updates that are split give partial results if the combiner
    is a plain reduction."""
    count = (len(op.operands) - 1) // 2
    inputs, updates = op.operands[0].type.shape, op.operands[count + 1].type.shape
    d = scatter_dims(op.attrs["scatter_dimension_numbers"])
    builder = RuleBuilder.of(op)
    implicit = REDUCTION if _is_reduction(op, count) else NEED_REPLICATION

    def add(
        input_dim: int | None, index_dim: int | None, update_dim: int | None, size: int, kind: FactorType = PASS_THROUGH
    ) -> None:
        operands = [input_dim] * count + [index_dim] + [update_dim] * count
        builder.add(operands, [input_dim] * count, size, kind)

    def window(dim: int, out: int, size: int, n_out: int) -> None:
        if size == n_out:
            add(dim, None, out, size)
        else:
            add(dim, None, None, size, NEED_REPLICATION)
            add(None, None, out, n_out, NEED_REPLICATION)

    def batch(dim: int | None, index_dim: int, out: int, size: int) -> None:
        add(dim, index_dim, out, size, PASS_THROUGH if dim is not None else implicit)

    _walk(
        inputs,
        updates,
        d.update_window,
        d.inserted_window,
        d.input_batching,
        d.indices_batching,
        d.index_vector,
        window,
        batch,
    )
    for dim in d.inserted_window:
        add(dim, None, None, inputs[dim])
    _add_index_vector(builder, op.operands[count].type.shape, d.index_vector, [None] * count, count)
    return builder.build()


def _is_reduction(op: Op, count: int) -> bool:
    """Whether each output of the combiner is one known operation, the same for all, on the old and the new value."""
    body = op.regions[0]
    names = set()
    for i, value in enumerate(body.terminator.operands):
        inner = value.op
        if inner is None or not _reduces(inner) or {*inner.operands} != {body.args[i], body.args[count + i]}:
            return False
        names.add(inner.name)
    return len(names) == 1


def _reduces(op: Op) -> bool:
    return op.name in _REDUCERS or (op.name in _BOOLEAN_REDUCERS and op.results[0].type.dtype == "i1")


RULES = {"stablehlo.gather": gather, "stablehlo.scatter": scatter}
