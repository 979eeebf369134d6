"""`jax._src.numpy.util`: operands of one dtype, or of one dtype and shape."""

from __future__ import annotations

from typing import Any

from meshrt.numpy import asarray
from meshrt.numpy.names import missing as _missing
from meshrt.numpy.operands import in_one_dtype, promote, promote_inexact, promote_numeric

__all__ = ["promote_args", "promote_args_inexact", "promote_args_numeric", "promote_dtypes", "promote_dtypes_inexact"]

promote_args, promote_args_inexact, promote_args_numeric = promote, promote_inexact, promote_numeric


def promote_dtypes(*args: Any) -> list[Any]:
    """Arrays with one dtype."""
    return [asarray(x) for x in in_one_dtype("promote_dtypes", args)]


def promote_dtypes_inexact(*args: Any) -> list[Any]:
    """Arrays with one floating or complex dtype."""
    return [asarray(x) for x in in_one_dtype("promote_dtypes_inexact", args, inexact=True)]


__getattr__ = _missing("jax._src.numpy.util", __all__)
