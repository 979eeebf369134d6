"""The fifth station: a compiled program that is bound to no device, and so fits every mesh of its shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from meshrt import config
from meshrt.core.types import ShapedArray
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.propagated import annotated_for_xla, boundary_shardings
from meshrt.pipeline.stored import DeviceProgram, stored
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.runtime import compile_cache
from meshrt.runtime.executable import PortableExecutable, compile_program
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding

__all__ = ["CompiledProgram", "compile_lowered"]


class CompiledProgram:
    """What all device sets of a mesh shape share.

    `arg_shardings` and `out_shardings` are over the AbstractMesh (None on a single device); the module takes `consts`,
    then the arguments numbered by `kept`.
    """

    __slots__ = (
        "__weakref__",
        "arg_shardings",
        "consts",
        "executable",
        "kept",
        "out_shardings",
        "record",
        "request",
    )

    def __init__(
        self,
        lowered: Lowered,
        executable: PortableExecutable,
        arg_shardings: tuple[NamedSharding, ...] | None,
        out_shardings: tuple[NamedSharding, ...] | None,
    ):
        self.record: TraceRecord = lowered.record
        self.request: LoweringRequest = lowered.request
        self.executable = executable
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
    """Partitions, or finds on disk what was partitioned before.

    Nothing here knows a device, only how many there are. XLA compiles when the program is first loaded.

    With `partitioner="xla"` XLA's own one splits the program that our propagation has annotated, unless
    `partition_options` are those of a program that ours made.
    """
    mesh, platform, name = lowered.mesh, lowered.request.platform, lowered.record.fun_name
    callbacks = lowered.module.callbacks
    if mesh is None:
        portable = compile_program(
            lowered.module.text, num_devices=1, mode="replica", backend=platform, options=dict(options), name=name,
            host_callbacks=callbacks,
        )  # fmt: skip
        return CompiledProgram(lowered, portable, None, None)
    by_xla = partitioner == "xla" and partition_options is None
    make = functools.partial(_split, lowered, mesh, by_xla, partition_options)
    # The lowered text does not say what operations do that their users partition: only what becomes of it is kept. Nor
    # what is called back.
    if compile_cache.on_disk() and not lowered.module.customs and not callbacks:
        asked = {
            "partitioner": "xla" if by_xla else "meshrt",
            "propagator": config.settings.propagator,
            **(partition_options or {}),
        }
        made = stored(lowered, asked, make)
    else:
        made = make()
    portable = compile_program(
        made.module, num_devices=mesh.size, mode=made.mode, backend=platform, options=dict(options), name=name,
        host_callbacks=callbacks,
    )  # fmt: skip
    return CompiledProgram(lowered, portable, made.arg_shardings, made.out_shardings)


def _split(
    lowered: Lowered, mesh: AbstractMesh, by_xla: bool, partition_options: Mapping[str, Any] | None
) -> DeviceProgram:
    """What is compiled for a mesh: annotated for XLA's partitioner, or one device's program that ours made."""
    if by_xla:
        decided = lowered.propagate().result
        args, outs = boundary_shardings(decided, lowered)
        return DeviceProgram(annotated_for_xla(decided, lowered.request.uneven), "spmd", args, outs)
    partitioned = lowered.partition(**(partition_options or {})).result
    args, outs = boundary_shardings(partitioned, lowered)
    return DeviceProgram(partitioned.as_text(), "replica", args, outs)
