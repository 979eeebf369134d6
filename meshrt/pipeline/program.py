"""The fifth station: a compiled program that is bound to no device, and so fits every mesh of its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshrt.core.types import ShapedArray
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.propagated import annotated_for_xla, boundary_shardings
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.runtime.executable import PortableExecutable, compile_program
from meshrt.sharding.named import NamedSharding

if TYPE_CHECKING:
    import collectives

__all__ = ["CompiledProgram", "compile_lowered"]


class CompiledProgram:
    """What all device sets of a mesh shape share.

    `arg_shardings` and `out_shardings` are over the AbstractMesh (None on a single device); the module takes `consts`,
    then the arguments numbered by `kept`. `partitioned` is None where XLA's partitioner made the program.
    """

    __slots__ = (
        "__weakref__",
        "arg_shardings",
        "consts",
        "executable",
        "kept",
        "out_shardings",
        "partitioned",
        "record",
        "request",
    )

    def __init__(
        self,
        lowered: Lowered,
        executable: PortableExecutable,
        arg_shardings: tuple[NamedSharding, ...] | None,
        out_shardings: tuple[NamedSharding, ...] | None,
        partitioned: collectives.PartitionedProgram | None,
    ):
        self.record: TraceRecord = lowered.record
        self.request: LoweringRequest = lowered.request
        self.executable, self.partitioned = executable, partitioned
        self.arg_shardings, self.out_shardings = arg_shardings, out_shardings
        self.consts: tuple[Any, ...] = lowered.module.consts
        self.kept: tuple[int, ...] = lowered.module.kept

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.record.closed.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.record.closed.out_avals


def compile_lowered(
    lowered: Lowered, options: Mapping[str, Any], partitioner: str, partition_options: Mapping[str, Any] | None = None
) -> CompiledProgram:
    """Partitions; nothing here knows a device, only how many there are. XLA compiles when the program is first loaded.

    With `partitioner="xla"` XLA's own one splits the program that our propagation has annotated, unless
    `partition_options` are those of a program that ours made.
    """
    mesh, platform, partitioned = lowered.mesh, lowered.request.platform, None
    if mesh is None:
        portable = compile_program(
            lowered.module.text, num_devices=1, mode="replica", backend=platform, options=dict(options)
        )
        return CompiledProgram(lowered, portable, None, None, None)
    if partitioner == "xla" and partition_options is None:
        decided = lowered.propagate().result
        text, mode = annotated_for_xla(decided), "spmd"
        args, outs = boundary_shardings(decided, mesh)
    else:
        partitioned = lowered.partition(**(partition_options or {})).result
        text, mode = partitioned.as_text(), "replica"
        args, outs = boundary_shardings(partitioned, mesh)
    portable = compile_program(text, num_devices=mesh.size, mode=mode, backend=platform, options=dict(options))
    return CompiledProgram(lowered, portable, args, outs, partitioned)
