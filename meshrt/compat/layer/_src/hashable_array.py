"""`jax._src.hashable_array`: arrays of NumPy's as keys."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["HashableArray"]


class HashableArray:
    """An array that equals others of its dtype, shape and elements."""

    __slots__ = ("_hash", "val")

    def __init__(self, val: Any):
        self.val = np.array(val)
        self.val.setflags(write=False)
        self._hash: int | None = None

    def __repr__(self) -> str:
        return f"HashableArray({self.val!r})"

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.val.dtype, self.val.shape, self.val.tobytes()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HashableArray):
            return False
        a, b = self.val, other.val
        return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
