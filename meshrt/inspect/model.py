"""What `meshrt inspect` says about a program, as plain values made from the stages."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from collectives.cost import item_bytes
from collectives.module import PartitionedProgram
from collectives.plan.communication import Alternative, CommunicationPlan
from collectives.plan.memory import MemoryPlan
from collectives.plan.timing import Timing
from meshrt.inspect.program_rows import ProgramRow, program_from
from meshrt.pipeline.names import argument_names, output_names, type_text
from propagation import Propagated
from propagation.gc_pause import collector_paused
from propagation.model import TensorSharding
from propagation.program import TensorType, Value

__all__ = [
    "CollectiveRow",
    "FindingRow",
    "HeldRow",
    "KernelMemoryRow",
    "KernelRow",
    "LintRow",
    "MemberRow",
    "MemoryRow",
    "MomentRow",
    "RemedyRow",
    "Report",
    "TimingRow",
    "ValueRow",
    "collective_rows",
    "place",
    "report_of",
    "spec_axes",
    "spec_text",
    "value_row",
]


REPLICATED = "replicated"  # instead of axes
MOST_MOMENTS = 400  # points of a time line
VERSION = 2  # of the JSON schema: 1 had no scopes, lint, program and alternatives


@dataclass(frozen=True, slots=True)
class ValueRow:
    """An argument or a result. `type` is like `f32[128,256]`, `device_type` that of one device's part; bytes are of the
    whole value and of one device's part (the largest, where a dimension does not divide)."""

    name: str
    type: str
    sharding: str
    global_bytes: float
    device_bytes: float
    device_type: str = ""

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole value."""
        return self.sharding == REPLICATED


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One of the collectives that were combined into a larger one, with its share of the bytes."""

    where: str | None
    cause: str
    bytes: float
    scope: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective. `bytes` are sent by the busiest device each time, `times` is None in a loop of unknown length;
    `members` are what a combined one was made of, `scope` the scopes of the operation that caused it,
    `jvp(layer0)/mlp`. Each collective has its own busiest device, and the report's `bytes` are of the one that sends
    most in all, so `bytes` x `times` of the collectives may sum to more."""

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
    scope: str = ""

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
class RemedyRow:
    """A change that was tried on the program. Before and after: bytes that the busiest device sends per run, the most
    bytes that it holds, and predicted seconds, where a topology was named."""

    text: str
    bytes_before: float
    bytes_after: float
    peak_before: float
    peak_after: float
    seconds_before: float | None = None
    seconds_after: float | None = None


@dataclass(frozen=True, slots=True)
class LintRow:
    """Something that costs more than it need, found by the rule of that name; `bytes` are what it costs each device,
    sent per run or held, as the message says. `remedy` is a change that was found to be better."""

    rule: str
    message: str
    where: str | None
    bytes: float
    remedy: RemedyRow | None = None


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Something that a device holds when it holds most. `what` is the argument or result by its name, or the operation
    that made it; of several alike, `count` says how many there are, and `bytes` is their sum."""

    what: str
    type: str
    count: int
    bytes: float
    where: str | None


@dataclass(frozen=True, slots=True)
class MomentRow:
    """Bytes that a device holds while an operation runs: a point of the time line."""

    what: str
    where: str | None
    bytes: float


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Bytes that one device holds, estimated before a compiler has seen the program: the most at once, of that the
    arguments, the results that do not replace donated arguments, and what lives in between.

    `alive` is what is held at the peak, the largest first. `moments` is the time line, in the order in which operations
    run; of a long program each point stands for several operations, and is the one among them that holds most.
    """

    peak_bytes: float
    argument_bytes: float
    result_bytes: float
    temporary_bytes: float
    alive: tuple[HeldRow, ...]
    moments: tuple[MomentRow, ...]


@dataclass(frozen=True, slots=True)
class TimingRow:
    """Predicted seconds of one device and run on the topology that was named: from begin to end, of them computing and
    waiting for messages; and what the collectives take one after the other, hidden behind computing or not."""

    seconds: float
    computing: float
    waiting: float
    sending: float


@dataclass(frozen=True, slots=True)
class KernelMemoryRow:
    """Bytes that a kernel holds in one of a core's memories, all buffers of its windows counted."""

    memory: str
    bytes: int


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel, with one device's pieces. `copies` is how often blocks are fetched or written back in one call, `moved`
    the bytes of that, `sent` those to other devices by its own copies, `operations` its floating-point operations;
    `places` is how often it stands in the program."""

    name: str
    grid: tuple[int, ...]
    memory: tuple[KernelMemoryRow, ...]
    copies: int
    moved: float
    sent: float
    operations: float
    where: str | None
    places: int

    @property
    def held(self) -> int:
        """Bytes in all of a core's memories."""
        return sum(m.bytes for m in self.memory)


