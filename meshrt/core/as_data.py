"""Types of arrays as JSON, for files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshrt._keytypes import KEY_IMPLS, KeyType
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.dimensions.scope import SymbolicScope
from meshrt.core.dimensions.shapes import symbolic_shape
from meshrt.core.spaces import Space
from meshrt.core.types import ShapedArray
from meshrt.dtypes import float0
from meshrt.errors import UnsupportedError

__all__ = ["dtype_from_data", "type_from_data", "type_to_data"]

_MAX_SIZE = 1 << 48  # elements of an array
_DTYPES = re.compile(r"bool|u?int\d+|float\d+\w*|bfloat16|complex\d+")


def type_to_data(aval: ShapedArray) -> dict[str, Any]:
    """Shape, dtype, weakness and memory of a type; symbolic sizes as text.

    Raises:
      UnsupportedError: an extended dtype that a library defines.
    """
    if aval.is_extended and not aval.is_key:
        raise UnsupportedError(
            f"{aval.short()} in a file: what {aval.dtype} means is known to the library that defines it only; convert "
            "it to the numbers that hold it at the boundary of the function"
        )
    dtype = {"key": aval.dtype.impl.name} if isinstance(aval.dtype, KeyType) else _dtype_name(aval.dtype)
    shape = [str(n) if isinstance(n, DimExpr) else n for n in aval.shape]
    return {"shape": shape, "dtype": dtype, "weak": aval.weak_type, "space": aval.memory_space.value}


def _dtype_name(dtype: Any) -> str:
    return "float0" if dtype == float0 else str(np.dtype(dtype).name)


def type_from_data(said: Mapping[str, Any], scope: SymbolicScope | None = None) -> ShapedArray:
    """The type that `type_to_data` wrote, with symbolic sizes of `scope` if there is one.

    KeyError, TypeError or ValueError if `said` is no type.
    """
    name, shape = said["dtype"], tuple(_size(n, scope) for n in said["shape"])
    known = [n for n in shape if not isinstance(n, DimExpr)]
    if any(type(n) is not int or n < 0 for n in known) or math.prod(known) >= _MAX_SIZE:
        raise ValueError(f"the shape {shape}")
    if isinstance(name, dict):
        return ShapedArray(shape, KeyType(KEY_IMPLS[name["key"]]))
    return ShapedArray(shape, dtype_from_data(name), bool(said["weak"]), memory_space=Space(said["space"]))


def _size(said: Any, scope: SymbolicScope | None) -> Any:
    if scope is None or not isinstance(said, str):
        return said
    (size,) = symbolic_shape(said, scope=scope)
    return size


def dtype_from_data(name: Any) -> Any:
    """The dtype of this name. ValueError if there is none."""
    if not isinstance(name, str) or not _DTYPES.fullmatch(name):
        raise ValueError(f"the element type {name!r}")
    try:
        return float0 if name == "float0" else np.dtype(name)
    except TypeError:
        raise ValueError(f"the element type {name!r}") from None
