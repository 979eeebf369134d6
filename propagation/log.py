"""The decision log: every change of a sharding, recorded when it is decided.

`Log.explain` answers why a value's dimension carries an axis with the chain of decisions from a user's annotation, and
`Log.missing` what stopped an axis on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .axes import contains, difference
from .model import AxisRef, TensorSharding
from .program import Func, Op, Program, Value, source
from .visit import Conflict, Decision

__all__ = ["Event", "Log", "Missing", "Step"]

Round = tuple[int, int | None]


class Event(NamedTuple):
    """One visit that changed something. `slots` are the table places of the operands and results of `op`, `before`
    their shardings before the visit, `round` is (user priority, operation priority; None for a single pass). `rule` is
    the operation's rule, the number of the result for the return of a function (`op` is the function), None where a
    sharding was copied to another member of a sharding group (`op` is the operation that changed the first)."""

    op: Op | Func
    rule: object
    slots: tuple[int, ...]
    before: tuple[TensorSharding | None, ...]
    decision: Decision
    round: Round


@dataclass(frozen=True, slots=True)
class Step:
    """One link of an explanation: `axis` came to dimension `dim` of `value` through `op` along `factor` from
    dimension `source_dim` of `source`, by `strategy` in `round`. For the user's own annotation `op` is None; `factor`
    is None there and between members of a sharding group. `conflicts` are what competed in this visit, and why it
    lost. `number` is the event's place in the log. `constraint` is the operation whose sharding `value` began with."""

    value: Value | None
    dim: int
    axis: AxisRef
    op: Op | Func | None
    factor: int | None
    round: Round | None
    source: Value | None
    source_dim: int | None
    conflicts: tuple[Conflict, ...]
    where: str | None
    strategy: str | None = None
    number: int | None = None
    constraint: Op | None = None

    def __str__(self) -> str:
        value = "the result" if self.value is None else self.value
        if self.op is None:
            who = "the user" if self.constraint is None else f"the {self.constraint.name} that uses it"
            return f"dimension {self.dim} of {value} is annotated with axis {self.axis.name!r} by {who}"
        name = self.op.name if isinstance(self.op, Op) else f"the return of @{self.op.name}"
        text = f"dimension {self.dim} of {value} got axis {self.axis.name!r} through {name}"
        if self.where:
            text += f" ({self.where})"
        text += f" from dimension {self.source_dim} of {self.source or 'the result'}"
        text += " as a member of its sharding group" if self.factor is None else f" along factor {self.factor}"
        priority, number = self.round
        text += f", {self.strategy} strategy" + (f", user priority {priority}" if priority else "")
        text += "" if number is None else f", round {number}"
        for c in self.conflicts:
            text += f"; there {c.reason}"
        return text


@dataclass(frozen=True, slots=True)
class Missing:
    """`value`, a result of `op`, stayed replicated although operand `operand` is sharded; `reasons` say what stopped
    the axes."""

    value: Value
    op: Op
    operand: Value
    reasons: tuple[str, ...]
    where: str | None

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.value} stayed replicated though {self.operand} is sharded{place}: {'; '.join(self.reasons)}"


