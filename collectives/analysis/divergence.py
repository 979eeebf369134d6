"""Divergence analysis: over which axes a value of a manual computation may differ between devices (is *varying*).

In a branch or loop whose predicate varies, devices diverge: those that take another way never reach the collectives
inside, and a collective that waits for them deadlocks. The analysis follows a value back through all operations that it
is computed from, loops, branches, calls and enclosing computations included, until a collective has made it equal on
all devices of a group (psum, all_gather). It errs on the side of varying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from propagation.attributes import symbol
from propagation.model import TensorSharding
from propagation.ops import having
from propagation.program import Block, Op, Value

from ..heuristics import VARYING_VALUES
from ..kinds import by_op
from ..layouts.context import Context
from ..reshard.realise import APART
from .constants import scalar_constant
from .device_groups import groups_of

__all__ = ["apart_over", "varying"]

_IDS = having("device_id")
# Operations whose results may differ between any two devices although their operands do not.
_OF_DEVICE = having("nondeterministic")

Atoms = frozenset[int]


class _Made(NamedTuple):
    """How a value is computed.

    of       the values it is computed from
    differs  atoms over which it varies whatever these do (axis_index)
    one      atoms over which it is the same whatever these do (psum over them)
    called   the call whose result it is: arguments of the callee stand for the operands of this call only
    """

    of: Sequence[Value] = ()
    differs: Atoms = frozenset()
    one: Atoms = frozenset()
    called: Op | None = None


def apart_over(ctx: Context, predicate: Value) -> frozenset[int]:
    """The atoms over which devices may diverge in a branch or loop: those over which its predicate may differ between
    devices (in a manual computation), and those of the regions around."""
    return varying(ctx, predicate) | (ctx.region.lookup(APART) or frozenset())


def varying(ctx: Context, value: Value) -> Atoms:
    """The atoms over which `value` may differ between devices that hold all of it."""
    if not ctx.manual:
        return frozenset()
    everyone = frozenset(range(len(ctx.sizes)))
    found: set[int] = set()
    start: tuple[Value, Atoms, tuple[Op, ...]] = (value, frozenset(), ())
    seen = {start}
    queue = [start]  # with the atoms over which it was made equal on the way, and the calls that lead to it
    while queue:
        if len(seen) > VARYING_VALUES:
            return everyone
        current, one, calls = queue.pop()
        block = current.owner
        if isinstance(block, Op):
            made = _result(ctx, current, block, everyone)
        elif calls and not isinstance(block.owner, Op):
            made, calls = _Made([calls[-1].operands[current.number]]), calls[:-1]
        else:
            made = _argument(ctx, current, block, everyone)
        found |= made.differs - one
        if made.called is not None:
            calls = (*calls, made.called)
        for v in made.of:
            state = (v, one | made.one, calls)
            if state not in seen:
                seen.add(state)
                queue.append(state)
    return frozenset(found)


def _argument(ctx: Context, value: Value, block: Block, everyone: Atoms) -> _Made:
    op, number = block.owner, value.number
    if not isinstance(op, Op):
        assert op is not None
        return _Made([call.operands[number] for call in _calls(ctx).get(op.name, ())])
    if op.name == "stablehlo.while":
        return _carried(op, number)
    if op.name == "sdy.manual_computation":
        return _Made([op.operands[number]], _split(ctx, op, ctx.manual_shardings(op)[0][number]))
    return _Made(op.operands)  # an argument of the region of a reduction, a sort, ...


def _carried(op: Op, number: int) -> _Made:
    """A value that a loop carries: computed from its initial value, what the body returns, and the loop's condition."""
    cond, body = op.regions
    return _Made([op.operands[number], body.terminator.operands[number], cond.terminator.operands[0]])


def _split(ctx: Context, op: Op, sharding: TensorSharding) -> Atoms:
    """The manual atoms of a computation over which devices hold different pieces, or addends, of an operand or
    result."""
    used = {a for d in ctx.atoms.dims(sharding) for a in d} | set(ctx.atoms.of_axes(sharding.unreduced))
    return frozenset(used & set(ctx.manual_atoms(op)))


