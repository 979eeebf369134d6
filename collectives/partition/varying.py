"""Over which axes a value of a manual computation may differ between devices.

Whoever branches or loops on such a value parts the devices: those that take another way never reach what is inside, so
nothing there may wait for them. What is asked is whether a value may differ, so everything that it is made of counts,
back through loops, branches and the computations around it, until where a collective has made it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from propagation.attributes import symbol
from propagation.program import Op, Value

from .constant import scalar_constant
from .context import Context
from .manual import groups_of

__all__ = ["varying"]

MOST = 4096  # values that are looked at before everything is taken to differ

_COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute",
                 "reduce_scatter")
)  # fmt: skip
_SAME_FOR_ALL = frozenset(f"stablehlo.{name}" for name in ("all_gather", "all_reduce", "collective_broadcast"))
_IDS = frozenset(("stablehlo.partition_id", "stablehlo.replica_id"))
# What may differ between any two devices although its operands do not.
_OF_DEVICE = frozenset(f"stablehlo.{name}" for name in ("custom_call", "infeed", "recv", "rng"))

Atoms = frozenset[int]


class _Made(NamedTuple):
    """What a value is made `of`, the atoms over which it `differs` besides, and those over which it is `one` although
    what it is made of may differ. What a function `called` returns is made of the operands of this call only."""

    of: Sequence[Value] = ()
    differs: Atoms = frozenset()
    one: Atoms = frozenset()
    called: Op | None = None


def varying(ctx: Context, value: Value) -> Atoms:
    """The atoms over which `value` may differ between devices that hold all of it."""
    if not ctx.manual:
        return frozenset()
    everyone = frozenset(range(len(ctx.sizes)))
    found: set[int] = set()
    start: tuple[Value, Atoms, tuple[Op, ...]] = (value, frozenset(), ())
    seen = {start}
    queue = [start]  # with the atoms over which it has been made one since, and the calls that it stands in
    while queue:
        if len(seen) > MOST:
            return everyone
        current, one, calls = queue.pop()
        if calls and current.is_argument and not isinstance(current.owner.owner, Op):
            made, calls = _Made([calls[-1].operands[current.number]]), calls[:-1]
        else:
            look = _argument if current.is_argument else _result
            made = look(ctx, current, everyone)
        found |= made.differs - one
        if made.called is not None:
            calls = (*calls, made.called)
        for v in made.of:
            state = (v, one | made.one, calls)
            if state not in seen:
                seen.add(state)
                queue.append(state)
    return frozenset(found)


def _argument(ctx: Context, value: Value, everyone: Atoms) -> _Made:
    op, number = value.owner.owner, value.number
    if not isinstance(op, Op):
        return _Made([call.operands[number] for call in _calls(ctx).get(op.name, ())])
    if op.name == "stablehlo.while":
        return _carried(op, number)
    if op.name == "sdy.manual_computation":
        return _Made([op.operands[number]], _split(ctx, op, ctx.manual_shardings(op)[0][number]))
    return _Made(op.operands)  # of a reduction, a sort, ...


def _carried(op: Op, number: int) -> _Made:
    """A value that a loop carries: where it starts, what comes back, and how often."""
    cond, body = op.regions
    return _Made([op.operands[number], body.terminator.operands[number], cond.terminator.operands[0]])


def _split(ctx: Context, op: Op, sharding) -> Atoms:
    """The manual atoms of a computation over which devices have parts, or addends, of an operand or result."""
    used = {a for d in ctx.atoms.dims(sharding) for a in d} | set(ctx.atoms.of_axes(sharding.unreduced))
    return frozenset(used & set(ctx.manual_atoms(op)))


def _result(ctx: Context, value: Value, everyone: Atoms) -> _Made:
    op = value.op
    assert op is not None
    if op.name in _OF_DEVICE and not _is_function(op):
        return _Made(differs=everyone)
    digits = _digits(value)
    if digits is not None:
        return _Made(differs=_of_digits(ctx, *digits, everyone))
    if op.name in _COLLECTIVES:
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
    """Whether a call of foreign code gives what its operands decide."""
    effect = op.attrs.get("has_side_effect")
    return op.name == "stablehlo.custom_call" and bool(op.operands) and (effect is None or str(effect) == "false")


def _captured(blocks) -> list[Value]:
    """Operands of what stands in regions of scalars; those from outside are among them."""
    return [v for block in blocks for op in block.ops for v in (*op.operands, *_captured(op.regions))]


def _exchanged(ctx: Context, op: Op, everyone: Atoms) -> _Made:
    """The result of a collective of the program's own."""
    atoms = groups_of(ctx, op)
    if atoms is None:
        return _Made(op.operands, everyone)
    if op.name in _SAME_FOR_ALL:
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
    """(low, high) of a value that is `device // low % (high // low)`; high is None where no remainder was taken."""
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
        return None  # what is counted does not begin anew where the digits do
    return low, low * by if high is None else min(high, low * by)


def _is_test(value: Value) -> bool:
    return value.type.dtype == "i1"


def _of_digits(ctx: Context, low: int, high: int | None, everyone: Atoms) -> Atoms:
    """The atoms that these digits of a device's number tell, if they are those of whole atoms."""
    strides = ctx.atoms.strides
    count = ctx.atoms.count
    high = count if high is None else high
    edges = {*strides, count}
    if low >= count:
        return frozenset()
    if low not in edges or high not in edges:
        return everyone
    return frozenset(a for a, stride in enumerate(strides) if low <= stride < high)
