"""One collective in place of several of the same kind over the same groups.

`abreast` lets one operation work on all their buffers as they are. `pack` lays their data side by side: every kind is
brought to a form in which what a device holds is a table: a row for each member of the group (one row where all members
get the same), columns for the elements. Tables of equal rows go side by side, through one collective, and are cut
apart.
"""

from __future__ import annotations

import math
import re

from ..emit import Collective, Item, Ref, Region
from ..realise import Realiser
from .graph import Scratch

__all__ = ["abreast", "dimension_of", "groups_text", "one_reducer", "pack"]

_NUMBER = re.compile(r"(\w+) = (\d+) : i64")


def pack(region: Region, realiser: Realiser, members: list[Item]) -> list[Item]:
    """Items that compute the results of all `members` with one collective. The results keep their names."""
    first = members[0]
    n = first.collective.groups[1]
    scratch = Scratch(region)
    tables = [_table(scratch, realiser, m, n) for m in members]
    widths = [t.shape[1] for t in tables]
    whole = (tables[0].shape[0], sum(widths))
    attrs = "dimension = 1 : i64"
    (x,) = scratch.op("stablehlo.concatenate", tables, [(whole, tables[0].dtype)], attrs, loc=first.loc)
    x = _communicate(scratch, first, x, n)
    x.item.collective = _joined([m.collective for m in members])
    start = 0
    for m, width in zip(members, widths):
        part = realiser.cut(scratch, x, 1, start, start + width, m.loc)
        _finish(scratch, realiser, m, part, n)
        start += width
    return scratch.take(region)


def abreast(region: Region, realiser: Realiser, members: list[Item]) -> list[Item]:
    """One all-reduce of all operands of `members`, which are of one reduction and element type. The results keep their
    names; elements are added up as before."""
    first = members[0]
    operands, results = [m.operands[0] for m in members], [m.results[0] for m in members]
    one = Item(first.name, operands, results, first.attrs, first.extra, first.regions, first.loc)
    one.collective = _joined([m.collective for m in members])
    one.region = region
    return [one]


def groups_text(item: Item) -> str:
    """The attribute that says who talks to whom."""
    text = item.attrs
    return text[text.index("source_target_pairs" if "source_target_pairs" in text else "replica_groups") :]


def _joined(parts: list[Collective]) -> Collective:
    members = [m for c in parts for m in (c.members or (c,))]
    total = sum(c.bytes for c in parts)
    return parts[0]._replace(bytes=total, cause=f"{len(members)} combined", members=tuple(members))


def _numbers(item: Item) -> dict[str, int]:
    return {name: int(n) for name, n in _NUMBER.findall(item.attrs)}


def _table(scratch: Region, realiser: Realiser, item: Item, n: int) -> Ref:
    """What an item sends as a table."""
    (x,) = item.operands
    kind, at, loc = item.collective.kind, _numbers(item), item.loc
    if kind == "reduce_scatter":
        x = _to_front(scratch, realiser, x, at["scatter_dimension"], n, loc)
    elif kind == "all_to_all":
        x = _to_front(scratch, realiser, x, at["split_dimension"], n, loc)
    else:
        n = 1
    return realiser.reshape(scratch, x, (n, math.prod(x.shape) // n), loc)


def _to_front(scratch: Region, realiser: Realiser, x: Ref, dim: int, n: int, loc: str) -> Ref:
    """The `n` parts of a dimension as a first dimension."""
    shape = (*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])
    x = realiser.reshape(scratch, x, shape, loc)
    return realiser.transpose(scratch, x, [dim, *[d for d in range(len(shape)) if d != dim]], loc)


def _communicate(scratch: Region, first: Item, x: Ref, n: int) -> Ref:
    kind = first.collective.kind
    rows, width = x.shape
    attrs = {
        "all_gather": "all_gather_dim = 0 : i64, ",
        "reduce_scatter": "scatter_dimension = 0 : i64, ",
        "all_to_all": f"split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {n} : i64, ",
    }.get(kind, "")
    rows = {"all_gather": n, "reduce_scatter": 1}.get(kind, rows)
    types = [((rows, width), x.dtype)]
    return scratch.op(first.name, (x,), types, attrs + groups_text(first), regions=first.regions, loc=first.loc)[0]


def _finish(scratch: Region, realiser: Realiser, item: Item, part: Ref, n: int) -> None:
    """Gives `item`'s result its value from its columns of the received table."""
    (out,) = item.results
    kind, at, loc = item.collective.kind, _numbers(item), item.loc
    dim = at.get("all_gather_dim") if kind == "all_gather" else at.get("concat_dimension")
    if dim is not None:
        # From every member a piece, to be put together along a dimension.
        piece = [*out.shape]
        piece[dim] //= n
        part = realiser.reshape(scratch, part, (n, *piece), loc)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(piece) + 1)]
        part = realiser.transpose(scratch, part, order, loc)
    scratch.add(Item("stablehlo.reshape", (part,), [out], loc=loc))


def dimension_of(item: Item) -> int:
    """The dimension that an all-gather gathers or a reduce-scatter scatters."""
    at = _numbers(item)
    return at["all_gather_dim"] if "all_gather_dim" in at else at["scatter_dimension"]


def one_reducer(item: Item) -> str:
    """The operation with which a reducing collective combines; the empty text for others."""
    return item.regions[0].items[0].name if item.regions else ""
