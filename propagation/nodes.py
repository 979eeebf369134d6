"""Operations as the driver sees them."""

from __future__ import annotations

from collections.abc import Callable

from . import schedule
from .model import OpRule
from .program import Op, Value

__all__ = ["Group", "Node", "has_one_user"]


class Node:
    """An operation as the driver sees it. `look` reads the shardings of its operands and results from the table."""

    __slots__ = ("above", "group", "look", "op", "rule", "slots", "view")

    def __init__(self, op: Op):
        self.op = op
        self.rule: OpRule | None = None
        self.group: Group | None = None
        self.slots: tuple[int, ...] = ()
        self.look: Callable | None = None
        self.view = None
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
