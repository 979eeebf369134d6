"""Over which axes a value of a manual computation may differ between devices.

Whoever branches or loops on such a value parts the devices: those that take another way never reach what is inside, so
nothing there may wait for them. What is asked is whether a value may differ, so everything that it is made of counts,
back through loops, branches and the computations around it, until where a collective has made it one.
"""

from __future__ import annotations

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
Made = tuple[list[Value], Atoms]  # what a value is made of, and the axes over which it differs besides


def varying(ctx: Context, value: Value) -> Atoms:
    """The atoms over which `value` may differ between devices that hold all of it."""
    if not ctx.manual:
        return frozenset()
    everyone = frozenset(range(len(ctx.sizes)))
    found: set[int] = set()
    none: Atoms = frozenset()
    seen = {(value, none)}
    queue = [(value, none)]  # with the atoms over which collectives have made one of it since
    while queue:
        if len(seen) > MOST:
            return everyone
        current, one = queue.pop()
        if current.op is not None and current.op.name in _COLLECTIVES:
            more, differs, one = _exchanged(ctx, current.op, one, everyone)
        else:
            more, differs = (
                _argument(ctx, current, everyone) if current.is_argument else _result(ctx, current, everyone)
            )
        found |= differs - one
        for v in more:
            if (v, one) not in seen:
                seen.add((v, one))
                queue.append((v, one))
    return frozenset(found)


def _argument(ctx: Context, value: Value, everyone: Atoms) -> Made:
    op = value.owner.owner
    if not isinstance(op, Op):  # of a function, whose calls are not looked for
        if op is ctx.program.main:
            return [], frozenset()
        return [], everyone if _asks_for_devices(ctx) else frozenset(ctx.manual)
    if op.name == "stablehlo.while":
        return [*_carried(op, value.number)], frozenset()
    if op.name == "sdy.manual_computation":
        sharding, manual = ctx.manual_shardings(op)[0][value.number], ctx.manual_atoms(op)
        split = {a for d in ctx.atoms.dims(sharding) for a in d} | set(ctx.atoms.of_axes(sharding.unreduced))
        return [op.operands[value.number]], frozenset(split & set(manual))
    return list(op.operands), frozenset()  # of a reduction, a sort, ...


def _carried(op: Op, number: int) -> list[Value]:
    """What decides about a value that a loop carries: where it starts, what comes back, and how often."""
    cond, body = op.regions
    return [op.operands[number], body.terminator.operands[number], cond.terminator.operands[0]]


def _result(ctx: Context, value: Value, everyone: Atoms) -> Made:
    op = value.op
    assert op is not None
    if op.name in _OF_DEVICE:
        return [], everyone
    digits = _digits(value)
    if digits is not None:
        return [], _of_digits(ctx, *digits, everyone)
    if op.name == "stablehlo.while":
        return _carried(op, value.number), frozenset()
    if op.name in ("stablehlo.case", "stablehlo.if"):
        ends = [block.terminator.operands[value.number] for block in op.regions]
        return [op.operands[0], *ends], frozenset()
    if op.name in ("func.call", "sdy.manual_computation"):
        return list(op.operands), everyone if _asks_for_devices(ctx) else frozenset()
    return [*op.operands, *_captured(op.regions)], frozenset()


def _captured(blocks) -> list[Value]:
    """Operands of what stands in regions of scalars; those from outside are among them."""
    return [v for block in blocks for op in block.ops for v in (*op.operands, *_captured(op.regions))]


def _exchanged(ctx: Context, op: Op, one: Atoms, everyone: Atoms) -> tuple[list[Value], Atoms, Atoms]:
    """The same for the result of a collective, and the atoms over which what it is made of is one in it."""
    atoms = groups_of(ctx, op)
    if atoms is None:
        return list(op.operands), everyone, one
    if op.name in _SAME_FOR_ALL:
        return list(op.operands), frozenset(), one | frozenset(atoms)
    return list(op.operands), frozenset(atoms), one


def _asks_for_devices(ctx: Context) -> bool:
    """Whether anything in the program tells devices from each other besides what they hold."""
    known = ctx.decisions.get("asks for devices")
    if known is None:
        known = any(op.name in _IDS or op.name in _OF_DEVICE for op in ctx.program.ops())
        ctx.decisions["asks for devices"] = known
    return known


# -- digits of a device's number ----------------------------------------------------------------------------------


def _digits(value: Value) -> tuple[int, int | None] | None:
    """(low, high) of a value that is `device // low % (high // low)`; high is None where no remainder was taken."""
    op = value.op
    if op is None:
        return None
    if op.name in _IDS:
        return 1, None
    if op.name == "stablehlo.convert" and op.results[0].type.dtype.startswith(("i", "ui")):
        return _digits(op.operands[0])
    if op.name not in ("stablehlo.divide", "stablehlo.remainder"):
        return None
    found, by = _digits(op.operands[0]), scalar_constant(op.operands[1])
    if found is None or type(by) is not int or by <= 0:
        return None
    low, high = found
    if op.name == "stablehlo.divide":
        return low * by, high
    return low, low * by if high is None else min(high, low * by)


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
