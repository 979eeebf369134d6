"""The partitioner's context: states of values, resharding on demand, and the walk over operations.

Every rule asks for its operands in the layouts it wants (`get`) and binds its results in the layouts it made them in
(`bind`, `bind_partial`, `bind_lazy`). Collectives appear where a value is asked for in a layout in which no version of
it exists; the version is remembered, so that a second consumer finds it.

The rule of a pointwise op on 8 devices, x being f32[1024@data] and y being f32[1024]:

    dims = ctx.want(result)                                  # ((0, 1, 2),): the three atoms of axis data
    refs = [ctx.get(v, dims) for v in op.operands]           # x as it is; of y each device slices its 128 rows
    out = ctx.local_copy(op, refs, [(128,)])[0]
    ctx.bind(result, dims, out)
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from propagation.model import TensorSharding
from propagation.program import Block, Func, Op, OtherType, Program, TensorType, Value, source
from propagation.rules import RuleCache

from ..cost import item_bytes
from ..emit import LocalFunction, LocalValue, ModuleBuilder, Region
from ..errors import UnsupportedOpError
from ..heuristics import RESHARD_LATER_SHARE, RESHARD_SHARED_SHARE
from ..layout import Atoms, Dims, local_shape, replicated
from ..options import Options
from ..plan import Finding
from ..reshard import Planner, ReshardPlan
from ..topology import Topology
from . import rules
from .provenance import RESHARD, cause_of, maker
from .state import TRANSPARENT, Journal, Partial, Source, State, Version, View
from .writing import Writer

if TYPE_CHECKING:
    from .associative_scan import Scans

__all__ = ["Context"]


class Context(Writer):
    """State of partitioning one module, and (from `Writer`) the writing of the per-device program.

    env     the states of the values of the function being written
    manual  the atoms of the manual computations around `op`, over which it is written per device already
    """

    def __init__(
        self, program: Program, sharding: Callable[[Value], TensorSharding | None], atoms: Atoms,
        builder: ModuleBuilder, topology: Topology, options: Options,
    ):  # fmt: skip
        super().__init__(program, atoms, builder, topology.compiler)
        self.sharding = sharding
        self.topology = topology
        self.options = options
        self.planner = Planner(atoms)
        self.findings: list[Finding] = []
        self.because = RESHARD  # why values are asked for: the cause of a reshard in the plan
        self.env: dict[Value, State] = {}
        # For returned values: the layout in which they leave their function or loop, and what resharding to it counts
        # as, as a share of its bytes.
        self.ends: dict[Value, tuple[Dims, float]] = {}
        self.left_partial: dict[
            Value, tuple[int, ...]
        ] = {}  # results that leave the program unreduced: over which atoms
        self.returned_as: dict[Value, Value] = {}  # what an inlined callee returns -> the call's result
        self.callees: dict[tuple, LocalFunction] = {}  # functions that are written, by name and layouts
        self.decisions: dict[Hashable, Any] = {}  # what rules decided or found, by keys of their own
        self._rules = rules()
        self.rules = RuleCache()
        self._wants: dict[Value, Dims] = {}
        self.estimates: dict[tuple[Value, Dims, int], float] = {}  # of `lookahead`
        self._pieces: dict[tuple[TensorType | OtherType, Dims], tuple[int, ...]] = {}
        self._scans: dict[Block, Scans] = {}
        self.journal = Journal()
        self.tries: int | None = None  # operations that `loop_layouts` may still write for trials
        self.manual: tuple[int, ...] = ()

    # -- of the module, see `collectives.module` --------------------------------------------------------------

    @abc.abstractmethod
    def calls(self, name: str) -> int:
        """How many calls of a function the program has."""

    @abc.abstractmethod
    def manual_shardings(self, op: Op) -> tuple[Sequence[TensorSharding], Sequence[TensorSharding]]:
        """(in_shardings, out_shardings) of a manual computation."""

    @abc.abstractmethod
    def into_manual(self, op: Op, i: int, ref: LocalValue) -> LocalValue:
        """An operand of a manual computation on the devices that its in_sharding says."""

    @abc.abstractmethod
    def out_of_manual(self, op: Op, i: int, ref: LocalValue) -> LocalValue:
        """A result of a manual computation on the devices that the program around expects it on."""

    @abc.abstractmethod
    def manual_atoms(self, op: Op) -> tuple[int, ...]:
        """The atoms of the axes over which a computation is manual."""

    @abc.abstractmethod
    def function(
        self, func: Func, ins: Sequence[Dims], outs: Sequence[Dims], name: str, public: bool,
        partial: tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]] | None = None,
        apart: frozenset[int] = frozenset(),
    ) -> LocalFunction:  # fmt: skip
        """Partitions a function whose arguments and results have given layouts."""

    # -- what is wanted ---------------------------------------------------------------------------------------

    def want(self, value: Value) -> Dims:
        """The layout that propagation decided for a value."""
        found = self._wants.get(value)
        if found is None:
            s = self.sharding(value)
            rank = len(value.type.shape)
            found = replicated(rank) if s is None or len(s.dims) != rank else self.atoms.dims(s)
            self._wants[value] = found
        return found

    def goal(self, value: Value) -> Dims:
        """The layout in which a value leaves its function or loop, if it is only returned; else the wanted one."""
        end = self.ends.get(value) if len(value.uses) == 1 else None
        return self.want(value) if end is None else end[0]

    def state(self, value: Value) -> State:
        """What is known of a value."""
        return self.env[value]

    # -- binding results --------------------------------------------------------------------------------------

    def new_state(self, value: Value) -> State:
        """Binds a value to a state without versions, to be filled in."""
        t = value.type
        state = State(t.shape, t.dtype, self.region, len(value.uses), None if t.is_tensor else t.text)
        if value.owner is self.op and self.op.name in TRANSPARENT:
            state.origin = (self.op, tuple([self.env[v] for v in self.op.operands]))
        self.env[value] = state
        return state

    def bind(self, value: Value, dims: Dims, ref: LocalValue) -> None:
        """Binds a complete value, laid out as `dims`."""
        self.new_state(value).versions[dims] = ref

    def bind_lazy(self, value: Value, make: Callable[[Dims], LocalValue]) -> None:
        """Binds a value that every device can compute in any layout: `make(dims)` writes it so into the current region,
        without communication."""
        env, op = self.env, self.op

        def at_home(dims: Dims) -> LocalValue:
            saved = self.env, self.op
            self.env, self.op = env, op
            try:
                return make(dims)
            finally:
                self.env, self.op = saved

        self.new_state(value).make = at_home

    def bind_partial(
        self, value: Value, dims: Dims, parts: dict[tuple[int, ...], LocalValue], kind: str = "add",
        masked: bool = False, chosen: bool = False,
    ) -> None:  # fmt: skip
        """Binds an unreduced value (see `Partial`); a complete one if () is all that `parts` are pending over."""
        state = self.new_state(value)
        if set(parts) == {()}:
            state.versions[dims] = parts[()]
        else:
            state.partial = Partial(kind, dims, parts, masked, chosen, maker(self, value))

    # -- asking for values ------------------------------------------------------------------------------------

    def get(self, value: Value, dims: Dims) -> LocalValue:
        """`value` complete and laid out as `dims`; collectives are written if no such version is visible."""
        state = self.env[value]
        ref = state.versions.get(dims)
        return self.get_state(state, dims) if ref is None else ref

    def get_state(self, state: State, dims: Dims) -> LocalValue:
        """The same for the state of a value."""
        if state.view is not None and not state.versions:
            self._cut(state, state.view)
        ref = state.versions.get(dims)
        if ref is not None:
            return ref
        region: Region | None = self.region
        while region is not state.home and region is not None:
            local = region.known.get(state)
            if local is not None and dims in local:
                return local[dims]
            region = region.parent
        return self._materialise(state, dims)

    def bind_view(self, value: Value, view: View) -> None:
        """Binds a lazy slice, pad or concatenation, which is cut out when somebody asks for it."""
        self.new_state(value).view = view

    def view(self, value: Value, dims: Dims) -> View | None:
        """The lazy view that `value` is in `dims`, if it is one of a single tensor along one dimension."""
        view = self.views(value, dims)
        return None if view is None or view.more or view.joined else view

    def views(self, value: Value, dims: Dims) -> View | None:
        """The lazy view that `value` is in `dims`; None if it is none, or has been cut out already."""
        state = self.env[value]
        return None if state.view is None or state.versions or state.view.dims != dims else state.view

    def _cut(self, state: State, view: View) -> None:
        outer, self.region = self.region, state.home
        state.versions[view.dims] = view.cut()
        self.region = outer

    def whole(self, value: Value) -> LocalValue:
        """`value` complete on every device."""
        return self.get(value, replicated(len(value.type.shape)))

    def piece_shape(self, value: Value, dims: Dims) -> tuple[int, ...]:
        """The shape of a device's piece of `value`, laid out as `dims`."""
        key = (value.type, dims)
        found = self._pieces.get(key)
        if found is None:
            found = self._pieces[key] = local_shape(value.type.shape, dims, self.sizes)
        return found

    def cost(self, value: Value, dims: Dims) -> float:
        """Bytes that `get(value, dims)` would send."""
        state = self.env[value]
        move = self.move_bytes(state, dims)
        return move if state.recipe is None or not move else _recompute().cost(self, state, dims, move)

    def move_bytes(self, state: State, dims: Dims) -> float:
        """Bytes that resharding the nearest version of `state` to `dims` would send."""
        if state.make is not None or dims in state.versions:
            return 0.0
        found = self._sources(state, self.region)
        if state.versions and self.elements(state.shape, dims) <= self.elements(state.shape, state.layout):
            # Only for layouts no larger: else all devices would repeat work on a version that was split before.
            found += self.journal.more(found, state.shape, self.region)
        return min((self._source_cost(state, s, dims) for s in found), default=0.0)

    def move_cost(self, value: Value, dims: Dims) -> float:
        """`cost` for comparing choices: per iteration of the loops between, and discounted if later users may share
        it."""
        cost = self.cost(value, dims)
        if not cost:
            return cost
        state = self.env[value]
        if state.home is not self.region:
            return cost / self.runs_since(state)
        awaited = state.uses > len(value.uses) or value.uses[-1].op is not self.op  # uses are in program order
        return cost * RESHARD_SHARED_SHARE if state.uses > 1 and awaited else cost

    def runs_since(self, state: State) -> int:
        """How often the current region runs for each time that a new version of `state` would be written."""
        runs, landing = 1, self._landing(state)
        region: Region | None = self.region
        while region is not landing and region is not None:
            runs *= region.trips or 1
            region = region.parent
        return max(1, runs)

    def later_cost(self, value: Value, dims: Dims, pending: tuple[int, ...] = ()) -> float:
        """Bytes of bringing a result from `dims`, unreduced over the atoms `pending`, to where its users want it, as
        the look-ahead estimates it; discounted, because users may be content with `dims`."""
        if not value.uses:
            return 0.0
        end = self.ends.get(value) if len(value.uses) == 1 else None
        shape, itemsize = value.type.shape, self.itemsize(value)
        if end is not None:
            want, soft = end
            return (1.0 if pending else soft) * self.planner.cost(shape, itemsize, dims, want, pending)
        if pending:
            cost = lambda layout: self.planner.cost(shape, itemsize, dims, layout, pending)
            return min(cost(x) + RESHARD_LATER_SHARE * self._extra_cost(value, x) for x in {self.want(value), dims})
        return RESHARD_LATER_SHARE * self._extra_cost(value, dims)

    def _extra_cost(self, value: Value, dims: Dims) -> float:
        """Bytes that the users of `value` would send if it was in `dims`: see `lookahead`."""
        from . import lookahead  # it needs the context's type

        return lookahead.extra_cost(self, value, dims)

    def forget_estimates(self) -> None:
        """Drops the estimates of the look-ahead."""
        self.estimates.clear()

    def _sources(self, state: State, region: Region) -> list[Source]:
        """What a reshard may start from: the versions visible in `region`, or what the value was made as."""
        out: list[Source] = [(dims, {(): ref}) for dims, ref in state.versions.items()]
        at: Region | None = region
        while at is not state.home and at is not None:
            out += [(dims, {(): ref}) for dims, ref in at.known.get(state, {}).items()]
            at = at.parent
        if state.view is not None and not out:
            out.append((state.view.dims, {(): None}))
        if state.partial is not None and not out:
            out.append((state.partial.dims, state.partial.parts))
        return out

    def _source_cost(self, state: State, source_: Source, dims: Dims) -> float:
        """Bytes that bringing one source of a value to `dims` sends."""
        have, parts = source_
        if len(parts) == 1:
            ((pending, ref),) = parts.items()
            if not pending and ref is not None:
                if self.journal.sibling(ref, state.shape, have, dims, self.region) is not None:
                    return 0.0
            return self.planner.cost(state.shape, state.itemsize, have, dims, pending)
        return self._meeting(state, have, parts, dims)[0]

    def _meeting(
        self, state: State, have: Dims, parts: Iterable[tuple[int, ...]], dims: Dims
    ) -> tuple[float, Dims]:  # fmt: skip
        """(bytes, layout) of the cheapest way to reduce the parts of an unreduced value, which are pending over atoms
        `parts`, in one layout, add them up there, and bring the sum to `dims`."""
        cost = lambda before, after, pending=(): self.planner.cost(state.shape, state.itemsize, before, after, pending)
        layouts = [dims, have]
        for pending in parts:
            plan = self.planner.plan(state.shape, state.itemsize, have, dims, pending)
            layouts += [step.after for step in plan.steps]
        return min(
            ((sum(cost(have, x, p) for p in parts) + cost(x, dims), x) for x in dict.fromkeys(layouts)),
            key=lambda found: found[0],
        )

    def _materialise(self, state: State, dims: Dims) -> LocalValue:
        """Writes a new version of a value: made by each device, resharded from the cheapest source, or recomputed."""
        region = self._landing(state)
        outer, self.region = self.region, region
        try:
            if state.make is not None:
                ref = state.make(dims)
                self._remember(state, region, dims, ref)
                return ref
            sources = self._sources(state, region)
            sources += self.journal.more(sources, state.shape, region)
            have, parts = min(sources, key=lambda s: self._source_cost(state, s, dims))
            move = 0.0 if state.recipe is None else self._source_cost(state, (have, parts), dims)
            if move and _recompute().pays(self, state, dims, move):
                ref = _recompute().write(self, state, dims)
                self._remember(state, region, dims, ref)
                return ref
            ref = self._moved(state, region, have, parts, dims)
            self._remember(state, region, dims, ref)
            return ref
        finally:
            self.region = outer

    def _moved(
        self, state: State, region: Region, have: Dims, parts: Mapping[tuple[int, ...], LocalValue | None], dims: Dims
    ) -> LocalValue:  # fmt: skip
        """The parts of a value, laid out as `have`, brought to `dims` by collectives, and combined."""
        kind = "add" if state.partial is None else state.partial.kind
        chosen = state.partial is not None and state.partial.chosen and kind == "add"
        total: LocalValue | None = None
        meet = dims if len(parts) == 1 else self._meeting(state, have, parts, dims)[1]
        for pending, part in parts.items():
            assert part is not None  # a view is cut out before its value is moved
            ref = None if pending else self.journal.sibling(part, state.shape, have, meet, region)
            if ref is None:
                plan = self.planner.plan(state.shape, state.itemsize, have, meet, pending)
                how = "choose" if chosen and pending else kind
                ref = self._follow(state, region, plan, part, how, alone=len(parts) == 1)
            total = ref if total is None else self.combine(kind, total, ref)
        assert total is not None
        if meet != dims:
            self._remember(state, region, meet, total)
            plan = self.planner.plan(state.shape, state.itemsize, meet, dims, ())
            total = self._follow(state, region, plan, total, kind, alone=True)
        return total

    def _landing(self, state: State) -> Region:
        """The region to write a new version in: the value's own, outside of the loops between (loop-invariant code
        motion), but inside of branches, which may not run."""
        path: list[Region] = []
        region: Region | None = self.region
        while region is not state.home and region is not None:
            path.append(region)
            region = region.parent
        landing = state.home
        for inner in reversed(path):
            if inner.kind != "loop":
                landing = inner
        return landing

    def _remember(self, state: State, region: Region, dims: Dims, ref: LocalValue) -> None:
        """Notes a version that is visible in `region`."""
        versions = state.versions if region is state.home else region.known.setdefault(state, {})
        self.journal.remember(Version(versions, dims, ref, state.shape, region))

    def set_wants(self, wants: dict[Value, Dims]) -> None:
        """Replaces what propagation decided for some values."""
        self._wants.update(wants)
        self.forget_estimates()

    def _follow(
        self, state: State, region: Region, plan: ReshardPlan, ref: LocalValue, kind: str, alone: bool
    ) -> LocalValue:
        """Writes the steps of a reshard; the layouts in between are versions too if the value is `alone`: its only
        part."""
        before = plan.source
        for step in plan.steps:
            op, cause = cause_of(self, state, plan, step)
            ref = self.realiser.step(region, ref, state.shape, before, step, kind, op, cause, self.loc)
            before = step.after
            if alone and not step.unreduced:
                self._remember(state, region, before, ref)
        return ref

    def reshard(
        self, shape: tuple[int, ...], ref: LocalValue, have: Dims, dims: Dims, pending: Sequence[int] = (),
        kind: str = "add", cause: str = "reshard",
    ) -> LocalValue:  # fmt: skip
        """Brings a tensor of global `shape` that is no value of the program from one layout to another."""
        itemsize = State(shape, ref.dtype, self.region, 1).itemsize
        plan = self.planner.plan(shape, itemsize, have, dims, tuple(pending))
        before = have
        for step in plan.steps:
            ref = self.realiser.step(self.region, ref, shape, before, step, kind, self.op, cause, self.loc)
            before = step.after
        return ref

    # -- findings ---------------------------------------------------------------------------------------------

    def gathered(self, value: Value, dims: Dims, why: str, within: Iterable[int] | None = None) -> LocalValue:
        """`get`, with a full-gather finding if an axis that splits one of the dimensions `within` (None: all) is not
        used in `dims`. With `allow_full_gather=False` findings end the partitioning, once the layouts of loops are
        final."""
        have = self.env[value].dims or replicated(len(dims))
        kept = {a for atoms in dims for a in atoms}
        places = [i for i in (range(len(have)) if within is None else within) if value.type.shape[i] > 1]
        if any(a not in kept for i in places for a in have[i]):
            sent = self.cost(value, dims)
            if sent > 0:
                text = self.atoms.text(value.type.shape, value.type.dtype, have)
                message = f"{self.op.name}: {text} is gathered: {why}"
                self.findings.append(Finding("full-gather", message, source(self.op), sent))
        return self.get(value, dims)

    # -- the walk ---------------------------------------------------------------------------------------------

    def block(self, ops: Iterable[Op]) -> None:
        """Partitions operations in order (terminators are the caller's)."""
        from . import associative_scan, bodies, loop_invariant, processors, value_numbering  # they need our type

        table = self._rules
        scans: Scans | None = None
        skipped: set[Op] = set()
        for op in ops:
            if scans is None:
                assert op.parent is not None
                scans = self._scans.get(op.parent)
                if scans is None:
                    scans = self._scans[op.parent] = associative_scan.Scans(op.parent)
            if scans.starts:
                scans.enter(self, op, skipped)
                if op in skipped:
                    continue
            if op.regions:
                op = bodies.plain(op)
            self.op = op
            rule = table.get(op.name)
            if rule is None:
                raise UnsupportedOpError(
                    f'{op.name} has no partitioning rule; use partitioner="xla" for this program, or wrap the '
                    "operation in a manual computation",
                    source(op),
                )
            outer, self.region = self.region, loop_invariant.region_of(self, op)
            start = len(self.region.items)
            value_numbering.once(self, op, rule)
            if processors.FRONTEND in op.attrs:
                processors.keep(op, self.region.items[start:])
            self.region = outer

    @functools.cached_property
    def byte_per_flop(self) -> float:
        """Bytes that can be sent while one arithmetic operation runs."""
        return self.topology.default.bandwidth / self.topology.flops

    @functools.cached_property
    def redundancy(self) -> float:
        """Bytes that can be sent while one byte of memory is read or written."""
        return self.topology.default.bandwidth / self.topology.memory_bandwidth

    @staticmethod
    def itemsize(value: Value) -> float:
        """Bytes per element of a value."""
        return item_bytes(value.type.dtype)


def _recompute() -> ModuleType:
    from . import recompute  # it needs the context's type

    return recompute
