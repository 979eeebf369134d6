"""The grid of a kernel on simulated cores: which core runs which steps, and the blocks that are copied around them."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.jaxpr import Jaxpr
from meshrt.experimental.kernels.mapping import BlockMapping, GridMapping
from meshrt.experimental.kernels.memory import MemorySpace, TpuMemorySpace
from meshrt.experimental.kernels.params import GridDimensionSemantics
from meshrt.experimental.kernels.simulator.evaluator import exhausted, run_jaxpr
from meshrt.experimental.kernels.simulator.machine import Core, Machine, Wait
from meshrt.experimental.kernels.simulator.memory import Memory, unwritten_value
from meshrt.experimental.kernels.specs import Blocked, BoundedSlice

__all__ = ["simulate"]

_FAR = (MemorySpace.ANY, MemorySpace.HOST, TpuMemorySpace.HBM, TpuMemorySpace.VMEM_SHARED)


@dataclass(frozen=True)
class Call:
    """A kernel's call: the parameters of its equation that a simulation reads."""

    jaxpr: Jaxpr
    mapping: GridMapping
    aliases: Sequence[tuple[int, int]]
    orders: Mapping[int, Sequence[int]]  # of parallel dimensions of the grid: the order of the indices along them
    kernel: str
    debug_checks: bool  # whether pl.debug_check is looked at


