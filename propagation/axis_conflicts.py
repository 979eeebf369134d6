"""Where it matters in which order operations are visited: axes that meet head-on.

Shardings only grow, so as long as no two dimensions of an operation want one axis, every order ends the same. Where
two do, who came first has it: batch dimensions split by the data and features split by the weights over one axis, as
when weights are distributed over the devices that share the batch. XLA's importer makes reshapes of broadcasts that
only add dimensions of size one before it runs Shardy; these are visited in the first rounds, broadcasts in the last, so
XLA's own run may end otherwise than one on the module as it was written.

And it inlines calls before. Shardy does not look into a computation again when an axis comes to its operand late, as to
the second of two loops whose bodies are calls; then the axis ends there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from .factors import BACKWARD, FORWARD
from .functions import callee_of
from .heuristics import REMEMBERED_AXIS_NAMES
from .log import Log
from .model import DimFactors, FactorType, OpRule, TensorSharding
from .program import Op, Program, Value
from .rules import RuleCache
from .schedule import ELEMENTWISE, ROUNDS, adds_unit_dimensions, direction, is_elementwise, kind_of
from .shardings import Shardings
from .visit import Seen

__all__ = ["Alike", "depends_on_order", "lying_apart", "meeting"]


# Operations by their rules and the shardings of their operands and results: those that look alike, once.
Alike: TypeAlias = Mapping[tuple[OpRule, Seen], list[Op]]


def lying_apart(program: Program, shardings: Shardings, rules: RuleCache | None = None) -> Alike:
    """The operations whose operands and results are not all split by the same: where axes may meet. `rules` may be
    what is known already."""
    rules, table = rules or RuleCache(), shardings.table
    of = [*table, *[None] * (len(program.values) - len(table))]  # by the indices of values
    counts: dict[Seen, int] = {}  # of different shardings
    out: dict[tuple[OpRule, Seen], list[Op]] = {}
    for op in program.ops():
        if op.name in ELEMENTWISE:  # most operations are, and most of these on values that lie alike
            alike = of[op.results[0].index]
            for v in op.operands:
                if of[v.index] is not alike:
                    break
            else:
                continue
        found = tuple([of[v.index] for v in op.operands] + [of[v.index] for v in op.results])
        several = counts.get(found)
        if several is None:
            several = counts[found] = len({s for s in found if s is not None})
        if not several or not op.results or (several == 1 and is_elementwise(op)):
            continue
        rule = rules.rule_for(op)
        if rule is not None:
            out.setdefault((rule, found), []).append(op)
    return out


def depends_on_order(
    program: Program, shardings: Shardings, log: Log | None = None, apart: Callable[[], Alike] | None = None
) -> bool:
    """Whether another order of visits (`Options.xla_order`) might have ended in other shardings than these: an axis
    has come to a call and not into the function, or an axis carried by a broadcast that only adds dimensions of size
    one splits dimensions that do not correspond at some operation. With the `log` of the decisions it is told whether
    it was a race; without, every such meeting counts. `apart` gives the operations `lying_apart`, if they are kept."""
    if _ends_at_call(program, shardings):
        return True
    if "stablehlo.broadcast_in_dim" not in program.names:
        return False
    added = [op for op in program.ops() if op.name == "stablehlo.broadcast_in_dim" and adds_unit_dimensions(op)]
    carried = {a for op in added for a in _axes(shardings, (*op.operands, *op.results))}
    if not carried:
        return False
    kinds = lying_apart(program, shardings) if apart is None else apart()
    meetings = [(at, ops, met) for at, ops in kinds.items() if (met := _meeting(*at, carried))]
    if log is None or not meetings:
        return bool(meetings)
    races = _Races(log, set().union(*[met for _, _, met in meetings]))
    return any(races.at(op, *at) for at, ops, _ in meetings for op in ops)


def _ends_at_call(program: Program, shardings: Shardings) -> bool:
    """Whether an operand of a call is split by an axis by which the function's argument is not."""
    for op in program.ops() if "func.call" in program.names else ():
        if op.name == "func.call":
            for value, arg in zip(op.operands, program.funcs[callee_of(op)].args):
                if _axes(shardings, [value]) - _axes(shardings, [arg]):
                    return True
    return False


def meeting(apart: Alike, axes: set[str]) -> set[str]:
    """Those of `axes` that split dimensions which do not correspond at some operation of a program, of which those are
    given that are `lying_apart`: of the others, every order decides the same."""
    found: set[str] = set()
    for rule, seen in apart:
        found |= _meeting(rule, seen, axes)
        if found == axes:
            break
    return found


