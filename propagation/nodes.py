"""Operations as the driver sees them."""

from __future__ import annotations

from collections.abc import Callable

from . import schedule
from .annotations import Shardings
from .attributes import integer
from .dataflow import Edge, add_manual, source_view
from .model import Mesh, OpRule, TensorSharding
from .program import Op, Value

__all__ = ["Group", "Node", "barrier_direction", "has_one_user", "identity", "view_of"]


class Node:
    """An operation as the driver sees it. `look` reads the shardings of its operands and results from the table."""

    __slots__ = ("above", "group", "look", "op", "rule", "slots", "view")

    def __init__(self, op: Op):
        self.op = op
        self.rule: OpRule | None = None
        self.group: Group | None = None
        self.slots: tuple[int, ...] = ()
        self.look: Callable | None = None
        self.view: SourceView | ReservedView | None = None
        self.above: tuple[int, ...] = ()


class Group:
    """All operations of one rule and one kind of schedule. `mode` is their direction in this round, None if it
    depends on the operation's uses; `memo` has the decisions made so far in that direction."""

    __slots__ = ("kind", "memo", "memos", "mode", "rule")

    def __init__(self, rule: OpRule, kind: str):
        self.rule, self.kind = rule, kind
        self.mode: schedule.Mode | None = None
        self.memo: dict | None = None
        self.memos: dict[schedule.Mode, tuple[tuple[int, ...], dict]] = {}

    def decisions(self, mode: schedule.Mode) -> tuple[tuple[int, ...], dict]:
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
    """The sharding of an edge of a manual computation as its sources see it, and back: without the manual axes, or with
    them. It is that of the last tensor, number `last`."""

    __slots__ = ("last", "to_source", "to_table")

    def __init__(self, last: int, to_source: Callable, to_table: Callable):
        self.last, self.to_source, self.to_table = last, to_source, to_table

    def seen(self, shardings: tuple) -> tuple:
        return (*shardings[:-1], self.to_source(shardings[-1]))

    def stored(self, tensor: int, sharding: TensorSharding) -> TensorSharding:
        return self.to_table(sharding) if tensor == self.last else sharding


class ReservedView:
    """The tensors of an edge between functions, each with the axes that are manual around it reserved, so that these
    cannot come from where they are free."""

    __slots__ = ("manual",)

    def __init__(self, manual: tuple[frozenset[str], ...]):
        self.manual = manual

    def seen(self, shardings: tuple) -> tuple:
        mesh = next((s.mesh for s in shardings if s is not None and not s.mesh.is_maximal), None)
        if mesh is None:
            return shardings
        rank = next(s.rank for s in shardings if s is not None and s.mesh is mesh)
        return tuple([_reserve(s, names, mesh, rank) for s, names in zip(shardings, self.manual)])

    def stored(self, tensor: int, sharding: TensorSharding) -> TensorSharding:
        names = self.manual[tensor]
        kept = [a for a in sharding.replicated if a.name not in names]
        return TensorSharding(sharding.mesh, sharding.dims, kept, sharding.unreduced)


def _reserve(sharding: TensorSharding | None, names: frozenset[str], mesh: Mesh, rank: int) -> TensorSharding | None:
    if not names or (sharding is not None and sharding.mesh.is_maximal):
        return sharding
    known = TensorSharding.open_on(mesh, rank) if sharding is None else sharding
    taken = {a.name for a in (*known.axes, *known.replicated, *known.unreduced)}
    more = [known.mesh.axis(n) for n, _ in known.mesh.axes if n in names and n not in taken]
    replicated = sorted([*known.replicated, *more], key=known.mesh.sort_key)
    return TensorSharding(known.mesh, known.dims, replicated, known.unreduced)


def view_of(edge: Edge, table, shardings: Shardings, may_leak: bool) -> SourceView | ReservedView | None:
    """How an edge operation sees its tensors, if not as they are. `may_leak`: axes may come between functions to where
    they are manual, as in Shardy."""
    if edge.is_between_functions:
        return None if may_leak or edge.manual is None else ReservedView(edge.manual)
    view = source_view(edge, shardings)
    if view is None:
        return None
    if not edge.is_argument:
        manual, place = edge.op.data["manual_axes"], edge.node.results[0].index
        view = (view[0], lambda s: add_manual(s, table[place], manual))
    return SourceView(len(edge.sources), *view)


def barrier_direction(op: Op) -> str:
    """The name of the direction that a barrier lets through; the attribute is the number of the direction."""
    return ("NONE", "FORWARD", "BACKWARD", "BOTH")[integer(op.attrs["allowed_direction"])]


def identity(shape: tuple[int, ...], sources: int, elementwise: bool = False) -> OpRule:
    dims = tuple((i,) for i in range(len(shape)))
    return OpRule(shape, (dims,) * sources, (dims,), None, (), False, elementwise)