def _result(ctx: Context, value: Value, op: Op, everyone: Atoms) -> _Made:
    if op.name in _OF_DEVICE and not _is_function(op):
        return _Made(differs=everyone)
    digits = _digits(value)
    if digits is not None:
        return _Made(differs=_of_digits(ctx, *digits, everyone))
    if op.name in by_op():
        return _exchanged(ctx, op, everyone)
    if op.name == "stablehlo.while":
        return _carried(op, value.number)
    if op.name in ("stablehlo.case", "stablehlo.if"):
        return _Made([op.operands[0], *[block.terminator.operands[value.number] for block in op.regions]])
    if op.name == "func.call":
        return _Made([ctx.program.funcs[symbol(op.attrs["callee"])].returned[value.number]], called=op)
    if op.name == "sdy.manual_computation":
        inside = op.regions[0].terminator.operands[value.number]
        return _Made([inside], one=_split(ctx, op, ctx.manual_shardings(op)[1][value.number]))
    return _Made([*op.operands, *_captured(op.regions)])


def _is_function(op: Op) -> bool:
    """Whether a custom call is a function of its operands: it has some, and no side effect."""
    effect = op.attrs.get("has_side_effect")
    return op.name == "stablehlo.custom_call" and bool(op.operands) and (effect is None or str(effect) == "false")


def _captured(blocks: Sequence[Block]) -> list[Value]:
    """The operands of all operations in some regions, captured values among them."""
    return [v for block in blocks for op in block.ops for v in (*op.operands, *_captured(op.regions))]


def _exchanged(ctx: Context, op: Op, everyone: Atoms) -> _Made:
    """The result of a collective of the program's own."""
    atoms = groups_of(ctx, op)
    if atoms is None:
        return _Made(op.operands, everyone)
    if by_op()[op.name].uniform:
        return _Made(op.operands, one=frozenset(atoms))
    return _Made(op.operands, frozenset(atoms))


def _calls(ctx: Context) -> dict[str, list[Op]]:
    """All calls of each function."""
    found = ctx.decisions.get("calls")
    if found is None:
        found = ctx.decisions["calls"] = {}
        for op in ctx.program.ops():
            if op.name == "func.call":
                found.setdefault(symbol(op.attrs["callee"]), []).append(op)
    return found


# -- digits of a device's number ----------------------------------------------------------------------------------


def _digits(value: Value) -> tuple[int, int | None] | None:
    """(low, high) of a value computed as `device // low % (high // low)`, as axis_index is; high is None if no
    remainder was taken."""
    op = value.op
    if op is None:
        return None
    if op.name in _IDS:
        return 1, None
    if op.name == "stablehlo.convert" and op.results[0].type.dtype.startswith(("i", "ui")) and not _is_test(value):
        return _digits(op.operands[0])
    if op.name not in ("stablehlo.divide", "stablehlo.remainder"):
        return None
    found, by = _digits(op.operands[0]), scalar_constant(op.operands[1])
    if found is None or type(by) is not int or by <= 0:
        return None
    low, high = found
    if op.name == "stablehlo.divide":
        return low * by, high
    if high is not None and low * by < high and high % (low * by):
        return None  # these remainders are no digits of the device's number in the mesh's radices
    return low, low * by if high is None else min(high, low * by)


def _is_test(value: Value) -> bool:
    return value.type.dtype == "i1"


def _of_digits(ctx: Context, low: int, high: int | None, everyone: Atoms) -> Atoms:
    """The atoms whose coordinates such a value tells; all atoms if it cuts through one."""
    strides = ctx.atoms.strides
    count = ctx.atoms.count
    high = count if high is None else high
    edges = {*strides, count}
    if low >= count:
        return frozenset()
    if low not in edges or high not in edges:
        return everyone
    return frozenset(a for a, stride in enumerate(strides) if low <= stride < high)
