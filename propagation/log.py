"""The decision log: every change of a sharding, recorded when it is decided.

`Log.explain` answers why a value's dimension carries an axis with the chain of decisions from a user's annotation, and
`Log.missing` what stopped an axis on its way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from .axes import contains, difference, overlaps
from .dataflow import is_edge
from .locations import source, value_source
from .model import AxisRef, DimFactors, OpRule, TensorSharding
from .program import Func, Op, Program, Value
from .reasons import Missing, Reason, missing_values, obstacles
from .visit import Decision, Seen

if TYPE_CHECKING:
    from .last_visits import Visit
    from .nodes import Node

__all__ = ["Event", "Log", "Missing", "ProvenanceStep", "Reason"]

Round = tuple[int, int | None]
Origin = tuple[int, int, int | None]  # tensor, dimension and factor from which an axis came


class Event(NamedTuple):
    """One visit that changed something. `slots` are the table places of the operands and results of `op`, `before`
    their shardings before the visit, `round` is (user priority, operation priority; None for a single pass). `rule` is
    the operation's rule, the number of the result for the return of a function (`op` is the function), None where a
    sharding was copied to another member of a sharding group (`op` is the operation that changed the first)."""

    op: Op | Func
    rule: OpRule | int | None
    slots: tuple[int, ...]
    before: Seen
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


# What layouts are called that differ from those that were propagated first.
CHOSEN = "the layouts that were chosen for the whole program"


@dataclass(frozen=True, slots=True)
class ProvenanceStep:
    """One link of an explanation: `axis` came to dimension `dim` of `value` through `op` along `factor` from
    dimension `source_dim` of `source`, by `strategy` in `round`. For the user's own annotation `op` is None; `factor`
    is None there and between members of a sharding group. `conflicts` are the tensors of `op` that did not take the
    axis in this visit, and what stood against it. `number` is the event's place in the log. `constraint` is the
    operation whose sharding `value` began with. `is_inserted`: the axis came after the decisions, when explicit
    reshards were put around the operation of `value`; `op` is None too. `is_chosen`: nobody annotated `value`,
    which got the axis from whoever propagated the module again (`Propagated.again`); what follows is why it had the
    axis before.
    """

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
    is_chosen: bool = False

    def text(self, name: Callable[[Value], str] = repr) -> str:
        """The sentence of this step, with values as `name` calls them."""
        value = "the result" if self.value is None else name(self.value)
        place = f" ({self.where})" if self.where else ""
        if self.is_inserted:
            maker = None if self.value is None else self.value.op
            around = "reshards were put around " + ("it" if maker is None else maker.name)
            return f"dimension {self.dim} of {value} got axis {self.axis.name!r} when {around}{place}"
        if self.is_chosen:
            return f"dimension {self.dim} of {value} has axis {self.axis.name!r} in {CHOSEN}{place}"
        if self.op is None:
            who = "the user" if self.constraint is None else f"the {self.constraint.name} that uses it"
            return f"dimension {self.dim} of {value} is annotated with axis {self.axis.name!r} by {who}{place}"
        through = self.op.name if isinstance(self.op, Op) else f"the return of @{self.op.name}"
        text = f"dimension {self.dim} of {value} got axis {self.axis.name!r} through {through}{place}"
        origin = "the result" if self.source is None else name(self.source)
        text += f" from dimension {self.source_dim} of {origin}"
        text += " as a member of its sharding group" if self.factor is None else f" along factor {self.factor}"
        priority, number = self.round or (0, None)
        text += f", {self.strategy} strategy" if self.strategy else ""
        text += f", user priority {priority}" if priority else ""
        text += "" if number is None else f", round {number}"
        return text + "".join(f"; there {c.text(name)}" for c in self.conflicts)

    def __str__(self) -> str:
        return self.text()


class Log:
    """Events in the order of decision: iterate for them, print it for a line per event. `events` grows while the driver
    runs.

    applied            constraints and manual computations whose sharding was put on an operand beforehand
    shared             members of sharding groups that began with the sharding of another one: the operation that says
                       so, and that member
    removed_ops        operations without use or effect that were removed
    last_visits        what every operation would decide if it were visited once more
    stale_priorities   the removed operations of which a result's user priority was still held back (see `removed`)
    """

    def __init__(self, program: Program):
        self.program = program
        self.events: list[Event] = []
        self.removed_ops: list[str] = []
        self.stale_priorities: list[str] = []
        self.applied: list[tuple[Op, Value]] = []
        self.shared: dict[Value, tuple[Op, Value]] = {}
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
        self, slot: list[int], table: list[TensorSharding | None], results: dict[Func, list[int]], strategy: str,
        owners: dict[int, Value],
    ) -> None:  # fmt: skip
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

    def user_priority(self, value: Value, dim: int) -> int:
        """The user priority at which dimension `dim` of a value got its first axes: that of its annotation, or that of
        the rounds in which they came. 0 if it has none."""
        slot = self.slot_of(value)
        said = self._initial[slot]
        if said is not None and said.dims[dim].axes:
            return said.dims[dim].priority or 0
        for number, t in self._changes(slot):
            event = self.events[number]
            if dict(event.decision.changes)[t].dims[dim].axes:
                return event.round[0]
        return 0

    def visit(self, node: Node, decision: Decision, shardings: Seen, round: Round) -> None:
        self.events.append(Event(node.op, node.rule, node.slots, shardings, decision, round))

    def group(
        self, op: Op | Func, place: int, other: int, old: TensorSharding | None, new: TensorSharding, round: Round
    ) -> None:
        """The sharding decided for `place` also went to `other`, a member of its group."""
        self.events.append(Event(op, None, (place, other), (new, old), Decision(((1, new),)), round))

    def result(
        self, func: Func, number: int, slots: tuple[int, ...], decision: Decision, shardings: Seen, round: Round
    ) -> None:
        self.events.append(Event(func, number, slots, shardings, decision, round))

    def removed(self, op: Op, is_held: bool) -> None:
        """An operation without use or effect was removed. `is_held`: a user priority of one of its results was still
        held back. There the C++ passes read memory that they have freed, so their decisions cannot be compared."""
        self.removed_ops.append(repr(op))
        if is_held:
            self.stale_priorities.append(f"{op!r} was removed while a user priority of its result was held back")

    # ---- asking

    def explain(
        self, value: Value, dim: int, axes: tuple[AxisRef, ...] | None = None, most: int | None = None
    ) -> list[list[ProvenanceStep]]:
        """For each of `axes` (default: all that were decided) on dimension `dim` of `value`, the chain of steps from
        `value` back to an annotation, the first `most` of them. Empty for a value that was made after the decisions."""
        if not self.knows(value):
            return []
        slot = self.slot_of(value)
        final = self._final(slot)
        if axes is None:
            axes = () if final is None or dim >= len(final.dims) else final.dims[dim].axes
        found = []
        for axis in axes:
            if value.op is None or _covers(final, dim, axis):
                found.append(self._chain(slot, dim, axis, value, most))
            else:
                where = source(value.op)
                step = ProvenanceStep(value, dim, axis, None, None, None, None, None, (), where, is_inserted=True)
                found.append([step])
        return found

    def explain_result(
        self, func: Func, number: int, dim: int, axes: tuple[AxisRef, ...]
    ) -> list[list[ProvenanceStep]]:
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
        # Not what the last event says: it was made while dimensions of lower priority were held back.
        return self._table[slot]

    def _chain(
        self, slot: int, dim: int, axis: AxisRef, value: Value | None, most: int | None = None
    ) -> list[ProvenanceStep]:
        return [self._step(*at) for at in islice(self._walk(slot, dim, axis, value, len(self.events)), most)]

    def annotation(self, slot: int, dim: int, axis: AxisRef, before: int | None = None) -> ProvenanceStep:
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
        by = self._applied_at.get(slot)
        if by is not None:
            return by, source(by)
        value = self._value(slot)
        return None, source(self.program.main) if value is None else value_source(value)

    @functools.cached_property
    def _applied_at(self) -> dict[int, Op]:
        """By its place, what gave a value the sharding that it began with; asked once decisions are made."""
        return {self.slot_of(v): op for op, v in reversed(self.applied)}

    @functools.cached_property
    def _shared_at(self) -> dict[int, tuple[Op, int]]:
        """By their places, members of groups that began with another's sharding: the operation, that one's place."""
        return {self.slot_of(v): (op, self.slot_of(first)) for v, (op, first) in self.shared.items() if self.knows(v)}

    def _walk(
        self, slot: int, dim: int, axis: AxisRef, value: Value | None, before: int
    ) -> Iterator[tuple[Value | None, int, int, AxisRef, int | None, Origin | None]]:
        """(value, slot, dimension, axis, event number, origin) of each step back; the last has no number: an
        annotation, or the event's number without origin, where a computation's own sharding names a manual axis. A
        member of a group that began with another's sharding has no number either, and the other one comes next."""
        while True:
            found = self._arrival(slot, dim, axis, before)
            if found is None:
                yield value, slot, dim, axis, None, None
                if slot not in self._shared_at:
                    return
                slot = self._shared_at[slot][1]
                value = self._value(slot)
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

    def _step(
        self, value: Value | None, slot: int, dim: int, axis: AxisRef, number: int | None, origin: Origin | None
    ) -> ProvenanceStep:
        if number is None and slot in self._shared_at:
            group, other = self._shared_at[slot]
            return ProvenanceStep(value, dim, axis, group, None, None, self._value(other), dim, (), source(group))
        if origin is None or number is None:
            by, where = self._annotated_at(slot) if number is None else self._computation(number)
            return ProvenanceStep(value, dim, axis, None, None, None, None, None, (), where, constraint=by)
        event = self.events[number]
        other, other_dim, factor = origin
        return ProvenanceStep(
            value, dim, axis, event.op, factor, event.round, self._value(event.slots[other]), other_dim,
            tuple(self._competitors(event, axis, number)), source(event.op), self.strategy, number,
        )  # fmt: skip

    def _computation(self, number: int) -> tuple[Op | None, str | None]:
        """The computation whose own sharding event `number` passed on, and where it stands."""
        op = self.events[number].op
        by = op.data["edge"].op if isinstance(op, Op) else None
        return by, None if by is None else source(by)

    def _competitors(self, event: Event, axis: AxisRef, number: int) -> Iterator[Reason]:
        conflicts = [c for c in event.decision.conflicts if any(a.name == axis.name for a in c.wanted)]
        if not conflicts:
            return
        mappings: tuple[DimFactors, ...]
        if isinstance(event.rule, OpRule):
            mappings = (*event.rule.operands, *event.rule.results)
        else:
            mappings = tuple(tuple((d,) for d in range(len(s.dims) if s else 0)) for s in event.before)
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
        return self._owners.get(slot) or (self.program.values[slot] if slot < len(self._slot or ()) else None)

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


