"""Rows of all operations of a propagated program: what `meshrt inspect --html` draws."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Sequence

from meshrt.inspect.model import spec_axes, value_row
from meshrt.inspect.program_rows import OperationRow, ProgramRow, ReasonRow, SourceRow, TensorRow
from meshrt.pipeline.explain import Names
from propagation import Propagated
from propagation.program import Block, Func, Op, Value, scope, source

__all__ = ["loaded_source", "program_row"]

# Sources are for reading beside the graph: more than this is not read.
MOST_SOURCE = 1 << 19  # characters of a file
MOST_SOURCES = 64  # files


def loaded_source(path: str) -> str | None:
    """The text of a file from which this process has loaded code (a module, a notebook's cell); None for others: a
    place in a foreign module may name any file at all."""
    loaded = {getattr(m, "__file__", None) for m in [*sys.modules.values()]}
    if path not in loaded and path not in linecache.cache:
        return None
    return "".join(linecache.getlines(path)) or None


def program_row(
    propagated: Propagated,
    arg_names: Sequence[str],
    result_names: Sequence[str],
    read: Callable[[str], str | None] = loaded_source,
    name: str = "",
) -> ProgramRow:
    """All operations of a program with their values. `read` gives the text of a source file, or None; `name` stands for
    the file in places of a module without locations."""
    walk = _Walk(propagated, Names(propagated, arg_names, result_names), name)
    for func in propagated.program.funcs.values():
        walk.block(func, func.body, None)
    return ProgramRow(tuple(walk.operations), tuple(walk.tensors()), tuple(_sources(walk.operations, read)))


class _Walk:
    def __init__(self, propagated: Propagated, names: Names, name: str):
        self.propagated, self.names, self.name = propagated, names, name
        self.operations: list[OperationRow] = []
        self.numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def block(self, func: Func, block: Block, within: int | None) -> None:
        """Adds the operations of a block; those in bodies that compute on scalars only are part of their operation."""
        owner = block.owner
        entering: Sequence[Value] = ()
        if isinstance(owner, Op) and len(owner.operands) == len(block.args):
            entering = owner.operands
        where = self.place(owner)
        for i, arg in enumerate(block.args):
            given = (self.number(entering[i]),) if entering else ()
            at = "" if owner is None else scope(owner)
            row = OperationRow("argument", func.name, within, at, where, given, (self.number(arg),))
            self.operations.append(row)
        for op in block.ops:
            here = len(self.operations)
            self.operations.append(
                OperationRow(
                    op.name.removeprefix("stablehlo."), func.name, within, scope(op), self.place(op),
                    tuple(map(self.number, op.operands)), tuple(map(self.number, op.results)),
                )
            )  # fmt: skip
            for inner in op.regions:
                if any(v.type.rank for each in inner.walk() for v in (*each.operands, *each.results)):
                    self.block(func, inner, here)

    def place(self, op: Op | Func | None) -> str | None:
        where = None if op is None else source(op)
        if where is None or not where.startswith("-:"):
            return where
        return self.name + where[1:] if self.name else None

    def tensors(self) -> Iterable[TensorRow]:
        steps = {value: self.propagated.first_steps(value) for value in [*self.numbers]}
        for value in [*self.numbers]:
            sharding = self.propagated.sharding(value)
            row = value_row(self.names.given(value) or "", value, sharding)
            reasons = [
                ReasonRow(
                    s.dim, s.axis.name, self.names.line(s),
                    None if s.source is None else self.numbers.get(s.source), s.source_dim,
                )
                for s in steps[value]
            ]  # fmt: skip
            axes, unreduced = spec_axes(sharding)
            yield TensorRow(
                row.name, row.type, row.device_type, axes, unreduced, row.global_bytes, row.device_bytes, tuple(reasons)
            )


def _sources(rows: Iterable[OperationRow], read: Callable[[str], str | None]) -> Iterable[SourceRow]:
    cited: dict[str, int] = {}
    for row in rows:
        path, colon, line = (row.where or "").rpartition(":")
        if colon and line.isdecimal():
            cited[path] = cited.get(path, 0) + 1
    for path in sorted(cited, key=lambda p: -cited[p])[:MOST_SOURCES]:
        text = read(path)
        if text is not None and len(text) <= MOST_SOURCE:
            yield SourceRow(path, text)
