"""Where it matters in which order operations are visited: axes that meet head-on.

Shardings only grow, so as long as no two dimensions of an operation want one axis, every order ends the same. Where
two do, who came first has it: batch dimensions split by the data and features split by the weights over one axis, as
when weights are distributed over the devices that share the batch. XLA's importer makes reshapes of broadcasts that
only add dimensions of size one before it runs Shardy; these are visited in the first rounds, broadcasts in the last, so
XLA's own run may end otherwise than one on the module as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable

from .annotations import Shardings
from .model import OpRule, TensorSharding
from .program import Program, Value
from .rules import RuleCache
from .schedule import adds_unit_dimensions

__all__ = ["depends_on_order"]


def depends_on_order(program: Program, shardings: Shardings) -> bool:
    """Whether another order of visits (`Options.xla_order`) might have ended in other shardings than these: a broadcast
    that only adds dimensions of size one carries an axis that splits dimensions which do not correspond at some
    operation. One walk over the program; operations that look alike are looked at once."""
    if "stablehlo.broadcast_in_dim" not in program.names:
        return False
    ops = program.ops()
    carried = {a for op in ops if adds_unit_dimensions(op) for a in _axes(shardings, (*op.operands, *op.results))}
    if not carried:
        return False
    rules, table, seen = RuleCache(), shardings.table, set()
    count = len(table)
    for op in ops:
        found = tuple([table[v.index] if v.index < count else None for v in (*op.operands, *op.results)])
        if not op.results or not any(found):
            continue
        rule = rules.rule_for(op)
        if rule is None or (rule, found) in seen:
            continue
        seen.add((rule, found))
        if _meets(rule, found, carried):
            return True
    return False


def _axes(shardings: Shardings, values: Iterable[Value]) -> set[str]:
    """The axes that split some of the values."""
    found = [s for v in values if (s := shardings.get(v)) is not None]
    return {axis.name for s in found for dim in s.dims for axis in dim.axes}


def _meets(rule: OpRule, found: tuple[TensorSharding | None, ...], axes: set[str]) -> bool:
    """Whether one of `axes` splits several factors. A dimension of several factors counts for all of them."""
    places: dict[str, frozenset[int]] = {}
    for dims, sharding in zip((*rule.operands, *rule.results), found):
        if sharding is None or len(sharding.dims) != len(dims):
            continue
        for factors, dim in zip(dims, sharding.dims):
            for axis in dim.axes if factors else ():
                if axis.name in axes:
                    known = places.get(axis.name)
                    places[axis.name] = here = frozenset(factors) if known is None else known & set(factors)
                    if not here:
                        return True
    return False
