"""What is to be saved of a tree, and which process writes what: made where `save` is called, on all processes alike.

A leaf becomes a `StoredLeaf` whose arrays are cut into pieces as their shardings split them. A piece that several
processes hold is written by the one that has least to write so far; where each part of an array lies on several
processes, parts are cut further, so that all of them write some of it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.checkpoint import grid as grids
from meshrt.checkpoint.elements import bits_of, name_of, size_of
from meshrt.checkpoint.grid import Box, Grid
from meshrt.core.high import is_high_value
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.heuristics import CHECKPOINT_TILE_BYTES, CHECKPOINT_WHOLE_BYTES
from meshrt.runtime.array import Array
from meshrt.runtime.signature import local_parts
from meshrt.sharding.as_data import row_to_data
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding

__all__ = ["PlannedArray", "PlannedLeaf", "owners", "plan", "python_to_data"]


@dataclass(slots=True)
class PlannedArray:
    """One array that is to be saved.

    `holders` are the processes that have each of its pieces, None where all have; `value` is an Array or a NumPy array
    (of keys their words), `copied` whether it must be copied before the caller goes on.
    """

    name: str
    value: Any
    dtype: np.dtype
    shape: tuple[int, ...]
    weak_type: bool
    sharding: dict[str, Any] | None
    grid: Grid
    holders: list[tuple[int, ...]] | None
    tile: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        largest = [max(e - s for s, e in zip(lines, (*lines[1:], n))) for lines, n in zip(self.grid, self.shape)]
        self.tile = grids.tile_shape(largest, bits_of(self.dtype))

    @property
    def boxes(self) -> list[Box]:
        return list(grids.pieces(self.grid, self.shape))

    def reader(self) -> Callable[[Box], np.ndarray]:
        """Gives the values in a box that this process holds; they share the array's memory where that is the host's."""
        if isinstance(self.value, np.ndarray):
            return lambda box: self.value[tuple(slice(*b) for b in box)]
        array: Array = self.value
        held = local_parts(array.sharding, array.shape)
        suffix = tuple((0, n) for n in self.shape[array.ndim :])
        parts = [grids.slices(index, array.shape) + suffix for index in held.indices]
        numbers = {part: k for k, part in enumerate(parts)}
        fetched: dict[int, np.ndarray] = {}

        def read(box: Box) -> np.ndarray:
            k = numbers.get(box)
            if k is None:  # it is a piece of a part, or made of several
                k = next((k for k, part in enumerate(parts) if grids.inside(box, part)), None)
            return assembled(box) if k is None else part_of(k)[grids.relative(box, parts[k])]

        def part_of(k: int) -> np.ndarray:
            if k not in fetched:
                fetched[k] = array._shard_numpy(held.which.index(k))
            return fetched[k]

        def assembled(box: Box) -> np.ndarray:
            out = np.empty(grids.extents(box), self.dtype)
            for k, part in enumerate(parts):
                both = grids.meet(part, box)
                if both is not None:
                    out[grids.relative(both, box)] = part_of(k)[grids.relative(both, part)]
            return out

        return read


@dataclass(slots=True)
class PlannedLeaf:
    """One leaf: see `StoredLeaf`."""

    path: str
    kind: str
    arrays: list[PlannedArray]
    about: Any = None


def plan(tree: Any, processes: int) -> tuple[list[PlannedLeaf], list[AbstractMesh]]:
    """The leaves of a tree, and the meshes that their shardings name by number.

    Raises:
      CheckpointError: a leaf cannot be saved, or two have the same path. LeakedTracerError: a leaf is traced.
      DeletedArrayError: an array was donated or deleted.
    """
    planner = _Planner(processes)
    leaves = []
    names = {"__metadata__"}  # which has a meaning in files of safetensors
    paths: set[str] = set()
    for keys, value in tree_util.tree_leaves_with_path(tree):
        path = tree_util.keystr(keys)
        if path in paths:
            raise errors.CheckpointError(
                f"two leaves of the tree have the path {path or 'of the whole tree'!r}, and could not be told apart. "
                "Let the keys of its containers have different texts"
            )
        paths.add(path)
        name = tree_util.keystr(keys, simple=True, separator="/") or "value"
        name = path if name in names else name
        names.add(name)
        leaves.append(planner.leaf(path, name, value))
    return leaves, planner.meshes


_LONGEST_INT = 10_000  # bits: what Python reads from text without being told to


def _called(path: str) -> str:
    return f"the leaf {path or 'itself'}"


class _Planner:
    def __init__(self, processes: int):
        self.processes = processes
        self.meshes: list[AbstractMesh] = []
        self._holders: dict[Any, dict[tuple[int, ...], tuple[int, ...]]] = {}

    def leaf(self, path: str, name: str, value: Any) -> PlannedLeaf:
        if type(value) is Array:
            value._check()
            if value.aval.is_extended and not value.aval.is_key:
                raise _unsupported(path, value)
            array = self._device_array(path, name, value)
            return PlannedLeaf(path, "key" if value.aval.is_key else "array", [array], _generator(value))
        if isinstance(value, np.ndarray | np.generic):
            kind = "numpy" if isinstance(value, np.ndarray) else "numpy scalar"
            return PlannedLeaf(path, kind, [self._host_array(path, name, np.asanyarray(value))])
        if is_high_value(value):
            high: Any = aval_of(value)
            arrays = [self._low(path, f"{name}/{i}", part) for i, part in enumerate(high.lower_val(value))]
            return PlannedLeaf(path, "high", arrays, type(value).__qualname__)
        data = python_to_data(value)
        if data is None:
            raise _unsupported(path, value)
        return PlannedLeaf(path, "python", [], data)

    def _low(self, path: str, name: str, value: Any) -> PlannedArray:
        if type(value) is Array and not value.aval.is_key:
            value._check()
            return self._device_array(path, name, value)
        if isinstance(value, np.ndarray):
            return self._host_array(path, name, value)
        raise _unsupported(path, value)

    def _host_array(self, path: str, name: str, value: np.ndarray) -> PlannedArray:
        if isinstance(value, np.ma.MaskedArray):
            raise errors.CheckpointError(
                f"{_called(path)} is a masked NumPy array, of which a checkpoint would hold the elements and not "
                "the mask. Save its data and its mask, or filled() of it"
            )
        if name_of(value.dtype) is None:
            raise errors.CheckpointError(
                f"{_called(path)} is a NumPy array of {value.dtype}, whose elements are not plain bytes, and "
                "cannot be saved. Convert it to numbers, or leave it out"
            )
        grid: Grid = tuple((0,) for _ in value.shape)
        if self.processes > 1:
            grid = _shared(grid, value.shape, value.dtype, self.processes)
        return PlannedArray(name, value, value.dtype.newbyteorder("="), value.shape, False, None, grid, None)

    def _device_array(self, path: str, name: str, value: Array) -> PlannedArray:
        sharding, physical = value.sharding, value._sig.physical
        if sharding.unreduced_axes:
            raise errors.CheckpointError(
                f"{_called(path)} is a partial sum over {sorted(map(str, sharding.unreduced_axes))}: it has no "
                "value yet. Reshard it to a spec that is not unreduced before it is saved"
            )
        if name_of(physical.dtype) is None:
            raise _unsupported(path, value)
        grid = grids.even_grid(value.shape, sharding.tiling(value.ndim)) + ((0,),) * (physical.ndim - value.ndim)
        holders: list[tuple[int, ...]] | None = None
        alone = self.processes == 1 or sharding.is_fully_addressable
        if alone and size_of(physical.shape, physical.dtype) <= CHECKPOINT_WHOLE_BYTES:
            grid = ((0,),) * physical.ndim
        elif not alone:
            by_tile = self._processes_of(sharding, value.ndim)
            grid = _shared(grid, physical.shape, physical.dtype, min(map(len, by_tile.values())))
            part = sharding.shard_shape(value.shape)
            first = lambda box: tuple(start // max(n, 1) for (start, _), n in zip(box, part))
            holders = [by_tile[first(box)] for box in grids.pieces(grid, physical.shape)]
        elif self.processes > 1:
            grid = _shared(grid, physical.shape, physical.dtype, self.processes)
        about = self._sharding(sharding, value.committed)
        return PlannedArray(name, value, physical.dtype, physical.shape, value.weak_type, about, grid, holders)

    def _processes_of(self, sharding: Sharding, ndim: int) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The processes that hold each part, by its place among the parts of each dimension."""
        found = self._holders.get((sharding, ndim))
        if found is None:
            rows: dict[tuple[int, ...], set[int]] = {}
            for place, device in zip(sharding.tile_indices(ndim).tolist(), sharding.device_assignment):
                rows.setdefault(tuple(place), set()).add(device.process_index)
            found = self._holders[sharding, ndim] = {place: tuple(sorted(p)) for place, p in rows.items()}
        return found

    def _sharding(self, sharding: Sharding, committed: bool) -> dict[str, Any]:
        if isinstance(sharding, NamedSharding):
            try:
                return {"named": row_to_data(sharding, self.meshes)}
            except errors.UnsupportedError as e:  # restoring without a sharding says so
                return {"other": str(e)}
        if isinstance(sharding, SingleDeviceSharding):
            return {"single": sharding.other_memory, "committed": committed}
        return {"other": f"it was split by {type(sharding).__name__}, which files do not hold"}


