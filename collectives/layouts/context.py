"""The partitioner's context: what rules are given. It joins what is known of values (`Known`), what layouts cost
(`Costs`) and how operations are written (`Writer`), and reshards on demand.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from propagation.model import TensorSharding
from propagation.program import Func, Op, Program, Value, source

from ..cost import item_bytes
from ..findings import Finding
from ..ir.program import LocalFunction, LocalValue, ModuleBuilder, Region
from ..layout import Atoms, Dims, replicated
from ..options import Options
from ..reshard import ReshardPlan, ReshardStep
from ..topology import Topology
from .state import State, View
from .writing import Writer

__all__ = ["Context", "Rule"]


class Context(Writer):
    """State of partitioning one module.

    families  the rules of operations, by their names
    """

    def __init__(
        self, program: Program, sharding: Callable[[Value], TensorSharding | None], atoms: Atoms,
        builder: ModuleBuilder, topology: Topology, options: Options, families: Mapping[str, Rule],
    ):  # fmt: skip
        super().__init__(program, sharding, atoms, builder, topology, options)
        self.families = families
        self.callees: dict[tuple[Any, ...], LocalFunction] = {}  # functions that are written, by name and layouts
        self.tries: int | None = None  # operations that `loop_carries` may still draft in other layouts

    # -- of the module and the walk, see `collectives.module` and `walk.walk` -----------------------------------

    @abc.abstractmethod
    def into_manual(self, op: Op, i: int, ref: LocalValue) -> LocalValue:
        """An operand of a manual computation on the devices that its in_sharding says."""

    @abc.abstractmethod
    def out_of_manual(self, op: Op, i: int, ref: LocalValue) -> LocalValue:
        """A result of a manual computation on the devices that the program around expects it on."""

    @abc.abstractmethod
    def function(
        self, func: Func, ins: Sequence[Dims], outs: Sequence[Dims], name: str, public: bool,
        partial: tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]] | None = None,
        apart: frozenset[int] = frozenset(),
    ) -> LocalFunction:  # fmt: skip
        """Partitions a function whose arguments and results have given layouts."""

    @abc.abstractmethod
    def block(self, ops: Iterable[Op]) -> None:
        """Partitions operations in order (terminators are the caller's)."""

    # -- asking for values ------------------------------------------------------------------------------------

    def get(self, value: Value, dims: Dims) -> LocalValue:
        """`value` complete and laid out as `dims`; collectives are written if no such version is visible."""
        state = self.env[value]
        ref = state.versions.get(dims)
        if ref is not None:
            return ref
        promised = self.promised(value) if len(value.uses) > 1 else None
        if promised is not None and promised != dims and promised not in state.versions:
            if self.planner.cost(state.shape, state.itemsize, promised, dims) < self.cost(value, dims):
                self.get_state(state, promised)  # it is a step on the way
        return self.get_state(state, dims)

    def get_state(self, state: State, dims: Dims) -> LocalValue:
        """The same for the state of a value."""
        if state.view is not None and not state.versions:
            self._cut(state, state.view)
        ref = state.versions.get(dims)
        if ref is not None:
            return ref
        region: Region | None = self.region
        while region is not None and region.origin is not state.home:
            local: Mapping[Dims, LocalValue] | None = region.known.get(state)
            if local is not None and dims in local:
                return local[dims]
            region = region.parent
        return self._materialise(state, dims)

    def _cut(self, state: State, view: View) -> None:
        outer, self.region = self.region, self.within(state.home)
        state.remember(view.dims, view.cut())
        self.region = outer

    def whole(self, value: Value) -> LocalValue:
        """`value` complete on every device."""
        return self.get(value, replicated(len(value.type.shape)))

    def _materialise(self, state: State, dims: Dims) -> LocalValue:
        """Writes a new version of a value: made by each device, resharded from the cheapest source, or recomputed."""
        region = self.landing(state)
        outer, self.region = self.region, region
        try:
            if state.make is not None:
                ref = state.make(dims)
                self.siblings.remember(state, region, dims, ref)
                return ref
            sources = self.sources(state, region)
            sources += self.siblings.more(sources, state.shape, region)
            have, parts = min(sources, key=lambda s: self.source_cost(state, s, dims))
            move = 0.0 if state.recipe is None else self.source_cost(state, (have, parts), dims)
            if move and self.is_recomputed(state, dims, move):
                ref = self._recomputed(state, dims)
                self.siblings.remember(state, region, dims, ref)
                return ref
            ref = self._moved(state, region, have, parts, dims)
            self.siblings.remember(state, region, dims, ref)
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
        meet = dims if len(parts) == 1 else self.meeting(state, have, parts, dims)[1]
        for pending, part in parts.items():
            assert part is not None  # a view is cut out before its value is moved
            ref = None if pending else self.siblings.sibling(part, state.shape, have, meet, region)
            if ref is None:
                plan = self.planner.plan(state.shape, state.itemsize, have, meet, pending)
                how = "choose" if chosen and pending else kind
                ref = self._follow(state, region, plan, part, how, alone=len(parts) == 1)
            total = ref if total is None else self.combine(kind, total, ref)
        assert total is not None
        if meet != dims:
            self.siblings.remember(state, region, meet, total)
            plan = self.planner.plan(state.shape, state.itemsize, meet, dims, ())
            total = self._follow(state, region, plan, total, kind, alone=True)
        return total

    def _recomputed(self, state: State, dims: Dims) -> LocalValue:
        """Recomputes a value in `dims`, in the current region: see `recompute`."""
        recipe = state.recipe
        layouts = None if recipe is None else recipe.operands(dims)
        assert recipe is not None and layouts is not None
        refs = [self.get_state(s, wanted) for s, wanted in zip(recipe.sources, layouts)]
        return recipe.write(refs, dims)

    def _follow(
        self, state: State, region: Region, plan: ReshardPlan, ref: LocalValue, kind: str, alone: bool
    ) -> LocalValue:
        """Writes the steps of a reshard; the layouts in between are versions too if the value is `alone`: its only
        part."""
        before = plan.source
        for step in plan.steps:
            op, cause = self._cause_of(state, plan, step)
            ref = self.realiser.step(region, ref, state.shape, before, step, kind, op, cause, self.loc)
            before = step.after
            if alone and not step.unreduced:
                self.siblings.remember(state, region, before, ref)
        return ref

    def _cause_of(self, state: State, plan: ReshardPlan, step: ReshardStep) -> tuple[Op | Func, str]:
        """(operation, why) of a step of a reshard, for the communication plan."""
        if plan.unreduced and step.reduces:
            made = state.partial.op if state.partial is not None else None
            return (self.op if made is None else made), "partial sum"
        return self.op, self.because

    def reshard(
        self, shape: tuple[int, ...], ref: LocalValue, have: Dims, dims: Dims, pending: Sequence[int] = (),
        kind: str = "add", cause: str = "reshard",
    ) -> LocalValue:  # fmt: skip
        """Brings a tensor of global `shape` that is no value of the program from one layout to another."""
        plan = self.planner.plan(shape, item_bytes(ref.dtype), have, dims, tuple(pending))
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
            sent = self.bytes_sent(value, dims)
            if sent > 0:
                text = self.atoms.text(value.type.shape, value.type.dtype, have)
                message = f"{self.op.name}: {text} is gathered: {why}"
                self.findings.append(Finding("full-gather", message, source(self.op), sent))
        return self.get(value, dims)


Rule: TypeAlias = Callable[[Context, Op], None]
