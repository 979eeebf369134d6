"""Where it matters in which order operations are visited: axes that meet head-on.

Shardings only grow, so as long as no two dimensions of an operation want one axis, every order ends the same. Where
two do, who came first has it: batch dimensions split by the data and features split by the weights over one axis, as
when weights are distributed over the devices that share the batch. XLA's importer makes reshapes of broadcasts that
only add dimensions of size one before it runs Shardy; these are visited in the first rounds, broadcasts in the last, so
XLA's own run may end otherwise than one on the module as it was written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from .annotations import Shardings
from .factors import BACKWARD, FORWARD
from .log import Log
from .model import FactorType, OpRule, TensorSharding
from .program import Op, Program, Value
from .rules import RuleCache
from .schedule import ROUNDS, adds_unit_dimensions, direction, kind_of

__all__ = ["depends_on_order"]


def depends_on_order(program: Program, shardings: Shardings, log: Log | None = None) -> bool:
    """Whether another order of visits (`Options.xla_order`) might have ended in other shardings than these: an axis
    carried by a broadcast that only adds dimensions of size one splits dimensions that do not correspond at some
    operation. With the `log` of the decisions it is told whether it was a race; without, every such meeting counts. One
    walk over the program; operations that look alike are looked at once."""
    if "stablehlo.broadcast_in_dim" not in program.names:
        return False
    ops = program.ops()
    carried = {a for op in ops if adds_unit_dimensions(op) for a in _axes(shardings, (*op.operands, *op.results))}
    if not carried:
        return False
    races = None if log is None else _Races(log)
    rules, table, seen = RuleCache(), shardings.table, set()
    count = len(table)
    for op in ops:
        found = tuple([table[v.index] if v.index < count else None for v in (*op.operands, *op.results)])
        if not op.results or not any(found) or (races is not None and not races.concern(op)):
            continue
        rule = rules.rule_for(op)
        if rule is None or (rule, found) in seen:
            continue
        if _meets(rule, found, carried):
            if races is None or races.at(op, rule, found):
                return True
        else:
            seen.add((rule, found))
    return False


class _Races:
    """What the log says of axes that might have come earlier: those that broadcasts which only add dimensions of size
    one have carried, and whatever else had them from there."""

    def __init__(self, log: Log):
        self._log = log
        self._late: dict[int, set[str]] = {}  # by places of the driver's table
        self._passed: dict[Op, set[tuple[int, str]]] = {}  # the tensors to which operations themselves gave an axis
        self._round: dict[tuple[int, str], int | None] = {}  # in which a place got an axis
        for event in log.events:
            if not isinstance(event.op, Op):
                continue
            for t, new in event.decision.changes:
                before = event.before[t]
                gained = _names(new) if before is None else _names(new) - _names(before)
                self._round.update(((event.slots[t], a), event.round[1]) for a in gained)
                if event.rule is not None:
                    self._passed.setdefault(event.op, set()).update((t, a) for a in gained)
                if not adds_unit_dimensions(event.op):
                    gained = {a for a in gained if any(a in self._late.get(place, ()) for place in event.slots)}
                if gained:
                    self._late.setdefault(event.slots[t], set()).update(gained)

    def concern(self, op: Op) -> bool:
        """Whether an operation is such a broadcast, or has an axis that came through one."""
        return adds_unit_dimensions(op) or any(map(self._late_axes, (*op.operands, *op.results)))

    def at(self, op: Op, rule: OpRule, found: tuple[TensorSharding | None, ...]) -> bool:
        """Whether the axes of an operation would be others had the late ones come first: where one met itself along
        another factor, and either the operation has carried it along that one, or it would have carried the late one
        further, in a round in which the other was not there yet."""
        values, tensors = (*op.operands, *op.results), (*rule.operands, *rule.results)
        passed = self._passed.get(op, ())
        for axis, at in _places(tensors, found).items():
            for t, factors in at.items():
                if not (adds_unit_dimensions(op) or axis in self._late_axes(values[t])):
                    continue
                against = [u for u, others in at.items() if not factors & others]
                if any((u, axis) in passed for u in against):
                    return True
                there = [self._since(values[u], axis) for u in against]
                for w, dims in enumerate(tensors):
                    lacking = factors.intersection(itertools.chain(*dims)) - at.get(w, frozenset())
                    if any(r >= _first_round(op, rule, f, w >= len(op.operands)) for f in lacking for r in there):
                        return True
        return False

    def _since(self, value: Value, axis: str) -> int:
        """The round in which a value got an axis; -1 if it began with it."""
        if not self._log.knows(value):
            return ROUNDS
        number = self._round.get((self._log.slot_of(value), axis), -1)
        return ROUNDS if number is None else number

    def _late_axes(self, value: Value) -> set[str]:
        return self._late.get(self._log.slot_of(value), set()) if self._log.knows(value) else set()


def _first_round(op: Op, rule: OpRule, factor: int, to_result: bool) -> int:
    """The first round in which an operation carries an axis along a factor to a result, or to an operand."""
    kind, way = kind_of(op, True), FORWARD if to_result else BACKWARD
    passing = rule.types[factor] == FactorType.PASS_THROUGH
    for number in range(1, ROUNDS):
        if direction(op, number, kind)[passing] & way:
            return 0 if number == 1 else number
    return ROUNDS


def _places(tensors, found: tuple[TensorSharding | None, ...]) -> dict[str, dict[int, frozenset[int]]]:
    """For each axis the tensors that it splits, and the factors of the dimensions."""
    places: dict[str, dict[int, frozenset[int]]] = {}
    for t, (dims, sharding) in enumerate(zip(tensors, found)):
        if sharding is None or len(sharding.dims) != len(dims):
            continue
        for factors, dim in zip(dims, sharding.dims):
            for axis in dim.axes if factors else ():
                at = places.setdefault(axis.name, {})
                at[t] = at.get(t, frozenset()) | frozenset(factors)
    return places


def _axes(shardings: Shardings, values: Iterable[Value]) -> set[str]:
    """The axes that split some of the values."""
    return {a for v in values if (s := shardings.get(v)) is not None for a in _names(s)}


def _names(sharding: TensorSharding) -> set[str]:
    return {axis.name for dim in sharding.dims for axis in dim.axes}


def _meets(rule: OpRule, found: tuple[TensorSharding | None, ...], axes: set[str]) -> bool:
    """Whether one of `axes` splits several factors. A dimension of several factors counts for all of them."""
    places = _places((*rule.operands, *rule.results), found)
    return any(not frozenset.intersection(*at.values()) for axis, at in places.items() if axis in axes)
