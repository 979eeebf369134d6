"""The parts of an array."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Shard"]


class Shard:
    """One device's part of an array.

    `index` are the slices of the global array that it holds, `replica_id` numbers the devices that hold the same
    part, `data` is that part as an Array on one device (None on a device of another process).
    """

    __slots__ = ("_array", "_local", "device", "index", "replica_id")

    def __init__(self, array: Any, local: int | None, device: Any, index: tuple[slice, ...], replica_id: int):
        self._array, self._local = array, local
        self.device, self.index, self.replica_id = device, index, replica_id

    @property
    def data(self) -> Any:
        return None if self._local is None else self._array.addressable_data(self._local)

    def __repr__(self) -> str:
        part = self.data
        data = "" if part is None else f", data={part if part.aval.is_key else np.asarray(part)}"
        return f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}{data})"
