"""The way from a station that a user holds to the next one, through the caches of its function's driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshrt import config, errors
from meshrt.pipeline.compiled import Compiled, check_devices, is_platform_of, not_here
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.options import CompilerOptions, compiler_option_items
from meshrt.pipeline.partitioned import Partitioned
from meshrt.pipeline.propagated import Propagated
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.pipeline.written import Written
from meshrt.runtime import backend
from meshrt.sharding._state import context as mesh_context

if TYPE_CHECKING:
    from typing import NoReturn

    from meshrt.pipeline.ahead import TopologyCompiled
    from meshrt.pipeline.driver import Driver

__all__ = ["NoRoad", "Road"]


class Road(NamedTuple):
    """The way on from a station that a user holds: the function's driver, and what only this call knows.

    That is the devices of its arguments and its shardings as they were written. Devices are None where only an
    AbstractMesh was named; then they come from `compile(device_assignment=...)` or from the mesh in context.
    """

    driver: Driver
    devices: tuple[Any, ...] | None
    written: Written | None

    def lower(self, record: TraceRecord, request: LoweringRequest) -> Lowered:
        return Lowered(record, request, self.driver.lower(record, request), self)

    def propagate(self, lowered: Lowered) -> Propagated:
        propagator = config.settings.propagator
        return Propagated(lowered, self.driver.propagate(lowered, propagator, self.devices), propagator, self)

    def partition(self, propagated: Propagated, options: Mapping[str, Any]) -> Partitioned:
        return Partitioned(propagated, self.driver.partition(propagated, options), options, self)

    def compile(
        self,
        lowered: Lowered,
        compiler_options: Mapping[str, Any] | None,
        device_assignment: Sequence[Any] | None,
        topology: Any,
        partition_options: Mapping[str, Any] | None,
    ) -> Compiled | TopologyCompiled:
        options = compiler_option_items(compiler_options)
        if topology is not None:
            if device_assignment is not None:
                raise errors.ArgumentTypeError("compile takes a device_assignment or a topology, not both")
            return self._compile_ahead(lowered, topology, options)
        devices = self._devices_of(lowered) if device_assignment is None else tuple(device_assignment)
        if lowered.request.platforms:
            lowered = self._on_one_platform(lowered, devices)
        if devices is None and not backend.is_here(lowered.request.platform):
            raise not_here(lowered, backend.default_platform())
        mesh = None if devices is None else check_devices(lowered, devices)  # before anything is made for them
        if devices is not None and (what := backend.elsewhere(devices)) is not None:
            return self._compile_ahead(lowered, what, options, devices)
        program = self.driver.program(lowered.record, lowered.request, options, partition_options, devices)
        if devices is not None:
            # Now, so that the compiler's time and errors are here and not in the first call.
            self.driver.load(program, mesh, devices)
        return Compiled(lowered, program, mesh, devices, self.driver, self.written)

    def _on_one_platform(self, lowered: Lowered, devices: tuple[Any, ...] | None) -> Lowered:
        """The program for the one, of its platforms, that the devices are of."""
        request = lowered.request
        for platform in request.platforms:
            if backend.is_here(platform) if devices is None else is_platform_of(devices[0], platform):
                return self.lower(lowered.record, request.on(platform))
        raise not_here(lowered, backend.default_platform() if devices is None else backend.platform_of(devices[0]))

    def _devices_of(self, lowered: Lowered) -> tuple[Any, ...] | None:
        if self.devices is not None:
            return self.devices
        if lowered.mesh is None:
            return (backend.default_device(),)
        around = mesh_context.concrete
        if around is not None and around.abstract_mesh is lowered.mesh:
            devices: tuple[Any, ...] = around.flat_devices
            return devices
        return None

    def _compile_ahead(
        self, lowered: Lowered, what: Any, options: CompilerOptions, devices: tuple[Any, ...] | None = None
    ) -> TopologyCompiled:
        # Start-up time: this needs the package `collectives`, which a program on one device never does.
        from meshrt.pipeline.ahead import compile_for_topology
        from meshrt.runtime.topology import platform_of, topology_of

        topology = topology_of(what)
        platform = platform_of(topology)
        if lowered.request.platform != platform or lowered.request.platforms:
            lowered = self.lower(lowered.record, lowered.request.on(platform))
        return compile_for_topology(lowered, topology, options, config.settings.partitioner, devices)


class NoRoad:
    """In the place of a Road where a trace's arguments lie on devices that no program runs on together: types need no
    devices, so there is a trace, and whoever wants to go on from it is told `why` not."""

    __slots__ = ("why",)

    def __init__(self, why: errors.MeshrtError):
        self.why = why

    @property
    def devices(self) -> None:
        return None

    @property
    def written(self) -> None:
        return None

    def _refuse(self, *_: Any) -> NoReturn:
        raise self.why.with_traceback(None)

    lower = propagate = partition = compile = _refuse
