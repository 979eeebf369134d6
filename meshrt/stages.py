"""The stations of the pipeline as values: Traced, Lowered, Propagated, Partitioned, Compiled.

Every station can be printed, fingerprinted and asked for a later one, and keeps what was derived from it. None of them
before `Compiled` mentions a device: they are keyed by types, by shardings over the AbstractMesh and by options.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshrt import config, errors, tree_util
from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.core.pause import collector_paused
from meshrt.core.types import ShapedArray
from meshrt.donation import warn_of_unusable
from meshrt.lowering.module import LoweredModule, lower_module
from meshrt.primitives.sharding import placements_of
from meshrt.runtime import events, shardy
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.common import as_seen_on
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.arguments import argument_paths
from meshrt.transforms.tools import dce

if TYPE_CHECKING:
    from meshrt.ahead import TopologyCompiled
    from meshrt.compiled import Compiled
    from meshrt.runtime.executable import PortableExecutable

__all__ = ["ArgInfo", "Lowered", "OutInfo", "Partitioned", "Program", "Propagated", "TraceRecord", "Traced"]


def compiler_option_items(options: dict[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    """XLA options as a hashable key. ArgumentTypeError for names or values that XLA cannot take."""
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise errors.ArgumentTypeError(
                f"compiler_options maps names of XLA options to bools, numbers or strings, got {name!r}: {value!r}"
            )
    return tuple(sorted((options or {}).items()))


class ArgInfo(NamedTuple):
    """An argument of a staged function: its type and whether it is donated."""

    aval: ShapedArray
    donated: bool

    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)


class OutInfo(NamedTuple):
    """A result of a staged function."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any = None


class TraceRecord:
    """What tracing a function once gave: shared by all calls with arguments of these types."""

    __slots__ = (
        "__weakref__", "closed", "fun", "fun_name", "in_tree", "live", "lowered", "needed", "out_tree", "places",
    )  # fmt: skip

    def __init__(self, fun: Any, fun_name: str, closed: ClosedJaxpr, in_tree: Any, out_tree: Any):
        self.fun, self.fun_name, self.closed = fun, fun_name, closed
        self.in_tree, self.out_tree = in_tree, out_tree
        # What is lowered (without dead code), which arguments it needs, and where it says that it has to run.
        self.live, self.needed = dce(closed.jaxpr)
        self.places = placements_of(self.live)
        self.lowered: dict[Any, Lowered] = {}

    def forget_devices(self) -> None:
        """Unbinds the compiled programs of this trace from their devices."""
        for lowered in self.lowered.values():
            lowered.forget_devices()

    def out_paths(self) -> list[str]:
        dummy = tree_util.tree_unflatten(self.out_tree, range(self.out_tree.num_leaves))
        return ["result" + tree_util.keystr(path) for path, _ in tree_util.tree_leaves_with_path(dummy)]

    def arg_paths(self) -> list[str]:
        return argument_paths(self.fun, self.in_tree)


class _Stage:
    """What all stations have in common. `record` is the trace that they come from."""

    record: TraceRecord

    fun_name = property(lambda self: self.record.fun_name)
    in_tree = property(lambda self: self.record.in_tree)
    out_tree = property(lambda self: self.record.out_tree)

    def as_text(self) -> str:
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """A hash of the program at this station, equal on every host."""
        return hashlib.sha256(self.as_text().encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.fun_name}: {self.fingerprint[:12]}>"


class Traced(_Stage):
    """A function staged to a Jaxpr, with the shardings asked for its arguments and results."""

    def __init__(self, record: TraceRecord, request: LoweringRequest, devices: tuple | None = None):
        self.record, self.request, self.devices = record, request, devices

    jaxpr = property(lambda self: self.record.closed)
    donate_argnums = property(lambda self: tuple(i for i, d in enumerate(self.request.donated) if d))

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.record.closed.out_avals

    @property
    def args_info(self) -> Any:
        infos = [ArgInfo(a, d) for a, d in zip(self.record.closed.in_avals, self.request.donated)]
        return tree_util.tree_unflatten(self.in_tree, infos)

    @property
    def out_info(self) -> Any:
        outs = [ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in self.out_avals]
        return tree_util.tree_unflatten(self.out_tree, outs)

    def as_text(self) -> str:
        return str(self.record.closed)

    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> Lowered:
        """Lowers to global StableHLO with `sdy` annotations, for the given platforms (default: the one at hand)."""
        request = self.request
        if lowering_platforms is not None:
            if len(lowering_platforms) != 1:
                raise errors.UnsupportedError(
                    f"lowering for {len(lowering_platforms)} platforms at once {tuple(lowering_platforms)} is not "
                    "implemented; lower once per platform"
                )
            request = request._replace(platform=lowering_platforms[0])
        return lower(self.record, request, self.devices)


