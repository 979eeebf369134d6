"""One collective in place of several of the same kind over the same groups.

`abreast` lets one operation work on all their buffers as they are. `pack` lays their data side by side: every kind is
brought to a form in which what a device holds is a table: a row for each member of the group (one row where all members
get the same), columns for the elements. Tables of equal rows go side by side, through one collective, and are cut
apart.
"""

from __future__ import annotations

import math

from ..ir.attributes import Attribute
from ..ir.operations import attributes, communication
from ..ir.program import Collective, LocalOp, LocalValue, Region
from ..ir.walker import Scratch
from ..reshard.realise import Realiser

__all__ = ["abreast", "dimension_of", "groups_of", "one_reducer", "pack"]


def pack(region: Region, realiser: Realiser, members: list[LocalOp]) -> list[LocalOp]:
    """Items that compute the results of all `members` with one collective. The results keep their names."""
    first = members[0]
    n = first.communication.groups[1]
    scratch = Scratch(region)
    tables = [_table(scratch, realiser, m, n) for m in members]
    widths = [t.shape[1] for t in tables]
    whole = (tables[0].shape[0], sum(widths))
    attrs = attributes("stablehlo.concatenate", 1)
    (x,) = scratch.op("stablehlo.concatenate", tables, [(whole, tables[0].dtype)], attrs, loc=first.loc)
    x = _communicate(scratch, first, x, n)
    x.maker.collective = _joined([m.communication for m in members])
    start = 0
    for m, width in zip(members, widths):
        part = realiser.cut(scratch, x, 1, start, start + width, m.loc)
        _finish(scratch, realiser, m, part, n)
        start += width
    return scratch.take(region)


def abreast(region: Region, realiser: Realiser, members: list[LocalOp]) -> list[LocalOp]:
    """One collective of all operands of `members`, which are of one kind, reduction and element type. The results keep
    their names; elements are combined as before."""
    first = members[0]
    operands, results = [m.operands[0] for m in members], [m.results[0] for m in members]
    one = LocalOp(first.name, operands, results, first.attrs, first.extra, first.regions, first.loc)
    one.collective = _joined([m.communication for m in members])
    one.region = region
    return [one]


def groups_of(item: LocalOp) -> Attribute:
    """The attribute that says who talks to whom."""
    return item.attrs[item.communication.facts.groups_attribute]


def _joined(parts: list[Collective]) -> Collective:
    members = [m for c in parts for m in (c.members or (c,))]
    total = sum(c.bytes for c in parts)
    return parts[0]._replace(bytes=total, cause=f"{len(members)} combined", members=tuple(members))


def _table(scratch: Region, realiser: Realiser, item: LocalOp, n: int) -> LocalValue:
    """What an item sends as a table."""
    (x,) = item.operands
    split, loc = item.communication.facts.splits, item.loc
    if split is None:
        return realiser.reshape(scratch, x, (1, math.prod(x.shape)), loc)
    x = _to_front(scratch, realiser, x, item.number(split), n, loc)
    return realiser.reshape(scratch, x, (n, math.prod(x.shape) // n), loc)


def _to_front(scratch: Region, realiser: Realiser, x: LocalValue, dim: int, n: int, loc: str) -> LocalValue:
    """The `n` parts of a dimension as a first dimension."""
    shape = (*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])
    x = realiser.reshape(scratch, x, shape, loc)
    return realiser.transpose(scratch, x, [dim, *[d for d in range(len(shape)) if d != dim]], loc)


def _communicate(scratch: Region, first: LocalOp, x: LocalValue, n: int) -> LocalValue:
    """The collective of `first` on the table `x`."""
    kind = first.communication.facts
    rows, width = x.shape
    numbers = [*(0 for _ in kind.dimensions), *([] if kind.counts is None else [n])]
    attrs = communication(kind, groups_of(first), *numbers)
    rows = kind.result_size(n, rows, kind.splits is not None, kind.joins is not None)
    return scratch.op(first.name, (x,), [((rows, width), x.dtype)], attrs, regions=first.regions, loc=first.loc)[0]


def _finish(scratch: Region, realiser: Realiser, item: LocalOp, part: LocalValue, n: int) -> None:
    """Gives `item`'s result its value from its columns of the received table."""
    (out,) = item.results
    joins, loc = item.communication.facts.joins, item.loc
    if joins is not None:
        # From every member a piece, to be put together along a dimension.
        dim = item.number(joins)
        piece = [*out.shape]
        piece[dim] //= n
        part = realiser.reshape(scratch, part, (n, *piece), loc)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(piece) + 1)]
        part = realiser.transpose(scratch, part, order, loc)
    scratch.add(LocalOp("stablehlo.reshape", (part,), [out], loc=loc))


def dimension_of(item: LocalOp) -> int:
    """The dimension that an all-gather gathers or a reduce-scatter scatters."""
    (name,) = item.communication.facts.dimensions
    return item.number(name)


def one_reducer(item: LocalOp) -> str:
    """The operation with which a reducing collective combines; the empty text for others."""
    return item.regions[0].items[0].name if item.regions else ""
