"""Operands of SciPy's functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.types import aval_of
from meshrt.numpy.arrays import asarray
from meshrt.numpy.operands import operand, promote_inexact

__all__ = ["beside_constants", "floating", "inexact", "separate", "single_or_double"]


def inexact(name: str, *operands: Any, ordered: bool = False) -> tuple[Any, ...]:
    """Operands as arrays of one floating or complex dtype and of one shape (scalars stay scalars).

    `ordered` is for distributions on a range of values, which complex numbers are neither in nor out of.

    Raises:
      ArgumentTypeError: one is complex, where they are to be `ordered`.
    """
    found = tuple(map(asarray, promote_inexact(name, *operands)))
    if ordered and dtypes.issubdtype(found[0].dtype, np.complexfloating):
        raise errors.ArgumentTypeError(
            f"{name} does not accept dtype {found[0].dtype}: complex numbers have no order; take jnp.real of them"
        )
    return found


def beside_constants(name: str, *operands: Any, ordered: bool = False) -> tuple[Any, ...]:
    """As `inexact`, for functions with constants of the first operand's dtype: beside these only scalars stay weak."""
    first, *others = inexact(name, *operands, ordered=ordered)
    return (first.astype(first.dtype) if first.ndim else first, *others)


def separate(name: str, *operands: Any) -> tuple[Any, ...]:
    """Operands as arrays of one floating or complex dtype, each of its own shape."""
    common = dtypes.result_type(*(operand(name, x, i) for i, x in enumerate(operands)))
    if not dtypes.issubdtype(common, np.inexact):
        common = dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(common))
    return tuple(asarray(x).astype(common) for x in operands)


def floating(name: str, *operands: Any) -> tuple[Any, ...]:
    """Operands as arrays of one floating dtype and of one shape.

    Raises:
      ComplexOperandError: one is complex.
    """
    found = inexact(name, *operands)
    if dtypes.issubdtype(found[0].dtype, np.complexfloating):
        raise errors.ComplexOperandError(f"{name} does not support complex-valued inputs; take jnp.real of them before")
    return found


def single_or_double(name: str, x: Any) -> Any:
    """An array of float32 or float64.

    Raises:
      ArgumentTypeError: it is of another dtype.
    """
    dtype = aval_of(x).dtype
    if dtype not in (np.float32, np.float64):
        raise errors.ArgumentTypeError(f"{name}: x.dtype={dtype} is not supported; convert it to float32 or float64")
    return asarray(x)
