"""One reshard, as a user asks for it: from a sharding to another, perhaps over the same devices in another order.

The planner of `reshard.py` works with layouts of one mesh. What it finds is completed here: by a permute where the
target's mesh has the devices in another order, at the step where that moves least, or by exact boxes (`tiles.py`) where
those cost less. Where the order stays, what it finds is what a program does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding

from .cost import item_bytes, seconds
from .errors import OptionError, ReshardError, TopologyError, UnsupportedShardingError
from .findings import human, human_time
from .layout import Atoms, Dims
from .network import Link
from .reshard.boxes import boxes_between
from .reshard.moves import ReshardStep
from .reshard.planner import Planner, ReshardPlan, step_cost
from .reshard.search import operand_bytes, piece_bytes, step_bytes
from .reshard.tiles import Tiles, exchange, lacking, summing, tiles
from .spec import as_element_type, as_mesh, as_shape, as_sharding
from .topology import Topology, load

__all__ = ["PlannedReshard", "PlannedStep", "plan_reshard"]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a reshard.

    kind     slice (local), all_gather, all_to_all, collective_permute, reduce_scatter, all_reduce, or pieces: permutes
             that bring each device boxes that it lacks
    axes     mesh axes over which devices talk (for a slice: over which the tensor is cut)
    before   the sharding that it starts from
    after    the sharding that it ends in, over the target's mesh from where the order of the devices changes
    bytes    sent by the busiest device
    rounds   how many collectives these are; 0 for a slice
    seconds  predicted time; None without a topology

    >>> import collectives
    >>> step, = collectives.plan_reshard((64, 64), "f32", "a=4,b=2", ("a", None), (None, "a")).steps
    >>> step.kind, step.bytes, step.after.to_text()
    ('all_to_all', 3072.0, '#sdy.sharding<@mesh, [{}, {"a"}]>')
    """

    kind: str
    axes: tuple[AxisRef, ...]
    before: TensorSharding
    after: TensorSharding
    bytes: float
    rounds: int
    seconds: float | None

    def as_text(self) -> str:
        """`all_to_all over a: [{"a"}, {}] -> [{}, {"a"}], 3 KiB`."""
        over = ",".join(a.name if a.is_full(self.after.mesh) else f"{a.name}:({a.pre}){a.size}" for a in self.axes)
        text = self.kind + (f" over {over}" if over else "")
        if self.rounds > 1:
            text += f" in {self.rounds} permutes"
        text += f": {_body(self.before)} -> {_body(self.after)}"
        if self.before.mesh.device_ids != self.after.mesh.device_ids:
            text += " in the target's order of devices"
        time = "" if self.seconds is None else f", {human_time(self.seconds)}"
        return f"{text}, {human(self.bytes)}{time}"


@dataclass(frozen=True, slots=True)
class PlannedReshard:
    """A way from `source` to `target`; it prints itself with `as_text()`.

    shape, dtype     the tensor
    source, target   what was asked for, closed
    steps            the collectives, each with the shardings before and after it
    bytes            sent by the busiest device
    bound            bytes that the busiest device must receive in any plan, counted device by device
    exact            whether the plan is proved cheapest among the planner's moves
    peak             bytes of the largest piece that a device holds, at an end or after a step
    seconds          predicted time on the topology that was asked for; None if none was

    >>> import collectives
    >>> plan = collectives.plan_reshard((64, 64), "f32", "a=4,b=2", ("a", None), ("a", "b"))
    >>> [step.kind for step in plan.steps], plan.bytes, plan.exact
    (['slice'], 0.0, True)
    """

    shape: tuple[int, ...]
    dtype: str
    source: TensorSharding
    target: TensorSharding
    steps: tuple[PlannedStep, ...]
    bytes: float
    bound: float
    exact: bool
    peak: float
    seconds: float | None

    @property
    def ratio(self) -> float:
        """Sent bytes over the lower bound: 1 if nothing must move nor moves, infinite if something moves needlessly."""
        if self.bound:
            return self.bytes / self.bound
        return math.inf if self.bytes else 1.0

    def as_text(self) -> str:
        """A line with the question, one per step, and one with the totals."""
        text = f"{self.dtype}[{','.join(map(str, self.shape))}] on {self.source.mesh.to_text()}: {_body(self.source)}"
        text += f" -> {_body(self.target)}"
        if self.target.mesh.device_ids != self.source.mesh.device_ids:
            text += f" on {self.target.mesh.to_text()}"
        total = (
            f"{human(self.bytes)} sent per device, at least {human(self.bound)} in any plan, ratio {self.ratio:.3g}; "
        )
        total += f"largest piece {human(self.peak)}"
        if self.seconds is not None:
            total += f"; {human_time(self.seconds)}"
        return "\n".join([text, *(f"  {s.as_text()}" for s in self.steps), total])

    def __str__(self) -> str:
        return self.as_text()


