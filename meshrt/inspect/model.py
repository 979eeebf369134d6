"""What `meshrt inspect` says about a program, as plain values made from the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from collectives.cost import item_bytes
from collectives.module import PartitionedProgram
from collectives.plan import CommunicationPlan
from meshrt.pipeline.names import argument_names, output_names, type_text
from propagation import Propagated
from propagation.model import TensorSharding
from propagation.program import TensorType, Value

__all__ = [
    "CollectiveRow",
    "FindingRow",
    "MemberRow",
    "Report",
    "ValueRow",
    "collective_rows",
    "report_of",
    "spec_text",
]


@dataclass(frozen=True, slots=True)
class ValueRow:
    """An argument or a result. `type` is like `f32[128,256]`; bytes are of the whole value and of one device's part
    (the largest, where a dimension does not divide)."""

    name: str
    type: str
    sharding: str
    global_bytes: float
    device_bytes: float


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One of the collectives that were combined into a larger one, with its share of the bytes."""

    where: str | None
    cause: str
    bytes: float


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective. `bytes` are sent by the busiest device each time, `times` is None in a loop of unknown length;
    `members` are what a combined one was made of."""

    kind: str
    axes: str
    groups: int
    group_size: int
    bytes: float
    times: int | None
    where: str | None
    cause: str
    seconds: float
    members: tuple[MemberRow, ...] = ()

    @property
    def total(self) -> float:
        """Bytes per run of the program; a loop of unknown length counts once."""
        return self.bytes * (1 if self.times is None else self.times)


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Something in the plan that the user may want to change, such as an argument that is gathered whole; `bytes` is
    what it costs each device."""

    kind: str
    message: str
    where: str | None
    bytes: float


@dataclass(frozen=True, slots=True)
class Report:
    """A whole program. `mesh` are (axis, size) pairs; `explanations` the answers to `--explain`, one line each. `bytes`
    are sent by the busiest device per run of the program, `least_bytes` if it takes other branches (see
    `collectives.CommunicationPlan`)."""

    name: str
    mesh: tuple[tuple[str, int], ...]
    arguments: tuple[ValueRow, ...]
    results: tuple[ValueRow, ...]
    collectives: tuple[CollectiveRow, ...]
    findings: tuple[FindingRow, ...]
    explanations: tuple[str, ...] = ()
    bytes: float = 0.0
    least_bytes: float = 0.0

    @property
    def devices(self) -> int:
        count = 1
        for _, size in self.mesh:
            count *= size
        return count

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values, totals included."""
        totals = {
            "devices": self.devices, "bytes_sent_per_device": self.bytes,
            "argument_bytes_per_device": sum(v.device_bytes for v in self.arguments),
            "result_bytes_per_device": sum(v.device_bytes for v in self.results),
            "seconds_predicted": sum(c.seconds * (c.times or 1) for c in self.collectives),
        }  # fmt: skip
        return {**asdict(self), "mesh": dict(self.mesh), "totals": totals}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """The inverse of `as_json`."""
        rows = lambda kind, name: tuple(kind(**{f.name: row[f.name] for f in fields(kind)}) for row in data[name])
        return Report(
            data["name"],
            tuple((n, int(s)) for n, s in data["mesh"].items()),
            rows(ValueRow, "arguments"),
            rows(ValueRow, "results"),
            tuple(_collective(row) for row in data["collectives"]),
            rows(FindingRow, "findings"),
            tuple(data["explanations"]),
            bytes=data["bytes"],
            least_bytes=data["least_bytes"],
        )


def report_of(
    name: str,
    propagated: Propagated,
    partitioned: PartitionedProgram,
    arg_names: Sequence[str] | None = None,
    result_names: Sequence[str] | None = None,
    explanations: Sequence[str] = (),
    source: str = "",
) -> Report:
    """The report of a partitioned program. Names default to what the module itself says of its arguments and results.

    `source` is the file that the module's text was read from, if any.
    """
    main = propagated.program.main
    arg_names = argument_names(propagated) if arg_names is None else arg_names
    result_names = output_names(propagated) if result_names is None else result_names
    values = lambda names, vs, shardings: tuple(
        _value_row(n, v, s) for n, v, s in zip(names, vs, shardings, strict=True)
    )
    return Report(
        name,
        partitioned.mesh.axes,
        values(arg_names, main.args, partitioned.arg_shardings),
        values(result_names, main.returned, partitioned.result_shardings),
        collective_rows(partitioned.plan, source),
        tuple(FindingRow(f.kind, f.message, _place(f.where, source), f.bytes) for f in partitioned.findings),
        tuple(explanations),
        bytes=partitioned.plan.bytes,
        least_bytes=partitioned.plan.bytes if partitioned.plan.least_bytes is None else partitioned.plan.least_bytes,
    )


def _collective(row: dict[str, Any]) -> CollectiveRow:
    values = {f.name: row[f.name] for f in fields(CollectiveRow)}
    return CollectiveRow(**{**values, "members": tuple(MemberRow(**m) for m in row["members"])})


def collective_rows(plan: CommunicationPlan, name: str = "") -> tuple[CollectiveRow, ...]:
    """The entries of a plan. `name` stands for the file in places of a module without locations."""
    rows = []
    for e in plan:
        members = tuple(MemberRow(_place(m.where, name), m.cause, m.bytes) for m in e.members)
        place = _place(e.where, name)
        rows.append(
            CollectiveRow(e.kind, e.axes, e.groups, e.group_size, e.bytes, e.times, place, e.cause, e.seconds, members)
        )
    return tuple(rows)


def _place(where: str | None, name: str) -> str | None:
    """MLIR calls the text it reads "-"; a program without locations has its places there, one of ours has none."""
    if where is None or not where.startswith("-:"):
        return where
    return name + where[1:] if name else None


def _value_row(name: str, value: Value, sharding: TensorSharding | None) -> ValueRow:
    kind = value.type
    if not isinstance(kind, TensorType) or not kind.is_static:
        return ValueRow(name, type_text(value), "-", 0.0, 0.0)
    size = item_bytes(kind.dtype)
    local = kind.shape if sharding is None else sharding.shard_shape(kind.shape)
    count = 1
    for n in local:
        count *= n
    return ValueRow(name, type_text(value), spec_text(sharding), kind.size * size, count * size)


def spec_text(sharding: TensorSharding | None) -> str:
    """`(data, -, model+expert)`: the axes of each dimension; `replicated` if there are none."""
    if sharding is None or sharding.is_fully_replicated:
        return "replicated"
    axis = lambda a: a.name if a.is_full(sharding.mesh) else f"{a.name}:({a.pre}){a.size}"
    return "(" + ", ".join("+".join(map(axis, d.axes)) or "-" for d in sharding.dims) + ")"
