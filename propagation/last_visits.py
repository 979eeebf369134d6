"""Every operation visited once more when all is decided, for the question what stayed whole and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from . import schedule
from .dataflow import Edge, func_of, is_data_flow_op, is_edge
from .model import OpRule, TensorSharding
from .nodes import Group, Node, ReservedView, SourceView
from .program import Func, Op, Program, Value
from .visit import Decision, decide

__all__ = ["LastVisits", "Visit"]


class Visit(NamedTuple):
    """An operation, or the loop, branch, computation, call or function that an edge belongs to, with the values that it
    ties (operands or sources, then results or the edge's owner), their places in the driver's table and shardings.
    Without a rule there are no directions and no decision."""

    op: Op | Func
    values: tuple[Value, ...]
    slots: tuple[int, ...]
    shardings: tuple[TensorSharding | None, ...]
    rule: OpRule | None = None
    directions: tuple[int, ...] | None = None
    decision: Decision | None = None
    is_edge: bool = False


class LastVisits:
    """Iterates over the visits, in the driver's order, for as long as the program is as propagation left it or as the
    stages behind it made it. `slot` and `table` are the driver's."""

    def __init__(
        self, program: Program, slot: list[int], table: list, nodes: list[Node], strategy: str, conservative: bool
    ):
        self.program, self.slot, self.table = program, slot, table
        self.strategy, self.conservative = strategy, conservative
        # Of the driver's nodes, only this much is kept.
        self._nodes = [(n.op, n.group if n.rule is not None else None, n.view) for n in nodes if n.op.results]

    def __iter__(self) -> Iterator[Visit]:
        for op, group, view in self._nodes:
            if is_edge(op):
                visit = self._edge(op.data["edge"], group, view)
            elif op.parent is None or (group is None and is_data_flow_op(op)):
                continue
            else:
                visit = self._visit(op, (*op.operands, *op.results), group, None, self.conservative)
            if visit is not None:
                yield visit

    def _visit(
        self, op: Op | Func, values: tuple[Value, ...], group: Group | None, view, conservative: bool
    ) -> Visit | None:
        slots = tuple([self.place(v) for v in values])
        if None in slots:
            return None
        shardings = tuple([self.table[s] for s in slots])
        if group is None:
            return Visit(op, values, slots, shardings)
        if view is not None:
            shardings = view.seen(shardings)
        directions = schedule.directions(group.rule, group.mode or schedule.ALL)
        decision = decide(group.rule, directions, self.strategy, conservative, shardings)
        return Visit(op, values, slots, shardings, group.rule, directions, decision)

    def _edge(self, edge: Edge, group: Group, view: SourceView | ReservedView | None) -> Visit | None:
        """The visit of an edge by what is left of it, if anything is: calls that were inlined are calls again, but
        perhaps of another copy of the function, and operations without use are gone."""
        op = _left(edge.op)
        owner = op.results[edge.owner.number] if isinstance(op, Op) and not edge.is_argument else edge.owner
        users = [(_left(use.op), use.number) for use in edge.sources]
        # What stood inside an operation that is gone has no operands any more.
        if op is None or any(user is None or number >= len(user.operands) for user, number in users):
            return None
        func = func_of(owner)
        if self.program.funcs.get(func.name) is not func:
            return None
        values = (*[user.operands[number] for user, number in users], owner)
        visit = self._visit(op, values, group, view, False)
        return None if visit is None else visit._replace(is_edge=True)

    def place(self, value: Value | None) -> int | None:
        """The place of a value, or of what a call's result or a reshard stands for; None if it was made afterwards."""
        while value is not None and value.index >= len(self.slot):
            op = value.op
            stands_for = None if op is None or op.data is None else op.data.get("stands_for")
            is_reshard = op is not None and op.name == "sdy.reshard"
            value = stands_for[value.number] if stands_for else op.operands[0] if is_reshard else None
        return None if value is None else self.slot[value.index]


def _left(op: Op | Func | None) -> Op | Func | None:
    """The call that a named computation became; None for an operation that is gone."""
    if not isinstance(op, Op):
        return op
    if op.data is not None and "became" in op.data:
        return op.data["became"]
    return None if op.parent is None else op