class Log:
    """Events in the order of decision. `events` grows while the driver runs.

    applied            constraints and manual computations whose sharding was put on an operand beforehand
    removed_ops        operations without use or effect that were removed
    stale_priorities   those of them whose user priority was still to come (see `removed`)
    """

    def __init__(self, program: Program):
        self.program = program
        self.events: list[Event] = []
        self.removed_ops: list[str] = []
        self.stale_priorities: list[str] = []
        self.applied: list[tuple[Op, Value]] = []
        self.strategy: str | None = None
        self._slot: list[int] | None = None
        self._initial: list[TensorSharding | None] = []
        self._results: dict[Func, list[int]] = {}
        self._by_slot: dict[int, list[tuple[int, int]]] = {}
        self._indexed = 0
        self._last_visits = None

    # ---- recording

    def start(self, slot: list[int], table, results: dict[Func, list[int]], strategy: str, last_visits) -> None:
        """Takes note of the table's layout, of the user's annotations and of the strategy. `last_visits()` gives
        (operation, rule, shardings, decision) as they stand."""
        self._slot, self._initial, self._results = slot, table[:], results
        self.strategy, self._last_visits = strategy, last_visits

    def slot_of(self, value: Value) -> int:
        """The place in the driver's table of the sharding of `value`."""
        if self._slot is None:
            raise ValueError("nothing has been propagated yet")
        return self._slot[value.index]

    def result_slots(self, func: Func) -> list[int]:
        """The places of the shardings of a function's results."""
        return self._results[func]

    def initial(self, slot: int) -> TensorSharding | None:
        """The sharding from which the driver started."""
        return self._initial[slot]

    def visit(self, node, decision: Decision, shardings, round: Round) -> None:
        self.events.append(Event(node.op, node.rule, node.slots, shardings, decision, round))

    def group(self, op: Op | Func, place: int, other: int, old, new: TensorSharding, round: Round) -> None:
        """The sharding decided for `place` also went to `other`, a member of its group."""
        self.events.append(Event(op, None, (place, other), (new, old), Decision(((1, new),)), round))

    def result(self, func: Func, number: int, slots, decision: Decision, shardings, round: Round) -> None:
        self.events.append(Event(func, number, slots, shardings, decision, round))

    def removed(self, op: Op, is_held: bool) -> None:
        """An operation without use or effect is gone. `is_held`: a priority above 0 of its result was still to come
        (there the C++ passes go on with memory that they have freed, and what they decide means nothing)."""
        self.removed_ops.append(repr(op))
        if is_held:
            self.stale_priorities.append(f"{op!r} was removed while a user priority of its result was held back")

    # ---- asking

    def explain(self, value: Value, dim: int, axes: tuple[AxisRef, ...] | None = None) -> list[list[Step]]:
        """For each of `axes` (default: all that were decided) on dimension `dim` of `value`, the chain of steps from
        `value` back to an annotation. Empty for a value that was made after the decisions."""
        if self._slot is None or value.index >= len(self._slot):
            return []
        slot = self._slot[value.index]
        if axes is None:
            final = self._final(slot)
            axes = () if final is None or dim >= len(final.dims) else final.dims[dim].axes
        return [self._chain(slot, dim, axis, value) for axis in axes]

    def explain_result(self, func: Func, number: int, dim: int, axes: tuple[AxisRef, ...]) -> list[list[Step]]:
        """The same for result `number` of a function, which has a sharding beside that of the value it is."""
        places = self._results.get(func)
        return [] if places is None else [self._chain(places[number], dim, axis, None) for axis in axes]

    def _changes(self, slot: int) -> list[tuple[int, int]]:
        """(event number, tensor) of every change at `slot`."""
        while self._indexed < len(self.events):
            event = self.events[self._indexed]
            for t, _ in event.decision.changes:
                self._by_slot.setdefault(event.slots[t], []).append((self._indexed, t))
            self._indexed += 1
        return self._by_slot.get(slot, [])

    def _final(self, slot: int) -> TensorSharding | None:
        changes = self._changes(slot)
        if not changes:
            return self._initial[slot]
        number, tensor = changes[-1]
        return dict(self.events[number].decision.changes)[tensor]

    def _chain(self, slot: int, dim: int, axis: AxisRef, value: Value | None) -> list[Step]:
        steps: list[Step] = []
        before = len(self.events)
        while True:
            found = self._arrival(slot, dim, axis, before)
            if found is None:
                by = next((op for op, v in self.applied if self._slot[v.index] == slot), None)
                where = None if by is None else source(by)
                steps.append(Step(value, dim, axis, None, None, None, None, None, (), where, constraint=by))
                return steps
            before, tensor = found
            event = self.events[before]
            axis, origin = _origin(event, tensor, dim, axis)
            if origin is None:  # a manual axis, that the computation's own sharding names
                by = event.op.data["edge"].op
                steps.append(Step(value, dim, axis, None, None, None, None, None, (), source(by), constraint=by))
                return steps
            other, other_dim, factor = origin
            conflicts = tuple(c for c in event.decision.conflicts if any(a.name == axis.name for a in c.wanted))
            from_value = self._value(event.slots[other])
            steps.append(
                Step(
                    value, dim, axis, event.op, factor, event.round, from_value, other_dim, conflicts,
                    source(event.op), self.strategy, before,
                )
            )  # fmt: skip
            slot, dim, value = event.slots[other], other_dim, from_value

    def _arrival(self, slot: int, dim: int, axis: AxisRef, before: int) -> tuple[int, int] | None:
        """The last event before number `before` that put `axis` on `dim` of `slot`, and the tensor's number in it."""
        for number, t in reversed(self._changes(slot)):
            event = self.events[number]
            if number < before and not _covers(event.before[t], dim, axis):
                if _covers(dict(event.decision.changes)[t], dim, axis):
                    return number, t
        return None

    def _value(self, slot: int) -> Value | None:
        return self.program.values[slot] if slot < len(self._slot) else None

    def missing(self) -> list[Missing]:
        """The results that stayed replicated though an operand of their operation is sharded and nothing but the
        reasons given kept the axes from them. A factor that the result does not have (a sum over a sharded dimension)
        is no reason, but how it should be."""
        out = []
        for op, rule, shardings, decision in self._last_visits() if self._last_visits is not None else ():
            count = len(op.operands)
            sharded = [t for t in range(count) if shardings[t] is not None and shardings[t].axes]
            if not sharded:
                continue
            for number, value in enumerate(op.results):
                own = shardings[count + number]
                if not value.type.shape or (own is not None and own.axes):
                    continue
                reasons = _reasons(rule, shardings, decision, sharded, count + number)
                if reasons:
                    operand = op.operands[sharded[0]]
                    out.append(Missing(value, op, operand, reasons, source(op)))
        return out


