"""The types of values: `ShapedArray` and the protocol behind it.

Types are interned: two equal types are one object, so comparison is identity and the hash is the object's own.
Every cache of the pipeline is keyed by them.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from meshrt import dtypes

__all__ = ["AbstractValue", "ShapedArray", "aval_of", "register_aval"]


class AbstractValue:
    """What a trace knows of a value before it exists. `is_high` marks types that lower to several plain ones."""

    __slots__ = ()
    is_high = False

    def to_tangent_aval(self) -> AbstractValue:
        raise NotImplementedError(f"{type(self).__name__} has no tangent type")


class ShapedArray(AbstractValue):
    """The type of an array: `shape` (ints), `dtype` (NumPy or extended) and `weak_type`.

    >>> ShapedArray((4, 2), np.dtype("float32")) is ShapedArray((4, 2), np.dtype("float32"))
    True
    """

    __slots__ = ("_physical", "_str", "_strong", "_tangent", "dtype", "mlir", "ndim", "shape", "size", "weak_type")

    _interned: dict[tuple, ShapedArray] = {}
    _lock = threading.Lock()

    shape: tuple[int, ...]
    weak_type: bool

    def __new__(cls, shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> ShapedArray:
        try:
            return cls._interned[(shape, dtype, weak_type)]
        except KeyError:
            pass
        except TypeError:
            shape = tuple(shape)
        return cls._make(shape, dtype, weak_type)

    @classmethod
    def _make(cls, shape, dtype, weak_type) -> ShapedArray:
        if not isinstance(dtype, dtypes.ExtendedDType):
            dtype = np.dtype(dtype)
        shape = tuple(int(d) for d in shape)
        key = (shape, dtype, bool(weak_type))
        with cls._lock:
            aval = cls._interned.get(key)
            if aval is None:
                aval = object.__new__(cls)
                aval.shape, aval.dtype, aval.weak_type = key
                aval.ndim = len(shape)
                size = 1
                for d in shape:
                    size *= d
                aval.size = size
                aval._str = aval._tangent = aval._physical = aval.mlir = None
                aval._strong = aval if not weak_type else None
                cls._interned[key] = aval
        return aval

    def __reduce__(self):
        return (ShapedArray, (self.shape, self.dtype, self.weak_type))

    @property
    def is_key(self) -> bool:
        """Whether the elements are PRNG keys."""
        return isinstance(self.dtype, dtypes.KeyType)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        physical = self.physical()
        return physical.size * physical.dtype.itemsize

    def strong(self) -> ShapedArray:
        """The same type without weakness."""
        if self._strong is None:
            self._strong = ShapedArray(self.shape, self.dtype, False)
        return self._strong

    def with_shape(self, shape: tuple[int, ...]) -> ShapedArray:
        return ShapedArray(shape, self.dtype, self.weak_type)

    def update(self, **changes: Any) -> ShapedArray:
        return ShapedArray(
            changes.get("shape", self.shape), changes.get("dtype", self.dtype), changes.get("weak_type", self.weak_type)
        )

    def physical(self) -> ShapedArray:
        """The type of the buffer that holds the value (PRNG keys are `uint32[..., 2]`)."""
        if self._physical is None:
            if isinstance(self.dtype, dtypes.ExtendedDType):
                self._physical = ShapedArray(self.shape + self.dtype.physical_suffix, self.dtype.physical_dtype)
            else:
                self._physical = self
        return self._physical

    def to_tangent_aval(self) -> ShapedArray:
        """The type of derivatives: itself for floating and complex types, `float0` for all others."""
        if self._tangent is None:
            inexact = not isinstance(self.dtype, dtypes.ExtendedDType) and dtypes.issubdtype(self.dtype, np.inexact)
            self._tangent = self if inexact else ShapedArray(self.shape, dtypes.float0)
        return self._tangent

    @property
    def is_differentiable(self) -> bool:
        return self.to_tangent_aval().dtype != dtypes.float0

    def str_short(self) -> str:
        """`f32[8,4]`; a weak type is marked by `~`."""
        if self._str is None:
            name = short_dtype(self.dtype)
            self._str = f"{name}[{','.join(map(str, self.shape))}]"
        return self._str

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({dtypes_name(self.dtype)}[{','.join(map(str, self.shape))}]{weak})"

    def __str__(self) -> str:
        return ("~" if self.weak_type else "") + f"{dtypes_name(self.dtype)}[{','.join(map(str, self.shape))}]"


def dtypes_name(dtype: Any) -> str:
    return getattr(dtype, "name", str(dtype))


_SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "uint": "u", "int": "i"}


def short_dtype(dtype: Any) -> str:
    """`f32`, `bf16`, `i1` is `bool`."""
    name = dtypes_name(dtype)
    for long, short in _SHORT.items():
        if name.startswith(long) and name[len(long) : len(long) + 1].isdigit():
            return short + name[len(long) :]
    return name


_HANDLERS: dict[type, Any] = {}


def register_aval(cls: type, handler: Any) -> None:
    """Makes values of `cls` usable as operands: `handler(value) -> ShapedArray`."""
    _HANDLERS[cls] = handler


def aval_of(value: Any) -> ShapedArray:
    """The type of a tracer, array, NumPy value or Python scalar; TypeError for anything else."""
    handler = _HANDLERS.get(type(value))
    if handler is not None:
        return handler(value)
    for cls in type(value).__mro__:
        handler = _HANDLERS.get(cls)
        if handler is not None:
            _HANDLERS[type(value)] = handler
            return handler(value)
    from meshrt import errors

    raise errors.ArgumentTypeError(
        f"a value of type {type(value).__name__} is not an array: expected a meshrt array, a NumPy array or scalar, "
        "or a Python bool, int, float or complex; convert it first (for example with meshrt.numpy.asarray)"
    )


def _numpy_aval(value: Any) -> ShapedArray:
    return ShapedArray(value.shape, dtypes.check_value_dtype(value.dtype, f"a value of type {type(value).__name__}"))


def _python_scalar(kind: type):
    def handler(value: Any) -> ShapedArray:
        return ShapedArray((), dtypes.canonicalize_dtype(dtypes.python_scalar_dtypes[kind]), kind is not bool)

    return handler


for _kind in (bool, int, float, complex):
    register_aval(_kind, _python_scalar(_kind))
register_aval(np.ndarray, _numpy_aval)
register_aval(np.generic, _numpy_aval)