class _Races:
    """What the log says of `axes` that might have come earlier: those that broadcasts which only add dimensions of size
    one have carried, and whatever else had them from there. Only axes of one user priority race: all rounds of a
    priority are over, in whichever order, when those of the next one begin."""

    def __init__(self, log: Log, axes: set[str]):
        self._log = log
        self._late: dict[str, set[int]] = {a: set() for a in axes}  # places of the driver's table where they came late
        # The tensors to which operations themselves gave an axis, with the user priority at which they did.
        self._passed: set[tuple[Op, int, str, int]] = set()
        self._round: dict[tuple[int, str], tuple[int, int | None]] = {}  # in which a place got an axis
        gained: dict[tuple[int, Seen], list[tuple[int, frozenset[str]]]] = {}  # of the axes, by a shared decision
        lates, passed, rounds = self._late, self._passed, self._round
        for op, rule, slots, before, decision, round in log.events:
            if not isinstance(op, Op):
                continue
            changed = gained.get((id(decision), before))
            if changed is None:
                each = [(t, _gained(before[t], new) & axes) for t, new in decision.changes]
                changed = gained[id(decision), before] = [(t, got) for t, got in each if got]
            if not changed:
                continue
            adds = adds_unit_dimensions(op)
            for t, got in changed:
                slot = slots[t]
                for a in got:
                    rounds[slot, a] = round
                    if rule is not None:
                        passed.add((op, t, a, round[0]))
                    late = lates[a]
                    if adds or not late.isdisjoint(slots):
                        late.add(slot)

    def at(self, op: Op, rule: OpRule, found: Seen) -> bool:
        """Whether the axes of an operation would be others had the late ones come first: where one met itself along
        another factor, and either the operation has carried it along that one, or it would have carried the late one
        further, in a round in which the other was not there yet."""
        values, tensors = (*op.operands, *op.results), (*rule.operands, *rule.results)
        for axis, at in _places(tensors, found).items():
            for t, factors in at.items():
                if not (adds_unit_dimensions(op) or self._is_late(values[t], axis)):
                    continue
                against = [u for u, others in at.items() if not factors & others]
                priority, _ = self._since(values[t], axis)
                if any((op, u, axis, priority) in self._passed for u in against):
                    return True
                since = [self._since(values[u], axis) for u in against]
                there = [number for p, number in since if p == priority or number == ROUNDS]
                for w, dims in enumerate(tensors):
                    lacking = factors.intersection(itertools.chain(*dims)) - at.get(w, frozenset())
                    if any(r >= _first_round(op, rule, f, w >= len(op.operands)) for f in lacking for r in there):
                        return True
        return False

    def _since(self, value: Value, axis: str) -> tuple[int, int]:
        """The user priority and the round in which a value got an axis. The round is -1 if it was annotated with it,
        and `ROUNDS` if there were no rounds or the value was made after them."""
        if not self._log.knows(value):
            return 0, ROUNDS
        slot = self._log.slot_of(value)
        priority, number = self._round.get((slot, axis)) or (_annotated_priority(self._log.initial(slot), axis), -1)
        return priority, ROUNDS if number is None else number

    def _is_late(self, value: Value, axis: str) -> bool:
        return self._log.knows(value) and self._log.slot_of(value) in self._late.get(axis, ())


def _annotated_priority(sharding: TensorSharding | None, axis: str) -> int:
    dims = () if sharding is None else sharding.dims
    return next((d.priority or 0 for d in dims if any(a.name == axis for a in d.axes)), 0)


def _first_round(op: Op, rule: OpRule, factor: int, to_result: bool) -> int:
    """The first round in which an operation carries an axis along a factor to a result, or to an operand."""
    kind, way = kind_of(op, True), FORWARD if to_result else BACKWARD
    passing = rule.types[factor] == FactorType.PASS_THROUGH
    for number in range(1, ROUNDS):
        if direction(op, number, kind)[passing] & way:
            return 0 if number == 1 else number
    return ROUNDS


def _places(tensors: Sequence[DimFactors], found: Seen) -> dict[str, dict[int, frozenset[int]]]:
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


@functools.lru_cache(maxsize=REMEMBERED_AXIS_NAMES)
def _names(sharding: TensorSharding) -> frozenset[str]:
    return frozenset([axis.name for dim in sharding.dims for axis in dim.axes])


def _gained(before: TensorSharding | None, after: TensorSharding) -> frozenset[str]:
    return _names(after) if before is None else _names(after) - _names(before)


def _meeting(rule: OpRule, found: Seen, axes: set[str]) -> set[str]:
    """Those of `axes` that split several factors. A dimension of several factors counts for all of them."""
    places = _places((*rule.operands, *rule.results), found)
    return {axis for axis, at in places.items() if axis in axes and not frozenset.intersection(*at.values())}
