"""ShapeDtypeStruct: the type (and sharding) of an array that need not exist."""

from __future__ import annotations

import operator
from typing import Any

from meshrt import dtypes, errors

__all__ = ["ShapeDtypeStruct"]


class ShapeDtypeStruct:
    """Stands for an array wherever only its type matters (`jit(f).lower`, `eval_shape`).

    `shape` is a tuple of ints, `dtype` a NumPy or extended dtype, `sharding` a Sharding or None.
    """

    __slots__ = ("dtype", "shape", "sharding", "weak_type")

    def __init__(self, shape: Any, dtype: Any, *, sharding: Any = None, weak_type: bool = False):
        if dtype is None:
            raise errors.ArgumentValueError("ShapeDtypeStruct: dtype must be specified")
        self.shape = _sizes(shape)
        self.dtype = dtype if isinstance(dtype, dtypes.ExtendedDType) else dtypes.dtype(dtype)
        self.sharding = sharding
        self.weak_type = weak_type

    ndim = property(lambda self: len(self.shape))

    @property
    def size(self) -> int:
        size = 1
        for d in self.shape:
            size *= d
        return size

    @classmethod
    def like(cls, x: Any) -> ShapeDtypeStruct:
        """The struct that describes `x`."""
        return cls(x.shape, x.dtype, sharding=getattr(x, "sharding", None), weak_type=getattr(x, "weak_type", False))

    def update(self, **changes: Any) -> ShapeDtypeStruct:
        return ShapeDtypeStruct(
            changes.get("shape", self.shape), changes.get("dtype", self.dtype),
            sharding=changes.get("sharding", self.sharding), weak_type=changes.get("weak_type", self.weak_type),
        )  # fmt: skip

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def _key(self) -> tuple:
        return (self.shape, self.dtype, self.sharding, self.weak_type)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        extra = f", sharding={self.sharding}" if self.sharding is not None else ""
        extra += ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype}{extra})"


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(n) for n in shape)
    except TypeError:
        raise errors.ArgumentTypeError(
            f"ShapeDtypeStruct: the shape must be a tuple of integers, such as (8, 4), got {shape!r}"
        ) from None
