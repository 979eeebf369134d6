"""Programs compiled for hardware that is not here: `lowered.compile(topology="v5e:16x16")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

from collectives.errors import DeviceMemoryError, TopologyError
from collectives.plan.communication import CommunicationPlan
from collectives.topology import Topology
from meshrt import errors, tree_util
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.options import CompilerOptions
from meshrt.pipeline.partitioned import Partitioned
from meshrt.pipeline.program import Called
from meshrt.pipeline.propagated import boundary_shardings
from meshrt.pipeline.station import Station
from meshrt.runtime import events
from meshrt.runtime.cost_analysis import CostAnalysis
from meshrt.runtime.memory_stats import CompiledMemoryStats
from meshrt.runtime.schedule import ScheduledCollective, schedule
from meshrt.runtime.topology import TopologyExecutable, compile_for
from meshrt.sharding.layout import Format
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from propagation.model import Mesh

__all__ = ["TopologyCompiled", "compile_for_topology"]


class TopologyCompiled(Station):
    """A program compiled for a topology; it cannot run here: called, it raises CompileOnlyError.

    topology     chips, links and memory that it was compiled for
    partitioned  one device's program and its communication plan, with times on that topology; None when XLA's
                 partitioner made the program
    """

    def __init__(self, lowered: Lowered, topology: Topology, partitioned: Partitioned | None, made: TopologyExecutable):
        self.lowered, self.topology = lowered, topology
        self.partitioned, self._executable = partitioned, made

    @property
    def _record(self) -> Called:
        return self.lowered.record

    @property
    def args_info(self) -> Any:
        """An ArgInfo for each argument, in the structure of the arguments."""
        return self.lowered.args_info

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions among the flat arguments."""
        return self.lowered.donate_argnums

    @property
    def out_info(self) -> Any:
        """A ShapeDtypeStruct for each result, in the structure of the results."""
        return self.lowered.out_info

    @property
    def plan(self) -> CommunicationPlan | None:
        """Every collective with its cause, bytes and times on the topology; None when XLA's partitioner wrote them."""
        return None if self.partitioned is None else self.partitioned.plan

    @cached_property
    def _text(self) -> str:
        return self._executable.hlo_text()

    def as_text(self) -> str:
        """The optimised HLO of one device, in the order in which it runs."""
        return self._text

    def memory_analysis(self) -> CompiledMemoryStats:
        """The compiler's memory figures in bytes per device; `topology.memory` is what a device has."""
        return self._executable.memory_analysis()

    @property
    def memory_share(self) -> float | None:
        """The peak as a share of a device's memory; None where that is unknown."""
        if self.topology.memory is None:
            return None
        return self.memory_analysis().peak_memory_in_bytes / self.topology.memory

    def cost_analysis(self) -> CostAnalysis | None:
        """The compiler's estimates per device; None where it gives none."""
        return self._executable.cost_analysis()

    def runtime_executable(self) -> TopologyExecutable:
        """What the compiler made."""
        return self._executable

    @property
    def input_shardings(self) -> Any:
        """(args, kwargs) of shardings over the AbstractMesh, of one device where the program has no mesh. None of
        arguments that are not used."""
        kept, module = self.lowered.module.kept, self.lowered.module
        known = dict(zip(kept, self._boundary[0][len(module.consts) :]))
        count = len(self._record.in_avals)
        return tree_util.tree_unflatten(self.in_tree, [known.get(i) for i in range(count)])

    @property
    def output_shardings(self) -> Any:
        """Of shardings over the AbstractMesh, of one device where the program has no mesh."""
        return tree_util.tree_unflatten(self.out_tree, self._boundary[1])

    @cached_property
    def _boundary(self) -> tuple[Sequence[Any], Sequence[Any]]:
        module = self.lowered.module
        if self.lowered.mesh is None:
            single = NamedSharding(AbstractMesh((1,), ("device",)), PartitionSpec())
            return [single] * (len(module.consts) + len(module.kept)), [single] * len(self._record.out_avals)
        if self.partitioned is not None:
            return self.partitioned.arg_shardings, self.partitioned.out_shardings
        return boundary_shardings(self.lowered.propagate().result, self.lowered)

    @property
    def input_formats(self) -> Any:
        """(args, kwargs) of Formats: how each device's part of an argument lies in its memory. Format() of one that is
        not used.

        UnsupportedError where the compiler does not tell.
        """
        module, layouts = self.lowered.module, self._executable.layouts()[0]
        known = {
            i: Format(layout, s)
            for i, layout, s in zip(module.kept, layouts[len(module.consts) :], self._boundary[0][len(module.consts) :])
        }
        count = len(self._record.in_avals)
        return tree_util.tree_unflatten(self.in_tree, [known.get(i, Format()) for i in range(count)])

    @property
    def output_formats(self) -> Any:
        """The Format of each result. UnsupportedError where the compiler does not tell."""
        pairs = zip(self._executable.layouts()[1], self._boundary[1])
        return tree_util.tree_unflatten(self.out_tree, [Format(layout, s) for layout, s in pairs])

    def collectives(self) -> tuple[ScheduledCollective, ...]:
        """The collectives of the schedule, with what runs between the start and the done of asynchronous ones."""
        return schedule(self.as_text(), 1 if self.lowered.mesh is None else self.lowered.mesh.size)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.CompileOnlyError(
            f"{self.fun_name} was compiled for {self.topology.spec}, which is not here, and cannot run; compile() "
            "without topology= makes a program for the devices of this machine"
        )

    def __repr__(self) -> str:
        return f"<TopologyCompiled {self.fun_name} for {self.topology.spec}>"


