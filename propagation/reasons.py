"""What stopped axes on their way: which operand or result did not take which axis, what stood against it, and which
annotation that came from.

`missing_values` looks at each operation once more when all is decided; `obstacles` names the competitors of one visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .axes import NOT_PREFIX, Axes, AxisRef, list_prefix
from .factors import BACKWARD, CLOSED, FORWARD, NONE, USED_ELSEWHERE
from .locations import source
from .model import DimFactors, OpRule, TensorSharding
from .program import Func, Op, Value
from .projection import TensorState, project
from .visit import Conflict, Decision

if TYPE_CHECKING:
    from .last_visits import Visit
    from .log import Log
    from .shardings import Shardings

__all__ = ["Missing", "Reason", "axes_text", "missing_at_boundaries", "missing_values", "obstacles"]

_NAMES = Callable[[Value], str]
Mappings = Sequence[DimFactors]  # of an operation's rule: operands, then results
Shown = Sequence[TensorSharding | None]  # the shardings of those

# Reshaping [6, 4] to [24] with the 4 split over an axis: every device would hold 6 pieces of the 24, not one.
_INEXPRESSIBLE = (
    "the axes split a minor part of this dimension whose major part is whole, so that a device would hold several "
    "pieces of it (a strided tile), which a sharding cannot express"
)


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence in which values stand for themselves, so that whoever shows it can name them."""

    parts: tuple[str | Value, ...]

    def text(self, name: _NAMES = repr) -> str:
        """The sentence, with values as `name` calls them."""
        return "".join([p if isinstance(p, str) else name(p) for p in self.parts])

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True)
class Missing:
    """Dimension `dim` of `value`, an operand or result of `op`, stayed whole though dimension `other_dim` of `operand`,
    another operand or result, is split over axes that could have come along; `causes` say what stopped them. Where
    `op` has no sharding rule, dimensions do not correspond and both are None. `result` is the number of the function's
    result that is meant instead of the value that it returns; `op` is the function then."""

    value: Value
    op: Op | Func
    operand: Value
    causes: tuple[Reason, ...]
    where: str | None
    dim: int | None = None
    other_dim: int | None = None
    result: int | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the axes did not come: the causes as sentences."""
        return tuple(map(str, self.causes))

    def text(self, name: _NAMES = repr) -> str:
        """One sentence, with values as `name` calls them."""
        place = f" ({self.where})" if self.where else ""
        what = name(self.value)
        if self.result is not None:
            what = f"result {self.result} of @{self.op.name}"
        along = "" if self.dim is None else f" along dimension {self.dim}"
        other = name(self.operand) if self.other_dim is None else f"dimension {self.other_dim} of {name(self.operand)}"
        reasons = "; ".join(c.text(name) for c in self.causes)
        return f"{what} stayed replicated{along} though {other} is sharded{place}: {reasons}"

    def __str__(self) -> str:
        return self.text()


def axes_text(axes: Iterable[AxisRef]) -> str:
    """`'a', 'b':(2)4`."""
    return ", ".join(f"{a.name!r}:({a.pre}){a.size}" if a.pre > 1 else repr(a.name) for a in axes)


def obstacles(
    log: Log, c: Conflict, mappings: Mappings, slots: Sequence[int], shardings: Shown,
    count: int | None, before: int | None = None,
) -> Iterator[Reason]:  # fmt: skip
    """Which tensors of a visit did not take the axes of a conflict, and why. `mappings` are the rule's, `count` is the
    number of operands (an edge has none: None), `before` the number of the first event that counts as later."""
    lost = [a for a in c.wanted if a not in c.granted]
    if c.tensor >= 0:
        yield _obstacle(log, c.tensor, c.factor, lost, c.reason, mappings, slots, shardings, count, before)
        return
    found = False
    for t in range(len(mappings)):
        reason = _reason_of(t, c.factor, lost, mappings, shardings)
        if reason is not None:
            found = True
            yield _obstacle(log, t, c.factor, lost, reason, mappings, slots, shardings, count, before)
    if not found:
        yield Reason((f"axes {axes_text(lost)} of factor {c.factor}: {c.reason}",))


def _reason_of(t: int, factor: int, lost: Sequence[AxisRef], mappings: Mappings, shardings: Shown) -> str | None:
    """Why tensor `t` cannot take the axes `lost`; None if nothing keeps it. (The basic strategy only says that some
    tensor cannot.)"""
    sharding = shardings[t]
    if sharding is None:
        return None
    if any(_holder(sharding, dim, lost) for dim in range(len(mappings[t])) if factor not in mappings[t][dim]):
        return USED_ELSEWHERE
    dim = _dim_of(mappings[t], factor)
    if dim is not None and dim < len(sharding.dims):
        if not sharding.dims[dim].is_open and not _holder(sharding, dim, lost):
            return CLOSED
        if any(a.name == b.name for a in lost for b in (*sharding.replicated, *sharding.unreduced)):
            return "the axis is reserved as replicated or unreduced"
    return None


def _obstacle(
    log: Log, t: int, factor: int, lost: Sequence[AxisRef], reason: str, mappings: Mappings, slots: Sequence[int],
    shardings: Shown, count: int | None, before: int | None,
) -> Reason:  # fmt: skip
    dim, sharding = _dim_of(mappings[t], factor), shardings[t]
    parts: list[str | Value] = [*_who(log, t, slots, count), f" did not take axis {axes_text(lost)}"]
    parts.append("" if dim is None else f" on dimension {dim}")
    parts.append(f": {reason}")
    if reason == CLOSED and dim is not None:
        where = log.closed_by(slots[t], dim)
        parts.append(f" by its annotation ({where})" if where else "")
    elif reason == USED_ELSEWHERE and sharding is not None:
        for other in range(len(sharding.dims)):
            axis = _holder(sharding, other, lost) if other != dim else None
            if axis is not None:
                parts.append(f", dimension {other} is split over {axes_text((axis,))}")
                parts += _annotated(log, slots[t], other, axis, before)
    return Reason(tuple(parts))


def _who(log: Log, t: int, slots: Sequence[int], count: int | None) -> list[str | Value]:
    value = log.value_at(slots[t])
    side = "value" if count is None else f"operand {t}" if t < count else f"result {t - count}"
    return [side] if value is None else [f"{side} (", value, ")"]


def _annotated(log: Log, slot: int, dim: int, axis: AxisRef, before: int | None = None) -> list[str | Value]:
    """`, from the annotation of V (file:line)`."""
    step = log.annotation(slot, dim, axis, before)
    place = f" ({step.where})" if step.where else ""
    return [", from the annotation of ", "the result" if step.value is None else step.value, place]


def _dim_of(mapping: DimFactors, factor: int) -> int | None:
    return next((d for d, factors in enumerate(mapping) if factor in factors), None)


def _holder(sharding: TensorSharding, dim: int, axes: Iterable[AxisRef]) -> AxisRef | None:
    """The first axis of a dimension that has a name among `axes`."""
    names = {a.name for a in axes}
    return next((a for a in sharding.dims[dim].axes if a.name in names), None) if dim < len(sharding.dims) else None


# ---- values that stayed whole


def missing_values(log: Log, visits: Iterable[Visit]) -> list[Missing]:
    """Every dimension of an operand or result, or of a value that flows along an edge (through a loop, a branch, a
    computation, a call), that stayed whole though another tensor of the operation is split along
    the same factor, with what stopped the axes; each dimension of a value once. Where the value does not have the
    factor (the result of a sum over a sharded dimension), nothing is missing. `visits` are `LastVisits`."""
    out: list[Missing] = []
    seen: set[tuple[int, int]] = set()
    for op, values, slots, shardings, rule, directions, decision, is_edge in visits:
        if rule is None:
            out += _without_rule(op, shardings) if isinstance(op, Op) else ()
            continue
        mappings = (*rule.operands, *rule.results)
        if any(s is not None and len(s.dims) != len(m) for s, m in zip(shardings, mappings)):
            continue  # on one device, or of another rank: nothing passes
        if not any(s is not None and s.axes for s in shardings):
            continue
        look = _Look(log, op, rule, slots, shardings, directions or (), decision, is_edge)
        for t, value in enumerate(values[: len(mappings)]):
            for dim in range(len(mappings[t])):
                own = shardings[t]
                if (own is not None and own.dims[dim].axes) or (slots[t], dim) in seen:
                    continue
                found = look.at(t, dim, value, values)
                if found is not None:
                    seen.add((slots[t], dim))
                    out.append(found)
    return out


def _without_rule(op: Op, shardings: Shown) -> Iterator[Missing]:
    count = len(op.operands)
    sharded = next((v for v, s in zip(op.operands, shardings) if s is not None and s.axes), None)
    for value, own in zip(op.results, shardings[count:]):
        if sharded is not None and value.type.shape and not (own is not None and own.axes):
            reason = Reason(("the operation has no sharding rule, so nothing passes through it",))
            yield Missing(value, op, sharded, (reason,), source(op))


class _Look:
    """One operation with what its tensors have along the factors of its rule."""

    def __init__(
        self, log: Log, op: Op | Func, rule: OpRule, slots: Sequence[int], shardings: Shown,
        directions: Sequence[int], decision: Decision | None, is_edge: bool,
    ):  # fmt: skip
        self.log, self.op, self.rule = log, op, rule
        self.slots, self.shardings, self.directions, self.decision = slots, shardings, directions, decision
        self.mappings = (*rule.operands, *rule.results)
        self.states: list[TensorState] = [project(rule, m, s) for m, s in zip(self.mappings, shardings)]
        self.count = None if is_edge else len(rule.operands)

    def at(self, t: int, dim: int, value: Value, values: Sequence[Value]) -> Missing | None:
        """What dimension `dim` of tensor `t` could have had; None if no other tensor is split along it."""
        for f in self.mappings[t][dim]:
            sources = [s for s, state in enumerate(self.states) if state.axes[f] and self.slots[s] != self.slots[t]]
            if sources:
                other = sources[0]
                causes = tuple(dict.fromkeys(self._causes(t, f, sources)))
                where = source(self.op)
                other_dim = _dim_of(self.mappings[other], f)
                return Missing(value, self.op, values[other], causes, where, dim, other_dim)
        return None

    def _causes(self, t: int, f: int, sources: list[int]) -> Iterator[Reason]:
        found = False
        for reason in (*self._general(t, f), *self._disagreement(f, sources), *self._conflicts(t, f)):
            found = True
            yield reason
        if not found:
            yield Reason((_INEXPRESSIBLE,))

    def _general(self, t: int, f: int) -> Iterator[Reason]:
        direction = self.directions[f]
        if f in self.rule.blocked:
            yield Reason((f"nothing propagates along factor {f} of the operation",))
        elif direction == NONE:
            yield Reason((f"no axes pass {self.op.name} in either direction along factor {f}",))
        elif direction == (BACKWARD if t >= len(self.rule.operands) else FORWARD):
            only = "from results to operands" if direction == BACKWARD else "from operands to results"
            yield Reason((f"axes pass {self.op.name} only {only} along factor {f}",))
        if len({s.mesh.layout for s in self.shardings if s is not None and not s.mesh.is_empty}) > 1:
            yield Reason(("the operands and results are on different meshes",))

    def _disagreement(self, f: int, sources: list[int]) -> Iterator[Reason]:
        """Tensors that are split over axes none of which is the beginning of the other's."""
        first = sources[0]
        for other in sources[1:]:
            a, b = self.states[first].axes[f] or (), self.states[other].axes[f] or ()
            if list_prefix(a, b) == list_prefix(b, a) == NOT_PREFIX:
                parts = [*self._split(first, f, a), ", but ", *self._split(other, f, b)]
                yield Reason((*parts, "; neither gives way, so no axis fits both"))

    def _split(self, t: int, f: int, axes: Axes) -> list[str | Value]:
        dim = _dim_of(self.mappings[t], f)
        parts: list[str | Value] = [f"dimension {dim} of ", *_who(self.log, t, self.slots, self.count)]
        parts.append(f" is split over {axes_text(axes)}")
        return parts if dim is None else parts + _annotated(self.log, self.slots[t], dim, axes[0])

    def _conflicts(self, t: int, f: int) -> Iterator[Reason]:
        for c in self.decision.conflicts if self.decision is not None else ():
            if c.tensor in (t, -1) and c.factor == f and len(c.granted) < len(c.wanted):
                yield from obstacles(self.log, c, self.mappings, self.slots, self.shardings, self.count)