def _origin(event: Event, tensor: int, dim: int, axis: AxisRef) -> tuple[AxisRef, Origin | None]:
    """The axis to follow, and (tensor, dimension, factor) from which it came in this event. Where only a part of the
    axis is new, or where it was put together of parts (as a reshape does that merges dimensions), one part is followed,
    of several the major one."""
    old = event.before[tensor]
    new = difference((axis,), old.dims[dim].axes if old is not None and dim < len(old.dims) else ())
    sources = list(_sources(event, tensor, dim))
    for candidate in dict.fromkeys((axis, *reversed(new))):
        found = next((at for at in sources if _covers(event.before[at[0]], at[1], candidate)), None)
        if found is not None:
            return candidate, found
    parts = [(part, at) for at in sources for part in _parts(event.before[at[0]], at[1], axis)]
    return min(parts, key=lambda found: found[0].pre, default=(axis, None))


def _sources(event: Event, tensor: int, dim: int) -> Iterator[Origin]:
    """Where axes of a tensor's dimension may come from in an event."""
    if not isinstance(event.rule, OpRule):
        yield 1 - tensor, dim, None if event.rule is None else dim
        return
    mappings = (*event.rule.operands, *event.rule.results)
    for f in mappings[tensor][dim]:
        for t, mapping in enumerate(mappings):
            if t != tensor and event.slots[t] != event.slots[tensor]:
                yield from ((t, d, f) for d, factors in enumerate(mapping) if f in factors)


def _parts(sharding: TensorSharding | None, dim: int, axis: AxisRef) -> Iterator[AxisRef]:
    """The parts of an axis that a dimension has."""
    for own in () if sharding is None or dim >= len(sharding.dims) else sharding.dims[dim].axes:
        if overlaps(own, axis):
            yield from difference((axis,), difference((axis,), (own,)))