def _shared(grid: Grid, shape: Sequence[int], dtype: np.dtype, processes: int) -> Grid:
    """The grid with its pieces cut for so many processes that all hold them, unless they are small."""
    size = size_of(shape, dtype) // max(grids.count_pieces(grid), 1)
    return grids.finer(grid, shape, min(processes, math.ceil(size / CHECKPOINT_TILE_BYTES)))


def owners(arrays: Sequence[PlannedArray], processes: int) -> list[list[int]]:
    """For each array the process that writes each piece: the same on all processes."""
    if processes == 1:
        return [[0] * grids.count_pieces(a.grid) for a in arrays]
    load = [0] * processes
    everyone = range(processes)
    out = []
    for array in arrays:
        row = []
        for number, box in enumerate(array.boxes):
            held = everyone if array.holders is None else array.holders[number]
            owner = min(held, key=load.__getitem__)
            load[owner] += size_of(grids.extents(box), array.dtype)
            row.append(owner)
        out.append(row)
    return out


def _generator(value: Array) -> str | None:
    return value.dtype.impl.name if value.aval.is_key else None


def python_to_data(value: Any) -> dict[str, Any] | None:
    """A Python value as JSON that is exact; None if it is of a type that files do not hold."""
    kind = type(value)
    if kind is int and value.bit_length() > _LONGEST_INT:
        return None
    if kind in (bool, int, str):
        return {kind.__name__: value}
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    return None


def _unsupported(path: str, value: Any) -> errors.MeshrtError:
    if isinstance(value, ArrayOperators) and type(value) is not Array:
        return errors.LeakedTracerError(
            f"{_called(path)} is traced ({type(value).__name__}): checkpoints are saved outside of jit, grad and vmap"
        )
    if type(value) is Array:
        return errors.CheckpointError(
            f"{_called(path)} is an array of the extended dtype {value.dtype}, which a checkpoint cannot hold: save "
            "the numbers that hold it (lax.convert_element_type)"
        )
    return errors.CheckpointError(
        f"{_called(path)} is {_brief(value)} of type {type(value).__module__}.{type(value).__qualname__}, "
        "which a checkpoint cannot hold: it holds arrays, NumPy values, numbers, strings and bytes in any pytree. "
        "Register its class as a pytree, or leave it out (what JSON can say may be metadata=)"
    )


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as e:  # of a user's class, or of an integer with more digits than Python writes
        text = f"a value that cannot be shown ({type(e).__name__})"
    return text if len(text) <= 80 else text[:77] + "..."
