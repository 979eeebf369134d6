"""The decision log: every change of a sharding, recorded when it is decided.

`Log.explain` answers why a value's dimension carries an axis with the chain of decisions from a user's annotation, and
`Log.missing` what stopped an axis on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .axes import contains, difference
from .dataflow import is_edge
from .locations import source, value_source
from .model import AxisRef, TensorSharding
from .program import Func, Op, Program, Value
from .reasons import Missing, Reason, missing_values, obstacles
from .visit import Decision

if TYPE_CHECKING:
    from .last_visits import Visit

__all__ = ["Event", "Log", "Missing", "Reason", "Step"]

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

    def __str__(self) -> str:
        name = self.op.name if isinstance(self.op, Op) else f"the return of @{self.op.name}"
        values = (*self.op.operands, *self.op.results) if isinstance(self.op, Op) else ()
        changes = []
        for t, new in self.decision.changes:
            value = repr(values[t]) if self.rule is not None and t < len(values) else f"tensor {t}"
            changes.append(f"{value}: {new.to_text()}")
        where, (priority, number) = source(self.op), self.round
        rounds = [f"user priority {priority}"] * bool(priority) + [f"round {number}"] * (number is not None)
        head = name + (f" ({where})" if where else "") + (f" [{', '.join(rounds)}]" if rounds else "")
        return f"{head}: {'; '.join(changes)}"


@dataclass(frozen=True, slots=True)
class Step:
    """One link of an explanation: `axis` came to dimension `dim` of `value` through `op` along `factor` from
    dimension `source_dim` of `source`, by `strategy` in `round`. For the user's own annotation `op` is None; `factor`
    is None there and between members of a sharding group. `conflicts` are the tensors of `op` that did not take the
    axis in this visit, and what stood against it. `number` is the event's place in the log. `constraint` is the
    operation whose sharding `value` began with. `is_inserted`: the axis came after the decisions, when explicit
    reshards were put around the operation of `value`; `op` is None too."""

    value: Value | None
    dim: int
    axis: AxisRef
    op: Op | Func | None
    factor: int | None
    round: Round | None
    source: Value | None
    source_dim: int | None
    conflicts: tuple[Reason, ...]
    where: str | None
    strategy: str | None = None
    number: int | None = None
    constraint: Op | None = None
    is_inserted: bool = False

    def text(self, name: Callable[[Value], str] = repr) -> str:
        """The sentence of this step, with values as `name` calls them."""
        value = "the result" if self.value is None else name(self.value)
        place = f" ({self.where})" if self.where else ""
        if self.is_inserted:
            around = f"reshards were put around {self.value.op.name}"
            return f"dimension {self.dim} of {value} got axis {self.axis.name!r} when {around}{place}"
        if self.op is None:
            who = "the user" if self.constraint is None else f"the {self.constraint.name} that uses it"
            return f"dimension {self.dim} of {value} is annotated with axis {self.axis.name!r} by {who}{place}"
        through = self.op.name if isinstance(self.op, Op) else f"the return of @{self.op.name}"
        text = f"dimension {self.dim} of {value} got axis {self.axis.name!r} through {through}{place}"
        origin = "the result" if self.source is None else name(self.source)
        text += f" from dimension {self.source_dim} of {origin}"
        text += " as a member of its sharding group" if self.factor is None else f" along factor {self.factor}"
        priority, number = self.round
        text += f", {self.strategy} strategy" + (f", user priority {priority}" if priority else "")
        text += "" if number is None else f", round {number}"
        return text + "".join(f"; there {c.text(name)}" for c in self.conflicts)

    def __str__(self) -> str:
        return self.text()


class Log:
    """Events in the order of decision: iterate for them, print it for a line per event. `events` grows while the driver
    runs.

    applied            constraints and manual computations whose sharding was put on an operand beforehand
    removed_ops        operations without use or effect that were removed
    last_visits        every operation as it is seen when all is decided
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
        self._table: list[TensorSharding | None] = []  # the driver's own
        self._initial: list[TensorSharding | None] = []
        self._results: dict[Func, list[int]] = {}
        self._by_slot: dict[int, list[tuple[int, int]]] = {}
        self._indexed = 0
        self.last_visits: Iterable[Visit] = ()
        self._owners: dict[int, Value] = {}

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __str__(self) -> str:
        return "\n".join(map(str, self.events))

    def __bool__(self) -> bool:
        return True  # a log in which nothing was decided is still one

    # ---- recording

    def start(
        self, slot: list[int], table, results: dict[Func, list[int]], strategy: str, owners: dict[int, Value]
    ) -> None:
        """Takes note of the table's layout, of the user's annotations and of the strategy. `owners` are the values that
        edges belong to, by the edges' places."""
        self._slot, self._table, self._initial, self._results = slot, table, table[:], results
        self.strategy, self._owners = strategy, owners

    def knows(self, value: Value) -> bool:
        """Whether a value was there when the decisions were made."""
        return self._slot is not None and value.index < len(self._slot)

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
        if not self.knows(value):
            return []
        slot = self._slot[value.index]
        final = self._final(slot)
        if axes is None:
            axes = () if final is None or dim >= len(final.dims) else final.dims[dim].axes
        inserted = lambda axis: [Step(value, dim, axis, *[None] * 5, (), source(value.op), is_inserted=True)]
        found = []
        for axis in axes:
            is_decided = value.op is None or _covers(final, dim, axis)
            found.append(self._chain(slot, dim, axis, value) if is_decided else inserted(axis))
        return found

    def explain_result(self, func: Func, number: int, dim: int, axes: tuple[AxisRef, ...]) -> list[list[Step]]:
        """The same for result `number` of a function, which has a sharding beside that of the value it is. Axes that
        were not decided for it are those of the value."""
        if func not in self._results:
            return []
        place, value, found = self._results[func][number], func.returned[number], []
        for axis in axes:
            own = _covers(self._final(place), dim, axis)
            found += [self._chain(place, dim, axis, None)] if own else self.explain(value, dim, (axis,))
        return found

    def _changes(self, slot: int) -> list[tuple[int, int]]:
        """(event number, tensor) of every change at `slot`."""
        while self._indexed < len(self.events):
            event = self.events[self._indexed]
            for t, _ in event.decision.changes:
                self._by_slot.setdefault(event.slots[t], []).append((self._indexed, t))
            self._indexed += 1
        return self._by_slot.get(slot, [])

    def _final(self, slot: int) -> TensorSharding | None:
        # Not what the last event left: dimensions whose priority was still to come then were put back afterwards.
        return self._table[slot]

    def _chain(self, slot: int, dim: int, axis: AxisRef, value: Value | None) -> list[Step]:
        steps: list[Step] = []
        for at in self._walk(slot, dim, axis, value, len(self.events)):
            steps.append(self._step(*at))
        return steps

    def annotation(self, slot: int, dim: int, axis: AxisRef, before: int | None = None) -> Step:
        """The annotation from which `axis` came to dimension `dim` of the value at `slot` before event `before`."""
        *_, last = self._walk(slot, dim, axis, self._value(slot), len(self.events) if before is None else before)
        return self._step(*last)

    def closed_by(self, slot: int, dim: int) -> str | None:
        """Where the annotation was written that closes a dimension; None if it does not come from one."""
        sharding = self._initial[slot]
        if sharding is None or dim >= len(sharding.dims) or sharding.dims[dim].is_open:
            return None
        return self._annotated_at(slot)[1]

    def _annotated_at(self, slot: int) -> tuple[Op | None, str | None]:
        """The constraint whose sharding the value at `slot` began with, and where its annotation was written."""
        by = next((op for op, v in self.applied if self._slot[v.index] == slot), None)
        if by is not None:
            return by, source(by)
        value = self._value(slot)
        return None, source(self.program.main) if value is None else value_source(value)

    def _walk(self, slot: int, dim: int, axis: AxisRef, value: Value | None, before: int):
        """(value, slot, dimension, axis, event number, origin) of each step back; the last has no number: an
        annotation, or the event's number without origin, where a computation's own sharding names a manual axis."""
        while True:
            found = self._arrival(slot, dim, axis, before)
            if found is None:
                yield value, slot, dim, axis, None, None
                return
            before, tensor = found
            event = self.events[before]
            axis, origin = _origin(event, tensor, dim, axis)
            yield value, slot, dim, axis, before, origin
            if origin is None:
                return
            other, dim, _ = origin
            slot = event.slots[other]
            value = self._value(slot)

    def _step(self, value, slot: int, dim: int, axis: AxisRef, number: int | None, origin) -> Step:
        if origin is None:
            if number is None:
                by, where = self._annotated_at(slot)
            else:
                by = self.events[number].op.data["edge"].op
                where = source(by)
            return Step(value, dim, axis, None, None, None, None, None, (), where, constraint=by)
        event = self.events[number]
        other, other_dim, factor = origin
        return Step(
            value, dim, axis, event.op, factor, event.round, self._value(event.slots[other]), other_dim,
            tuple(self._competitors(event, axis, number)), source(event.op), self.strategy, number,
        )  # fmt: skip

    def _competitors(self, event: Event, axis: AxisRef, number: int) -> Iterator[Reason]:
        conflicts = [c for c in event.decision.conflicts if any(a.name == axis.name for a in c.wanted)]
        if not conflicts:
            return
        if event.rule is None or isinstance(event.op, Func):
            mappings = tuple(tuple((d,) for d in range(len(s.dims) if s else 0)) for s in event.before)
        else:
            mappings = (*event.rule.operands, *event.rule.results)
        after = [dict(event.decision.changes).get(t, s) for t, s in enumerate(event.before)]
        for c in conflicts:
            yield from obstacles(self, c, mappings, event.slots, after, _count(event.op), number + 1)

    def _arrival(self, slot: int, dim: int, axis: AxisRef, before: int) -> tuple[int, int] | None:
        """The last event before number `before` that put `axis` on `dim` of `slot`, and the tensor's number in it."""
        for number, t in reversed(self._changes(slot)):
            event = self.events[number]
            if number < before and not _covers(event.before[t], dim, axis):
                if _covers(dict(event.decision.changes)[t], dim, axis):
                    return number, t
        return None

    def _value(self, slot: int) -> Value | None:
        return self._owners.get(slot) or (self.program.values[slot] if slot < len(self._slot) else None)

    def value_at(self, slot: int) -> Value | None:
        """The value whose sharding a place of the table holds; None for a function's result."""
        return self._value(slot)

    def decided(self, value: Value) -> TensorSharding | None:
        """The sharding of a value when the decisions ended; None if it was made afterwards."""
        return None if self._slot is None or value.index >= len(self._slot) else self._final(self._slot[value.index])

    def missing(self) -> list[Missing]:
        """The dimensions of values that stayed whole though the visited operation had axes for them (see
        `propagation.reasons`)."""
        return missing_values(self, self.last_visits)


def _count(op: Op | Func) -> int | None:
    """How many of an event's tensors are operands; None for an edge."""
    if isinstance(op, Func):
        return 1
    return None if is_edge(op) else len(op.operands)


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
