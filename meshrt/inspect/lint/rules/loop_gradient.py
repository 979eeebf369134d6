"""Sums over devices that a loop takes in every iteration and only adds up."""

from __future__ import annotations

from collections.abc import Iterator

from meshrt.inspect.lint.changes import Change, moves, without
from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.sends import caused
from meshrt.inspect.lint.subject import Subject
from propagation.ops import ANNOTATIONS, OPS
from propagation.program import Op, Value

__all__ = ["RULE"]

# What each device's own sums may take beside the one of all. Chosen: it is the accumulator once more.
GROWTH = 0.1
_ADD, _CONVERT = "stablehlo.add", "stablehlo.convert"


def _find(subject: Subject) -> Iterator[Hit]:
    """A gradient that is needed whole inside of the loop (clipped, or applied) is none of these: only what reaches the
    carry by additions and operations that sums commute with can be summed up once behind the loop."""
    looped = [s for s in subject.base.partitioned.sent() if s.is_looped and s.collective.facts.reduces and s.times != 1]
    hits = []
    for each in caused(subject, looped):
        if not isinstance(each.op, Op):
            continue
        way = _way_to_carry(each.op)
        if way is None:
            continue
        times = each.sent[0].times
        saved = each.bytes * (1 - 1 / times) if times else each.bytes
        count = "an unknown number of times" if times is None else f"{times} times"
        message = (
            f"a sum over devices is taken {count}, in every iteration of a loop that only adds it up; taken once "
            "behind the loop it is the same"
        )
        hits.append(Hit(message, each.where, saved, _changes(subject, way), is_certain=True))
    yield from worth_telling(hits, subject.base.figures.bytes)


def _way_to_carry(op: Op) -> list[Op] | None:
    """The operations from what leaves a partial sum to the loop's carry that it is added to; None if it is needed for
    anything else."""
    value, way = op.results[0], [op]
    while len(value.uses) == 1:
        use = value.uses[0]
        user = use.op
        if user.name == _ADD:
            other = user.operands[1 - use.number]
            return way if _is_carried(user, other) else None
        traits = OPS[user.name].traits if user.name in OPS else frozenset()
        is_same = user.name in ANNOTATIONS or user.name == _CONVERT or "permuting" in traits
        if not is_same and not _is_scaled(user, use.number):
            return None
        way.append(user)
        value = user.results[0]
    return None


def _is_scaled(op: Op, number: int) -> bool:
    """Whether an operation multiplies its operand of that number by a constant, or divides it by one."""
    if len(op.operands) != 2 or "pointwise" not in OPS[op.name].traits if op.name in OPS else True:
        return False
    other = op.operands[1 - number]
    is_product = "multilinear" in OPS[op.name].traits or (op.name == "stablehlo.divide" and number == 0)
    return is_product and _is_constant(other)


def _is_constant(value: Value) -> bool:
    op = value.op
    while op is not None and op.name in OPS and "rearranging" in OPS[op.name].traits:
        op = op.operands[0].op
    return op is not None and op.name in OPS and "constant" in OPS[op.name].traits


def _is_carried(op: Op, other: Value) -> bool:
    """Whether the sum `op` is what the loop carries on of its argument `other`."""
    owner = other.argument_of
    if not isinstance(owner, Op) or not owner.regions:
        return False
    body = owner.regions[-1]
    if other not in body.args:
        return False
    return body.ops[-1].operands[body.args.index(other)] is op.results[0]


def _changes(subject: Subject, way: list[Op]) -> list[Change]:
    numbers = {v.index for op in way for v in op.results}
    found: list[Change] = []
    for said in subject.said:
        if said.kind in ("constraint", "value") and said.number in numbers:
            found += without(subject, said)
            found += moves(subject, said, dict.fromkeys(a.name for d in said.sharding.dims for a in d.axes))
    return found


RULE = Rule(
    "loop-gradient", "A gradient is reduced in every iteration of a loop.", "bytes", _find, rank=2, growth=GROWTH
)
