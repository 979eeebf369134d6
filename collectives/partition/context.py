"""The partitioner's context: states of values, resharding on demand, and the walk over operations.

Every rule asks for its operands in the layouts it wants (`get`) and binds its results in the layouts it made them in
(`bind`, `bind_partial`, `bind_lazy`). Collectives appear where a value is asked for in a layout in which no version of
it exists; the version is remembered, so that a second consumer finds it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

from propagation.attributes import symbol
from propagation.program import Block, Func, Op, Value, source
from propagation.rules import RuleCache

from ..cost import item_bytes
from ..emit import ModuleBuilder, Ref, Region
from ..errors import UnsupportedOpError
from ..layout import Atoms, Dims, local_shape, replicated
from ..plan import Finding
from ..realise import REDUCERS, Realiser, zero_literal
from ..reshard import Planner, ReshardPlan
from ..topology import Topology
from . import rules
from .attribute_texts import AttributeTexts
from .provenance import RESHARD, cause_of, maker
from .state import TRANSPARENT, Journal, Partial, State, Version, View

__all__ = ["Context"]

SOFT, SHARED = 0.9, 0.85


class Context:
    """State of partitioning one module; `region` is where operations are being written."""

    def __init__(self, program, sharding, atoms: Atoms, builder: ModuleBuilder, topology: Topology, options):
        self.program = program
        self.sharding: Callable[[Value], object] = sharding
        self.atoms = atoms
        self.sizes = atoms.sizes
        self.builder = builder
        self.topology = topology
        self.options = options
        self.planner = Planner(atoms)
        self.realiser = Realiser(atoms, builder, topology.compiler)
        self.findings: list[Finding] = []
        self.region: Region = None
        self.op: Op | Func = None
        self.because = RESHARD  # why values are asked for
        self.env: dict[Value, State] = {}
        # For values that are returned: the layout in which they leave their function (or the call, if it is written
        # in place), and how much moving there counts.
        self.ends: dict[Value, tuple[Dims, float]] = {}
        self.left_partial: dict[Value, tuple[int, ...]] = {}  # what leaves the program unreduced, over which atoms
        self.returned_as: dict[Value, Value] = {}  # from what a callee written in place returns to the call's result
        self.callees: dict = {}
        self.decisions: dict = {}
        self._rules = rules()
        self.rules = RuleCache()
        self._wants: dict[Value, Dims] = {}
        self.estimates: dict[tuple[Value, Dims, int], float] = {}  # of `lookahead`
        texts = AttributeTexts()
        self.signature, self.attr_text, self.text_of = texts.signature, texts.of, texts.one
        self._pieces: dict[tuple[object, Dims], tuple[int, ...]] = {}
        self._loc_of: Op | None = None
        self._loc_alias: dict = {}
        self._loc = ""
        self._scans: dict[Block, object] = {}
        self.journal = Journal()
        self.tries: int | None = None  # operations that `carries` may still write for trials
        self.manual: tuple[int, ...] = ()

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
        """The layout in which a value is needed in the end, if it is only returned; else what propagation decided."""
        end = self.ends.get(value) if len(value.uses) == 1 else None
        return self.want(value) if end is None else end[0]

    def state(self, value: Value) -> State:
        return self.env[value]

    # -- binding results --------------------------------------------------------------------------------------

    def new_state(self, value: Value) -> State:
        t = value.type
        state = State(t.shape, t.dtype, self.region, len(value.uses), None if t.is_tensor else t.text)
        if value.owner is self.op and self.op.name in TRANSPARENT:
            state.origin = (self.op, tuple([self.env[v] for v in self.op.operands]))
        self.env[value] = state
        return state

    def bind(self, value: Value, dims: Dims, ref: Ref) -> None:
        self.new_state(value).versions[dims] = ref

    def bind_lazy(self, value: Value, make: Callable[[Dims], Ref]) -> None:
        """`make(dims)` writes the value in any layout, without communication, into the current region."""
        env, op = self.env, self.op

        def at_home(dims: Dims) -> Ref:
            saved = self.env, self.op
            self.env, self.op = env, op
            try:
                return make(dims)
            finally:
                self.env, self.op = saved

        self.new_state(value).make = at_home

    def bind_partial(
        self, value: Value, dims: Dims, parts: dict[tuple[int, ...], Ref], kind: str = "add", masked: bool = False,
        chosen: bool = False,
    ) -> None:  # fmt: skip
        """Binds a value that still has to be reduced; resolves it at once if nothing is pending."""
        state = self.new_state(value)
        if set(parts) == {()}:
            state.versions[dims] = parts[()]
        else:
            state.partial = Partial(kind, dims, parts, masked, chosen, maker(self, value))

    # -- asking for values ------------------------------------------------------------------------------------

    def get(self, value: Value, dims: Dims) -> Ref:
        """`value` complete and laid out as `dims`; collectives are written if no such version is visible."""
        state = self.env[value]
        ref = state.versions.get(dims)
        return self.get_state(state, dims) if ref is None else ref

    def get_state(self, state: State, dims: Dims) -> Ref:
        """The same for the state of a value."""
        if state.view is not None and not state.versions:
            self._cut(state)
        ref = state.versions.get(dims)
        if ref is not None:
            return ref
        region = self.region
        while region is not state.home and region is not None:
            local = region.known.get(state)
            if local is not None and dims in local:
                return local[dims]
            region = region.parent
        return self._materialise(state, dims)

    def bind_view(self, value: Value, view: View) -> None:
        """Binds a value that is cut out of another tensor when somebody asks for it."""
        self.new_state(value).view = view

    def view(self, value: Value, dims: Dims) -> View | None:
        """The view of one tensor along one dimension that `value` is in `dims`, if it has not been cut out yet."""
        view = self.views(value, dims)
        return None if view is None or view.more or view.joined else view

    def views(self, value: Value, dims: Dims) -> View | None:
        """The same for any view."""
        state = self.env[value]
        return None if state.view is None or state.versions or state.view.dims != dims else state.view

    def _cut(self, state: State) -> None:
        outer, self.region = self.region, state.home
        state.versions[state.view.dims] = state.view.cut()
        self.region = outer

    def whole(self, value: Value) -> Ref:
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
        """Bytes that moving a version of `state` would send."""
        if state.make is not None or dims in state.versions:
            return 0.0
        found = self._sources(state, self.region)
        if state.versions and self.elements(state.shape, dims) <= self.elements(state.shape, state.dims):
            found += self.journal.more(found, state.shape, self.region)  # else work that was shared would not stay so
        return min((self._source_cost(state, s, dims) for s in found), default=0.0)

    def move_cost(self, value: Value, dims: Dims) -> float:
        """`cost` for comparing choices: what several consumers can share counts a little less."""
        cost = self.cost(value, dims)
        if not cost:
            return cost
        state = self.env[value]
        if state.home is not self.region:
            return cost / self.runs_since(state)
        awaited = state.uses > len(value.uses) or value.uses[-1].op is not self.op  # uses are in the program's order
        return cost * SHARED if state.uses > 1 and awaited else cost

    def runs_since(self, state: State) -> int:
        """How often the current region runs for each time that a new version of `state` would be written."""
        runs, region, landing = 1, self.region, self._landing(state)
        while region is not landing and region is not None:
            runs *= region.trips or 1
            region = region.parent
        return max(1, runs)

    def later_cost(self, value: Value, dims: Dims, pending: tuple[int, ...] = ()) -> float:
        """What it takes to bring a result from `dims` to the layout that propagation decided. It counts a little less
        than moving now, because consumers may be content with `dims`."""
        if not value.uses:
            return 0.0
        end = self.ends.get(value) if len(value.uses) == 1 else None
        shape, bits = value.type.shape, self.bits(value)
        if end is not None:
            want, soft = end
            return (1.0 if pending else soft) * self.planner.cost(shape, bits, dims, want, pending)
        if pending:
            cost = lambda layout: self.planner.cost(shape, bits, dims, layout, pending)
            return min(cost(x) + SOFT * self._extra_cost(value, x) for x in {self.want(value), dims})
        return SOFT * self._extra_cost(value, dims)

    def _extra_cost(self, value: Value, dims: Dims) -> float:
        """What `value` costs its users in `dims`."""
        from . import lookahead  # it needs the context's type

        return lookahead.extra_cost(self, value, dims)

    def forget_estimates(self) -> None:
        """Drops what was estimated about users of values."""
        self.estimates.clear()

    def _sources(self, state: State, region: Region) -> list[tuple]:
        """(dims, parts) of the versions visible in `region`."""
        out = [(dims, {(): ref}) for dims, ref in state.versions.items()]
        while region is not state.home and region is not None:
            out += [(dims, {(): ref}) for dims, ref in region.known.get(state, {}).items()]
            region = region.parent
        if state.view is not None and not out:
            out.append((state.view.dims, {(): None}))
        if state.partial is not None and not out:
            out.append((state.partial.dims, state.partial.parts))
        return out

    def _source_cost(self, state: State, source_: tuple, dims: Dims) -> float:
        have, parts = source_
        if len(parts) == 1:
            ((pending, ref),) = parts.items()
            if not pending and self.journal.sibling(ref, state.shape, have, dims, self.region) is not None:
                return 0.0
            return self.planner.cost(state.shape, state.bits, have, dims, pending)
        return self._meeting(state, have, parts, dims)[0]

    def _meeting(self, state: State, have: Dims, parts, dims: Dims) -> tuple[float, Dims]:
        """(bytes, layout) of the cheapest way to `dims` that combines the parts of a sum in one layout."""
        cost = lambda before, after, pending=(): self.planner.cost(state.shape, state.bits, before, after, pending)
        layouts = [dims, have]
        for pending in parts:
            layouts += [step.after for step in self.planner.plan(state.shape, state.bits, have, dims, pending).steps]
        return min(
            ((sum(cost(have, x, p) for p in parts) + cost(x, dims), x) for x in dict.fromkeys(layouts)),
            key=lambda found: found[0],
        )

    def _materialise(self, state: State, dims: Dims) -> Ref:
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
            kind = "add" if state.partial is None else state.partial.kind
            chosen = state.partial is not None and state.partial.chosen and kind == "add"
            total, meet = None, dims if len(parts) == 1 else self._meeting(state, have, parts, dims)[1]
            for pending, part in parts.items():
                ref = None if pending else self.journal.sibling(part, state.shape, have, meet, region)
                if ref is None:
                    plan = self.planner.plan(state.shape, state.bits, have, meet, pending)
                    how = "choose" if chosen and pending else kind
                    ref = self._follow(state, region, plan, part, how, alone=len(parts) == 1)
                total = ref if total is None else self.combine(kind, total, ref)
            if meet != dims:
                self._remember(state, region, meet, total)
                plan = self.planner.plan(state.shape, state.bits, meet, dims, ())
                total = self._follow(state, region, plan, total, kind, alone=True)
            self._remember(state, region, dims, total)
            return total
        finally:
            self.region = outer

    def combine(self, kind: str, a: Ref, b: Ref) -> Ref:
        """`a` and `b` put together by a reduction's operation."""
        return self.region.op(REDUCERS[kind], (a, b), [(a.shape, a.dtype)], loc=self.loc)[0]

    def _landing(self, state: State) -> Region:
        """Where a new version is written: next to the value, out of the loops between, but within a branch."""
        path, region = [], self.region
        while region is not state.home and region is not None:
            path.append(region)
            region = region.parent
        landing = state.home
        for region in reversed(path):
            if region.kind != "loop":
                landing = region
        return landing

    def _remember(self, state: State, region: Region, dims: Dims, ref: Ref) -> None:
        versions = state.versions if region is state.home else region.known.setdefault(state, {})
        self.journal.remember(Version(versions, dims, ref, state.shape, region))

    def set_wants(self, wants: dict[Value, Dims]) -> None:
        """Replaces what propagation decided for some values."""
        self._wants.update(wants)
        self.forget_estimates()

    def _follow(self, state: State, region: Region, plan: ReshardPlan, ref: Ref, kind: str, alone: bool) -> Ref:
        before = plan.source
        for step in plan.steps:
            op, cause = cause_of(self, state, plan, step)
            ref = self.realiser.step(region, ref, state.shape, before, step, kind, op, cause, self.loc)
            before = step.after
            if alone and not step.unreduced:
                self._remember(state, region, before, ref)
        return ref

    def reshard(self, shape, ref: Ref, have: Dims, dims: Dims, pending=(), kind: str = "add", cause="reshard") -> Ref:
        """A tensor that is not a value of the program, brought from one layout to another."""
        bits = State(shape, ref.dtype, self.region, 1).bits
        plan = self.planner.plan(shape, bits, have, dims, tuple(pending))
        before = have
        for step in plan.steps:
            ref = self.realiser.step(self.region, ref, shape, before, step, kind, self.op, cause, self.loc)
            before = step.after
        return ref

    # -- writing ----------------------------------------------------------------------------------------------

    @property
    def loc(self) -> str:
        """The location alias of the operation being partitioned."""
        if self._loc_of is not self.op:
            self._loc_of = self.op
            loc = self.op.loc if self.op is not None else None
            self._loc = "" if loc is None else self._alias(loc)
        return self._loc

    def _alias(self, loc) -> str:
        """The alias of an MLIR location. Printing one costs much more than hashing its attribute, and lines repeat."""
        key = loc.attr
        alias = self._loc_alias.get(key)
        if alias is None:
            text = str(loc)
            alias = "" if text == "loc(unknown)" else self.builder.location(text[4:-1])
            self._loc_alias[key] = alias
        return alias

    def emit(self, name: str, operands: Sequence[Ref], shape, dtype: str, attrs="", extra="", regions=()) -> Ref:
        """Writes an operation with one result."""
        return self.region.op(name, operands, [(tuple(shape), dtype)], attrs, extra, regions, self.loc)[0]

    def local_copy(self, op: Op, operands: Sequence[Ref], shapes: Sequence[tuple[int, ...]], attrs=None, effect=False):
        """The same operation on local pieces, regions included. `attrs` replaces the attribute text; -> list[Ref]."""
        types = [(tuple(s), r.type.dtype) for s, r in zip(shapes, op.results)]
        text = self.attr_text(op) if attrs is None else attrs
        regions = [self.copy_region(b) for b in op.regions] if op.regions else ()
        return self.region.op(op.name, operands, types, extra=text, regions=regions, loc=self.loc, effect=effect)

    def copy_region(self, block: Block) -> Region:
        """A region of scalars (of a reduction, sort, scatter, ...), copied as it is."""
        body = Region("body", self.region, [(a.type.shape, a.type.dtype) for a in block.args])
        body.op(block.terminator.name, self.copy_ops(block, body, body.args), ())
        return body

    def copy_ops(self, block: Block, body: Region, args: Sequence[Ref]) -> list[Ref]:
        """Writes the operations of a region of scalars into `body`, for other arguments; what the region returns."""
        names: dict[Value, Ref] = dict(zip(block.args, args))
        for op in block.ops[:-1]:
            if op.name == "func.call":
                self.keep_function(symbol(op.attrs["callee"]))
            operands = [names[v] if v in names else self._captured(v) for v in op.operands]
            types = [(r.type.shape, r.type.dtype) for r in op.results]
            nested = [self.copy_region(b) for b in op.regions] if op.regions else ()
            name = "stablehlo.constant" if op.name == "sdy.constant" else op.name
            names.update(zip(op.results, body.op(name, operands, types, extra=self.attr_text(op), regions=nested)))
        return [names[v] if v in names else self._captured(v) for v in block.terminator.operands]

    def _captured(self, value: Value) -> Ref:
        if value.type.shape:
            raise UnsupportedOpError("a reduction body uses a tensor defined outside of it", source(self.op))
        return self.whole(value)

    # -- findings ---------------------------------------------------------------------------------------------

    def gathered(self, value: Value, dims: Dims, why: str, within: Iterable[int] | None = None) -> Ref:
        """`get`, with a finding if what splits dimensions `within` (None: all) of several positions splits none in
        `dims`. With `allow_full_gather=False` findings end the partitioning, once the layouts of loops are final."""
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
        from . import associative, bodies, invariant, numbering  # they need the context's type

        table = self._rules
        scans, skipped = None, set()
        for op in ops:
            if scans is None:
                scans = self._scans.get(op.parent)
                if scans is None:
                    scans = self._scans[op.parent] = associative.Scans(op.parent)
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
            outer, self.region = self.region, invariant.region_of(self, op)
            numbering.once(self, op, rule)
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
    def bits(value: Value) -> float:
        """Bytes per element of a value."""
        return item_bytes(value.type.dtype)

    def masked(self, ref: Ref, shape, dims: Dims, which: Iterable[int], fill: str | None = None) -> Ref:
        """`ref` with the padding of the dimensions `which` set to `fill` (zero if None)."""
        literal = zero_literal(ref.dtype) if fill is None else fill
        return self.masked_with(ref, shape, dims, which, None, literal)

    def masked_with(self, ref: Ref, shape, dims: Dims, which: Iterable[int], fill: Ref | None, literal="") -> Ref:
        """The same with the scalar `fill`, or the constant `literal` if that is None."""
        for d in which:
            inside = self.realiser.inside(self.region, ref.shape, d, dims[d], shape[d]) if dims[d] else None
            if inside is not None:
                number = self.realiser.constant(self.region, (), ref.dtype, literal) if fill is None else fill
                other = self.realiser.splat(self.region, number, ref.shape)
                ref = self.emit("stablehlo.select", (inside, ref, other), ref.shape, ref.dtype)
        return ref

    def elements(self, shape: Sequence[int], dims: Dims) -> int:
        return math.prod(local_shape(shape, dims, self.sizes))


def _recompute():
    from . import recompute  # it needs the context's type

    return recompute
