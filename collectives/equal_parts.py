"""Split dimensions of equal parts that an operation cuts, joins or renames where devices' pieces are no parts.

A slice, concatenation or pad of whole parts, or a reshape, along a split dimension moves elements between devices.
Whether the program sends less once such dimensions are two (`part_dimensions.py`) shows in another propagation of it;
here is found what is worth that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from propagation.attributes import PADDING, integer, integers
from propagation.model import DimSharding, Mesh, TensorSharding
from propagation.program import Op, Program, source
from propagation.shardings import Shardings

from .annotations import KnownShardings
from .boundary import mesh_of
from .heuristics import MOST_PARTS, PARTED_VALUES
from .part_dimensions import Place, is_computed_with, part

__all__ = ["Parted", "parted"]


_Kind = tuple[str, tuple[str, ...]]  # an operation's name, the types of its operands and results


@dataclass(frozen=True, slots=True)
class Parted:
    """Operations whose operand or result has a dimension of equal parts: all of these kinds, so that layers which are
    alike stay so.

    mesh    what the dimensions are split over
    where   source lines
    """

    kinds: frozenset[_Kind]
    mesh: Mesh
    where: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.where) - 1} more" if len(self.where) > 1 else ""
        return f"equal parts as a dimension of their own at {self.where[0] if self.where else '?'}{more}"

    def rewrite(self, program: Program, shardings: Shardings) -> None:
        """Makes two of these dimensions in a program to which nothing has been done yet, but for those of operations
        that are annotated."""
        ops = [op for op in program.ops() if op.name in _FAMILIES and not op.has_attr("sdy.sharding")]
        places = [place for op in ops if _kind(op) in self.kinds for place in _FAMILIES[op.name](op)]
        for value, dim in part(program, places, PARTED_VALUES):
            dims = [DimSharding((), d != dim) for d in range(value.type.rank)]
            shardings.set(value, TensorSharding(self.mesh, dims))


def parted(known: KnownShardings, sent: Mapping[str, float]) -> Parted | None:
    """What may be worth trying; None for most programs: where nothing `sent` over an axis is of such a dimension."""
    program = known.program
    if not sent or program.names.isdisjoint(_FAMILIES):
        return None
    ops = [op for op in program.ops() if op.name in _FAMILIES]
    found = [op for op in ops if any(_moves(known, place, sent) for place in _FAMILIES[op.name](op))]
    if not found:
        return None
    where = dict.fromkeys(at for op in found if (at := source(op)) is not None)
    return Parted(frozenset(map(_kind, found)), mesh_of(known), tuple(where))


def _kind(op: Op) -> _Kind:
    return op.name, tuple([v.type.text for v in (*op.operands, *op.results)])


def _moves(known: KnownShardings, place: Place, sent: Mapping[str, float]) -> bool:
    """Whether a dimension of parts is split by axes over which something is sent, so that a piece is no number of whole
    parts."""
    sharding = known.sharding(place.value)
    if sharding is None:
        return False
    dim = sharding.dims[place.dim]
    piece = place.value.type.shape[place.dim] / (dim.factor or 1)
    return bool(piece % place.unit) and any(sent.get(a.name) for a in dim.axes)


def _sliced(op: Op) -> Iterator[Place]:
    value = op.operands[0]
    starts, limits, strides = (integers(op.attrs[n]) for n in ("start_indices", "limit_indices", "strides"))
    for d, (n, start, limit, stride) in enumerate(zip(value.type.shape, starts, limits, strides)):
        if stride == 1 and limit - start < n:
            yield from _place(Place(value, d, math.gcd(n, start, limit)))


def _joined(op: Op) -> Iterator[Place]:
    d = integer(op.attrs["dimension"])
    yield from _place(Place(op.results[0], d, math.gcd(*(v.type.shape[d] for v in op.operands))))


def _padded(op: Op) -> Iterator[Place]:
    value, result = op.operands[0], op.results[0]
    for d, (low, high, inside) in enumerate(zip(*(integers(op.attrs[n]) for n in PADDING))):
        if low + high > 0 <= min(low, high) and not inside:
            yield from _place(Place(result, d, math.gcd(low, high, value.type.shape[d])))


def _renamed(op: Op) -> Iterator[Place]:
    """Dimensions of a reshape's operand or result of which the other one has parts as a dimension of their own."""
    for value, other in ((op.operands[0], op.results[0]), (op.results[0], op.operands[0])):
        shape, around = value.type.shape, other.type.shape
        tops = {math.prod(around[d:]): n for d, n in enumerate(around) if n > 1}
        for d, n in enumerate(shape):
            parts = tops.get(math.prod(shape[d:]), n)
            if parts < n and not n % parts and is_computed_with(value):
                yield from _place(Place(value, d, n // parts))


def _place(place: Place) -> Iterator[Place]:
    """The place, if it has a few parts of more than one element."""
    n = place.value.type.shape[place.dim]
    if 1 < place.unit < n and n // place.unit <= MOST_PARTS:
        yield place


_FAMILIES = {
    "stablehlo.slice": _sliced,
    "stablehlo.concatenate": _joined,
    "stablehlo.pad": _padded,
    "stablehlo.reshape": _renamed,
}
