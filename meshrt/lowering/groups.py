"""Which devices talk to each other in a collective of a manual region."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable

import numpy as np

from meshrt.sharding.mesh import AbstractMesh

__all__ = ["CHANNEL", "IndexGroups", "device_groups", "stride_of"]

# Between devices, by the numbers of the flattened mesh.
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"

# `axis_index_groups`: members of each group as indices along the named axes.
IndexGroups = tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=256)
def device_groups(mesh: AbstractMesh, names: tuple[Hashable, ...], within: IndexGroups | None = None) -> np.ndarray:
    """i64[groups, members]: numbers of devices in the flattened mesh.

    The members of a group differ in their index along the named axes, and stand in the order of it, the first name
    being the major one. `within` cuts each group into parts; rows of smaller ones end in -1.
    """
    last = [mesh.axis_names.index(n) for n in names]
    order = [i for i in range(len(mesh.axis_names)) if i not in last] + last
    members = int(np.prod([mesh.axis_sizes[i] for i in last], dtype=np.int64))
    numbers = np.arange(mesh.size, dtype=np.int64).reshape(mesh.axis_sizes).transpose(order).reshape(-1, members)
    if within is None:
        return np.ascontiguousarray(numbers)
    rows = [[int(row[i]) for i in part] for row in numbers for part in within]
    return np.ascontiguousarray(np.array(list(itertools.zip_longest(*rows, fillvalue=-1)), dtype=np.int64).T)


def stride_of(mesh: AbstractMesh, name: Hashable) -> int:
    """How many devices lie between neighbours along an axis, in the flattened mesh."""
    sizes = mesh.axis_sizes[mesh.axis_names.index(name) + 1 :]
    return int(np.prod(sizes, dtype=np.int64))