class LoweringRequest(NamedTuple):
    """The key of lowering: everything that decides its text, beside the trace. No device stands in it.

    `views` are the meshes that the shardings are over where they are several: `mesh` is their common mesh then.
    """

    mesh: AbstractMesh | None
    arg_shardings: tuple[NamedSharding | None, ...]
    out_shardings: tuple[NamedSharding | None, ...]
    donated: tuple[bool, ...]
    platform: str
    keep_unused: bool = False
    views: tuple[AbstractMesh, ...] = ()

    def as_asked(self, out: int, sharding: NamedSharding) -> NamedSharding:
        """The sharding of a result, which is over the common mesh, over a mesh that the user named, if that can be."""
        asked = self.out_shardings[out]
        for mesh in (*([asked.mesh] if asked is not None else []), *self.views):
            seen = as_seen_on(sharding, mesh)
            if seen is not None:
                return seen
        return sharding


def _module_name(fun_name: str) -> str:
    return "jit_" + re.sub(r"[^\w.-]", "_", fun_name)


def lower(record: TraceRecord, request: LoweringRequest, devices: tuple | None = None) -> Lowered:
    """The Lowered of a trace, made once per request."""
    found = record.lowered.get(request)
    if found is None:
        events.record("lower")
        with collector_paused():
            module = lower_module(
                record.live, record.needed, record.closed.consts, _module_name(record.fun_name),
                mesh=request.mesh, arg_shardings=request.arg_shardings, out_shardings=request.out_shardings,
                donated=request.donated, out_paths=record.out_paths(), platform=request.platform,
                keep_unused=request.keep_unused,
            )  # fmt: skip
        found = record.lowered[request] = Lowered(record, request, module)
    return found if devices is None else found.on(devices)


class Lowered(_Stage):
    """Global StableHLO with `sdy.mesh` and `sdy.sharding` annotations."""

    def __init__(
        self, record: TraceRecord, request: LoweringRequest, module: LoweredModule, devices: tuple | None = None
    ):
        self.record, self.request, self.module, self.devices = record, request, module, devices
        self._shared: dict[Any, Any] = {}

    def on(self, devices: tuple) -> Lowered:
        """The same lowering with devices to compile for."""
        twin = Lowered(self.record, self.request, self.module, devices)
        twin._shared = self._shared
        return twin

    def forget_devices(self) -> None:
        for stage in self._shared.values():
            if isinstance(stage, Program):
                stage.loaded.clear()

    mesh = property(lambda self: self.request.mesh)
    in_avals = property(lambda self: self.record.closed.in_avals)
    out_avals = property(lambda self: self.record.closed.out_avals)
    donate_argnums = property(lambda self: tuple(i for i, d in enumerate(self.request.donated) if d))

    @property
    def args_info(self) -> Any:
        infos = [ArgInfo(a, d) for a, d in zip(self.in_avals, self.request.donated)]
        return tree_util.tree_unflatten(self.in_tree, infos)

    @property
    def out_info(self) -> Any:
        return tree_util.tree_unflatten(self.out_tree, [OutInfo(a.shape, a.dtype) for a in self.out_avals])

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The module in MLIR's pretty syntax; `dialect` is None or 'stablehlo'."""
        if dialect not in (None, "stablehlo"):
            raise errors.ArgumentValueError(
                f"unknown dialect: {dialect}; a Lowered has 'stablehlo', a Compiled has its HLO"
            )
        from meshrt.runtime import jaxlib_api

        return jaxlib_api.pretty(self.module.text, debug_info=debug_info)

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The `ir.Module`."""
        if dialect not in (None, "stablehlo"):
            raise errors.ArgumentValueError(f"unknown dialect: {dialect}")
        from meshrt.runtime import jaxlib_api

        return jaxlib_api.parse(self.module.text)

    def cost_analysis(self) -> Any:
        """None: costs are known once the program is compiled (`compile().cost_analysis()`)."""
        return None

    def propagate(self) -> Propagated:
        """Decides the sharding of every value."""
        key = ("propagated", config.propagator)
        if key not in self._shared:
            import propagation

            events.record("propagate")
            with collector_paused():
                if config.propagator == "shardy":
                    # The C++ passes decide and close everything; ours then only read what they wrote.
                    given = shardy.propagate(self.module.text)
                else:
                    given = self.module.program()
                result = propagation.run(given, "closed", whole_axes=True, xla_order=True)
                self._shared[key] = Propagated(self.record, self, result)
        return self._shared[key]

    def partition(self, **options: Any) -> Partitioned:
        """The per-device program with explicit collectives."""
        return self.propagate().partition(**options)

    def program(self, options: tuple[tuple[str, Any], ...] = ()) -> Program:
        """The portable executable of this lowering, compiled once per settings and options."""
        from meshrt.compiled import build_program

        key = ("program", config.compile_key(), options)
        if key not in self._shared:
            program = self._shared[key] = build_program(self, dict(options))
            warn_of_unusable(program)
        return self._shared[key]

    def compile(
        self,
        compiler_options: dict[str, Any] | None = None,
        *,
        device_assignment: Sequence[Any] | None = None,
        topology: Any = None,
    ) -> Compiled | TopologyCompiled:
        """Compiles and loads. Devices come from the arguments that were lowered, `device_assignment` or the context.

        With `topology` ("v5e:16x16", "h100:8", a file or a `collectives.Topology`) the compiler of that hardware makes
        the program instead: the result tells memory, costs and schedule, and cannot run (`meshrt.ahead`).
        """
        from meshrt.compiled import load

        options = compiler_option_items(compiler_options)
        if topology is not None:
            from meshrt.ahead import compile_for_topology

            if device_assignment is not None:
                raise errors.ArgumentTypeError("compile takes a device_assignment or a topology, not both")
            return compile_for_topology(self, topology, options)
        devices = self.devices if device_assignment is None else tuple(device_assignment)
        return load(self, self.program(options), devices)


class Propagated(_Stage):
    """Every value has a sharding; `.result` is `propagation.Propagated`, with the decision log."""

    def __init__(self, record: TraceRecord, lowered: Lowered, result: Any):
        self.record, self.lowered, self.result = record, lowered, result
        self._partitioned: dict[Any, Partitioned] = {}

    log = property(lambda self: self.result.log)

    def explain(self, query: str) -> str:
        """Why a dimension is sharded as it is: the steps from it back to the user's annotations, a line each.

        `query` is VALUE:DIM: an argument (`x:0`, `state['w']:1`, `arg[0]:1`), a result (`result[0]:1`), a value by its
        name in `as_text()` (`%3:0`) or, for what is computed there, a source line (`train.py:57:0`). InspectError if it
        names nothing.
        """
        from meshrt.inspect.explain import explain
        from meshrt.inspect.program import names_of

        return "\n".join(explain(self.result, query, *names_of(self.lowered)))

    def missing(self) -> list[str]:
        """What stayed whole along a dimension though an operand or result beside it is sharded there, and what stopped
        the axes: a line each, in the program's names. `.result.missing()` has the same as objects."""
        from meshrt.inspect.explain import missing
        from meshrt.inspect.program import names_of

        return missing(self.result, *names_of(self.lowered))

    def as_text(self) -> str:
        return self.result.as_text()

    def partition(self, **options: Any) -> Partitioned:
        key = tuple(sorted(options.items()))
        if key not in self._partitioned:
            import collectives

            events.record("partition")
            with collector_paused():
                result = collectives.partition(self.result, **options)
            self._partitioned[key] = Partitioned(self.record, self.lowered, result)
        return self._partitioned[key]

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Compiled:
        return self.lowered.compile(compiler_options)


