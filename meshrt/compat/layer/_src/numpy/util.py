"""`jax._src.numpy.util`: operands of one dtype, or of one dtype and shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.core.types import aval_of
from meshrt.dtypes import to_complex_dtype
from meshrt.numpy import asarray, broadcast_shapes, broadcast_to, expand_dims, where
from meshrt.numpy.names import missing as _missing
from meshrt.numpy.operands import aval_for, in_one_dtype, promote, promote_inexact, promote_numeric

__all__ = [
    "check_arraylike", "check_arraylike_or_none", "ensure_arraylike", "promote_args", "promote_args_inexact",
    "promote_args_numeric", "promote_dtypes", "promote_dtypes_complex", "promote_dtypes_inexact",
    "promote_dtypes_numeric", "promote_shapes",
]  # fmt: skip

promote_args, promote_args_inexact, promote_args_numeric = promote, promote_inexact, promote_numeric
_where = where


def _arraylike(x: Any) -> bool:
    try:
        check_arraylike("", x)
    except TypeError:
        return False
    return True


def promote_dtypes(*args: Any) -> list[Any]:
    """Arrays with one dtype."""
    return [asarray(x) for x in in_one_dtype("promote_dtypes", args)]


def promote_dtypes_inexact(*args: Any) -> list[Any]:
    """Arrays with one floating or complex dtype."""
    return [asarray(x) for x in in_one_dtype("promote_dtypes_inexact", args, inexact=True)]


def promote_dtypes_complex(*args: Any) -> list[Any]:
    """Arrays with one complex dtype."""
    arrays = promote_dtypes_inexact(*args)
    return [x.astype(to_complex_dtype(x.dtype)) for x in arrays]


def promote_dtypes_numeric(*args: Any) -> list[Any]:
    """Arrays with one dtype that is not bool."""
    return list(promote_numeric("promote_dtypes_numeric", *args))


def check_arraylike(fun_name: str, *args: Any, emit_warning: bool = False, stacklevel: int = 3) -> None:
    """TypeError for an argument that is neither an array nor a number."""
    for position, x in enumerate(args):
        if not hasattr(x, "__jax_array__"):
            aval_for(fun_name, x, position)


def check_arraylike_or_none(fun_name: str, *args: Any) -> None:
    """As `check_arraylike`; None is fine too."""
    check_arraylike(fun_name, *(0 if x is None else x for x in args))


def ensure_arraylike(fun_name: str, /, *args: Any) -> Any:
    """The arguments as arrays: one as it is, several as a tuple. TypeError for what is neither array nor number."""
    check_arraylike(fun_name, *args)
    found = tuple(map(asarray, args))
    return found[0] if len(found) == 1 else found


def promote_shapes(fun_name: str, *args: Any) -> list[Any]:
    """Arrays of one rank, with dimensions of size 1 in front."""
    shapes = [aval_of(x).shape for x in args]
    broadcast_shapes(*shapes)
    rank = max(map(len, shapes), default=0)
    return [expand_dims(x, tuple(range(rank - len(shape)))) for x, shape in zip(args, shapes)]


def _broadcast_to(arr: Any, shape: int | Sequence[int], sharding: Any = None) -> Any:
    return broadcast_to(arr, shape, out_sharding=sharding)


__getattr__ = _missing("jax._src.numpy.util", __all__)
