"""The fifth station: a compiled program that is bound to no device, and so fits every mesh of its shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from meshrt import config
from meshrt.core.types import ShapedArray
from meshrt.pipeline.device_program import DeviceProgram
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.propagated import boundary_shardings
from meshrt.pipeline.traced import LoweringRequest
from meshrt.runtime import compile_cache
from meshrt.runtime.executable import PortableExecutable, compile_program
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.named import NamedSharding

__all__ = ["Called", "CompiledProgram", "compile_lowered", "mesh_over"]


class Called(Protocol):
    """What running a program needs of the function: `TraceRecord`, or what a file has of one."""

    @property
    def fun_name(self) -> str: ...

    @property
    def in_tree(self) -> Any: ...

    @property
    def out_tree(self) -> Any: ...

    @property
    def in_avals(self) -> list[ShapedArray]: ...

    @property
    def out_avals(self) -> list[ShapedArray]: ...

    def arg_paths(self) -> list[str]: ...


class CompiledProgram:
    """What all device sets of a mesh shape share.

    `arg_shardings` and `out_shardings` are over the AbstractMesh (None on a single device); the module takes `consts`,
    then the arguments numbered by `kept`. `arg_memories` and `out_memories` are the kinds of memory where it takes and
    gives them; empty where all are the devices' own.
    """

    __slots__ = (
        "__weakref__",
        "arg_memories",
        "arg_shardings",
        "consts",
        "executable",
        "kept",
        "out_memories",
        "out_shardings",
        "record",
        "request",
    )

    def __init__(
        self,
        record: Called,
        request: LoweringRequest,
        executable: PortableExecutable,
        arg_shardings: tuple[NamedSharding, ...] | None,
        out_shardings: tuple[NamedSharding, ...] | None,
        consts: tuple[Any, ...],
        kept: tuple[int, ...],
        arg_memories: tuple[str, ...] = (),
        out_memories: tuple[str, ...] = (),
    ):
        self.record, self.request, self.executable = record, request, executable
        self.arg_shardings, self.out_shardings = arg_shardings, out_shardings
        self.consts, self.kept = consts, kept
        self.arg_memories, self.out_memories = arg_memories, out_memories

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.record.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.record.out_avals


def mesh_over(axes: AbstractMesh, devices: Sequence[Any]) -> Mesh:
    """The devices, in order, along the axes of an AbstractMesh."""
    array = np.array(devices, dtype=object).reshape(axes.axis_sizes)
    return Mesh(array, axes.axis_names, axis_types=axes.axis_types)


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
        return _program(lowered, portable, None, None)
    by_xla = partitioner == "xla" and partition_options is None
    make = functools.partial(_split, lowered, mesh, by_xla, partition_options)
    # The lowered text does not say what operations do that their users partition: only what becomes of it is kept. Nor
    # what is called back, or who wants to see what propagation decides.
    if compile_cache.on_disk() and not (lowered.module.customs or callbacks or lowered.module.inspections):
        asked = {
            "partitioner": "xla" if by_xla else "meshrt",
            "propagator": config.settings.propagator,
            **(partition_options or {}),
        }
        # Start-up time: without a directory of programs nothing is read or written.
        from meshrt.pipeline.stored import stored

        made = stored(lowered, asked, make)
    else:
        made = make()
    portable = compile_program(
        made.module, num_devices=mesh.size, mode=made.mode, backend=platform, options=dict(options), name=name,
        host_callbacks=callbacks,
    )  # fmt: skip
    return _program(lowered, portable, made.arg_shardings, made.out_shardings)


def _program(lowered: Lowered, portable: PortableExecutable, args: Any, outs: Any) -> CompiledProgram:
    module = lowered.module
    return CompiledProgram(
        lowered.record, lowered.request, portable, args, outs, module.consts, module.kept,
        module.arg_memories, module.out_memories,
    )  # fmt: skip


def _split(
    lowered: Lowered, mesh: AbstractMesh, by_xla: bool, partition_options: Mapping[str, Any] | None
) -> DeviceProgram:
    """What is compiled for a mesh: annotated for XLA's partitioner, or one device's program that ours made."""
    if by_xla:
        # Start-up time: our own partitioner is the usual one.
        from meshrt.pipeline.for_xla import annotated_for_xla

        decided = lowered.propagate().result
        args, outs = boundary_shardings(decided, lowered)
        return DeviceProgram(annotated_for_xla(decided, lowered.request.uneven), "spmd", args, outs)
    partitioned = lowered.partition(**(partition_options or {})).result
    args, outs = boundary_shardings(partitioned, lowered)
    return DeviceProgram(partitioned.as_text(), "replica", args, outs)
