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
    """One more visit of an operation: what it would decide if it were visited again.

    op          the operation; of an edge, the loop, branch, computation, call or function that it belongs to
    values      operands, then results; of an edge its sources, then its owner
    slots       the places of these values in the driver's table
    shardings   their shardings
    rule, directions, decision   None without a sharding rule
    """

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
        self, program: Program, slot: list[int], table: list[TensorSharding | None], nodes: list[Node], strategy: str,
        conservative: bool,
    ):  # fmt: skip
        self.program, self.slot, self.table = program, slot, table
        self.strategy, self.conservative = strategy, conservative
        # Of the driver's nodes, only this much is kept.
        self._nodes = [(n.op, n.group if n.rule is not None else None, n.view) for n in nodes if n.op.results]

    def __iter__(self) -> Iterator[Visit]:
        for op, group, view in self._nodes:
            if is_edge(op):
                visit = None if group is None else self._edge(op.data["edge"], group, view)
            elif op.parent is None or (group is None and is_data_flow_op(op)):
                continue
            else:
                visit = self._visit(op, (*op.operands, *op.results), group, None, self.conservative)
            if visit is not None:
                yield visit

    def _visit(
        self, op: Op | Func, values: tuple[Value, ...], group: Group | None, view: SourceView | ReservedView | None,
        conservative: bool,
    ) -> Visit | None:  # fmt: skip
        slots = tuple([place for v in values if (place := self.place(v)) is not None])
        if len(slots) != len(values):
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
        """The visit of an edge; None if what it belonged to is gone. A named computation has become a call again,
        perhaps of another copy of its function, and operations without use were removed."""
        op = _left(edge.op)
        owner = op.results[edge.owner.number] if isinstance(op, Op) and not edge.is_argument else edge.owner
        sources: list[Value] = []
        for use in edge.sources:
            user = _left(use.op)
            # Operations inside one that was removed have lost their operands.
            if isinstance(user, Op) and use.number < len(user.operands):
                sources.append(user.operands[use.number])
        if op is None or len(sources) != len(edge.sources):
            return None
        func = func_of(owner)
        if self.program.funcs.get(func.name) is not func:
            return None
        values = (*sources, owner)
        visit = self._visit(op, values, group, view, False)
        return None if visit is None else visit._replace(is_edge=True)

    def place(self, value: Value | None) -> int | None:
        """The place of a value, or of what a call's result or a reshard stands for; None if it was made afterwards."""
        while value is not None and value.index >= len(self.slot):
            op = value.op
            stands_for = None if op is None or op.data is None else op.data.get("stands_for")
            if stands_for:
                value = stands_for[value.number]
            else:
                value = op.operands[0] if op is not None and op.name == "sdy.reshard" else None
        return None if value is None else self.slot[value.index]


def _left(op: Op | Func | None) -> Op | Func | None:
    """The call that a named computation became; None for an operation that is gone."""
    if not isinstance(op, Op):
        return op
    if op.data is not None and "became" in op.data:
        call: Op = op.data["became"]
        return call
    return None if op.parent is None else op