def _body(sharding: TensorSharding) -> str:
    """`[{"a"}, {}], unreduced={"b"}`."""
    return sharding.body_text().partition(", ")[2][:-1]


def plan_reshard(
    shape: Iterable[int],
    dtype: Any,
    mesh: Mesh | str | Mapping[str, int],
    source: TensorSharding | str | Iterable[Any],
    target: TensorSharding | str | Iterable[Any],
    topology: Topology | str | None = None,
    *,
    target_mesh: Mesh | str | None = None,
    memory: float | None = None,
) -> PlannedReshard:
    """The cheapest plan to bring a tensor of global `shape` from `source` to `target`.

    `dtype` is an element type as `spec.as_element_type` reads it (`f32`, `float32`, a NumPy dtype); `mesh` a mesh, or
    what `spec.as_mesh` reads (`"a=4,b=2"`); the shardings are such, or what `spec.as_sharding` reads (`[{"a"}, {}]`,
    `("a", None)`). The target may be over the same axes with the devices in another order: in the mesh of a
    `TensorSharding`, or in `target_mesh`. The source may be unreduced; unreduced axes of the target must be unreduced
    in the source, and stay as they are.

    No device's piece is larger on the way than the larger of its two ends, unless `memory`, in bytes, allows it. With a
    `topology` (or what `topology.load` reads) the plan has a predicted time.

    Raises `ReshardError` for a shape or element type that is none, for rank mismatches, for a target that is unreduced
    where the source is not, and where no plan stays within `memory`; `OptionError` for a `memory` that is no positive
    number; `UnsupportedShardingError` for what is no mesh or sharding, or does not fit; `TopologyError` for a topology
    that is none or does not hold the mesh.

    >>> print(plan_reshard((64, 64), "f32", "a=4,b=2", ("a", None), (None, "a")).as_text())
    f32[64,64] on <["a"=4, "b"=2]>: [{"a"}, {}] -> [{}, {"a"}]
      all_to_all over a: [{"a"}, {}] -> [{}, {"a"}], 3 KiB
    3 KiB sent per device, at least 3 KiB in any plan, ratio 1; largest piece 4 KiB
    """
    mesh = as_mesh(mesh)
    asked = _asked(as_shape(shape), as_element_type(dtype), mesh, source, target, target_mesh)
    machine = _machine(topology, mesh)
    ends = [piece_bytes(asked.shape, asked.itemsize, dims, asked.atoms.sizes) for dims in (asked.before, asked.after)]
    limit = max(ends) if memory is None else _memory(memory, max(ends))
    planner = _planner(_plain(mesh), frozenset(asked.axes), step_cost(machine), limit if memory is not None else None)
    plan = planner.plan(asked.shape, asked.itemsize, asked.before, asked.after, asked.pending)
    bound = _bound(asked)
    routes = [r for r in _routes(asked, plan) if r.peak <= limit]
    if not routes:
        raise ReshardError(
            f"no plan from {asked.source.to_text()} to {asked.target.to_text()} keeps every piece of "
            f"{asked.dtype}{list(asked.shape)} within {human(limit)}; the cheapest needs {human(plan.peak)}: pass "
            f"memory={math.ceil(plan.peak)} to allow that"
        )
    best = min(routes, key=lambda r: r.bytes + sum(s.rounds for s in r.steps) * planner.step_bytes)
    steps = _planned_steps(asked, best, machine)
    time = None if machine is None else sum(s.seconds or 0.0 for s in steps)
    exact = best.bytes <= bound or (plan.exact and not asked.reordered and best.bytes <= plan.bytes)
    return PlannedReshard(
        asked.shape, asked.dtype, asked.source, asked.target, steps, best.bytes, bound, exact, best.peak, time
    )


