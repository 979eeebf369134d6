"""`jax._src.typing`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from meshrt.numpy.names import missing as _missing
from meshrt.runtime.array import Array
from meshrt.typing import ArrayLike, DTypeLike

__all__ = ["Array", "ArrayLike", "DType", "DTypeLike", "DimSize", "Shape"]

DType: TypeAlias = Any
DimSize: TypeAlias = int | Any
Shape: TypeAlias = Sequence[DimSize]
__getattr__ = _missing("jax._src.typing", __all__)
