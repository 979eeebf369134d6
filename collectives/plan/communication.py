"""The communication plan: every collective of a partitioned program, with its cause and cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from propagation.program import Op, Value, scope, source

from ..errors import InputError
from ..findings import human, human_time
from ..ir.program import Collective, LocalFunction, LocalOp, Region
from ..machine import Machine
from .decisions import Decisions
from .timing import Timing
from .traffic import Traffic

__all__ = ["Alternative", "CommunicationPlan", "Origin", "PlanEntry", "origin", "plan_of"]


@dataclass(frozen=True, slots=True)
class Origin:
    """What one member of a combined collective came from, and the bytes that the busiest device sends for it: see
    `PlanEntry`, whose `members` these are."""

    where: str | None
    cause: str
    bytes: float
    scope: str = ""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One collective.

    kind        the name of one of `kinds`: all_gather, reduce_scatter, all_reduce, all_to_all, collective_permute, ...
    axes        mesh axes its devices differ in (`data,model:(2)2`); empty if the program gave groups that are no axes'
    groups      number of groups
    group_size  devices per group
    bytes       sent by the busiest device each time
    times       how often it runs per run of the program; None inside a loop of unknown length
    where       source line of the operation that caused it
    cause       that operation, and why
    seconds     predicted time each time
    members     of a combined collective: what each of its members came from
    scope       the scopes that this operation was made in, `jvp(layer0)/mlp`; "" if none are known
    mesh_axes   `axes` as (name, pre, size): the whole axis has pre 1, a sub-axis parts of product `pre` to its left

    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> entry, = meshrt.jit(lambda x: x.sum(0)).lower(x).partition().plan
    >>> entry.kind, entry.axes, entry.group_size, entry.bytes, entry.times
    ('all_reduce', 'x', 4, 24.0, 1)
    """

    kind: str
    axes: str
    groups: int
    group_size: int
    bytes: float
    times: int | None
    where: str | None
    cause: str
    seconds: float
    members: tuple[Origin, ...] = ()
    mesh_axes: tuple[tuple[str, int, int], ...] = ()
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Layouts of the whole program that were compared, the plan being that of the ones `taken`; as text a line.

    what     where their propagation differs from the program's annotations
    bytes, seconds   as in the plan that they led to; None where they could not be partitioned, for the reason `why_not`
    peak     bytes that a device holds at once, where that decided
    """

    what: str
    taken: bool
    bytes: float | None
    seconds: float | None
    peak: float | None = None
    why_not: str | None = None

    def __str__(self) -> str:
        sent = (
            f"not possible: {self.why_not}"
            if self.bytes is None or self.seconds is None
            else (f"{human(self.bytes)} sent per device, {human_time(self.seconds)}")
        )
        held = "" if self.peak is None else f", {human(self.peak)} held"
        return f"{'taken' if self.taken else 'tried'}: {self.what}: {sent}{held}"


@dataclass(frozen=True, slots=True)
class CommunicationPlan:
    """All collectives of a program, in program order.

    `bytes` are those that the busiest device sends per run of the program; it need not be the busiest of every
    collective. A permute counts for those that send, a loop as often as it runs (once where that is not known), and of
    branches the one for which a device sends most; `least_bytes` is what is sent if the others are taken (None: not
    known). `exposed` is the predicted time that no computing hides in the order of the program; None without a
    topology. `alternatives` are the whole layouts that were compared, this plan's among them; none for programs in
    which no axis is contested (`alternatives.py`). `decisions` are those that were made for single operations; None for
    a plan that no partitioning made. It can be iterated over, and has a length: both are those of `entries`.

    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> plan = meshrt.jit(lambda x: x.sum(0)).lower(x).partition().plan
    >>> plan.counts, plan.bytes, len(plan)
    ({'all_reduce': 1}, 24.0, 1)
    """

    entries: tuple[PlanEntry, ...]
    bytes: float
    exposed: float | None = None
    least_bytes: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    decisions: Decisions | None = field(default=None, compare=False)

    def explain(self, what: Value | str) -> Decisions:
        """Why an operation is done as it is, and what its alternatives would have cost: `what` is a value of the
        program, or a source line, `train.py:57`. Prints; empty where nothing had to be decided.

        Raises `InputError` for what is neither, and for a plan that no partitioning made.

        >>> import collectives, propagation
        >>> text = meshrt.jit(jnp.sin).lower(jnp.ones(8)).as_text()
        >>> plan = collectives.partition(propagation.run(text)).plan
        >>> print(plan.explain("train.py:57"))
        nothing was decided here: no operation, or none with several ways
        """
        if self.decisions is None:
            raise InputError("nothing is known of the decisions behind this plan: ask the one of a partitioned program")
        return self.decisions.explain(what)

    @property
    def seconds(self) -> float:
        """Predicted seconds of all collectives one after the other; a loop of unknown length counts once."""
        return sum(e.seconds * (e.times or 1) for e in self.entries)

    @property
    def counts(self) -> dict[str, int]:
        """How many collectives of each kind run; a loop of unknown length counts once."""
        out: dict[str, int] = {}
        for e in self.entries:
            out[e.kind] = out.get(e.kind, 0) + (e.times or 1)
        return out

    def price(self, message: float) -> float:
        """What is compared where no topology was chosen: `bytes`, each collective counting as `message` more."""
        return self.bytes + message * sum(self.counts.values())

    def as_json(self) -> list[dict[str, Any]]:
        """A dict for each entry, with the names of its fields."""
        return [asdict(e) for e in self.entries]

    def as_text(self) -> str:
        """A table, one line per collective, and one for each member of a combined one."""
        head = ("kind", "axes", "groups", "bytes", "time", "times", "source", "cause")
        rows = []
        for e in self.entries:
            times = "?" if e.times is None else str(e.times)
            sizes = (e.axes or "-", f"{e.groups}x{e.group_size}", human(e.bytes), human_time(e.seconds), times)
            rows.append((e.kind, *sizes, e.where or "-", e.cause))
            rows += [("  for", "", "", human(m.bytes), "", "", m.where or "-", m.cause) for m in e.members]
        widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in [head, *rows]]
        counts = ", ".join(f"{n} {k}" for k, n in sorted(self.counts.items())) or "no collectives"
        time = human_time(self.seconds)
        if self.exposed is not None:
            time += f", {human_time(self.exposed)} of it not hidden behind computing"
        tried = [str(a) for a in self.alternatives]
        return "\n".join([*lines, f"{counts}; {self.sent_text()} sent per device, {time}", *tried])

    def sent_text(self) -> str:
        """`1.5 KiB`, or `0 B to 1.5 KiB` if that depends on the branches that are taken."""
        most = human(self.bytes)
        least = most if self.least_bytes is None else human(self.least_bytes)
        return most if least == most else f"{least} to {most}"

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[PlanEntry]:
        return iter(self.entries)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {k}" for k, n in sorted(self.counts.items())) or "nothing"
        return f"<CommunicationPlan: {counts}, {self.sent_text()} per device>"


def plan_of(
    main: LocalFunction, functions: dict[str, LocalFunction], machine: Machine, timing: Timing | None = None
) -> CommunicationPlan:
    """The plan of a built program, read off its items: what is written is what is counted. `timing` is that of the
    program on a machine that somebody chose."""
    entries: list[PlanEntry] = []

    def visit(region: Region, times: int | None) -> Traffic:
        """Adds the entries of a region that runs so often, and gives what is sent each time."""
        sent = Traffic.none(machine.atoms.count)
        for items in (region.prologue, region.items):
            for item in items:
                if item.collective is not None:
                    entries.append(_entry(item, times, machine))
                    sent.send(item.collective.bytes, item.collective.senders)
                if item.regions:
                    inside = []
                    for inner in item.regions:
                        if inner.kind != "body":
                            known = None if times is None or inner.trips is None else times * inner.trips
                            inside.append((inner, visit(inner, known)))
                    if inside and inside[0][0].kind == "branch":
                        sent.add(Traffic.of_branches([each for _, each in inside]))
                    else:
                        for inner, each in inside:
                            sent.add(each, 1 if inner.trips is None else inner.trips)
                elif item.name == "func.call":
                    sent.add(visit(functions[item.callee].region, times))
        return sent

    sent = visit(main.region, 1)
    exposed = None if timing is None else timing.exposed
    least, most = sent.bytes
    return CommunicationPlan(tuple(entries), most, exposed, least)


def _entry(item: LocalOp, times: int | None, machine: Machine) -> PlanEntry:
    c, atoms = item.communication, machine.atoms
    axes = atoms.axes(c.across)
    groups, size = c.groups
    text = atoms.axes_text(c.across)
    where, cause = origin(c)
    members = tuple(Origin(*origin(m), m.bytes, _scope(m)) for m in c.members)
    if members:
        causes = dict.fromkeys(m.cause for m in members)
        cause = f"{c.cause}: {next(iter(causes))}" + (", ..." if len(causes) > 1 else "")
    time = machine.collective(c)
    triples = tuple((a.name, a.pre, a.size) for a in axes)
    return PlanEntry(c.kind, text, groups, size, c.bytes, times, where, cause, time, members, triples, _scope(c))


def _scope(c: Collective) -> str:
    return "" if c.op is None else scope(c.op)


def origin(c: Collective) -> tuple[str | None, str]:
    """The source line of what caused a collective, and that with why."""
    if c.op is None:
        return None, c.cause
    name = c.op.name if isinstance(c.op, Op) else f"result of @{c.op.name}"
    return source(c.op), f"{name}: {c.cause}"
