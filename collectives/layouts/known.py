"""What is known while a program is partitioned: its shardings, and the state of every value that has been bound.

The lowest of the context's layers (`Known`, `Costs`, `Writer`, `Context`): nothing here weighs or writes anything.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from propagation.model import TensorSharding
from propagation.program import Func, Op, OtherType, Program, TensorType, Value
from propagation.rules import RuleCache

from ..cost import item_bytes
from ..findings import Finding
from ..ir.program import LocalValue, Region
from ..layout import Atoms, Dims, local_shape, replicated
from ..options import Options
from ..plan.decisions import Decision
from .siblings import Siblings, versions_in
from .state import NONE_YET, RESHARD, TRANSPARENT, Changed, Partial, Source, State, View

__all__ = ["Known"]


class Known(abc.ABC):
    """The program being partitioned, and what has become of its values so far.

    env     the states of the values of the function being written
    region  where operations are being written
    op      the operation being partitioned; the function while its arguments and results are bound
    manual  the atoms of the manual computations around `op`, over which it is written per device already
    """

    def __init__(
        self, program: Program, sharding: Callable[[Value], TensorSharding | None], atoms: Atoms, options: Options
    ):
        self.program = program
        self.sharding = sharding
        self.atoms = atoms
        self.sizes = atoms.sizes
        self.options = options
        # Whether what is sent for one user of a value may be held until others need it: not where memory is short.
        self.holds_for_others = options.memory_growth > 0
        self.findings: list[Finding] = []
        self.chosen: list[Decision] = []  # of ways to do operations, see `collectives.decide`
        self.because = RESHARD  # why values are asked for: the cause of a reshard in the plan
        self.env: dict[Value, State] = {}
        self.region = Region("function", None)  # until a function begins
        self.op: Op | Func = program.main
        self.manual: tuple[int, ...] = ()
        # For returned values: the layout in which they leave their function or loop, and what resharding to it counts
        # as, as a share of its bytes.
        self.ends: dict[Value, tuple[Dims, float] | None] = {}
        # Results that leave the program unreduced: over which atoms.
        self.left_partial: dict[Value, tuple[int, ...]] = {}
        self.returned_as: dict[Value, Value] = {}  # what an inlined callee returns -> the call's result
        self.decisions: dict[Hashable, Any] = {}  # what rules decided or found, by keys of their own
        self.rules = RuleCache()
        self.siblings = Siblings()
        self.divided: frozenset[Value] = frozenset()  # made in no larger pieces than wanted: see `within_memory`
        self.changed = Changed()  # about values, by the draft being written
        self.wants: dict[Value, Dims] = {}  # what `want` found
        self.written_out: list[Program] = []  # in place of operations: kept, as each keeps its MLIR context alive
        self._pieces: dict[tuple[TensorType | OtherType, Dims], tuple[int, ...]] = {}

    # -- of the module, see `collectives.module` --------------------------------------------------------------

    @abc.abstractmethod
    def calls(self, name: str) -> int:
        """How many calls of a function the program has."""

    @abc.abstractmethod
    def manual_shardings(self, op: Op) -> tuple[Sequence[TensorSharding], Sequence[TensorSharding]]:
        """(in_shardings, out_shardings) of a manual computation."""

    @abc.abstractmethod
    def manual_atoms(self, op: Op) -> tuple[int, ...]:
        """The atoms of the axes over which a computation is manual."""

    # -- what is wanted ---------------------------------------------------------------------------------------

    def want(self, value: Value) -> Dims:
        """The layout that propagation decided for a value."""
        found = self.wants.get(value)
        if found is None:
            s = self.sharding(value)
            rank = len(value.type.shape)
            found = replicated(rank) if s is None or len(s.dims) != rank else self.atoms.dims(s)
            self.wants[value] = found
        return found

    def goal(self, value: Value) -> Dims:
        """The layout in which a value leaves its function or loop, if it is only returned; else the wanted one."""
        end = self.ends.get(value) if len(value.uses) == 1 else None
        return self.want(value) if end is None else end[0]

    def promised(self, value: Value) -> Dims | None:
        """The layout that a version of `value` will have whatever its other users take, because the function or loop
        that it is made in returns it so: another user that takes it so, too, sends nothing. None where that is not
        known, the version that is made now would stay in a branch, or nothing is to be held for others."""
        if not self.holds_for_others:
            return None
        while value in self.returned_as:
            value = self.returned_as[value]
        end = self.ends.get(value)
        if end is None or end[1] < 1 or value in self.left_partial:
            return None
        state = self.env.get(value)
        return end[0] if state is None or self.landing(state).origin is state.home else None

    # -- sizes ------------------------------------------------------------------------------------------------

    @staticmethod
    def itemsize(value: Value) -> float:
        """Bytes per element of a value."""
        return item_bytes(value.type.dtype)

    def elements(self, shape: Sequence[int], dims: Dims) -> int:
        """Elements of a device's piece of a tensor of global `shape`."""
        return math.prod(local_shape(shape, dims, self.sizes))

    def piece_shape(self, value: Value, dims: Dims) -> tuple[int, ...]:
        """The shape of a device's piece of `value`, laid out as `dims`."""
        key = (value.type, dims)
        found = self._pieces.get(key)
        if found is None:
            found = self._pieces[key] = local_shape(value.type.shape, dims, self.sizes)
        return found

    # -- binding results --------------------------------------------------------------------------------------

    def state(self, value: Value) -> State:
        """What is known of a value."""
        return self.env[value]

    def new_state(self, value: Value, versions: Mapping[Dims, LocalValue] = NONE_YET) -> State:
        """Binds a value to a state with given versions; one without any is to be filled in."""
        t, op, env = value.type, self.op, self.env
        text = None if t.is_tensor else t.text
        state = State(t.shape, t.dtype, self.region, len(value.uses), self.changed, text, versions)
        if value.owner is op and op.name in TRANSPARENT:
            state.origin = (op, tuple([env[v] for v in op.operands]))
        env[value] = state
        return state

    def bind(self, value: Value, dims: Dims, ref: LocalValue) -> None:
        """Binds a complete value, laid out as `dims`."""
        self.new_state(value, {dims: ref})

    def bind_same(self, value: Value, other: Value) -> None:
        """Binds a value that is another one by a new name."""
        state = self.env[value] = self.env[other]
        state.use(max(0, len(value.uses) - 1))  # the operation counts as one use of the other

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
        if set(parts) == {()}:
            self.bind(value, dims, parts[()])
        else:
            self.new_state(value).partial = Partial(kind, dims, parts, masked, chosen, self._maker(value))

    def _maker(self, value: Value) -> Op | None:
        """The operation that made `value`, a result of the current one, unreduced: the current one, or the one that
        made its unreduced operand. None for arguments."""
        op = self.op
        if value.is_argument or not isinstance(op, Op):
            return None
        for v in op.operands:
            state = self.env.get(v)
            if state is not None and state.partial is not None and not state.versions and state.partial.op is not None:
                return state.partial.op
        return op

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

    # -- where versions stand ---------------------------------------------------------------------------------

    def landing(self, state: State) -> Region:
        """The region to write a new version in: the value's own, outside of the loops between (loop-invariant code
        motion), but inside of branches, which may not run."""
        path: list[Region] = []
        region: Region | None = self.region
        while region is not None and region.origin is not state.home:
            path.append(region)
            region = region.parent
        landing = state.home if region is None else region
        for inner in reversed(path):
            if inner.kind != "loop":
                landing = inner
        return landing

    def within(self, home: Region) -> Region:
        """The region to write what belongs to `home`: it, or the draft of it that is being written."""
        return self.region.around(home) or home

    def runs_since(self, state: State) -> int:
        """How often the current region runs for each time that a new version of `state` would be written."""
        if state.home is self.region.origin:
            return 1
        runs, landing = 1, self.landing(state)
        region: Region | None = self.region
        while region is not landing and region is not None:
            runs *= region.trips or 1
            region = region.parent
        return max(1, runs)

    def sources(self, state: State, region: Region) -> list[Source]:
        """What a reshard may start from: the versions visible in `region`, or what the value was made as."""
        out: list[Source] = [(dims, {(): ref}) for dims, ref in state.versions.items()]
        at: Region | None = region
        while at is not None and at.origin is not state.home:
            out += [(dims, {(): ref}) for dims, ref in versions_in(state, at).items()]
            at = at.parent
        if state.view is not None and not out:
            out.append((state.view.dims, {(): None}))
        if state.partial is not None and not out:
            out.append((state.partial.dims, state.partial.parts))
        return out
