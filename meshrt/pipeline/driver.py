"""Every cache between a call and its running program, with its key, and the way from one station to the next.

    cache        key                                                                             value
    calls        argument structure and static arguments, settings, mesh in context, signatures  Entry
    traces       TraceKey                                                                        TraceRecord
    nested       TraceKey                                       a Jaxpr within a caller's trace
    lowered      trace, LoweringRequest                                                          LoweredModule
    propagated   trace, LoweringRequest, propagator                                  propagation.Propagated
    partitioned  trace, LoweringRequest, propagator, options                         collectives.PartitionedProgram
    programs     ProgramKey                                                                      CompiledProgram
    loaded       program, mesh or devices                                                        Loaded

Only `calls` and `loaded` are keyed by devices: they are dropped when devices go (`clear_backends`), the rest stays.
Under these caches lie those of `meshrt.runtime.compile_cache`: equal programs of several functions are compiled once
per process, and on disk.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshrt import config, errors
from meshrt.core.again import tells_more
from meshrt.core.axes import axes_in_scope
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr
from meshrt.core.places import bare_types, is_placed
from meshrt.core.told import Told
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.heuristics import CALLS_PER_TRACE
from meshrt.lowering.module import LoweredModule
from meshrt.pipeline.donation import check_layouts, donated_leaves, warn_of_unusable
from meshrt.pipeline.entry import Entry, any_committed
from meshrt.pipeline.inspections import answer, answer_on_one_device
from meshrt.pipeline.keys import ProgramKey, SharedTraces, TraceKey, keep_latest, note_used
from meshrt.pipeline.loaded import Loaded
from meshrt.pipeline.lowered import Lowered, lower
from meshrt.pipeline.misses import NOWHERE, CacheMiss, Call, History, call_of, explained
from meshrt.pipeline.options import CompilerOptions, JitOptions
from meshrt.pipeline.partitioned import options_for, partition
from meshrt.pipeline.placement import Wanted, resolve
from meshrt.pipeline.program import CompiledProgram, compile_lowered
from meshrt.pipeline.propagated import Propagated, propagate
from meshrt.pipeline.road import Road
from meshrt.pipeline.staged import APART, Staged, StagedCall, Taken, only, trace_key, types_alone, where_needed
from meshrt.pipeline.stateful import StatefulEntry, StatefulProgram, held, types_of
from meshrt.pipeline.static_arguments import Static
from meshrt.pipeline.structures import Call as ShortCall
from meshrt.pipeline.structures import Run, unknown
from meshrt.pipeline.traced import LoweringRequest, Traced, TraceRecord, trace, trace_nested
from meshrt.pipeline.written import Written
from meshrt.runtime import backend, events
from meshrt.runtime.array import Array
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.mesh_caches import mesh_reads, note_read, recall
from meshrt.transforms.tools import hoist_consts

if TYPE_CHECKING:
    import collectives
    import propagation

__all__ = ["Driver", "all_drivers"]


_log = logging.getLogger("meshrt.caches")
_alive: weakref.WeakSet[Driver] = weakref.WeakSet()
_alive_lock = threading.Lock()


def all_drivers() -> list[Driver]:
    """The drivers of all jitted functions of this process."""
    with _alive_lock:
        return list(_alive)


class Driver:
    """The caches of one jitted function: `fun`, called `name` in messages, with the options of `jit`."""

    __slots__ = (
        "__weakref__", "_fun", "_unswept", "calls", "captured", "direct", "donated", "history", "loaded", "lowered",
        "name", "nested", "options", "partitioned", "programs", "propagated", "shared", "short",
        "stateful", "traced_times", "traces",
    )  # fmt: skip

    def __init__(
        self, fun: Callable[..., Any], name: str, options: JitOptions, *, weakly: bool = False,
        donated: tuple[bool, ...] = (), traces: SharedTraces | None = None,
    ):  # fmt: skip
        """`donated` says of the flat arguments which are donated, beside what the options say (empty: those only).
        `traces` are those of the function that others know."""
        self.name, self.options, self.donated = name, options, donated
        # Caches that outlive a jitted function must not keep its function (`meshrt.pipeline.sharing`).
        self._fun: Callable[[], Any] = weakref.ref(fun) if weakly else lambda: fun
        self.calls: dict[Any, Entry] = {}
        # The same calls by the keys that code made for one argument structure reads (`meshrt.pipeline.structures`), and
        # such code for the structure of the last calls.
        self.direct: dict[Any, Run] = {}
        self.short: ShortCall = unknown
        # In the order of their last use, but for the uses by calls that are ready to run.
        self.traces: OrderedDict[TraceKey, TraceRecord] = OrderedDict()
        self.shared = SharedTraces() if traces is None else traces
        self.nested = self.shared.nested
        # Programs over references, by their traces.
        self.stateful: dict[TraceRecord, StatefulProgram] = {}
        self.lowered: dict[tuple[TraceRecord, LoweringRequest], LoweredModule] = {}
        self.propagated: dict[tuple[TraceRecord, LoweringRequest, str], propagation.Propagated] = {}
        self.partitioned: dict[Any, collectives.PartitionedProgram] = {}
        self.programs: dict[ProgramKey, CompiledProgram] = {}
        self.loaded: dict[tuple[CompiledProgram, Any], Loaded] = {}
        self.captured: tuple[Any, ...] = ()  # the mutable values that the function closes over
        self.history, self.traced_times, self._unswept = History.of(fun), 0, 0
        with _alive_lock:
            _alive.add(self)

    @property
    def fun(self) -> Callable[..., Any]:
        fun: Callable[..., Any] = self._fun()
        return fun

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def forget_calls(self) -> None:
        """Drops the calls that are ready to run."""
        self.calls.clear()
        self.direct.clear()
        self.short = unknown

    def forget_devices(self) -> None:
        """Drops what is bound to devices; traces and programs stay."""
        self.forget_calls()
        self.loaded.clear()
        for program in self.stateful.values():
            program.forget_calls()

    def clear(self) -> None:
        """Drops everything."""
        self.forget_devices()
        for cache in (self.traces, self.nested, self.lowered, self.propagated, self.partitioned):
            cache.clear()
        self.shared.records.clear()
        self.programs.clear()
        self.stateful.clear()
        self.traced_times = 0
        self.history.forget_values(self)

    def _keep_bounded(self) -> None:
        """Drops the traces that were not used for longest, beyond those that the setting `cached_traces` keeps.

        A call that is ready to run leaves no sign of being used. So a while before, and again each time a quarter of
        the traces is new, all calls are dropped: those still in use come back, and take their traces to the end of the
        row. That costs them no compilation.
        """
        limit = config.settings.cached_traces
        self._unswept += 1
        if 4 * self._unswept < limit >= len(self.traces):
            return
        self._unswept = 0
        self.forget_calls()
        gone = set(keep_latest(self.traces, limit))
        if not gone:
            return
        for record in gone:
            self.stateful.pop(record, None)
        caches: tuple[dict[Any, Any], ...] = (self.lowered, self.propagated, self.partitioned, self.programs)
        for cache in caches:
            for key in [k for k in list(cache) if k[0] in gone]:
                cache.pop(key, None)
        for key in [k for k in list(self.loaded) if k[0].record in gone]:
            self.loaded.pop(key, None)

    # -- from a call to its trace --------------------------------------------------------------------------------------

    def begin(
        self, leaves: Sequence[Any], tree: Any, static: Static, taken: Taken = None
    ) -> tuple[Wanted, TraceRecord]:
        """Traces for these arguments (arrays, references or ShapeDtypeStructs); where they lie counts if `taken`."""
        placed = self.shared.are_placed  # read once: another thread may set it meanwhile
        wanted = resolve(self, only(held(leaves), taken), types_of(leaves, placed), tree, static)
        wanted.taken = taken
        if placed:
            return wanted, self._traced(trace_key(wanted, True), wanted.arg_shardings)
        with tells_more():
            return wanted, self._traced(trace_key(wanted), wanted.arg_shardings)
        self.shared.are_placed = True  # as it was asked for
        return self.begin(leaves, tree, static, taken)

    def staged(self, leaves: Sequence[Any], tree: Any, static: Static, *, ahead: bool = False) -> Staged:
        """`begin` and `finish`; no `StagedCall` of a program over references, which finds out by itself."""

        def finished(wanted: Wanted, record: TraceRecord) -> Staged:
            return wanted, record, None if record.takes_refs else self.finish(wanted, record, leaves, ahead=ahead)

        return where_needed(lambda x, taken: self.begin(x, tree, static, taken), finished, leaves, self.options)

    def finish(self, wanted: Wanted, record: TraceRecord, leaves: Sequence[Any], *, ahead: bool = False) -> StagedCall:
        """Finds out where the program of a trace runs; `ahead` of time it may be a platform that is not here."""
        key, tree, static = trace_key(wanted), wanted.tree, wanted.static
        placement, request, written = wanted.finish(record, record.places, self._donated(tree, static), ahead)
        call = self._call(key, wanted.arg_shardings, placement.devices, leaves)
        self.history.calls.append(call._replace(asked=record.asked))
        return StagedCall(record, request, placement, written)

    def _donated(self, tree: Any, static: Static) -> tuple[bool, ...]:
        return self.donated or donated_leaves(self.options, tree, static)

    def _traced(self, key: TraceKey, shardings: Sequence[Any]) -> TraceRecord:
        record = self._known_trace(key)
        if record is None:
            self._begin_trace(key, shardings)
            record = trace(self.fun, self.name, key.avals, key.in_tree, key.static, key.mesh, self.captured)
            self.traced_times += 1
            self._keep(key, record)
        else:
            for used in key.all:
                note_used(self.traces, used)
        return record

    def _known_trace(self, key: TraceKey) -> TraceRecord | None:
        """A trace of this driver's, or of another one of the same function.

        Not if the function closes over mutable values: each driver finds them, and has them among the arguments, in the
        order of its own calls, which no key tells.
        """
        record = next(filter(None, map(self.traces.get, key.all)), None)
        if record is None and not self.captured:
            record = next(filter(None, map(self.shared.records.get, key.all)), None)
            if record is not None:
                self._keep(key, record)
        return record

    def _keep(self, key: TraceKey, record: TraceRecord) -> None:
        key = key if record.asked else key.anywhere
        self.traces[key] = record
        if not self.captured:
            self.shared.records[key] = record
        self._keep_bounded()

    def nested_jaxpr(self, avals: tuple[ShapedArray, ...], tree: Any, static: Static) -> tuple[Jaxpr, list[Any], Any]:
        """For a call within another trace: the Jaxpr without constvars, its constants, and the result structure.

        That of a call outside of traces serves as well. Cached unless the function captures tracers, which belong to
        one trace of the caller.
        """
        unread = mesh_context.unread
        key = TraceKey(tree, static, avals, config.trace_key(), unread, axes_in_scope(), unread)
        if any(map(is_placed, avals)):
            self.shared.are_placed = True  # who calls it tells places as it was asked for
        found: tuple[Jaxpr, list[Any], Any] | None = recall(self.nested, key.anywhere, key)
        if found is None:
            with mesh_reads() as reads:
                closed, out_tree = self._nested_trace(key)
            hoisted = hoist_consts(closed)
            found = (hoisted.jaxpr, hoisted.consts, out_tree)
            if not any(isinstance(c, Tracer) or aval_of(c).mutable for c in hoisted.consts):
                self.nested[key if reads.asked else key.anywhere] = found
                keep_latest(self.nested, config.settings.cached_traces)
        else:
            for used in (key.anywhere, key):
                note_used(self.nested, used)
        return found

    def _nested_trace(self, key: TraceKey) -> tuple[ClosedJaxpr, Any]:
        known = self._known_trace(key)
        if known is not None:  # it was called, or lowered, by itself
            if known.asked:
                note_read()
            return known.as_traced()
        self._begin_trace(key)
        self.history.calls.append(self._call(key))
        traced = trace_nested(self.fun, self.name, key.avals, key.in_tree, key.static)
        self.traced_times += 1
        return traced

    # -- why a call is not known ---------------------------------------------------------------------------------------

    def _begin_trace(self, key: TraceKey, shardings: Sequence[Any] = ()) -> None:
        """RetraceError if there may not be another trace. Those in which the function raised do not count."""
        if config.settings.no_tracing:
            placed = Told(self.fun, self.name, "jit", tuple).placed()
            raise errors.RetraceError(
                f"re-tracing function {placed} for `jit`, but 'no_tracing' is set: it has not been called with such "
                "arguments before. Call it before the block; explain_cache_misses says what is new"
            )
        limit = self.options.max_traces
        if limit is not None and self.traced_times >= limit:
            raise errors.RetraceError(
                f"{self.name} has been traced {self.traced_times} times, and jit(..., max_traces={limit}) allows no "
                f"more. {self._miss('trace', self._call(key, shardings))}"
            )
        events.record("trace")

    def explain(self, key: Any, leaves: Sequence[Any], tree: Any, static: Static) -> CacheMiss:
        """What a call needs that is not there, and why; nothing is made."""

        def missing(wanted: Wanted, _: Any) -> CacheMiss:
            layer, devices = self._layer(wanted)
            call = self._call(trace_key(wanted), wanted.arg_shardings, devices, leaves)
            return self._miss(None if key in self.calls else layer, call)

        try:
            return where_needed(lambda x, taken: self._known(x, tree, static, taken), missing, leaves, self.options)
        except APART:
            return missing(*self._known(types_alone(leaves), tree, static, None))

    def _known(
        self, leaves: Sequence[Any], tree: Any, static: Static, taken: Taken
    ) -> tuple[Wanted, TraceRecord | None]:
        """As `begin`, without a trace if there is none."""
        wanted = resolve(self, only(leaves, taken), types_of(leaves, self.shared.are_placed), tree, static)
        wanted.taken = taken
        return wanted, self._known_trace(trace_key(wanted, self.shared.are_placed))

    def _layer(self, wanted: Wanted) -> tuple[str, tuple[Any, ...] | None]:
        """The first cache on the way that does not have what a call needs, and the devices of the call."""
        record = self._known_trace(trace_key(wanted, self.shared.are_placed))
        if record is None:
            return "trace", None
        donated = self._donated(wanted.tree, wanted.static)
        placement, request, _ = wanted.finish(record, record.places, donated, False)
        program = self.programs.get(
            ProgramKey(record, request, config.compile_key(), self.options.compiler_options, None)
        )
        if program is None:
            return "compile" if (record, request) in self.lowered else "lower", placement.devices
        place = placement.mesh if placement.mesh is not None else placement.devices
        return "dispatch" if (program, place) in self.loaded else "load", placement.devices

    def _call(
        self, key: TraceKey, shardings: Sequence[Any] = (), devices: Sequence[Any] | None = None,
        leaves: Sequence[Any] = (),
    ) -> Call:  # fmt: skip
        settings, avals = (key.settings, config.compile_key()), bare_types(key.avals)
        places = [(x.sharding, x.committed) if type(x) is Array else NOWHERE for x in leaves]
        return call_of(
            self, self.history, self.fun, key.in_tree, key.static, avals, settings, key.mesh, shardings, devices, places
        )._replace(within=key.within)

    def _miss(self, layer: str | None, call: Call) -> CacheMiss:
        lost = "an equal call was known: it was dropped since (clear_cache, clear_caches, or for others)"
        return explained(self.name, layer, call, self.fun, tuple(self.history.calls), lost)

    # -- from one station to the next ----------------------------------------------------------------------------------

    def lower(self, record: TraceRecord, request: LoweringRequest) -> LoweredModule:
        found = self.lowered.get((record, request))
        if found is None:
            events.record("lower")
            check_layouts(record, request)
            found = self.lowered[record, request] = lower(record, request)
        return found

    def propagate(self, lowered: Lowered, propagator: str, devices: tuple[Any, ...] | None) -> propagation.Propagated:
        """`devices` are for those who ask for shardings in the program (`debug.inspect_array_sharding`)."""
        key = (lowered.record, lowered.request, propagator)
        found = self.propagated.get(key)
        if found is None:
            events.record("propagate")
            found, inspected = propagate(lowered.module, lowered.request, propagator)
            self.propagated[key] = found
            if inspected:
                answer(inspected, lowered.request, devices)
        return found

    def partition(self, propagated: Propagated, options: Mapping[str, Any]) -> collectives.PartitionedProgram:
        lowered = propagated.lowered
        options = options_for(lowered, options)
        key = (lowered.record, lowered.request, propagated.propagator, tuple(sorted(options.items())))
        found = self.partitioned.get(key)
        if found is None:
            events.record("partition")
            found = self.partitioned[key] = partition(propagated.result, options)
        return found

    def program(
        self,
        record: TraceRecord,
        request: LoweringRequest,
        options: CompilerOptions,
        partition_options: Mapping[str, Any] | None = None,
        devices: tuple[Any, ...] | None = None,
    ) -> CompiledProgram:
        """The portable executable, compiled once per settings and options. `devices` as for `propagate`."""
        wanted = None if partition_options is None else tuple(sorted(partition_options.items()))
        key = ProgramKey(record, request, config.compile_key(), options, wanted)
        program = self.programs.get(key)
        if program is None:
            events.record("program")
            lowered = Lowered(record, request, self.lower(record, request), Road(self, devices, None))
            program = self.programs[key] = compile_lowered(
                lowered, dict(options), config.settings.partitioner, partition_options
            )
            warn_of_unusable(program)
            if request.mesh is None and lowered.module.inspections:
                answer_on_one_device(lowered.module.inspections, (devices or (backend.default_device(),))[0])
        return program

    def load(self, program: CompiledProgram, mesh: Mesh | None, devices: tuple[Any, ...]) -> Loaded:
        """The program on these devices; loading again on other devices costs no compilation."""
        key = (program, mesh if mesh is not None else devices)
        loaded = self.loaded.get(key)
        if loaded is None:
            loaded = self.loaded[key] = Loaded(program, mesh, devices)
            if keep_latest(self.loaded, config.settings.cached_traces):
                self.forget_calls()
        return loaded

    # -- calls ---------------------------------------------------------------------------------------------------------

    def new_call(self, key: Any, leaves: Sequence[Any], tree: Any, static: Static) -> Entry:
        """The whole road, for a call that is not in the cache."""
        backend.refuse_fork()
        events.record("dispatch_miss", leaves=leaves)
        if config.settings.explain_cache_misses:
            # Start-up time: few ask why a call is not known.
            from meshrt.pipeline.miss_log import logged

            text = logged(self.explain(key, leaves, tree, static), self.fun)
            if text is not None:
                _log.warning("%s", text)
        wanted, record, call = self.staged(leaves, tree, static)
        if call is None:
            stateful: Entry = StatefulEntry(self._stateful(record), key)  # type: ignore[assignment]  # it does as one
            self.remember_call(key, stateful)
            return stateful
        _, request, placement, written = call
        if placement.devices is None:
            raise errors.MeshContextError(
                f"the shardings of {self.name} name an AbstractMesh only, so it is not known where to run: pass an "
                "array placed on a mesh (meshrt.device_put) or enter a mesh with `with meshrt.set_mesh(mesh):`"
            )
        program = self.program(record, request, self.options.compiler_options, devices=placement.devices)
        loaded = self.load(program, placement.mesh, placement.devices)
        placed = wanted.is_placed or placement.device is not None or any_committed(only(leaves, wanted.taken))
        committed = placed or (placement.mesh is not None and not mesh_context.loose)
        entry = self._entry(record, loaded, leaves, committed, written)
        entry.is_placed = placed
        self.remember_call(key, entry)
        return entry

    def _entry(
        self, record: TraceRecord, loaded: Loaded, leaves: Sequence[Any], committed: bool, written: Written | None
    ) -> Entry:
        if not config.settings.debug_key_reuse:
            return Entry(self.name, loaded, leaves, committed, written)
        # Start-up time: programs that nobody debugs do without.
        from meshrt.pipeline.key_reuse import KeyCheckedEntry

        entry = KeyCheckedEntry(self.name, loaded, leaves, committed, written)
        entry.watch(record.closed, getattr(self.fun, "operation", None))
        return entry

    def _stateful(self, record: TraceRecord) -> StatefulProgram:
        found = self.stateful.get(record)
        if found is None:
            make = lambda fun, donated, options: Driver(fun, self.name, options, donated=donated)
            found = self.stateful[record] = StatefulProgram(record, make, self.options, self.name)
        return found

    def known_call(self, key: Any) -> Entry | None:
        return self.calls.get(key)

    def call_in_other_context(self, key: Any) -> Entry | None:
        """The same call as it is known under `with mesh:` if the context is that of `set_mesh`, and the other way
        round; where the context alone has it on the mesh, results are committed in one of them only."""
        mesh = mesh_context.concrete
        if mesh is None:
            return None
        entry = self.calls.get((*key[:3], mesh if mesh_context.loose else mesh.loose_key, *key[4:]))
        if entry is None or not entry.is_placed:
            return None
        self.remember_call(key, entry)
        return entry

    def remember_call(self, key: Any, entry: Entry) -> None:
        if len(self.calls) >= CALLS_PER_TRACE * config.settings.cached_traces:
            self.forget_calls()
        self.calls[key] = entry

    def traced(self, leaves: Sequence[Any], tree: Any, static: Static) -> Traced:
        """The first station as a value that the user goes on from."""
        _, record, call = self.staged(leaves, tree, static, ahead=True)
        if call is None:
            return self._stateful(record).traced(leaves)
        _, request, placement, written = call
        return Traced(record, request, Road(self, placement.devices, written))


@backend.on_clear
def _forget_devices() -> None:
    for driver in all_drivers():
        driver.forget_devices()
