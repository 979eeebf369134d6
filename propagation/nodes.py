"""Operations as the driver sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from . import schedule
from .attributes import integer
from .dataflow import Change, Edge, add_manual, source_view
from .model import Mesh, OpRule, TensorSharding
from .program import Op, Value
from .shardings import Shardings
from .visit import Decision, Seen

__all__ = ["Group", "Node", "barrier_direction", "has_one_user", "identity", "view_of"]


# The decisions of a rule in one direction, by the shardings that were seen.
Memo: TypeAlias = dict[Seen, Decision]


class Node:
    """An operation as the driver sees it. One with a rule has a `group`, and `look`, which reads the shardings of its
    operands and results from the table; `above` are the numbers of the operations around it that have rules."""

    __slots__ = ("above", "group", "look", "op", "rule", "slots", "view")
    op: Op
    rule: OpRule | None
    group: Group
    slots: tuple[int, ...]
    look: Callable[[Sequence[TensorSharding | None]], Seen]
    view: SourceView | ReservedView | None
    above: tuple[int, ...]

    def __init__(self, op: Op):
        self.op = op
        self.rule = None
        self.slots = ()
        self.view = None
        self.above = ()


class Group:
    """All operations of one rule and one kind of schedule. `mode` is their direction in this round, None if it
    depends on the operation's uses; `memo` has the decisions made so far in that direction."""

    __slots__ = ("kind", "memo", "memos", "mode", "rule")
    rule: OpRule
    kind: str
    mode: schedule.Mode | None
    memo: Memo | None
    memos: dict[schedule.Mode, tuple[tuple[int, ...], Memo]]

    def __init__(self, rule: OpRule, kind: str):
        self.rule, self.kind = rule, kind
        self.mode = self.memo = None
        self.memos = {}

    def decisions(self, mode: schedule.Mode) -> tuple[tuple[int, ...], Memo]:
        """Direction per factor, and the decisions so far."""
        found = self.memos.get(mode)
        if found is None:
            found = self.memos[mode] = (schedule.directions(self.rule, mode), {})
        return found


def has_one_user(value: Value, gone: set[Op]) -> bool:
    """Whether one operation, or none, uses `value`, those that are gone not counted."""
    user: Op | None = None
    for use in value.uses:
        if use.op is user or use.op in gone:
            continue
        if user is not None:
            return False
        user = use.op
    return True


class SourceView:
    """The edge of a manual computation. Its sharding, that of tensor number `last`, is converted to the side of the
    sources for a visit (the manual axes added or removed), and back for the table."""

    __slots__ = ("last", "to_source", "to_table")
    last: int
    to_source: Change
    to_table: Change

    def __init__(self, last: int, to_source: Change, to_table: Change):
        self.last, self.to_source, self.to_table = last, to_source, to_table

    def seen(self, shardings: Seen) -> Seen:
        return (*shardings[:-1], self.to_source(shardings[-1]))

    def stored(self, tensor: int, sharding: TensorSharding) -> TensorSharding:
        return (self.to_table(sharding) or sharding) if tensor == self.last else sharding


class ReservedView:
    """An edge between functions. In a visit, each tensor lists the axes that are manual around it as replicated, so
    that such an axis cannot arrive from a tensor around which it is free."""

    __slots__ = ("manual",)
    manual: tuple[frozenset[str], ...]

    def __init__(self, manual: tuple[frozenset[str], ...]):
        self.manual = manual

    def seen(self, shardings: Seen) -> Seen:
        mesh = next((s.mesh for s in shardings if s is not None and not s.mesh.is_maximal), None)
        if mesh is None:
            return shardings
        rank = next(s.rank for s in shardings if s is not None and s.mesh is mesh)
        return tuple([_reserve(s, names, mesh, rank) for s, names in zip(shardings, self.manual)])

    def stored(self, tensor: int, sharding: TensorSharding) -> TensorSharding:
        names = self.manual[tensor]
        kept = [a for a in sharding.replicated if a.name not in names]
        return TensorSharding(sharding.mesh, sharding.dims, kept, sharding.unreduced, sharding.reduction)


def _reserve(sharding: TensorSharding | None, names: frozenset[str], mesh: Mesh, rank: int) -> TensorSharding | None:
    if not names or (sharding is not None and sharding.mesh.is_maximal):
        return sharding
    known = TensorSharding.open_on(mesh, rank) if sharding is None else sharding
    taken = {a.name for a in (*known.axes, *known.replicated, *known.unreduced)}
    more = [known.mesh.axis(n) for n, _ in known.mesh.axes if n in names and n not in taken]
    replicated = sorted([*known.replicated, *more], key=known.mesh.sort_key)
    return TensorSharding(known.mesh, known.dims, replicated, known.unreduced, known.reduction)


def view_of(
    edge: Edge, table: Sequence[TensorSharding | None], shardings: Shardings, may_leak: bool
) -> SourceView | ReservedView | None:
    """The conversion of the shardings that an edge's visit sees; None if it sees the table's. With `may_leak` axes are
    not kept from tensors around which they are manual, as in Shardy."""
    if edge.is_between_functions:
        return None if may_leak or edge.manual is None else ReservedView(edge.manual)
    view = source_view(edge, shardings)
    if view is None:
        return None
    if not edge.is_argument:
        manual, place = edge.computation.data["manual_axes"], edge.operation.results[0].index
        view = (view[0], _stored_result(table, place, manual))
    return SourceView(len(edge.sources), *view)


def _stored_result(table: Sequence[TensorSharding | None], place: int, manual: tuple[str, ...]) -> Change:
    """What the edge at `place`, of a manual computation's result, stores. Its manual axes stand in front again, also
    while their dimension's priority holds them back; other axes that are held back stay replicated."""
    outer = table[place]

    def stored(inner: TensorSharding | None) -> TensorSharding | None:
        found, current = add_manual(inner, outer, manual), table[place]
        if found is None or current is None:
            return found
        used = frozenset(a for d in found.dims for a in d.axes)
        replicated = [a for a in current.replicated if a not in used]
        return TensorSharding(found.mesh, found.dims, replicated, found.unreduced, found.reduction)

    return stored


def barrier_direction(op: Op) -> str:
    """The name of the direction that a barrier lets through; the attribute is the number of the direction."""
    return ("NONE", "FORWARD", "BACKWARD", "BOTH")[integer(op.attrs["allowed_direction"])]


def identity(shape: tuple[int, ...], sources: int, elementwise: bool = False) -> OpRule:
    dims = tuple((i,) for i in range(len(shape)))
    return OpRule(shape, (dims,) * sources, (dims,), None, (), False, elementwise)
