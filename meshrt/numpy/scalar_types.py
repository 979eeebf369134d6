"""The dtypes as names of ``meshrt.numpy``: usable as dtypes, and called like ``jnp.float32(x)`` to make arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt._lattice import STRONG
from meshrt.core.operators import ArrayOperators
from meshrt.numpy.arrays import asarray

__all__ = ["SCALAR_TYPES", "ScalarType"]


class ScalarType(type):
    """Metaclass of the dtype names: each class stands for one dtype and compares equal to it."""

    dtype: np.dtype

    def __call__(cls, x: Any = 0) -> Any:
        return asarray(x, dtype=cls.dtype)

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __eq__(cls, other: object) -> bool:
        return cls is other or cls.dtype.type == other or _same_dtype(cls.dtype, other)

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, ArrayOperators):
            return instance.dtype == cls.dtype and instance.ndim == 0
        return isinstance(instance, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"<class 'meshrt.numpy.{cls.__name__}'>"


def _same_dtype(own: np.dtype, other: Any) -> bool:
    if isinstance(other, (np.dtype, str)) or (isinstance(other, type) and issubclass(other, np.generic)):
        try:
            return own == np.dtype(other)
        except TypeError:
            return False
    return False


def _make(dtype: np.dtype, name: str) -> ScalarType:
    doc = f"The dtype {name}; calling it converts to an array of that dtype."
    return ScalarType(name, (), {"dtype": dtype, "__doc__": doc, "__module__": "meshrt.numpy"})


SCALAR_TYPES: dict[str, ScalarType] = {("bool_" if d == np.bool_ else d.name): _make(d, d.name) for d in STRONG}
SCALAR_TYPES |= {
    "bool": SCALAR_TYPES["bool_"], "single": SCALAR_TYPES["float32"], "double": SCALAR_TYPES["float64"],
    "csingle": SCALAR_TYPES["complex64"], "cdouble": SCALAR_TYPES["complex128"],
    # Of 64 bits as in NumPy; without enable_x64 they are canonicalized to 32 where they are used.
    "int_": SCALAR_TYPES["int64"], "uint": SCALAR_TYPES["uint64"],
    "float_": SCALAR_TYPES["float64"], "complex_": SCALAR_TYPES["complex128"],
}  # fmt: skip
