"""The decision log: every change of a sharding, recorded when it is decided.

`Log.explain` answers why a value's dimension carries an axis with the chain of decisions from a user's annotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .model import AxisRef, TensorSharding
from .program import Func, Op, Program, Value, source
from .visit import Conflict, Decision

__all__ = ["Event", "Log", "Step"]


class Event(NamedTuple):
    """One visit that changed something. `slots` are the table places of the operands and results of `op`, `before`
    their shardings before the visit, `round` is (user priority, operation priority; None for a single pass)."""

    op: Op | Func
    rule: object
    slots: tuple[int, ...]
    before: tuple[TensorSharding | None, ...]
    decision: Decision
    round: tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One link of an explanation: `axis` came to dimension `dim` of `value` through `op` along `factor` from
    dimension `source_dim` of `source`. For the user's own annotation `op` is None."""

    value: Value | None
    dim: int
    axis: AxisRef
    op: Op | Func | None
    factor: int | None
    round: tuple[int, int | None] | None
    source: Value | None
    source_dim: int | None
    conflicts: tuple[Conflict, ...]
    where: str | None

    def __str__(self) -> str:
        if self.op is None:
            return f"dimension {self.dim} of {self.value} is annotated with axis {self.axis.name!r} by the user"
        name = self.op.name if isinstance(self.op, Op) else f"the return of @{self.op.name}"
        text = f"dimension {self.dim} of {self.value} got axis {self.axis.name!r} through {name}"
        if self.where:
            text += f" ({self.where})"
        if self.source is not None:
            text += f" from dimension {self.source_dim} of {self.source}"
        else:
            text += " from the annotation of the computation there"
        for c in self.conflicts:
            text += f"; there {c.reason}"
        return text


class Log:
    """Events in the order of decision. `events` grows while the driver runs. `applied` are the constraints and manual
    computations whose sharding was put on an operand beforehand."""

    def __init__(self, program: Program):
        self.program = program
        self.events: list[Event] = []
        self.removed_ops: list[str] = []
        self.stale_priorities: list[str] = []
        self.applied: list[tuple[Op, Value]] = []
        self._slot: list[int] | None = None
        self._initial: list[TensorSharding | None] = []
        self._results: dict[Func, list[int]] = {}

    def start(self, slot: list[int], table: list[TensorSharding | None], results: dict[Func, list[int]]) -> None:
        """Takes note of the table's layout and of the user's annotations."""
        self._slot, self._initial, self._results = slot, table[:], results

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

    def visit(self, node, decision: Decision, shardings, round) -> None:
        self.events.append(Event(node.op, node.rule, node.slots, shardings, decision, round))

    def result(self, func: Func, number: int, slots, decision: Decision, shardings, round) -> None:
        self.events.append(Event(func, number, slots, shardings, decision, round))

    def removed(self, op: Op, is_held: bool) -> None:
        """An operation without use or effect is gone. `is_held`: a priority above 0 of its result was still to come
        (there the C++ passes go on with memory that they have freed, and what they decide means nothing)."""
        self.removed_ops.append(repr(op))
        if is_held:
            self.stale_priorities.append(f"{op!r} was removed while a user priority of its result was held back")

    def explain(self, value: Value, dim: int) -> list[list[Step]]:
        """For each axis on dimension `dim` of `value`, the chain of steps from `value` back to an annotation."""
        slot = self._slot[value.index]
        final = self._final(slot)
        if final is None:
            return []
        return [self._chain(slot, dim, axis, value) for axis in final.dims[dim].axes]

    def _final(self, slot: int) -> TensorSharding | None:
        for event in reversed(self.events):
            for t, new in reversed(event.decision.changes):
                if event.slots[t] == slot:
                    return new
        return self._initial[slot]

    def _chain(self, slot: int, dim: int, axis: AxisRef, value: Value | None) -> list[Step]:
        steps: list[Step] = []
        upto = len(self.events)
        while True:
            found = self._arrival(slot, dim, axis, upto)
            if found is None:
                steps.append(Step(value, dim, axis, None, None, None, None, None, (), None))
                return steps
            upto, tensor = found
            event = self.events[upto]
            origin = _origin(event, tensor, dim, axis)
            conflicts = tuple(c for c in event.decision.conflicts if any(a.name == axis.name for a in c.wanted))
            source_value = None if origin is None else self._value(event, origin[0])
            steps.append(
                Step(
                    value,
                    dim,
                    axis,
                    event.op,
                    None if origin is None else origin[2],
                    event.round,
                    source_value,
                    None if origin is None else origin[1],
                    conflicts,
                    source(event.op),
                )
            )
            if origin is None:
                return steps
            slot, dim, value = event.slots[origin[0]], origin[1], source_value

    def _arrival(self, slot: int, dim: int, axis: AxisRef, upto: int) -> tuple[int, int] | None:
        """The last event before `upto` that put `axis` on `dim` of the value at `slot`, and the tensor's number."""
        for i in range(upto - 1, -1, -1):
            event = self.events[i]
            for t, new in event.decision.changes:
                if event.slots[t] != slot or not _covers(new, dim, axis):
                    continue
                if not _covers(event.before[t], dim, axis):
                    return i, t
        return None

    def _value(self, event: Event, tensor: int) -> Value | None:
        slot = event.slots[tensor]
        return self.program.values[slot] if slot < len(self.program.values) else None


def _covers(sharding: TensorSharding | None, dim: int, axis: AxisRef) -> bool:
    if sharding is None or dim >= len(sharding.dims):
        return False
    return any(a.name == axis.name and a.pre <= axis.pre and a.end >= axis.end for a in sharding.dims[dim].axes)


def _origin(event: Event, tensor: int, dim: int, axis: AxisRef) -> tuple[int, int, int] | None:
    """(tensor, dimension, factor) from which `axis` came in this event."""
    if isinstance(event.op, Func):
        other = 1 - tensor
        return (other, dim, dim) if _covers(event.before[other], dim, axis) else None
    mappings = (*event.rule.operands, *event.rule.results)
    for f in mappings[tensor][dim]:
        for t, mapping in enumerate(mappings):
            if t == tensor or event.slots[t] == event.slots[tensor]:
                continue
            for d, factors in enumerate(mapping):
                if f in factors and _covers(event.before[t], d, axis):
                    return t, d, f
    return None
