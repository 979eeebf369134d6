"""Writing all-reduces and reduce-scatters such that every runtime gives what one device would give.

Runtimes combine numbers of their own types by a handful of operations, and some of them drop NaNs from maxima and
minima. Where the platform's compiler does not make the reduction from the program's own operation (only that of TPUs
does):

* floating maxima and minima are taken of integers that are ordered as the numbers are (`realise_order`);
* reductions of bits, and others that a runtime does not know, become exchanges of pieces that each device reduces
  itself, of the same number of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from propagation.ops import REDUCTIONS
from propagation.program import Func, Op

from ..cost import item_bytes
from ..heuristics import GATHERED_REDUCTION_BYTES
from ..ir.attributes import Attribute
from ..ir.operations import attributes
from ..ir.program import LocalValue, Region
from .realise_order import from_ordered, is_ordered, to_ordered

if TYPE_CHECKING:
    from .realise import Realiser

__all__ = ["Group", "all_reduce", "reduce_scatter", "spread"]


class Group(NamedTuple):
    """The devices that reduce together.

    lists  which devices they are, as an attribute
    atoms  the atoms in which they differ; None for groups that the program itself gives
    shape  number of groups and devices per group
    """

    lists: Attribute
    atoms: tuple[int, ...] | None
    shape: tuple[int, int]


_OF_BOOLEANS = {row.kind: row.of_booleans for row in REDUCTIONS.values()}


def all_reduce(
    realiser: Realiser,
    region: Region,
    x: LocalValue,
    group: Group,
    kind: str,
    op: Op | Func | None,
    cause: str,
    loc: str,
) -> LocalValue:
    """The reduction of `x` over a group, on every device of it. `kind` is one of `REDUCERS`."""
    kind = _OF_BOOLEANS[kind] if x.dtype == "i1" else kind
    if _is_exchanged(realiser.platform, kind, x.dtype):
        return _exchanged(realiser, region, x, group, kind, op, cause, loc)

    def reduce(x: LocalValue) -> LocalValue:
        return realiser.collective(
            region, "all_reduce", group.atoms, x, x.shape, group.lists, (), op, cause, loc, kind, count=group.shape
        )

    return _ordered(realiser, region, x, kind, reduce)


def reduce_scatter(
    realiser: Realiser,
    region: Region,
    x: LocalValue,
    dim: int,
    group: Group,
    kind: str,
    op: Op | Func | None,
    cause: str,
    loc: str,
) -> LocalValue:
    """The reduction of `x` over a group, of which each device gets its part along `dim` (which the group divides)."""
    kind = _OF_BOOLEANS[kind] if x.dtype == "i1" else kind
    n = group.shape[1]
    after = (*x.shape[:dim], x.shape[dim] // n, *x.shape[dim + 1 :])
    if realiser.platform == "tpu" and 1 in after:
        # TPUs' compiler refuses some where dimensions of one element are next to the last one.
        kept = [d for d, size in enumerate(x.shape) if size != 1]
        if len(kept) < len(x.shape):
            flat = realiser.reshape(region, x, tuple([x.shape[d] for d in kept]), loc)
            flat = reduce_scatter(realiser, region, flat, kept.index(dim), group, kind, op, cause, loc)
            return realiser.reshape(region, flat, after, loc)
    if _is_exchanged(realiser.platform, kind, x.dtype):
        x = realiser.reshape(region, x, (*x.shape[:dim], n, *after[dim:]), loc)
        x = realiser.transpose(region, x, [dim, *range(dim), *range(dim + 1, len(x.shape))], loc)
        return _all_to_all(realiser, region, x, group, kind, op, cause, loc)

    def reduce(x: LocalValue) -> LocalValue:
        return realiser.collective(
            region, "reduce_scatter", group.atoms, x, after, group.lists, (dim,), op, cause, loc, kind,
            count=group.shape,
        )  # fmt: skip

    return _ordered(realiser, region, x, kind, reduce)


def _ordered(
    realiser: Realiser, region: Region, x: LocalValue, kind: str, reduce: Callable[[LocalValue], LocalValue]
) -> LocalValue:
    """`reduce(x)`, on integers in the order of the numbers if it is a floating maximum or minimum."""
    if realiser.platform == "tpu" or not is_ordered(kind, x.dtype):
        return reduce(x)
    return from_ordered(realiser, region, reduce(to_ordered(realiser, region, x, kind)), x.dtype)


def spread(
    realiser: Realiser, region: Region, x: LocalValue, dim: int, atoms: Sequence[int], size: int, loc: str
) -> LocalValue:
    """A dimension of `size` of which each device along `atoms` holds one element, or padding: zeros but for that."""
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    attrs = attributes("stablehlo.broadcast_in_dim", tuple(range(len(shape))))
    (rows,) = region.op("stablehlo.broadcast_in_dim", (x,), [(shape, x.dtype)], attrs, loc=loc)
    where = region.shared("stablehlo.iota", (), shape, "i32", attributes("stablehlo.iota", dim))
    mine = realiser.splat(region, realiser.coordinate(region, atoms), shape)
    attrs = attributes("stablehlo.compare", "EQ")
    held = region.shared("stablehlo.compare", (where, mine), shape, "i1", attrs)
    zero = realiser.zero(region, shape, x.dtype)
    return region.op("stablehlo.select", (held, rows, zero), [(shape, x.dtype)], loc=loc)[0]


# -- reductions that no runtime has -----------------------------------------------------------------------------


def _is_exchanged(platform: str | None, kind: str, dtype: str) -> bool:
    if platform == "tpu":
        return False
    if kind in ("and", "or", "xor"):
        return dtype != "i1" or kind == "xor"
    return platform == "cuda" and kind == "mul" and dtype.startswith("complex")


def _identity(kind: str, dtype: str) -> str:
    """The neutral element of the kinds that are exchanged."""
    if dtype.startswith("complex"):
        return "(1.0, 0.0)"
    if dtype == "i1":
        return "true" if kind == "and" else "false"
    if kind != "and":
        return "0"
    return str((1 << int(dtype[2:])) - 1) if dtype.startswith("u") else "-1"


def _exchanged(
    realiser: Realiser,
    region: Region,
    x: LocalValue,
    group: Group,
    kind: str,
    op: Op | Func | None,
    cause: str,
    loc: str,
) -> LocalValue:
    """Everything gathered and reduced, if it is small; else pieces exchanged, reduced and gathered."""
    n, shape, total = group.shape[1], x.shape, math.prod(x.shape)
    if n <= 2 or total * item_bytes(x.dtype) <= GATHERED_REDUCTION_BYTES:
        row = realiser.reshape(region, x, (1, *shape), loc)
        rows = _all_gather(realiser, region, row, group, op, cause, loc)
        return _reduced(realiser, region, rows, kind, loc)
    flat = realiser.reshape(region, x, (total,), loc)
    flat = realiser.pad(region, flat, 0, 0, -total % n, loc=loc)
    rows = realiser.reshape(region, flat, (n, flat.shape[0] // n), loc)
    piece = _all_to_all(realiser, region, rows, group, kind, op, cause, loc)
    flat = _all_gather(realiser, region, piece, group, op, cause, loc)
    return realiser.reshape(region, realiser.cut(region, flat, 0, 0, total, loc), shape, loc)


def _all_gather(
    realiser: Realiser, region: Region, x: LocalValue, group: Group, op: Op | Func | None, cause: str, loc: str
) -> LocalValue:
    """The first dimensions of all devices' tensors joined."""
    shape = (x.shape[0] * group.shape[1], *x.shape[1:])
    return realiser.collective(
        region, "all_gather", group.atoms, x, shape, group.lists, (0,), op, cause, loc, count=group.shape
    )


def _all_to_all(
    realiser: Realiser,
    region: Region,
    rows: LocalValue,
    group: Group,
    kind: str,
    op: Op | Func | None,
    cause: str,
    loc: str,
) -> LocalValue:
    """Row i of every device goes to device i of its group, which reduces them."""
    numbers = (0, 0, group.shape[1])
    rows = realiser.collective(
        region, "all_to_all", group.atoms, rows, rows.shape, group.lists, numbers, op, cause, loc, count=group.shape
    )
    return _reduced(realiser, region, rows, kind, loc)


def _reduced(realiser: Realiser, region: Region, rows: LocalValue, kind: str, loc: str) -> LocalValue:
    """The first dimension reduced."""
    start = realiser.constant(region, (), rows.dtype, _identity(kind, rows.dtype))
    body = realiser.reducer(region, kind, rows.dtype)
    types = [(rows.shape[1:], rows.dtype)]
    attrs = attributes("stablehlo.reduce", (0,))
    return region.op("stablehlo.reduce", (rows, start), types, attrs, regions=(body,), loc=loc)[0]