def compile_for_topology(
    lowered: Lowered, topology: Topology, options: CompilerOptions, partitioner: str,
    devices: Sequence[Any] | None = None,
) -> TopologyCompiled:  # fmt: skip
    """Partitions with the topology's costs and compiles with its compiler. `lowered` is for that platform.

    `devices` are those that stand for the topology's, in the order of the program's mesh; where they are only some of
    them, links are taken to be alike. By default it is all of them.

    Raises:
      UnsupportedError: the program has callbacks.
      MeshMismatchError: the program's mesh is not of the topology's size.
      MissingCompilerError, DeviceMemoryError, CompileError: see `runtime.topology.compile_for`.
    """
    if lowered.module.callbacks:
        raise errors.UnsupportedError(
            f"{lowered.fun_name} calls back into Python ({lowered.module.callbacks[0].name}), and {topology.spec} is "
            "not here to call: take the callbacks out to compile it for that hardware"
        )
    if devices is not None and len(devices) != topology.devices:
        topology = replace(topology, shape=())
    mesh, partitioned, mode, text = lowered.mesh, None, "replica", lowered.module.text
    if mesh is None and devices is None and topology.devices != 1:
        raise errors.MeshMismatchError(
            f"{lowered.fun_name} runs on one device and {topology.spec} has {topology.devices}; lower it with "
            "arguments whose shardings are over a mesh (an AbstractMesh will do)"
        )
    if mesh is not None:
        try:
            topology = topology.on(Mesh("mesh", tuple((str(name), size) for name, size in mesh.shape_tuple)))
        except TopologyError as e:
            raise errors.MeshMismatchError(str(e)) from None
        if partitioner == "xla":
            # Start-up time: as in `meshrt.pipeline.program`.
            from meshrt.pipeline.for_xla import annotated_for_xla

            text, mode = annotated_for_xla(lowered.propagate().result, lowered.request.uneven), "spmd"
        else:
            try:
                partitioned = lowered.partition(topology=topology)
            except DeviceMemoryError as e:
                raise errors.DeviceMemoryError(str(e)) from None
            text = partitioned.result.as_text()
    events.record("compile_topology")
    made = compile_for(topology, text, devices=devices, mode=mode, options=options)
    return TopologyCompiled(lowered, topology, partitioned, made)
