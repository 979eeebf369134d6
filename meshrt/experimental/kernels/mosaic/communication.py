"""Copies between memories, semaphores, and other chips.

A chip's number is its place in row-major order along the axes of the mesh around the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.mosaic.python import tpu

from meshrt import tree_util
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels.copies import CopyOperands, dma_start_p, dma_wait_p
from meshrt.experimental.kernels.mlir.indices import operands_of
from meshrt.experimental.kernels.mlir.walk import Rule, Walk
from meshrt.experimental.kernels.mosaic.references import narrowed
from meshrt.experimental.kernels.mosaic.types import Place, reference_type
from meshrt.experimental.kernels.semaphores import (
    DeviceIdType,
    get_barrier_semaphore_p,
    semaphore_read_p,
    semaphore_signal_p,
    semaphore_wait_p,
)
from meshrt.primitives.collective_axes import axis_index_p

__all__ = ["RULES"]


# ----------------------------------------------------------------------------------------------------------------------
# Chips


def _sizes(walk: Walk) -> dict[Hashable, int]:
    """The axes of the mesh around the kernel."""
    mesh = walk.mesh
    if mesh is None:
        walk.refuse("it names another chip, but the kernel is called outside of a manual region; call it in shard_map")
    return dict(mesh.shape_tuple)


def _own_index(walk: Walk, name: Hashable) -> ir.Value:
    """The chip's index along an axis."""
    sizes = _sizes(walk)
    if name not in sizes:
        walk.refuse(f"the axis {name!r} is none of the mesh around the kernel: {tuple(sizes)}")
    names = list(sizes)
    behind = math.prod([sizes[n] for n in names[names.index(name) + 1 :]])
    number: ir.Value = tpu.device_id()
    number = arith.divsi(number, walk.i32(behind)) if behind > 1 else number
    return arith.remsi(number, walk.i32(sizes[name]))


def _chip(walk: Walk, device: Any, kind: DeviceIdType) -> ir.Value | None:
    """The number of a chip that is named by it, or by indices: along all manual axes, or along some in a dictionary."""
    if device is None:
        return None
    sizes = _sizes(walk)
    if isinstance(device, dict):
        given = _from_names(walk, device, sizes)
    elif kind is DeviceIdType.LOGICAL:
        number: ir.Value = device
        return number
    else:
        indices = list(device) if isinstance(device, tuple | list) else [device]
        manual = walk.mesh.manual_axes if walk.mesh is not None else ()
        names = list(sizes) if len(indices) == len(sizes) else [n for n in sizes if n in manual]
        if len(names) != len(indices):
            walk.refuse(f"{len(indices)} indices for a mesh with the axes {tuple(sizes)}; give one for each")
        given = dict(zip(names, indices))
    total: ir.Value | None = None
    for name, size in sizes.items():
        index = given[name] if name in given else _own_index(walk, name)
        total = index if total is None else arith.addi(arith.muli(total, walk.i32(size)), index)
    return total


def _from_names(walk: Walk, device: dict[Any, Any], sizes: dict[Hashable, int]) -> dict[Hashable, Any]:
    """Indices by axis; one for several axes counts along the last of them first."""
    found: dict[Hashable, Any] = {}
    for name, index in device.items():
        names = name if isinstance(name, tuple) else (name,)
        unknown = [n for n in names if n not in sizes]
        if unknown:
            walk.refuse(f"the axis {unknown[0]!r} is none of the mesh around the kernel: {tuple(sizes)}")
        for n in reversed(names[1:]):
            found[n] = arith.remsi(index, walk.i32(sizes[n]))
            index = arith.divsi(index, walk.i32(sizes[n]))
        found[names[0]] = index
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Copies


def _operands(walk: Walk, eqn: Eqn, operands: Sequence[Any]) -> tuple[CopyOperands, CopyOperands]:
    """What a copy takes, and the types of that."""
    given: CopyOperands = operands_of(walk, eqn, operands)
    types: CopyOperands = tree_util.tree_unflatten(eqn.params["tree"], [a.aval for a in eqn.invars])
    if types.source[0].dtype == np.bool_:
        walk.refuse("bools are words in a core's memory, and not in the arrays outside; copy integers")
    return given, types


def _memory(walk: Walk, given: Any, kind: Any) -> ir.Value:
    """The memory that a reference with a view of it is."""
    (place, view), (aval, _) = given, kind
    part = narrowed(walk, place, view, aval.shape)
    if any(part.squeezed):
        walk.refuse("a block with squeezed dimensions is not copied; leave the dimension in, with size 1")
    return part.memory


def _start(walk: Walk, eqn: Eqn, *operands: Any) -> list[Any]:
    given, types = _operands(walk, eqn, operands)
    if eqn.params["add"]:
        walk.refuse("a copy replaces what is there; add after it has arrived")
    tpu.enqueue_dma(
        _memory(walk, given.source, types.source),
        _memory(walk, given.destination, types.destination),
        source_semaphore=None if given.sent is None else _memory(walk, given.sent, types.sent),
        target_semaphore=_memory(walk, given.arrived, types.arrived),
        device_id=_chip(walk, given.device, eqn.params["device_id_type"]),
        core_id=given.core,
        priority=eqn.params["priority"],
    )
    return []


def _wait(walk: Walk, eqn: Eqn, *operands: Any) -> list[Any]:
    """Waits for as many bytes as the memory that is named last has."""
    given, types = _operands(walk, eqn, operands)
    ends = [_memory(walk, given.source, types.source), _memory(walk, given.destination, types.destination)]
    of_send = eqn.params["of_send"]
    waited = _memory(walk, given.sent, types.sent) if of_send else _memory(walk, given.arrived, types.arrived)
    if of_send:
        ends.reverse()
    chip = _chip(walk, given.device, eqn.params["device_id_type"])
    tpu.wait_dma2(waited, *ends, device_id=chip, core_id=given.core)
    return []


# ----------------------------------------------------------------------------------------------------------------------
# Semaphores


def _semaphore(walk: Walk, eqn: Eqn, place: Place, view: Any) -> ir.Value:
    return narrowed(walk, place, view, eqn.invars[0].aval.shape).memory


def _signal(walk: Walk, eqn: Eqn, place: Place, *leaves: Any) -> list[Any]:
    view, count, device, core = operands_of(walk, eqn, leaves)
    chip = _chip(walk, device, eqn.params["device_id_type"])
    tpu.sem_signal(_semaphore(walk, eqn, place, view), count, device_id=chip, core_id=core)
    return []


def _wait_for(walk: Walk, eqn: Eqn, place: Place, *leaves: Any) -> list[Any]:
    view, count = operands_of(walk, eqn, leaves)
    if not eqn.params["decrement"]:
        walk.refuse("a wait takes away what it waits for; signal again after it")
    tpu.sem_wait(_semaphore(walk, eqn, place, view), count)
    return []


def _read(walk: Walk, eqn: Eqn, place: Place, *leaves: Any) -> ir.Value:
    return tpu.sem_read(_semaphore(walk, eqn, place, operands_of(walk, eqn, leaves)))


RULES: dict[Primitive, Rule] = {
    dma_start_p: _start,
    dma_wait_p: _wait,
    semaphore_signal_p: _signal,
    semaphore_wait_p: _wait_for,
    semaphore_read_p: _read,
    get_barrier_semaphore_p: lambda walk, eqn: Place.whole(tpu.sem_barrier(reference_type(eqn.outvars[0].aval))),
    axis_index_p: lambda walk, eqn: _own_index(walk, eqn.params["axis_name"]),
}
