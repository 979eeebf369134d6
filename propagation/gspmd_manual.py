"""Manual computations out of GSPMD's pairs of custom calls.

Between `SPMDFullToShardShape`, which takes a whole value and gives each device its piece, and `SPMDShardToFullShape`,
which puts pieces together, GSPMD leaves operations as they are. What these two enclose (all that is computed from
pieces) becomes the body of an `sdy.manual_computation`, laid out as the annotations before and after say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from .edits import erase, replace_all_uses
from .errors import UnsupportedModuleError
from .graph import Block, Func, Op, Program, TensorType, Value
from .gspmd_shardings import ATTRIBUTE, CONSTRAINT, TO_FULL, TO_SHARD, Said, place, read_attribute, target, unspecified
from .gspmd_text import GspmdSharding
from .model import DimSharding, TensorSharding
from .ops import CONSTANTS
from .quoting import quote

__all__ = ["make_manual"]


def make_manual(program: Program, said: Said) -> None:
    """Makes the manual computations of a program, whose annotations are otherwise left. Raises
    `UnsupportedModuleError` where pieces go where none can be."""
    blocks: dict[Block, None] = {}
    for op in program.ops():
        if target(op) in (TO_SHARD, TO_FULL):
            blocks[op.block] = None
    for block in blocks:
        _Blocks(program, said, block).run()


@dataclass(eq=False, slots=True)
class _Computation:
    """What belongs together: where values come in, what is done with pieces, and where they leave."""

    entries: list[Op] = field(default_factory=list)
    body: list[Op] = field(default_factory=list)
    exits: list[Op] = field(default_factory=list)

    def take(self, other: _Computation) -> None:
        self.entries += other.entries
        self.body += other.body
        self.exits += other.exits


class _Blocks:
    """The computations of one block."""

    def __init__(self, program: Program, said: Said, block: Block):
        self.program, self.said, self.block = program, said, block
        self.owners: dict[Value, _Computation] = {}  # the computation of each value that is a piece
        self.found: dict[_Computation, None] = {}
        self.places = {op: i for i, op in enumerate(block.ops)}

    def run(self) -> None:
        for op in self.block.ops:
            self._sort(op)
        for found in list(self.found):
            if found.exits:
                self._make(found)
            elif not any(r.uses for op in found.entries for r in op.results):
                self._drop(found.entries)
            else:
                last = found.body[-1] if found.body else found.entries[-1]
                raise UnsupportedModuleError(f"no {TO_FULL} puts the pieces together that this makes", place(last))
        _order(self.block)

    def _sort(self, op: Op) -> None:
        kind = target(op)
        used = dict.fromkeys(self.owners[v] for v in _free(op) if v in self.owners)
        if not used and kind not in (TO_SHARD, TO_FULL):
            return
        if op is self.block.terminator:
            raise UnsupportedModuleError(f"a piece leaves its block without {TO_FULL}", place(op))
        if kind == TO_SHARD:
            if used:
                raise UnsupportedModuleError(f"{TO_SHARD} of what is a piece already", place(op))
            whole = _Computation(entries=[op])
        elif kind == TO_FULL:
            whole = _Computation(exits=[op])
        else:
            whole = _Computation(body=[op])
        for other in used:
            other.take(whole)
            whole, merged = other, whole
            if merged in self.found:
                del self.found[merged]
                for value, owner in self.owners.items():
                    if owner is merged:
                        self.owners[value] = whole
        self.found[whole] = None
        if kind != TO_FULL:
            self.owners.update((r, whole) for r in op.results)

    def _make(self, found: _Computation) -> None:
        for ops in (found.entries, found.body, found.exits):
            ops.sort(key=self.places.__getitem__)
        axes = self._axes(found)
        ins = [self._taken(op, axes) for op in found.entries]
        outs = [self._layout(op, op, op.results[0], op.operands[0], axes) for op in found.exits]
        body = Block()
        operands = [value for value, _ in ins]
        for op in found.entries:
            replace_all_uses(op.results[0], self._argument(body, op.results[0]))
        captured = self._capture(found, body)
        mesh = outs[0].mesh
        rest = [TensorSharding(mesh, [DimSharding()] * v.type.rank) for v in captured]
        body.ops += found.body
        body.ops.append(self.program.new_op("sdy.return", [op.operands[0] for op in found.exits], ()))
        for op in body.ops:
            op.parent = body
        names = ", ".join(quote(n) for n in mesh.axis_names if n in axes)
        with self.program.context:
            manual = ir.Attribute.parse(f"#sdy<manual_axes{{{names}}}>")
        attrs = {
            "in_shardings": self.said.attributes([*(s for _, s in ins), *rest]),
            "out_shardings": self.said.attributes(outs),
            "manual_axes": manual,
        }
        made = self.program.new_op(
            "sdy.manual_computation", [*operands, *captured], [op.results[0].type for op in found.exits], attrs, [body],
            like=found.exits[0],
        )  # fmt: skip
        made.parent = self.block
        for op, result in zip(found.exits, made.results):
            replace_all_uses(op.results[0], result)
        gone = {*found.entries, *found.body, *found.exits}
        at = max(self.places[op] for op in (found.entries or found.exits))
        ops = self.block.ops
        self.places[made] = at
        index = next(i for i, op in enumerate(ops) if self.places.get(op, -1) >= at)
        self.block.ops = [*(o for o in ops[:index] if o not in gone), made, *(o for o in ops[index:] if o not in gone)]
        for op in (*found.entries, *found.exits):
            erase(op)

    def _drop(self, entries: list[Op]) -> None:
        self.block.ops = [op for op in self.block.ops if op not in entries]
        for op in entries:
            erase(op)

    def _argument(self, body: Block, like: Value) -> Value:
        value = self.program.new_value(like.type, body, len(body.args))
        body.args.append(value)
        return value

    def _axes(self, found: _Computation) -> frozenset[str]:
        """The axes over which devices compute by themselves."""
        axes: frozenset[str] = frozenset()
        inside = [op.operands[0].op for op in found.exits]
        for op in (*found.entries, *(op for op in inside if op is not None)):
            gspmd = _said_by(op)
            if gspmd is not None and gspmd.is_manual:
                own = self.said.manual_axes(gspmd, place(op))
                if axes and own != axes:
                    raise UnsupportedModuleError(
                        f"pieces over {', '.join(sorted(own))} meet pieces over {', '.join(sorted(axes))}", place(op)
                    )
                axes = own
        if not axes:
            first = (found.entries or found.exits)[0]
            raise UnsupportedModuleError("nothing says over which devices this is cut into pieces", place(first))
        return axes

    def _taken(self, op: Op, axes: frozenset[str]) -> tuple[Value, TensorSharding]:
        """The value that an entry takes, and how it is laid out."""
        value = op.operands[0]
        before = value.op
        if before is None:
            owner = value.argument_of
            attrs = owner.arg_attrs[value.number] if isinstance(owner, Func) else {}
            if ATTRIBUTE not in attrs:
                raise UnsupportedModuleError("nothing says how the value is laid out that this cuts", place(op))
            return value, self._checked(read_attribute(attrs[ATTRIBUTE], None), op, frozenset(), value, op.result, axes)
        sharding = self._layout(before, op, value, op.result, axes)
        if target(before) == CONSTRAINT and len(value.uses) == 1:  # the computation says it itself
            inner = before.operands[0]
            op.set_operand(0, inner)
            self.block.ops = [o for o in self.block.ops if o is not before]
            erase(before)
            return inner, sharding
        return value, sharding

    def _layout(self, said_by: Op, op: Op, whole: Value, piece: Value, axes: frozenset[str]) -> TensorSharding:
        gspmd = _said_by(said_by)
        if gspmd is None:
            raise UnsupportedModuleError("nothing says how the value is laid out that this cuts", place(op))
        return self._checked(gspmd, op, unspecified(said_by), whole, piece, axes)

    def _checked(
        self, gspmd: GspmdSharding, op: Op, free: frozenset[int], whole: Value, piece: Value, axes: frozenset[str]
    ) -> TensorSharding:
        """The layout of a whole value that `op` cuts into, or makes of, pieces. Raises if they do not fit."""
        where = place(op)
        sharding = self.said.sharding(gspmd, whole.type, where, free)
        if sharding is None or sharding.mesh.is_maximal:
            raise UnsupportedModuleError("nothing says how the value is laid out that this cuts", where)
        shape: list[float] = []
        for size, dim in zip(whole.type.shape, sharding.dims):
            own = [a.name in axes for a in dim.axes]
            if sorted(own, reverse=True) != own:
                raise UnsupportedModuleError(
                    "a dimension is cut by axes that the partitioner manages before axes of pieces", where
                )
            shape.append(size / math.prod(a.size for a in dim.axes if a.name in axes))
        if shape != list(piece.type.shape):
            raise UnsupportedModuleError(
                f"pieces of {whole.type!r} laid out as {sharding.to_text()} are not {piece.type!r}", where
            )
        return sharding

    def _capture(self, found: _Computation, body: Block) -> list[Value]:
        """Values from outside that the body uses become arguments; constants are copied into it."""
        inner = {op for top in found.body for op in top.walk()}
        users = {*inner, *found.exits}
        local = {v for op in inner for v in op.results} | {a for op in inner for r in op.regions for a in r.args}
        local.update(body.args)
        outside = dict.fromkeys(v for op in (*found.body, *found.exits) for v in _free(op) if v not in local)
        captured: list[Value] = []
        for value in outside:
            if value.op is not None and value.op.name in CONSTANTS:
                copy = self.program.clone(value.op, {})
                body.ops.append(copy)
                new = copy.results[value.number]
            else:
                if not isinstance(value.type, TensorType):
                    raise UnsupportedModuleError(f"a value of type {value.type!r} goes where pieces are computed",
                                                 place(found.exits[0]))  # fmt: skip
                captured.append(value)
                new = self._argument(body, value)
            replace_all_uses(value, new, lambda use: use.op in users)
        return captured


def _said_by(op: Op) -> GspmdSharding | None:
    return read_attribute(op.attrs[ATTRIBUTE], place(op)) if op.has_attr(ATTRIBUTE) else None


def _free(op: Op) -> Iterator[Value]:
    """The values that an operation, its regions included, takes from around it."""
    if not op.regions:
        yield from op.operands
        return
    inner = op.walk()
    own = {v for o in inner[1:] for v in o.results} | {a for o in inner for r in o.regions for a in r.args}
    for o in inner:
        yield from (v for v in o.operands if v not in own)


def _order(block: Block) -> None:
    """Puts operations that use what now stands behind them behind it. Raises if there is no order."""
    local = {r for op in block.ops for r in op.results}
    known: set[Value] = set()
    is_ready = lambda op: all(v in known or v not in local for v in _free(op))
    waiting: list[Op] = []
    ops: list[Op] = []
    for op in block.ops:
        waiting.append(op)
        while (ready := next(filter(is_ready, waiting), None)) is not None:
            waiting.remove(ready)
            known.update(ready.results)
            ops.append(ready)
    if waiting:
        raise UnsupportedModuleError(
            "pieces are put together and cut again within what is computed from them", place(waiting[0])
        )
    block.ops = ops