class _Asked(NamedTuple):
    """A reshard in terms of atoms: layouts, the unreduced atoms that are summed, and those that stay."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: float
    source: TensorSharding
    target: TensorSharding
    axes: tuple[AxisRef, ...]
    atoms: Atoms
    before: Dims
    after: Dims
    pending: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def reordered(self) -> bool:
        return self.source.mesh.device_ids != self.target.mesh.device_ids

    def tiles(self, dims: Dims, partial: tuple[int, ...], at_target: bool) -> Tiles:
        """The parts of all devices in a layout over one of the two meshes."""
        mesh = (self.target if at_target else self.source).mesh
        return tiles(self.shape, dims, partial, self.atoms, mesh.device_ids)

    def sharding(self, dims: Dims, partial: tuple[int, ...], at_target: bool) -> TensorSharding:
        axes = self.atoms.axes
        mesh = (self.target if at_target else self.source).mesh
        return TensorSharding(mesh, [DimSharding(axes(d)) for d in dims], (), axes(sorted(partial)))


# (layout, unreduced atoms, whether over the target's mesh)
_RouteState: TypeAlias = tuple[Dims, tuple[int, ...], bool]


class _RouteStep(NamedTuple):
    """A step between two states."""

    step: ReshardStep
    before: _RouteState
    after: _RouteState
    bytes: float
    rounds: int


class _Route(NamedTuple):
    steps: tuple[_RouteStep, ...]
    bytes: float
    peak: float


def _asked(
    shape: tuple[int, ...], dtype: str, mesh: Mesh, source: TensorSharding | str | Iterable[Any],
    target: TensorSharding | str | Iterable[Any], target_mesh: Mesh | str | None,
) -> _Asked:  # fmt: skip
    if not mesh.axes and not mesh.is_empty:
        raise UnsupportedShardingError(f"the mesh {mesh.to_text()} names one device; there is nothing to reshard over")
    there = mesh
    if target_mesh is not None:
        there = as_mesh(target_mesh)
        if there.axes != mesh.axes:
            raise UnsupportedShardingError(
                f"target_mesh {there.to_text()} has other axes than the mesh {mesh.to_text()}; only the order of the "
                "devices may differ"
            )
    ends = [as_sharding(source, mesh), as_sharding(target, there)]
    for s in ends:
        if len(s.dims) != len(shape):
            raise ReshardError(f"{s.to_text()} has {len(s.dims)} dimensions, the tensor has shape {shape}")
    axes = tuple(a for s in ends for a in (*s.axes, *s.unreduced))
    atoms = Atoms(_plain(mesh), axes)
    old, new = (s.closed() for s in ends)
    before, after = atoms.dims(old), atoms.dims(new)
    partial, kept = atoms.of_axes(old.unreduced), atoms.of_axes(new.unreduced)
    if not set(kept) <= set(partial):
        raise ReshardError(
            f"the target is unreduced over {atoms.axes_text(kept)}, the source over "
            f"{atoms.axes_text(partial) or 'nothing'}; a reshard cannot make a partial sum"
        )
    pending = tuple(a for a in partial if a not in kept)
    return _Asked(shape, dtype, item_bytes(dtype), old, new, axes, atoms, before, after, pending, kept)


def _plain(mesh: Mesh) -> Mesh:
    """Plans depend on the mesh's shape alone."""
    return Mesh("mesh", mesh.axes)


@functools.lru_cache(maxsize=64)
def _planner(mesh: Mesh, axes: frozenset[AxisRef], step: float, memory: float | None) -> Planner:
    return Planner(Atoms(mesh, axes), step, memory)


def _machine(topology: Topology | str | None, mesh: Mesh) -> Topology | None:
    if topology is None:
        return None
    if isinstance(topology, str):
        topology = load(topology)
    if not isinstance(topology, Topology):
        raise TopologyError(f"{topology!r} is no topology; give one, a file, or a name as v5e:16x16")
    return topology.on(mesh)


def _memory(memory: float, ends: float) -> float:
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0:
        raise OptionError(f"memory is a positive number of bytes, or None: {memory!r}")
    if memory < ends:
        raise ReshardError(
            f"memory={memory} is less than the {human(ends)} of the larger of the two ends' pieces; shard that end "
            "over more axes"
        )
    return memory


def _bound(asked: _Asked) -> float:
    """Bytes that the busiest device must be sent, whatever the plan."""
    target = asked.tiles(asked.after, asked.kept, True)
    if asked.pending:
        return summing(target, asked.atoms.product(asked.pending)) * asked.itemsize
    return lacking(asked.tiles(asked.before, asked.kept, False), target) * asked.itemsize


def _routes(asked: _Asked, plan: ReshardPlan) -> list[_Route]:
    """Ways to the target: the planner's, which is what programs do. Where the order of devices changes: that with a
    change of order where it costs least, and exact boxes."""
    if not asked.reordered:
        return [_route(asked, plan.steps, None)]
    boxes = _boxes(asked)
    return [_reordered(asked, plan), *([] if boxes is None else [boxes])]


