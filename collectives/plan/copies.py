"""What XLA's compiler for CPUs copies into another order of dimensions, or cuts into parts, for the items that read it.

Contractions read matrices by rows or by columns, convolutions positions with their features innermost; collectives cut
and join along the outermost dimension, and an all-to-all takes its parts as so many arrays. What is copied there is
written once more, unless it is computed for that item alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from propagation.attributes import DotDims, conv_dims

from ..heuristics import ROOMS_TRIED
from ..ir.attributes import ConvNumbers, Given
from ..ir.program import LocalOp, LocalValue
from ..machine import dot_dimensions, ref_bytes
from .fusible import name_of

__all__ = ["is_cut", "is_joined", "is_of_argument", "is_one", "loses_dimension", "parts", "reordered", "updated_again"]

_EXCHANGES = "stablehlo.all_to_all"
# The dimension along which a collective cuts what it sends, or joins what arrives.
_ALONG = {"stablehlo.all_gather": "all_gather_dim", "stablehlo.reduce_scatter": "scatter_dimension"}


def reordered(item: LocalOp) -> list[LocalValue]:
    """Operands, and results, that an item which does not communicate needs in another order of dimensions."""
    if item.name == "stablehlo.convolution":
        return _of_convolution(item)
    return _of_contraction(item) if name_of(item) == "stablehlo.dot_general" else []


def _of_contraction(item: LocalOp) -> list[LocalValue]:
    lhs, rhs = item.operands
    return [item.operands[i] for i in _turned(dot_dimensions(item), lhs.shape, rhs.shape)]


@functools.lru_cache(maxsize=4096)
def _turned(dims: DotDims, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> tuple[int, ...]:
    """Which operands of a contraction are needed in another order."""
    lhs_batch, rhs_batch, lhs_contracted, rhs_contracted = dims
    out = []
    for i, shape, batch, contracted in ((0, lhs, lhs_batch, lhs_contracted), (1, rhs, rhs_batch, rhs_contracted)):
        free = [d for d in range(len(shape)) if d not in batch and d not in contracted]
        if tuple(batch) == tuple(range(len(batch))) and len(contracted) == 1 and len(free) <= 1:
            continue
        if _moves(shape, [*batch, *contracted, *free] if i else [*batch, *free, *contracted]):
            out.append(i)
    return tuple(out)


def updated_again(item: LocalOp, is_returned: Callable[[LocalValue], bool]) -> list[LocalValue]:
    """Operands of a contraction that are updates of results, and have dimensions of one element: the compiler drops
    these, and what reads an update as another array than is written computes it once more, into an array of its own."""
    if name_of(item) != "stablehlo.dot_general":
        return []
    update = lambda value: value.item is not None and name_of(value.item) == "stablehlo.dynamic_update_slice"
    found = [v for v in item.operands if 1 in v.shape and update(v) and is_returned(v)]
    return [v for v in found if v not in reordered(item)]


def is_of_argument(update: LocalValue) -> bool:
    """Whether an update is of an argument: made again, it starts from a copy of a copy, and both are made first."""
    return update.item is not None and update.item.operands[0].item is None


def _of_convolution(item: LocalOp) -> list[LocalValue]:
    numbers = item.attribute("dimension_numbers")
    assert isinstance(numbers, ConvNumbers | Given), "a convolution has numbers of dimensions"
    n = numbers.dims if isinstance(numbers, ConvNumbers) else conv_dims(numbers.attr)
    orders = (
        (item.operands[0], (n.input_batch, *n.input_spatial, n.input_feature)),
        (item.operands[1], (*n.kernel_spatial, n.kernel_input_feature, n.kernel_output_feature)),
        (item.results[0], (n.output_batch, *n.output_spatial, n.output_feature)),
    )
    return [value for value, order in orders if _moves(value.shape, order)]


def _moves(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether an order of dimensions is not that in which they lie; those of one element lie anywhere."""
    moved = [d for d in order if shape[d] > 1]
    return moved != sorted(moved)


def loses_dimension(value: LocalValue) -> bool:
    """Whether a value is a product with a batch dimension of one element, which the compiler drops: who reads it puts
    the dimension back, and so reads it as another array than it writes."""
    maker = value.item
    if maker is None or name_of(maker) != "stablehlo.dot_general":
        return False
    return any(maker.operands[0].shape[d] == 1 for d in dot_dimensions(maker)[0])


def is_cut(item: LocalOp) -> bool:
    """Whether a collective sends a copy of its operand: parts of it, or it in another order."""
    return item.name == _EXCHANGES or _is_along_inner(item, item.operands)


def is_joined(item: LocalOp) -> bool:
    """Whether what arrives at a collective is put in order once it is there, by what reads it if that can."""
    return item.name == _EXCHANGES or _is_along_inner(item, item.results)


def is_one(item: LocalOp) -> bool:
    """Whether a collective gives one array, rather than parts whose memory is that of the whole."""
    return item.name != _EXCHANGES


def _is_along_inner(item: LocalOp, ends: Sequence[LocalValue]) -> bool:
    """Whether a collective cuts or joins one of its two ends along another than the outermost dimension."""
    along = _ALONG.get(item.name)
    return along is not None and _is_inner(ends[0], item.number(along))


def _is_inner(value: LocalValue, dim: int) -> bool:
    """Whether elements of other dimensions lie between those of a dimension."""
    return value.shape[dim] > 1 and any(n > 1 for n in value.shape[:dim])


def parts(item: LocalOp, value: LocalValue) -> list[float]:
    """Bytes of the arrays as which a collective sends or receives a value."""
    n = item.communication.groups[1] if item.name == _EXCHANGES else 1
    return [ref_bytes(value) / n] * n if n <= ROOMS_TRIED else [ref_bytes(value)]
