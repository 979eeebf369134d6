"""All operations of a program after propagation, with the shardings of their values and why they have them, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["OperationRow", "ProgramRow", "ReasonRow", "SourceRow", "TensorRow", "program_from"]


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """Why a dimension of a value has an axis, in words. It came from dimension `source_dim` of the value number
    `source`, whose own reason goes on from there; both are None where an annotation says so."""

    dim: int
    axis: str
    text: str
    source: int | None
    source_dim: int | None


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A value. `type` is like `f32[128,256]`, `device_type` that of one device's part, `axes` those that split each
    dimension, the major one first (`model`, or `model:(1)2` for a part of an axis)."""

    name: str
    type: str
    device_type: str
    axes: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...]
    global_bytes: float
    device_bytes: float
    reasons: tuple[ReasonRow, ...]


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation. `within` is the number of the operation in whose body it stands, `scope` like `jvp(layer0)/mlp`;
    operands and results are numbers of values. An argument of a function or body is an operation too, `argument`, whose
    operand is the value that enters there."""

    kind: str
    function: str
    within: int | None
    scope: str
    where: str | None
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A file that operations name as their place. Absent are those that could not be read, or that only a foreign
    module names."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A program: operations in order, those of a body behind the operation that has it; its values; sources."""

    operations: tuple[OperationRow, ...]
    values: tuple[TensorRow, ...]
    sources: tuple[SourceRow, ...]


def program_from(data: dict[str, Any]) -> ProgramRow:
    """The row of what `dataclasses.asdict` made of one."""
    operations = [
        OperationRow(**{**o, "operands": tuple(o["operands"]), "results": tuple(o["results"])})
        for o in data["operations"]
    ]
    values = [
        TensorRow(**{
            **v, "axes": tuple(map(tuple, v["axes"])), "unreduced": tuple(v["unreduced"]),
            "reasons": tuple(ReasonRow(**r) for r in v["reasons"]),
        })
        for v in data["values"]
    ]  # fmt: skip
    return ProgramRow(tuple(operations), tuple(values), tuple(SourceRow(**s) for s in data["sources"]))