def _route(asked: _Asked, steps: Iterable[ReshardStep], turn: int | None) -> _Route:
    """The route of the planner's steps, where the step `turn` ends in the target's order of devices."""
    state = (asked.before, (*asked.pending, *asked.kept), False)
    size = lambda dims: piece_bytes(asked.shape, asked.itemsize, dims, asked.atoms.sizes)
    out, peak = [], size(asked.before)
    for i, step in enumerate(steps):
        after = (step.after, (*step.unreduced, *asked.kept), state[2] or i == turn)
        rounds = 0 if step.kind == "slice" else 1
        if step.kind == "pieces":
            found = boxes_between(asked.shape, state[0], step.after, asked.atoms.sizes)
            assert found is not None  # the planner has seen it
            rounds, sent = step.rounds, found.elements * asked.itemsize
        else:
            sent = step_bytes(step, asked.shape, asked.itemsize, state[0], asked.atoms.sizes)
        if i == turn and _same(asked, state, after):
            sent, rounds = 0.0, 0
        out.append(_RouteStep(step, state, after, sent, rounds))
        peak = max(peak, size(step.after))
        state = after
    return _Route(tuple(out), sum(s.bytes for s in out), peak)


def _same(asked: _Asked, before: _RouteState, after: _RouteState) -> bool:
    """Whether every device holds the same in two states."""
    old, new = asked.tiles(*before), asked.tiles(*after)
    return bool((old.low == new.low).all() and (old.high == new.high).all())


def _reordered(asked: _Asked, plan: ReshardPlan) -> _Route:
    """The planner's steps with one permute more, or one that also changes the order, wherever that sends least."""
    everyone = tuple(range(len(asked.atoms.sizes)))
    routes = []
    dims, partial = asked.before, asked.pending
    for i in range(len(plan.steps) + 1):
        turn = ReshardStep("collective_permute", everyone, -1, (), dims, partial)
        routes.append(_route(asked, [*plan.steps[:i], turn, *plan.steps[i:]], i))
        if i < len(plan.steps):
            step = plan.steps[i]
            if step.kind == "collective_permute":
                wider = step._replace(atoms=everyone)
                routes.append(_route(asked, [*plan.steps[:i], wider, *plan.steps[i + 1 :]], i))
            dims, partial = step.after, step.unreduced
    return min(routes, key=lambda r: (r.bytes, len(r.steps)))


def _boxes(asked: _Asked) -> _Route | None:
    """Exact boxes, after an all-reduce of what is to be summed."""
    steps: list[_RouteStep] = []
    start = (asked.before, (*asked.pending, *asked.kept), False)
    size = lambda dims: piece_bytes(asked.shape, asked.itemsize, dims, asked.atoms.sizes)
    if asked.pending:
        step = ReshardStep("all_reduce", asked.pending, -1, (), asked.before, ())
        sent = step_bytes(step, asked.shape, asked.itemsize, asked.before, asked.atoms.sizes)
        summed = (asked.before, asked.kept, False)
        steps.append(_RouteStep(step, start, summed, sent, 1))
        start = summed
    end = (asked.after, asked.kept, True)
    found = exchange(asked.tiles(*start), asked.tiles(*end))
    if found is None:
        return None
    rounds, atoms = len(found.rounds), tuple(range(len(asked.atoms.sizes)))
    step = ReshardStep("pieces" if rounds else "slice", atoms, -1, (), asked.after, (), rounds)
    steps.append(_RouteStep(step, start, end, found.elements * asked.itemsize, rounds))
    return _Route(tuple(steps), sum(s.bytes for s in steps), max(size(asked.before), size(asked.after)))


def _planned_steps(asked: _Asked, route: _Route, machine: Topology | None) -> tuple[PlannedStep, ...]:
    """The steps of a route, less a change of order that moves nothing: the step before it ends in that order too."""
    out: list[PlannedStep] = []
    for s in route.steps:
        if s.rounds or s.step.kind != "collective_permute":
            out.append(_planned(asked, s, machine))
        elif out:
            out[-1] = replace(out[-1], after=asked.sharding(*s.after))
    return tuple(out)


def _planned(asked: _Asked, s: _RouteStep, machine: Topology | None) -> PlannedStep:
    axes = asked.atoms.axes(s.step.atoms)
    time = None
    if machine is not None:
        time = _seconds(asked, s, machine.link(a.name for a in axes))
    return PlannedStep(s.step.kind, axes, asked.sharding(*s.before), asked.sharding(*s.after), s.bytes, s.rounds, time)


def _seconds(asked: _Asked, s: _RouteStep, link: Link) -> float:
    """Predicted time of a step by itself."""
    if not s.rounds:
        return 0.0
    if s.step.kind in ("pieces", "collective_permute"):
        return s.rounds * seconds("collective_permute", 2, s.bytes / s.rounds, link)
    operand = operand_bytes(s.step, asked.shape, asked.itemsize, s.before[0], asked.atoms.sizes)
    return seconds(s.step.kind, asked.atoms.product(s.step.atoms), operand, link)
