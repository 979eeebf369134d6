"""Which physical axes of a torus of chips each axis of a mesh gets.

An axis of a mesh communicates along its own devices, so it is fast where they are neighbours: where it is made of whole
physical axes, which have links all around. Axes are served from the last to the first, as the last one is by convention
the one that communicates most. The result is an assignment `shares[physical axis][mesh axis]`: how far each physical
axis is walked through by each mesh axis. The preferences are those of `jax.experimental.mesh_utils`, so that the same
devices stand in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from meshrt import errors

__all__ = ["assign"]

Shares = list[list[int]]


def assign(physical: np.ndarray, shape: tuple[int, ...], *, split: bool = False) -> np.ndarray:
    """The devices of `physical`, an array in the shape of the torus, as an array of `shape`.

    With `split`, a physical axis may serve several mesh axes, each a part of it, where whole ones do not do.

    Raises:
      UnsupportedError: no whole physical axes make up a mesh axis, and they may not be split.
    """
    try:
        shares = _whole(physical.shape, shape)
    except errors.UnsupportedError:
        if not split:
            raise
        shares = _parts(physical.shape, shape)
    return _arranged(physical, shares, shape)


def _whole(extents: tuple[int, ...], shape: tuple[int, ...]) -> Shares:
    """Whole physical axes only; as many as possible for an axis, and the first ones of those."""
    free = [i for i, extent in enumerate(extents) if extent > 1]
    shares = [[1] * len(shape) for _ in extents]
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            continue
        choices = (c for n in range(len(free), 0, -1) for c in itertools.combinations(free, n))
        taken = next((c for c in choices if math.prod(extents[i] for i in c) == shape[axis]), None)
        if taken is None:
            left = [extents[i] for i in free]
            raise errors.UnsupportedError(
                f"Failed to find assignment for logical_axis_index {axis} of size {shape[axis]}: no whole physical "
                f"axes of the {'x'.join(map(str, extents))} devices that are still free ({left}) make up that axis of "
                f"mesh shape {shape}. Choose sizes that are products of physical extents, split physical axes with "
                "meshrt.experimental.mesh_utils.create_device_mesh(..., allow_split_physical_axes=True), or arrange "
                "the devices yourself and pass them to meshrt.sharding.Mesh"
            )
        for i in taken:
            shares[i][axis] = extents[i]
            free.remove(i)
    return shares


def _parts(extents: tuple[int, ...], shape: tuple[int, ...]) -> Shares:
    """Parts of physical axes. One always fits: prime by prime, what is free is what is still to be placed."""
    shares = [[1] * len(shape) for _ in extents]
    for axis in reversed(range(len(shape))):
        used = [math.prod(row) for row in shares]
        free = [extent // u for extent, u in zip(extents, used)]
        best = max(_splits(free, shape[axis]), key=lambda split: _merit(split, extents, used))
        for row, share in zip(shares, best):
            row[axis] = share
    return shares


def _splits(free: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `size` as a product of divisors of `free`, one of each."""
    if not free:
        if size == 1:
            yield ()
        return
    for share in range(1, math.gcd(free[0], size) + 1):
        if free[0] % share == 0 and size % share == 0:
            for rest in _splits(free[1:], size // share):
                yield (share, *rest)


def _merit(split: tuple[int, ...], extents: Sequence[int], used: Sequence[int]) -> tuple[object, ...]:
    """What makes one split better than another, most important first: devices along whole physical axes, how many
    those are, devices along axes that were cut already (which leaves the others whole), and early axes."""
    whole = [share for share, extent in zip(split, extents) if share == extent]
    cut = math.prod(share for share, u in zip(split, used) if u > 1)
    return math.prod(whole), sum(share > 1 for share in whole), cut, split


def _arranged(physical: np.ndarray, shares: Shares, shape: tuple[int, ...]) -> np.ndarray:
    """Within a physical axis the later mesh axes take neighbours, the earlier ones blocks of those."""
    places = [(axis, i, share) for i, row in enumerate(shares) for axis, share in enumerate(row) if share > 1]
    order = sorted(range(len(places)), key=lambda k: places[k][:2])
    return physical.reshape([share for *_, share in places]).transpose(order).reshape(shape)