@dataclass(frozen=True, slots=True)
class Report:
    """A whole program. `mesh` are (axis, size) pairs; `explanations` the answers to `--explain`, one line each. `bytes`
    are sent by the busiest device per run of the program (the sum over `collectives`, each of its own busiest device,
    may be more), `least_bytes` if it takes other branches (see `collectives.CommunicationPlan`). There is a `timing`
    where a topology was named, `lint` where it was asked for, and a `program` where all operations were. `alternatives`
    are the layouts of the whole program that were compared, if several were. `version` is that of the schema.

    >>> found = meshrt.inspect.report(meshrt.jit(jnp.sin).lower(jnp.ones(8)))
    >>> found.devices, found.bytes, found.arguments[0].type, found.memory.argument_bytes
    (1, 0.0, 'f32[8]', 32.0)
    """

    name: str
    mesh: tuple[tuple[str, int], ...]
    arguments: tuple[ValueRow, ...]
    results: tuple[ValueRow, ...]
    collectives: tuple[CollectiveRow, ...]
    findings: tuple[FindingRow, ...]
    explanations: tuple[str, ...] = ()
    bytes: float = 0.0
    least_bytes: float = 0.0
    memory: MemoryRow | None = None
    timing: TimingRow | None = None
    kernels: tuple[KernelRow, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    lint: tuple[LintRow, ...] | None = None
    program: ProgramRow | None = None
    version: int = VERSION

    @property
    def devices(self) -> int:
        """How many devices the mesh has; 1 where there is none."""
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
            "replicated_argument_bytes": sum(v.device_bytes for v in self.arguments if v.is_replicated),
            "peak_bytes_per_device": None if self.memory is None else self.memory.peak_bytes,
            "seconds_sending": sum(c.seconds * (c.times or 1) for c in self.collectives),
            "seconds_per_run": None if self.timing is None else self.timing.seconds,
        }  # fmt: skip
        return {**_plain(self), "mesh": dict(self.mesh), "totals": totals}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """The inverse of `as_json`, for values of this version. KeyError, TypeError, AttributeError or ValueError for
        what is no such report."""
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
            memory=None if data["memory"] is None else _memory_from(data["memory"]),
            timing=None if data["timing"] is None else TimingRow(**data["timing"]),
            kernels=tuple(_kernel(row) for row in data.get("kernels", ())),  # reports of before had none
            alternatives=tuple(Alternative(**row) for row in data.get("alternatives", ())),  # likewise
            lint=None if data.get("lint") is None else tuple(_lint(row) for row in data["lint"]),
            program=None if data.get("program") is None else program_from(data["program"]),
        )


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()


def _plain(value: Any) -> Any:
    """As `dataclasses.asdict`, in a third of the time: rows hold rows, tuples and plain values, nothing else."""
    kind: Any = type(value)
    if kind is tuple:
        return tuple([_plain(v) for v in value])
    names = _names(kind)
    return {n: _plain(getattr(value, n)) for n in names} if names else value


def report_of(
    name: str,
    propagated: Propagated,
    partitioned: PartitionedProgram,
    arg_names: Sequence[str] | None = None,
    result_names: Sequence[str] | None = None,
    explanations: Sequence[str] = (),
    source: str = "",
    kernels: Sequence[KernelRow] = (),
) -> Report:
    """The report of a partitioned program. Names default to what the module itself says of its arguments and results.

    `source` is the file that the module's text was read from, if any.
    """
    with collector_paused():
        main = propagated.program.main
        arg_names = argument_names(propagated) if arg_names is None else arg_names
        result_names = output_names(propagated) if result_names is None else result_names
        values = lambda names, vs, shardings: tuple(
            value_row(n, v, s) for n, v, s in zip(names, vs, shardings, strict=True)
        )
        plan = partitioned.plan
        return Report(
            name,
            partitioned.mesh.axes,
            values(arg_names, main.args, partitioned.arg_shardings),
            values(result_names, main.returned, partitioned.result_shardings),
            collective_rows(plan, source),
            tuple(FindingRow(f.kind, f.message, place(f.where, source), f.bytes) for f in partitioned.findings),
            tuple(explanations),
            bytes=plan.bytes,
            least_bytes=plan.bytes if plan.least_bytes is None else plan.least_bytes,
            memory=memory_row(partitioned.memory, arg_names, result_names, source),
            timing=None if plan.exposed is None else _timing_row(partitioned.timing),
            kernels=tuple(kernels),
            alternatives=plan.alternatives,
        )


def _timing_row(timing: Timing) -> TimingRow:
    return TimingRow(timing.seconds, timing.computing, timing.exposed, timing.sending)


