"""Changing a `Program`: redirecting uses, inserting and removing operations."""

from __future__ import annotations

from collections.abc import Callable

from .graph import Block, Op, Use, Value

__all__ = ["Edits", "erase", "replace_all_uses"]


def replace_all_uses(old: Value, new: Value, where: Callable[[Use], bool] | None = None) -> None:
    """Redirects uses of `old` to `new`, newest use first as MLIR does (so their order in `new` is reversed).

    `where(use)` selects the uses to move.
    """
    kept: list[Use] = []
    moved: list[Use] = []
    for use in reversed(old.uses):
        (moved if where is None or where(use) else kept).append(use)
    for op, number in moved:
        op.replace_operand(number, new)
    if old is new:
        new.uses = kept[::-1] + moved
        return
    new.uses.extend(moved)
    old.uses = kept[::-1]


def erase(op: Op) -> None:
    """Drops the uses made by `op` and its regions. The caller removes it from its block's list."""
    for inner in op.walk():
        for i, v in reversed([*enumerate(inner.operands)]):
            v.drop_use(inner, i)
        inner.operands = ()
    op.parent = None


class Edits:
    """Insertions and removals in blocks, collected first and applied in one sweep per block."""

    def __init__(self) -> None:
        self._before: dict[Op, list[Op]] = {}
        self._after: dict[Op, list[Op]] = {}
        self._first: dict[Block, list[Op]] = {}
        self._erased: set[Op] = set()
        self._blocks: dict[Block, None] = {}

    def _touch(self, block: Block, op: Op) -> None:
        self._blocks[block] = None
        op.parent = block

    def before(self, anchor: Op, op: Op) -> None:
        """`op` right before `anchor`, behind earlier insertions there."""
        self._touch(anchor.block, op)
        self._before.setdefault(anchor, []).append(op)

    def after(self, anchor: Op, op: Op) -> None:
        """`op` right after `anchor`, in front of earlier insertions there."""
        self._touch(anchor.block, op)
        self._after.setdefault(anchor, []).insert(0, op)

    def first(self, block: Block, op: Op) -> None:
        """`op` at the start of `block`, in front of earlier insertions there."""
        self._touch(block, op)
        self._first.setdefault(block, []).append(op)

    def erase(self, op: Op) -> None:
        self._blocks[op.block] = None
        self._erased.add(op)

    def apply(self) -> None:
        """Rebuilds the touched blocks and drops the uses of erased operations."""
        touched = {*self._before, *self._after, *self._erased}
        for block in self._blocks:
            ops: list[Op] = []
            for op in (*reversed(self._first.get(block, ())), *block.ops):
                if op in touched:
                    self._place(op, ops)
                else:
                    ops.append(op)
            block.ops = ops
        self._drop_uses()

    def _drop_uses(self) -> None:
        """What `erase` does, for all erased operations at once: a value that many of them use is looked at once."""
        dead = {inner for op in self._erased for inner in op.walk()}
        used = dict.fromkeys(v for op in dead for v in op.operands)
        for value in used:
            value.uses[:] = [u for u in value.uses if u.op not in dead]
        for op in dead:
            op.operands = ()
        for op in self._erased:
            op.parent = None

    def _place(self, op: Op, ops: list[Op]) -> None:
        for other in self._before.get(op, ()):
            self._place(other, ops)
        if op not in self._erased:
            ops.append(op)
        for other in self._after.get(op, ()):
            self._place(other, ops)
