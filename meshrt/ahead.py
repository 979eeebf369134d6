"""Programs compiled for hardware that is not here: `lowered.compile(topology="v5e:16x16")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from collectives.errors import DeviceMemoryError, TopologyError
from collectives.topology import Topology
from meshrt import config, errors
from meshrt.compiled import _boundary
from meshrt.runtime import events
from meshrt.runtime.executable import MemoryAnalysis
from meshrt.runtime.topology import TopologyExecutable, compile_for, topology_of
from meshrt.stages import Lowered, Partitioned, _Stage, lower
from propagation.model import Mesh

if TYPE_CHECKING:
    from meshrt.inspect.schedule import ScheduledCollective

__all__ = ["TopologyCompiled", "compile_for_topology"]


class TopologyCompiled(_Stage):
    """A program compiled for a topology; it cannot run here.

    topology     chips, links and memory that it was compiled for
    partitioned  one device's program and its communication plan, with times on that topology; None when XLA's
                 partitioner made the program
    """

    def __init__(self, lowered: Lowered, topology: Topology, partitioned: Partitioned | None, made: TopologyExecutable):
        self.record, self.lowered, self.topology = lowered.record, lowered, topology
        self.partitioned, self._executable = partitioned, made
        self._text: str | None = None

    in_avals = property(lambda self: self.lowered.in_avals)
    out_avals = property(lambda self: self.lowered.out_avals)
    plan = property(lambda self: None if self.partitioned is None else self.partitioned.plan)

    def as_text(self) -> str:
        """The optimised HLO of one device, in the order in which it runs."""
        if self._text is None:
            self._text = self._executable.hlo_text()
        return self._text

    def memory_analysis(self) -> MemoryAnalysis:
        """The compiler's memory figures in bytes per device; `topology.memory` is what a device has."""
        return self._executable.memory_analysis()

    @property
    def memory_share(self) -> float | None:
        """The peak as a share of a device's memory; None where that is unknown."""
        if self.topology.memory is None:
            return None
        return self.memory_analysis().peak_bytes / self.topology.memory

    def cost_analysis(self) -> dict[str, float]:
        """The compiler's estimates per device. UnsupportedError where it gives none."""
        return self._executable.cost_analysis()

    def collectives(self) -> tuple[ScheduledCollective, ...]:
        """The collectives of the schedule, with what runs between the start and the done of asynchronous ones."""
        from meshrt.inspect.schedule import schedule

        return schedule(self.as_text(), self.topology.devices or 1)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.CompileOnlyError(
            f"{self.fun_name} was compiled for {self.topology.spec}, which is not here, and cannot run; compile() "
            "without topology= makes a program for the devices of this machine"
        )

    def __repr__(self) -> str:
        return f"<TopologyCompiled {self.fun_name} for {self.topology.spec}>"


def compile_for_topology(
    lowered: Lowered, what: str | Topology, options: tuple[tuple[str, Any], ...]
) -> TopologyCompiled:
    """Partitions with the topology's costs and compiles with its compiler.

    Raises:
      ArgumentValueError: no such topology.
      MeshMismatchError: the program's mesh is not of the topology's size.
      MissingCompilerError, DeviceMemoryError, CompileError: see `runtime.topology.compile_for`.
    """
    topology = topology_of(what)
    mesh = lowered.mesh
    if mesh is None and topology.devices != 1:
        raise errors.MeshMismatchError(
            f"{lowered.fun_name} runs on one device and {topology.spec} has {topology.devices}; lower it with "
            "arguments whose shardings are over a mesh (an AbstractMesh will do)"
        )
    platform = topology.compiler
    if lowered.request.platform != platform:
        lowered = lower(lowered.record, lowered.request._replace(platform=platform))
    partitioned, mode, text = None, "replica", lowered.module.text
    if mesh is not None:
        try:
            topology = topology.on(Mesh("mesh", tuple(mesh.shape.items())))
        except TopologyError as e:
            raise errors.MeshMismatchError(str(e)) from None
        if config.partitioner == "xla":
            (_, text), mode = _boundary(lowered), "spmd"
        else:
            try:
                partitioned = lowered.partition(topology=topology)
            except DeviceMemoryError as e:
                raise errors.DeviceMemoryError(str(e)) from None
            text = partitioned.result.as_text()
    events.record("compile_topology")
    return TopologyCompiled(lowered, topology, partitioned, compile_for(topology, text, mode=mode, options=options))