def memory_row(plan: MemoryPlan, arg_names: Sequence[str], result_names: Sequence[str], source: str = "") -> MemoryRow:
    """A memory plan with the program's own names, what is alike put together, and a time line of bounded length."""
    names = {"argument": arg_names, "result": result_names}
    held: dict[tuple[str, str, str | None], list[float]] = {}
    for h in plan.alive:
        what = h.what.removeprefix("stablehlo.") if h.number is None else names[h.what][h.number]
        held.setdefault((what, element_text(h.type), place(h.where, source)), []).append(h.bytes)
    alive = [HeldRow(what, kind, len(each), sum(each), where) for (what, kind, where), each in held.items()]
    step = -(-len(plan.moments) // MOST_MOMENTS) or 1
    moments = [max(plan.moments[i : i + step], key=lambda m: m.bytes) for i in range(0, len(plan.moments), step)]
    return MemoryRow(
        plan.peak, plan.arguments, plan.results, plan.temporaries,
        tuple(sorted(alive, key=lambda row: -row.bytes)),
        tuple(MomentRow(m.what.removeprefix("stablehlo."), place(m.where, source), m.bytes) for m in moments),
    )  # fmt: skip


_SIZES = re.compile(r"(?:\d+x)*")


def element_text(mlir: str) -> str:
    """`f32[4,128]` of MLIR's `tensor<4x128xf32>`; other types as they are.

    >>> element_text("tensor<4x128xf32>"), element_text("tensor<8xcomplex<f32>>"), element_text("tensor<i1>")
    ('f32[4,128]', 'complex<f32>[8]', 'i1[]')
    """
    if not mlir.startswith("tensor<"):
        return mlir
    sizes = _SIZES.match(inside := mlir[len("tensor<") : -1])
    shape = sizes[0] if sizes is not None else ""
    return f"{inside[len(shape) :]}[{shape[:-1].replace('x', ',')}]"


def _memory_from(row: dict[str, Any]) -> MemoryRow:
    values = {f.name: row[f.name] for f in fields(MemoryRow)}
    alive = tuple(HeldRow(**held) for held in row["alive"])
    return MemoryRow(**{**values, "alive": alive, "moments": tuple(MomentRow(**m) for m in row["moments"])})


def _lint(row: dict[str, Any]) -> LintRow:
    values = {f.name: row[f.name] for f in fields(LintRow)}
    return LintRow(**{**values, "remedy": None if row["remedy"] is None else RemedyRow(**row["remedy"])})


def _kernel(row: dict[str, Any]) -> KernelRow:
    values = {f.name: row[f.name] for f in fields(KernelRow)}
    memory = tuple(KernelMemoryRow(**m) for m in row["memory"])
    return KernelRow(**{**values, "grid": tuple(row["grid"]), "memory": memory})


def _collective(row: dict[str, Any]) -> CollectiveRow:
    values = {f.name: row[f.name] for f in fields(CollectiveRow) if f.name in row}  # those of before had no scope
    return CollectiveRow(**{**values, "members": tuple(MemberRow(**m) for m in row["members"])})


def collective_rows(plan: CommunicationPlan, name: str = "") -> tuple[CollectiveRow, ...]:
    """The entries of a plan. `name` stands for the file in places of a module without locations."""
    rows = []
    for e in plan:
        members = tuple(MemberRow(place(m.where, name), m.cause, m.bytes, m.scope) for m in e.members)
        where = place(e.where, name)
        rows.append(
            CollectiveRow(
                e.kind, e.axes, e.groups, e.group_size, e.bytes, e.times, where, e.cause, e.seconds, members, e.scope
            )
        )  # fmt: skip
    return tuple(rows)


def place(where: str | None, name: str) -> str | None:
    """MLIR calls the text it reads "-"; a program without locations has its places there, one of ours has none."""
    if where is None or not where.startswith("-:"):
        return where
    return name + where[1:] if name else None


def value_row(name: str, value: Value, sharding: TensorSharding | None) -> ValueRow:
    """The row of a value; one without known sizes has no bytes."""
    kind = value.type
    if not isinstance(kind, TensorType) or not kind.is_static:
        return ValueRow(name, type_text(value), "-", 0.0, 0.0)
    size = item_bytes(kind.dtype)
    local = kind.shape if sharding is None else sharding.shard_shape(kind.shape)
    count = 1
    for n in local:
        count *= n
    part = f"{type_text(value).partition('[')[0]}[{','.join(map(str, local))}]"
    return ValueRow(name, type_text(value), spec_text(sharding), kind.size * size, count * size, part)


def spec_text(sharding: TensorSharding | None) -> str:
    """`(data, -, model+expert)`: the axes of each dimension; `replicated` if there are none; `device 0` of what lies
    there alone; `(data, -) unreduced model` of addends that devices along an axis hold of a sum."""
    if sharding is not None and sharding.mesh.device_ids and sharding.mesh.is_maximal:
        return f"device {sharding.mesh.device_ids[0]}"
    if sharding is None or (sharding.is_fully_replicated and not sharding.unreduced):
        return REPLICATED
    dims, unreduced = spec_axes(sharding)
    addends = f" unreduced {'+'.join(unreduced)}" if unreduced else ""
    return "(" + ", ".join("+".join(axes) or "-" for axes in dims) + ")" + addends


def spec_axes(sharding: TensorSharding | None) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The axes of each dimension, and those over which partial sums are left to be added; a part of an axis is
    `model:(1)2`."""
    if sharding is None:
        return (), ()
    axis = lambda a: a.name if a.is_full(sharding.mesh) else f"{a.name}:({a.pre}){a.size}"
    return tuple(tuple(map(axis, d.axes)) for d in sharding.dims), tuple(map(axis, sharding.unreduced))