class Partitioned(_Stage):
    """One device's program; `.result` is `collectives.Partitioned`, with the communication plan."""

    def __init__(self, record: TraceRecord, lowered: Lowered, result: Any):
        self.record, self.lowered, self.result = record, lowered, result

    plan = property(lambda self: self.result.plan)
    findings = property(lambda self: self.result.findings)

    def as_text(self, *, debug_info: bool = False) -> str:
        """The module in MLIR's pretty syntax, for people; `.result.as_text()`, without parsing, is what is compiled."""
        from meshrt.runtime import jaxlib_api

        return jaxlib_api.pretty(self.result.as_text(), debug_info=debug_info)

    @property
    def fingerprint(self) -> str:
        """A hash of the program, equal on every host."""
        return self.result.fingerprint[:32]

    @property
    def arg_shardings(self) -> tuple[NamedSharding, ...]:
        """Shardings of the module's arguments (captured arrays first) over the AbstractMesh."""
        return tuple(named(s, self.lowered.mesh) for s in self.result.arg_shardings)

    @property
    def out_shardings(self) -> tuple[NamedSharding, ...]:
        return tuple(named(s, self.lowered.mesh) for s in self.result.result_shardings)

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Compiled:
        return self.lowered.compile(compiler_options)


def named(sharding: Any, mesh: AbstractMesh) -> NamedSharding:
    """A propagation TensorSharding (None: replicated) as a NamedSharding over `mesh`."""
    if sharding is None:
        return NamedSharding(mesh, PartitionSpec())
    entries = []
    for dim in sharding.dims:
        for axis in dim.axes:
            if axis.size != mesh.shape[axis.name]:
                raise errors.UnsupportedError(
                    f"the boundary sharding {sharding.to_text()} splits the axis {axis.name!r}, which a PartitionSpec "
                    "cannot say"
                )
        entries.append(tuple(a.name for a in dim.axes) or None)
    while entries and entries[-1] is None:
        entries.pop()
    return NamedSharding(mesh, PartitionSpec(*entries))


class Program:
    """A compiled program that is bound to no device: what all device sets of a mesh shape share.

    `arg_shardings` and `out_shardings` are over the AbstractMesh (None on a single device); the module takes `consts`,
    then the arguments numbered by `kept`.
    """

    __slots__ = (
        "__weakref__",
        "arg_shardings",
        "consts",
        "executable",
        "kept",
        "loaded",
        "lowered",
        "out_shardings",
        "partitioned",
    )

    def __init__(
        self,
        lowered: Lowered,
        executable: PortableExecutable,
        arg_shardings: Any,
        out_shardings: Any,
        partitioned: Partitioned | None,
    ):
        self.lowered, self.executable, self.partitioned = lowered, executable, partitioned
        self.arg_shardings, self.out_shardings = arg_shardings, out_shardings
        self.consts, self.kept = lowered.module.consts, lowered.module.kept
        self.loaded: dict[Any, Any] = {}
