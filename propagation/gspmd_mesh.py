"""The mesh behind GSPMD's tilings: their devices as digits, and the axes that these digits are.

GSPMD says which device has which tile, device by device, and knows no mesh. But tilings come from meshes, so along each
tile dimension the devices count up in digits: `[2,4]<=[4,2]T(1,0)` steps by 1 along the first dimension and by 2 along
the second. A digit is (stride, size); where digits of all tilings of a program begin and end is where mesh axes do.
Where two tilings cut at places of which neither divides the other (2x3 and 3x2), one axis covers both, and
tilings are over its parts.

>>> from .gspmd_text import read_gspmd
>>> tilings = [read_gspmd("{devices=[4,1,2]<=[8] last_tile_dim_replicate}"), read_gspmd("{devices=[8]<=[4,2]T(1,0)}")]
>>> grid = mesh_behind([(t, None) for t in tilings])
>>> grid.mesh.axes, [[a.to_text(grid.mesh) for a in dim] for dim in grid.axes(tilings[1])]
((('axis_0', 4), ('axis_1', 2)), [['"axis_1"', '"axis_0"']])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UnsupportedModuleError
from .gspmd_text import GspmdSharding
from .model import AxisRef, Mesh

__all__ = ["Grid", "mesh_behind"]

Digit = tuple[int, int]  # (stride, size)
Array = np.ndarray[Any, np.dtype[np.int64]]
MESH_NAME, AXIS_NAME = "mesh", "axis_{}"


@dataclass(frozen=True, slots=True)
class Grid:
    """A mesh over which tilings are said. `places` gives each device's place in it; None if that is its number."""

    mesh: Mesh
    places: Array | None

    def axes(self, tiling: GspmdSharding, where: str | None = None) -> list[list[AxisRef]]:
        """The axes of each tile dimension, those of `tiling.last` behind those of its dimensions. Raises
        `UnsupportedModuleError` where they are not (parts of) axes of the mesh."""
        digits = _digits(tiling, self.places)
        if digits is None or math.prod(self.mesh.shape) != _devices(tiling).size:
            raise _no_axes(self.mesh, tiling, where)
        return [[axis for digit in dim for axis in self._parts(digit, tiling, where)] for dim in digits]

    def _parts(self, digit: Digit, tiling: GspmdSharding, where: str | None) -> list[AxisRef]:
        """The axes between the places where the digit begins and ends, from major to minor."""
        low, high = digit[0], digit[0] * digit[1]
        found: list[AxisRef] = []
        end = self.mesh.size
        for name, size in self.mesh.axes:
            begin = end // size
            inner_low, inner_high = max(low, begin), min(high, end)
            if inner_low < inner_high:
                if inner_high % inner_low or end % inner_high or inner_low % begin:
                    raise _no_axes(self.mesh, tiling, where)
                found.append(AxisRef(name, end // inner_high, inner_high // inner_low))
            end = begin
        return found


def mesh_behind(
    tilings: Sequence[tuple[GspmdSharding, str | None]],
    known: Iterable[Mesh] = (),
    asked: Mesh | None = None,
    devices: int | None = None,
) -> Grid | None:
    """The mesh of a program with these tilings, each with its place in the source.

    It is `asked` if that is given, else one of `known` over which all can be said, else one with axes axis_0, axis_1,
    ... over the devices in their order, or where that cannot be, in the order of their tiles. `devices` is how many
    there are, if the program says so itself. None if nothing says how many there are. Raises `UnsupportedModuleError`.
    """
    counts = {_devices(t).size: where for t, where in reversed(tilings)}
    if devices is not None and devices > 1:
        counts.setdefault(devices, None)
    if asked is not None:
        counts.setdefault(asked.size, None)
    if len(counts) > 1:
        (first, _), (other, where), *_ = sorted(counts.items(), key=lambda item: item[0])
        raise UnsupportedModuleError(f"shardings are over {first} devices and over {other}, not over one mesh", where)
    if not counts:
        return None
    if asked is not None:
        return Grid(asked, _places(asked.device_ids))
    for mesh in known:
        grid = Grid(mesh, _places(mesh.device_ids))
        if not mesh.is_maximal and mesh.size == next(iter(counts)) and _fits(grid, tilings):
            return grid
    return _inferred(tilings, next(iter(counts)))


def _inferred(tilings: Sequence[tuple[GspmdSharding, str | None]], count: int) -> Grid:
    orders: list[Array | None] = [None]
    if tilings:
        orders.append(_order_by_tiles([t for t, _ in tilings], count))
    failed: tuple[GspmdSharding, str | None] = tilings[0] if tilings else (GspmdSharding("replicated"), None)
    for order in orders:
        places = _places(order)
        cuts = {1, count}
        for tiling, where in tilings:
            digits = _digits(tiling, places)
            if digits is None:
                failed = tiling, where
                break
            cuts.update(cut for dim in digits for stride, size in dim for cut in (stride, stride * size))
        else:
            ids = None if order is None else tuple(int(n) for n in order)
            return Grid(Mesh(MESH_NAME, _axes_between(cuts), ids), places)
    raise UnsupportedModuleError(
        f"no mesh has the devices of {_text(failed[0])} in their order; shardings must be tiles of one grid", failed[1]
    )


def _order_by_tiles(tilings: list[GspmdSharding], count: int) -> Array:
    """The devices in the order of their tiles: of the tiling with most of them first, among its replicas of others."""
    keys: list[Array] = []
    for tiling in sorted(tilings, key=lambda t: -math.prod(t.tiles)):
        shape = (*tiling.tiles, *tiling.sizes)
        places = np.unravel_index(np.arange(count), shape) if shape else ()
        kinds = (*("tiled" for _ in tiling.tiles), *tiling.last)
        for along in (along for along, kind in zip(places, kinds) if kind != "replicated"):
            key = np.empty(count, np.int64)
            key[_devices(tiling)] = along
            keys.append(key)
    return np.lexsort(keys[::-1]) if keys else np.arange(count)


def _axes_between(cuts: set[int]) -> list[tuple[str, int]]:
    """Axes between the cuts that divide, or are divided by, every other one."""
    common = sorted(c for c in cuts if all(c % other == 0 or other % c == 0 for other in cuts))
    sizes = [high // low for low, high in itertools.pairwise(common)][::-1] or [1]
    return [(AXIS_NAME.format(i), size) for i, size in enumerate(sizes)]


def _fits(grid: Grid, tilings: Sequence[tuple[GspmdSharding, str | None]]) -> bool:
    try:
        for tiling, where in tilings:
            grid.axes(tiling, where)
    except UnsupportedModuleError:
        return False
    return True


def _devices(tiling: GspmdSharding) -> Array:
    assert tiling.devices is not None, "tilings list their devices"
    return tiling.devices


def _places(order: Sequence[int] | Array | None) -> Array | None:
    """The place of each device in an order of devices."""
    if order is None:
        return None
    places = np.empty(len(order), np.int64)
    places[np.asarray(order)] = np.arange(len(order))
    return places


def _digits(tiling: GspmdSharding, places: Array | None) -> list[list[Digit]] | None:
    """The digits of each tile dimension, from major to minor; None if its devices do not count in digits."""
    devices = _devices(tiling)
    shape = (*tiling.tiles, *tiling.sizes)
    table = (devices if places is None else places[devices]).reshape(shape)
    for dim, kind in enumerate(tiling.last, len(tiling.tiles)):
        if kind == "replicated":  # in which order replicas are listed means nothing, and writers sort them
            table = np.sort(table, axis=dim)
    if table.size and table.flat[0] != 0:
        return None
    out: list[list[Digit]] = []
    total = np.zeros(shape, np.int64)
    for dim, size in enumerate(shape):
        along = table[tuple(slice(None) if i == dim else 0 for i in range(len(shape)))]
        total = total + along.reshape([size if i == dim else 1 for i in range(len(shape))])
        found = _counted(along)
        if found is None:
            return None
        out.append(found)
    return out if np.array_equal(total, table) and _are_a_number(out, table.size) else None


def _are_a_number(digits: list[list[Digit]], count: int) -> bool:
    """Whether each digit begins where another one ends."""
    expected = 1
    for stride, size in sorted(digit for dim in digits for digit in dim):
        if stride != expected:
            return False
        expected *= size
    return expected == count


def _counted(values: Array) -> list[Digit] | None:
    """The digits in which `values`, which begin at 0, count up."""
    digits: list[Digit] = []
    while len(values) > 1:
        stride = int(values[1])
        straight = values == np.arange(len(values)) * stride
        size = len(values) if straight.all() else int(np.argmin(straight))
        if stride <= 0 or len(values) % size:
            return None
        rest = values[::size]
        if not np.array_equal(values, (rest[:, None] + values[None, :size]).reshape(-1)):
            return None
        digits.append((stride, size))
        values = rest
    return digits[::-1]


def _no_axes(mesh: Mesh, tiling: GspmdSharding, where: str | None) -> UnsupportedModuleError:
    return UnsupportedModuleError(f"{_text(tiling)} is not made of axes of the mesh {mesh.to_text()}", where)


def _text(tiling: GspmdSharding) -> str:
    devices = ",".join(map(str, _devices(tiling)[:16])) + (",..." if _devices(tiling).size > 16 else "")
    return f"the sharding into {'x'.join(map(str, (*tiling.tiles, *tiling.sizes)))} tiles on devices {devices}"
