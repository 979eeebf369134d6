"""From which position on pointwise operations on slices are computed.

In `u.at[1:-1].add(h[1:-1] - h[:-2] - g[1:-1])`, all tensors having 512 rows, everything is computed on 510. Laid out by
their own positions, row j of these stands where row j of a tensor of 512 rows does: `h[1:-1]`, `g[1:-1]` and the update
are each one row off. Laid out so that row j stands where row j + 1 of 512 does, only `h[:-2]` is.

Operations that are pointwise and follow one another are all computed from one position on (`Alignment`): the one from
which slices, and where the results go, are off least altogether.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from propagation.attributes import integer, integers
from propagation.ops import POINTWISE
from propagation.program import Op, Value

from ..heuristics import ALIGNED_OPERATIONS
from .constants import scalar_constant
from .progressions import written

__all__ = ["Alignment", "aligned_with", "is_uniform"]


class Alignment(NamedTuple):
    """Position j of a value lies where position `start` + j of a tensor of `size` does."""

    size: int
    start: int


def aligned_with(
    value: Value, d: int, known: Callable[[Value, int], Alignment | None]
) -> tuple[Alignment | None, frozenset[Value]]:
    """Where the positions along dimension `d` of the result of a pointwise operation had better lie, and all values of
    which that is said; None if by their own numbers, as others lie. `known` says it of results before."""
    members = _joined(value)
    if members is None:
        return None, frozenset((value,))
    sizes, places = set[int](), list[int]()
    for leaf in {v for m in members for v in _operands(m) if v not in members}:
        found = _cut_from(leaf, d, known)
        if found is None:
            return None, members
        sizes.add(found.size)
        places.append(found.start)
    for member in members:
        for use in member.uses:
            if use.op.name == "stablehlo.slice" or (use.op.results and use.op.results[0] in members):
                continue
            goal = _put_into(use.op, use.number, d)
            sizes.update(() if goal is None else (goal.size,))
            places.append(0 if goal is None else goal.start)
    if len(sizes) != 1:
        return None, members
    off = lambda start: sum(abs(place - start) for place in places)
    start = min([0, *sorted(places)], key=off)
    return (Alignment(sizes.pop(), start) if start else None), members


def is_uniform(value: Value) -> bool:
    """Whether all elements of a value are one number, which may only be known when the program runs."""
    op = value.op
    if op is not None and op.name == "stablehlo.broadcast_in_dim" and not op.operands[0].type.shape:
        return True
    return scalar_constant(value) is not None


def _joined(value: Value) -> frozenset[Value] | None:
    """The results of pointwise operations of one block on tensors of one shape that follow one another, `value` being
    one of them; None if there are too many."""
    found, left = {value}, [value]
    while left:
        member = left.pop()
        users = [use.op.results[0] for use in member.uses if len(use.op.results) == 1]
        for other in (*_operands(member), *users):
            if other not in found and _is_member(other, value):
                found.add(other)
                left.append(other)
        if len(found) > ALIGNED_OPERATIONS:
            return None
    return frozenset(found)


def _is_member(value: Value, first: Value) -> bool:
    op, other = value.op, first.op
    if op is None or other is None or op.name not in POINTWISE or op.parent is not other.parent:
        return False
    return value.type.shape == first.type.shape and not is_uniform(value)


def _operands(value: Value) -> Sequence[Value]:
    """The operands that have the shape of the value, but for those that are the same everywhere."""
    op = value.op
    return () if op is None else [v for v in op.operands if v.type.shape == value.type.shape and not is_uniform(v)]


def _cut_from(value: Value, d: int, known: Callable[[Value, int], Alignment | None]) -> Alignment | None:
    """Where the positions of a slice lie in what it is cut from, slices of slices included."""
    start = 0
    while (op := value.op) is not None and op.name == "stablehlo.slice" and integers(op.attrs["strides"])[d] == 1:
        start, value = start + integers(op.attrs["start_indices"])[d], op.operands[0]
    before = known(value, d) if op is not None and op.name in POINTWISE else None
    return Alignment(value.type.shape[d], start) if before is None else Alignment(before.size, start + before.start)


def _put_into(op: Op, number: int, d: int) -> Alignment | None:
    """Where the positions of operand `number` lie in the result; None where an operation has them at their own."""
    shape = op.operands[number].type.shape
    if op.name == "stablehlo.scatter" and number == 2 and len(op.results) == 1:
        stretches = written(op)
        if stretches is None or len(stretches) != len(shape) or (stretches[d].along, stretches[d].step) != (d, 1):
            return None
        return Alignment(op.results[0].type.shape[d], stretches[d].start)
    if op.name == "stablehlo.concatenate" and integer(op.attrs["dimension"]) == d:
        return Alignment(op.results[0].type.shape[d], sum(v.type.shape[d] for v in op.operands[:number]))
    return None