# ---- boundaries


def missing_at_boundaries(log: Log, shardings: Shardings) -> list[Missing]:
    """The arguments and results of functions that are whole though axes were decided for them: tiles at a boundary have
    one size, so a dimension that does not divide is not split there."""
    out: list[Missing] = []
    for func in log.program.funcs.values():
        for value in func.args:
            out += _at_boundary(func, value, None, log.decided(value), shardings.get(value))
        for number, value in enumerate(func.returned):
            result = shardings.results[func][number]
            out += _at_boundary(func, value, number, shardings.get(value), result)
    return out


def _at_boundary(
    func: Func, value: Value, result: int | None, decided: TensorSharding | None, final: TensorSharding | None
) -> Iterator[Missing]:
    if decided is None or not value.type.is_tensor:
        return
    for dim, (d, size) in enumerate(zip(decided.dims, value.type.shape)):
        if not d.axes or (final is not None and dim < len(final.dims) and final.dims[dim].axes):
            continue
        if size % d.axes[0].size:
            first = d.axes[0]
            why = f"its size {size} does not divide by {first.size}, the size of axis {axes_text((first,))}, and what "
            why += "enters or leaves a function is split evenly"
        else:
            why = f"it is annotated otherwise than axis {axes_text(d.axes)}, which the value inside has"
        yield Missing(value, func, value, (Reason((why,)),), source(func), dim, dim, result)