def _covers(sharding: TensorSharding | None, dim: int, axis: AxisRef) -> bool:
    if sharding is None or dim >= len(sharding.dims):
        return False
    return any(contains(a, axis) for a in sharding.dims[dim].axes)


def _origin(event: Event, tensor: int, dim: int, axis: AxisRef):
    """The axis to follow, and (tensor, dimension, factor) from which it came in this event. Where only a part of the
    axis is new, that part is followed."""
    old = event.before[tensor]
    new = difference((axis,), old.dims[dim].axes if old is not None and dim < len(old.dims) else ())
    for candidate in dict.fromkeys((axis, *reversed(new))):
        found = _source_of(event, tensor, dim, candidate)
        if found is not None:
            return candidate, found
    return axis, None


def _source_of(event: Event, tensor: int, dim: int, axis: AxisRef) -> tuple[int, int, int | None] | None:
    if event.rule is None or isinstance(event.op, Func):
        other = 1 - tensor
        factor = None if event.rule is None else dim
        return (other, dim, factor) if _covers(event.before[other], dim, axis) else None
    mappings = (*event.rule.operands, *event.rule.results)
    for f in mappings[tensor][dim]:
        for t, mapping in enumerate(mappings):
            if t == tensor or event.slots[t] == event.slots[tensor]:
                continue
            for d, factors in enumerate(mapping):
                if f in factors and _covers(event.before[t], d, axis):
                    return t, d, f
    return None


def _reasons(rule, shardings, decision: Decision | None, sharded: list[int], tensor: int) -> tuple[str, ...]:
    """What kept the axes of the tensors `sharded` from `tensor`."""
    if rule is None:
        return ("the operation has no sharding rule, so nothing passes through it",)
    mappings = (*rule.operands, *rule.results)
    reasons: dict[str, None] = {}
    for t in sharded:
        for dim, factors in enumerate(mappings[t]):
            if shardings[t].dims[dim:] and shardings[t].dims[dim].axes:
                for f in factors:
                    if f in rule.blocked and any(f in fs for fs in mappings[tensor]):
                        reasons[f"nothing propagates along factor {f} of the operation"] = None
    own = {f for fs in mappings[tensor] for f in fs}
    for c in decision.conflicts if decision is not None else ():
        if c.tensor in (tensor, -1) and c.factor in own and len(c.granted) < len(c.wanted):
            names = ", ".join(repr(a.name) for a in c.wanted)
            reasons[f"axes {names} of factor {c.factor}: {c.reason}"] = None
    meshes = {s.mesh.layout for s in shardings if s is not None and not s.mesh.is_empty}
    if len(meshes) > 1:
        reasons["the operands and results are on different meshes"] = None
    return tuple(reasons)
