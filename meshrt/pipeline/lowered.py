"""The second station: a Jaxpr becomes global StableHLO with `sdy.mesh` and `sdy.sharding` annotations."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt import errors
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.core.effects import lowerable_effects
from meshrt.core.types import ShapedArray
from meshrt.lowering.module import LoweredModule, lower_module
from meshrt.pipeline.rooted import named, rooted
from meshrt.pipeline.station import Onward, UnboundStation
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.primitives.sharding import Caller
from meshrt.runtime import backend, events
from meshrt.runtime.cost_analysis import CostAnalysis
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED
from meshrt.sharding.typed import sharding_of
from meshrt.transforms.ordering import in_order
from meshrt.xla import jaxlib_api, jaxlib_executables
from propagation.gc_pause import collector_paused

if TYPE_CHECKING:
    from meshrt.pipeline.ahead import TopologyCompiled
    from meshrt.pipeline.compiled import Compiled
    from meshrt.pipeline.partitioned import Partitioned
    from meshrt.pipeline.propagated import Propagated

__all__ = ["Lowered", "lower", "module_name"]


_log = logging.getLogger("meshrt.lower")


def module_name(fun_name: str) -> str:
    return re.sub(r"[^\w.-]", "_", f"jit_{fun_name}").rstrip("_")


def lower(record: TraceRecord, request: LoweringRequest) -> LoweredModule:
    """The module of a trace, as a request has it.

    Raises:
      UnsupportedError: an argument has a symbolic size.
      ArgumentValueError: the program has effects of a class of its own that is not said to be lowerable.
    """
    refused = lowerable_effects.refused(record.closed.effects) if record.closed.effects else ()
    if refused:
        raise errors.ArgumentValueError(
            f"Cannot lower jaxpr with effects: {refused}; {record.fun_name} has them. Say that programs may have them "
            "with meshrt.core.effects.lowerable_effects.add_type(their class)"
        )
    symbolic = next((a for a in record.in_avals if is_symbolic_shape(a.shape)), None)
    if symbolic is not None:
        raise errors.UnsupportedError(
            f"{record.fun_name} has an argument of type {symbolic.short()}, whose symbolic size has no value here; "
            "programs with symbolic sizes are made by export.export(jit(f))(...)"
        )
    level = events.log_level()
    if _log.isEnabledFor(level):
        _log.log(
            level, "Compiling jit(%s) with global shapes and types %s. Argument mapping: %s.",
            record.fun_name, tuple(record.in_avals), tuple(request.arg_shardings),
        )  # fmt: skip
    with collector_paused(), events.timed("lower", f"jit({record.fun_name})"):
        module = lower_module(
            in_order(record.live), record.needed, record.closed.consts, module_name(record.fun_name),
            mesh=request.mesh, is_bare_open=request.is_bare_open,
            arg_shardings=request.arg_shardings, out_shardings=request.out_shardings,
            donated=request.donated, out_paths=record.out_paths(), platform=request.platform,
            keep_unused=request.keep_unused, callers=_callers(record, request),
            arg_memories=request.arg_memories, out_memories=request.out_memories, platforms=request.platforms,
            auto_args=request.auto_args, auto_outs=request.auto_outs,
        )  # fmt: skip
    events.record("lowered", closed=record.closed, module=module)
    return module


def _callers(record: TraceRecord, request: LoweringRequest) -> dict[Any, int]:
    """The places of devices that the function names to make calls."""
    if not request.callers:
        return {}
    named = [place.device for place in record.places if isinstance(place, Caller)]
    return dict(zip(named, request.callers, strict=True))


def _known(dialect: str | None) -> str:
    if dialect not in (None, "stablehlo", "hlo"):
        raise errors.ArgumentValueError(
            f"unknown dialect: {dialect}; a Lowered has 'stablehlo' and 'hlo', a Compiled its optimised HLO"
        )
    return dialect or "stablehlo"


class Lowered(UnboundStation):
    """Global StableHLO with `sdy.mesh` and `sdy.sharding` annotations.

    >>> lowered = meshrt.jit(jnp.sin).lower(jnp.ones(4))
    >>> "stablehlo.sine" in lowered.as_text(), lowered.compile()(jnp.zeros(4))
    (True, Array([0., 0., 0., 0.], dtype=float32))
    """

    __slots__ = ("module",)

    def __init__(self, record: TraceRecord, request: LoweringRequest, module: LoweredModule, onward: Onward):
        self.record, self.request, self.module, self._onward = record, request, module, onward

    @property
    def mesh(self) -> AbstractMesh | None:
        """The axes that the program is written over; None for a program on one device."""
        return self.request.mesh

    def _told(self, aval: ShapedArray) -> NamedSharding | None:
        """As its type says, on the devices of the call; open where propagation decides."""
        mesh, devices = self.request.mesh, self._onward.devices
        if mesh is None or AxisType.Explicit not in mesh.axis_types:
            return None
        found = sharding_of(aval, mesh)
        if AxisType.Auto in mesh.axis_types:
            entries = [UNCONSTRAINED if e is None else e for e in found.spec.partitions]
            found = found.update(spec=found.spec.update(partitions=entries))
        if devices is None or found.mesh is not mesh:
            return found
        return found.update(mesh=Mesh(np.array(devices).reshape(mesh.axis_sizes), mesh.axis_names, mesh.axis_types))

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The module in MLIR's pretty syntax, with `debug_info` also the lines it comes from.

        With `dialect="hlo"` as XLA's HLO, before anything is partitioned or optimised.

        Raises:
          ArgumentValueError: `dialect` is neither "stablehlo" nor "hlo". UnsupportedError: XLA cannot translate an
            operation of the module before it is compiled.
        """
        if _known(dialect) == "hlo":
            text = jaxlib_executables.computation_text(self.compiler_ir("hlo"), metadata=debug_info)
        else:
            text = jaxlib_api.pretty(self.module.text, debug_info=debug_info)
        return rooted(named(text, self._argument_names()), self.fun_name) if debug_info else text

    def _argument_names(self) -> list[str]:
        """What the arguments of the module are called: those that the program needs, or all."""
        jaxpr, needed = self.record.closed.jaxpr, self.record.needed
        names = jaxpr.debug_info.safe_arg_names(len(jaxpr.invars))
        return [name for name, n in zip(names, needed[-len(names) :]) if n or self.request.keep_unused]

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The `ir.Module`, or with `dialect="hlo"` jaxlib's `XlaComputation`.

        Raises:
          ArgumentValueError, UnsupportedError: as `as_text`.
        """
        if _known(dialect) == "stablehlo":
            return jaxlib_api.parse(self.module.text)
        try:
            return jaxlib_executables.computation(self.module.text)
        except jaxlib_api.XlaError as e:
            raise errors.UnsupportedError(
                f"{self.fun_name} cannot be shown as HLO before it is compiled: {e}. Its StableHLO is in as_text(), "
                "its optimised HLO in compile().as_text()"
            ) from None

    def cost_analysis(self) -> CostAnalysis | None:
        """The compiler's estimates for the whole program as it is written, before it is partitioned and optimised.

        None where the platform is not here or has none; what a device does is in `compile().cost_analysis()`.
        """
        if self.request.platform != backend.default_platform():
            return None
        try:
            found = jaxlib_executables.computation_cost(backend.client(self.request.platform), self.compiler_ir("hlo"))
        except (jaxlib_api.XlaError, errors.UnsupportedError):
            return None
        return None if found is None else CostAnalysis(found)

    def propagate(self) -> Propagated:
        """Decides the sharding of every value. UnsupportedError of a program for several platforms."""
        if self.request.platforms:
            raise errors.UnsupportedError(
                f"{self.fun_name} was lowered for the platforms {self.request.platforms}, and runs on one: lower it "
                "for that one to see how it is sharded (lowering_platforms=('cpu',)), or compile it"
            )
        return self._onward.propagate(self)

    def partition(self, **options: Any) -> Partitioned:
        """The per-device program with explicit collectives; the options are those of `collectives.partition`, which
        says what is raised for them."""
        return self.propagate().partition(**options)

    def compile(
        self,
        compiler_options: Mapping[str, Any] | None = None,
        *,
        device_assignment: Sequence[Any] | None = None,
        topology: Any = None,
    ) -> Compiled | TopologyCompiled:
        """Compiles and loads. Devices come from the arguments that were lowered, `device_assignment` or the context.

        Of a program for several platforms the one of the devices is compiled.

        With `topology` ("v5e:16x16", "h100:8", a file or a `collectives.Topology`) the compiler of that hardware makes
        the program instead: the result tells memory, costs and schedule, and cannot run (`meshrt.pipeline.ahead`).

        Raises:
          CompileError: the devices are of another platform than the program, or the compiler refused it.
          MeshMismatchError: not as many devices as the mesh has, or a topology that does not hold it.
          ArgumentTypeError: both `device_assignment` and `topology`, or options that XLA cannot take.
          ArgumentValueError: `topology` names no hardware that has a compiler, or lacks its shape.
          MissingCompilerError, DeviceMemoryError: the topology's compiler is not installed; its memory does not hold
            the program.
        """
        return self._onward.compile(self, compiler_options, device_assignment, topology, None)
