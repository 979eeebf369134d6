"""The decisions behind a program: for each operation that could be done in several ways, the one that was taken and
what the others would have cost.

Costs are what the partitioner weighed: bytes that a device sends, the bytes that could be sent while it computes
included, shared among the runs of a loop that need them once, and discounted where somebody else may use what is moved.
They compare ways of one operation; the plan has what the program sends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from propagation.program import Op, Program, Value, source

from ..errors import InputError
from ..findings import human
from ..layout import Atoms, Dims

__all__ = ["Decision", "Decisions", "Way"]


class Way(NamedTuple):
    """One way to do an operation, as it was weighed.

    operands  the layouts of its operands; None for one that is taken as it is
    results   those of its results
    pending   the parts of the results, each by the atoms over which it is a sum still to be taken
    now       bytes for bringing operands there, for what the operation sends itself, and for its work
    later     bytes that the results are expected to cost where they are used; None where `now` was enough to know that
              another way is cheaper
    """

    operands: tuple[Dims | None, ...]
    results: tuple[Dims | None, ...]
    pending: tuple[tuple[int, ...], ...]
    now: float
    later: float | None

    @property
    def cost(self) -> float:
        """`now` and `later`, as far as they are known: at least this."""
        return self.now + (self.later or 0.0)


class Decision(NamedTuple):
    """What was decided for an operation that could be done in several ways: of `ways`, number `taken`."""

    op: Op
    taken: int
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of a program, in the order in which they were made; also those that explain one line or value.

    Prints, and compares equal to decisions that print the same. Keeps `program`, whose operations know their lines only
    as long as it lives.
    """

    rows: tuple[Decision, ...]
    atoms: Atoms
    program: Program

    def explain(self, what: Value | str) -> Decisions:
        """Those about one value of the program (the operation that computes it), or about a source line, `train.py:57`
        or the end of a longer path. None are there for values and lines where there was nothing to decide.

        Raises `InputError` for what is neither.
        """
        if isinstance(what, Value):
            return replace(self, rows=tuple(row for row in self.rows if what in row.op.results))
        path, _, number = what.rpartition(":") if isinstance(what, str) else ("", "", "")
        if not isinstance(what, str) or not path or not number.isdecimal():
            raise InputError(
                f"{what!r} is no value of the program and no source line; give one, or a line as train.py:57"
            )
        return replace(self, rows=tuple(row for row in self.rows if _is_at(source(row.op), what)))

    def as_text(self) -> str:
        """A block per decision: the operation, the way that was taken, and the others, the cheapest first."""
        return "\n".join(line for row in self.rows for line in self._lines(row))

    def as_json(self) -> list[dict[str, Any]]:
        """The same as data: a mapping per decision."""
        return [
            {
                "operation": row.op.name,
                "where": source(row.op),
                "ways": [
                    {"layouts": self._layouts(row.op, way), "taken": i == row.taken, "now": way.now, "later": way.later}
                    for i, way in enumerate(row.ways)
                ],
            }
            for row in self.rows
        ]

    def _lines(self, row: Decision) -> Iterator[str]:
        types = ", ".join(r.type.text.removeprefix("tensor<").removesuffix(">") for r in row.op.results)
        yield f"{source(row.op) or '?'}: {row.op.name} -> {types}"
        yield f"  taken: {self._way(row.op, row.ways[row.taken])}"
        others = [way for i, way in enumerate(row.ways) if i != row.taken]
        lines = [self._way(row.op, way) for way in sorted(others, key=lambda way: way.cost)]
        yield from (f"  or:    {line}" for line in dict.fromkeys(lines))

    def _way(self, op: Op, way: Way) -> str:
        layouts = self._layouts(op, way)
        if way.later is None:
            return f"{layouts}: at least {human(way.now)}"
        return f"{layouts}: {human(way.cost)}, {human(way.later)} of it later"

    def _layouts(self, op: Op, way: Way) -> str:
        """`f32[8@data,16], f32[16,32] -> f32[8@data,32], still to be added up over model`."""
        sums = [self.atoms.axes_text(part) for part in way.pending if part]
        left = f", still to be added up over {' and over '.join(sums)}" if sums else ""
        return f"{self._tensors(op.operands, way.operands)} -> {self._tensors(op.results, way.results)}{left}"

    def _tensors(self, values: Sequence[Value], layouts: Sequence[Dims | None]) -> str:
        texts = [
            "as it is" if dims is None or not v.type.is_tensor else self.atoms.text(v.type.shape, v.type.dtype, dims)
            for v, dims in zip(values, layouts)
        ]
        return ", ".join(texts)

    def __str__(self) -> str:
        return self.as_text() or "nothing was decided here: no operation, or none with several ways"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decisions):
            return NotImplemented
        return self.as_text() == other.as_text()

    def __hash__(self) -> int:
        return hash(len(self.rows))

    def __repr__(self) -> str:
        return f"<Decisions: {len(self.rows)} operations that could be done in several ways>"


def _is_at(where: str | None, line: str) -> bool:
    """Whether a source line is the one asked for: `train.py:57`, of /home/me/train.py:57:8 too."""
    path, _, number = line.rpartition(":")
    if where is None:
        return False
    parts = where.split(":")
    return number in parts[1:2] and (parts[0] == path or parts[0].endswith(os.sep + path))