def simulate(call: Call, checks: Any, axes: Sequence[Any], operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs a kernel on all chips: operands and results have the chips as their first dimension."""
    mapping = call.mapping
    sizes = mapping.sizes([int(x[0]) for x in operands[: mapping.num_dynamic]])
    on_cores = mapping.grid_names is not None
    points = [list(p) for p in itertools.product(*[call.orders.get(d, range(n)) for d, n in enumerate(sizes)])]
    plans = [[p] for p in points] if on_cores else _shared_out(points, call, checks)
    machine = Machine(checks, axes, max(1, len(plans)), call.kernel, call.debug_checks)
    arrays = operands[mapping.num_dynamic :]
    for device in range(machine.num_devices):
        _place_arrays(machine, device, call, [x[device] for x in arrays])
    for core in machine.cores:
        for i, aval in enumerate(mapping.scratch_avals):
            core.allocate(aval, f"scratch {i} ({aval})", ("scratch", i))
    machine.run([_core(core, call, sizes, plans[core.number] if plans else []) for core in machine.cores])
    results = []
    for o in range(mapping.num_outputs):
        held = [machine.shared[d, ("output", o)].data for d in range(machine.num_devices)]
        results.append(np.stack(held))
    return results


def _shared_out(points: list[list[int]], call: Call, checks: Any) -> list[list[list[int]]]:
    """The steps of each core: those along parallel dimensions are dealt out."""
    count = checks.num_cores_or_threads
    if count == 1 or not call.orders:
        return [points, *[[] for _ in range(count - 1)]]
    groups: dict[tuple[int, ...], list[list[int]]] = {}
    for p in points:
        groups.setdefault(tuple([p[d] for d in call.orders]), []).append(p)
    order = list(groups)
    per_core = -(-len(order) // count)
    return [[p for key in order[i * per_core : (i + 1) * per_core] for p in groups[key]] for i in range(count)]


def parallel_dims(mapping: GridMapping, semantics: Sequence[Any] | None) -> list[int]:
    """The dimensions of the grid whose steps may run in any order."""
    kinds = dict(zip(mapping.kernel_dims, semantics or ()))
    names = (GridDimensionSemantics.PARALLEL, GridDimensionSemantics.CORE_PARALLEL, "parallel", "core_parallel")
    return [d for d in range(len(mapping.grid)) if kinds.get(d) in names]


def _place_arrays(machine: Machine, device: int, call: Call, arrays: Sequence[Any]) -> None:
    """Puts a chip's operands and results into its large memory."""
    mapping = call.mapping
    begun = {o: i - mapping.num_scalars for i, o in call.aliases if i >= mapping.num_scalars}
    for i, (aval, x) in enumerate(zip(mapping.scalar_avals, arrays)):
        made = _memory(machine, aval.inner_aval, f"scalar {i}", ("scalar", i))
        made.fill(x)
        machine.shared[device, ("scalar", i)] = made
    for i, (block, x) in enumerate(zip(mapping.in_blocks, arrays[mapping.num_scalars :])):
        _array(machine, device, block, ("input", i)).fill(x)
    for o, block in enumerate(mapping.out_blocks):
        if o in begun:  # one memory, as on a chip
            machine.shared[device, ("output", o)] = machine.shared[device, ("input", begun[o])]
        else:
            _array(machine, device, block, ("output", o))


def _memory(machine: Machine, aval: Any, name: str, key: Any) -> Memory:
    return Memory(aval.bare(), name, key, machine.checks)


def _array(machine: Machine, device: int, block: BlockMapping, key: Any) -> Memory:
    made: Memory = machine.share(device, key, lambda: _memory(machine, block.array_aval, block.origin, key))
    return made


# ----------------------------------------------------------------------------------------------------------------------
# One core


def _core(core: Core, call: Call, sizes: Sequence[int], points: Sequence[list[int]]) -> Generator[Wait, None, None]:
    mapping, machine = call.mapping, core.machine
    core.has_begun = True
    scalars = [machine.shared[core.device, ("scalar", i)] for i in range(mapping.num_scalars)]
    windows = [_Window(core, b, i, mapping.num_inputs) for i, b in enumerate(mapping.blocks)]
    scratch = [core.memories["scratch", i] for i in range(len(mapping.scratch_avals))]
    dynamic = [np.int32(n) for n, g in zip(sizes, mapping.grid) if not isinstance(g, int)]
    for n, point in enumerate(points):
        if machine.checks.grid_point_recorder is not None:
            machine.checks.grid_point_recorder(tuple(map(np.int32, point)), np.int32(core.number))
        indices = [np.int32(i) for i in point]
        for w in windows:
            w.enter(exhausted(core, w.block.index_map, [*indices, *scalars]))
        own = [indices[d] for d in mapping.kernel_dims]
        yield from run_jaxpr(core, call.jaxpr, [*own, *dynamic, *scalars, *[w.memory for w in windows], *scratch])
        following = None if n + 1 == len(points) else [np.int32(i) for i in points[n + 1]]
        for w in windows:
            after = None if following is None else exhausted(core, w.block.index_map, [*following, *scalars])
            w.leave(after)


class _Window:
    """The block of an operand or result that a core works on, copied in and out where it changes."""

    def __init__(self, core: Core, block: BlockMapping, position: int, num_inputs: int):
        self.core, self.block = core, block
        self.is_output = position >= num_inputs
        key = ("output", position - num_inputs) if self.is_output else ("input", position)
        self.array: Memory = core.machine.shared[core.device, key]
        self.is_far = block.memory_space in _FAR and block.is_whole
        self.memory = self.array
        self.place: list[int] | None = None
        if not self.is_far:
            name = f"the block of {block.origin}"
            self.memory = Memory(block.ref_aval.inner_aval, name, ("block", position), core.machine.checks)
            core.memories["block", position] = self.memory

    def _ranges(self, place: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """The elements of the array, along each dimension, that a block consists of."""
        rest = iter(place)
        out = []
        for dim, (low, _) in zip(self.block.block_shape, self.block.padding):
            start = int(next(rest))
            size = getattr(dim, "block_size", 1)
            if isinstance(dim, Blocked):
                start *= size
            count = min(int(next(rest)), size) if isinstance(dim, BoundedSlice) else size
            found = start - low + np.arange(size)
            found[count:] = -1
            out.append(found)
        return tuple(out)

    def _grid(self, place: Sequence[Any]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """(indices of a block's elements in the array, which of them exist)."""
        ranges = self._ranges(place)
        shape = self.block.array_aval.shape
        for d, (r, n) in enumerate(zip(ranges, shape)):
            if n and r.size and not ((r >= 0) & (r < n)).any() and not any(self.block.padding[d]):
                raise errors.KernelBoundsError(
                    f"{self.block.origin} of {self.core.machine.kernel}: the index map gives "
                    f"{[int(p) for p in place]}, a block that lies beyond the end of dimension {d}, of size {n}"
                )
        exists = np.ones([r.size for r in ranges], bool)
        for d, (r, n) in enumerate(zip(ranges, shape)):
            exists &= ((r >= 0) & (r < n)).reshape([-1 if i == d else 1 for i in range(len(shape))])
        clipped = [np.clip(r, 0, max(n - 1, 0)) for r, n in zip(ranges, shape)]
        return tuple(np.ix_(*clipped)) if clipped else (), exists

    def enter(self, place: Sequence[Any]) -> None:
        """Makes the block at `place` the present one."""
        where = [int(p) for p in place]
        if self.is_far or where == self.place:
            return
        self.place = where
        at, exists = self._grid(where)
        memory, shape = self.memory, self.block.ref_aval.shape
        fresh = Memory(memory.aval, memory.name, memory.key, memory.checks)
        memory.data, memory.written = fresh.data, fresh.written
        if not self.is_output:
            found = np.where(exists, self.array.data[at], unwritten_value(self.array.data.dtype))
            memory.data = np.array(found.reshape(shape), memory.data.dtype)
            memory.written[...] = True
        self._touch(at, exists, False)

    def leave(self, following: Sequence[Any] | None) -> None:
        """Sends the block back if the next step has another one."""
        if self.is_far or not self.is_output:
            return
        if following is not None and [int(p) for p in following] == self.place:
            return
        at, exists = self._grid(self.place or [])
        held = self.memory.data.reshape(exists.shape)
        numbers = np.broadcast_to(self.array._numbers[at], exists.shape)[exists]
        self.array.data.reshape(-1)[numbers] = held[exists]
        self.array.written.reshape(-1)[numbers] |= self.memory.written.reshape(exists.shape)[exists]
        self._touch(at, exists, True)
        self.place = None

    def _touch(self, at: tuple[np.ndarray, ...], exists: np.ndarray, is_write: bool) -> None:
        if is_write or not self.is_output:
            numbers = np.broadcast_to(self.array._numbers[at], exists.shape)[exists]
            self.array._note(is_write, numbers, self.core.actor, f"the copy of the block {self.place}")
