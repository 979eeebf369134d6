"""Functions of `jax._src.lax.lax` that `jax.lax` does not publish, and tests and libraries call."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, lax, numpy
from meshrt.core.types import aval_of
from meshrt.primitives.conversion import convert_element_type
from meshrt.sharding import AxisType, reshard

__all__: list[str] = []


def _convert_element_type(
    operand: Any, new_dtype: Any = None, weak_type: bool = False, sharding: Any = None,
    warn_on_complex_to_real_cast: bool = True,
) -> Any:  # fmt: skip
    """An array in another dtype (None: its own), which is weak if told so, and split as `sharding` says."""
    operand = operand.__jax_array__() if hasattr(operand, "__jax_array__") else operand
    own = aval_of(operand)
    dtype = own.dtype if new_dtype is None else dtypes.canonicalize_dtype(new_dtype)
    array = operand if isinstance(operand, numpy.ndarray) else numpy.asarray(operand)
    if dtypes.issubdtype(array.dtype, np.complexfloating) and not warn_on_complex_to_real_cast:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            found = convert_element_type(array, dtype, weak_type)
    else:
        found = convert_element_type(array, dtype, weak_type)
    if sharding is None:
        return found
    explicit = AxisType.Explicit in getattr(getattr(sharding, "mesh", None), "axis_types", ())
    return reshard(found, sharding) if explicit else lax.with_sharding_constraint(found, sharding)


def _const(example: Any, val: Any) -> Any:
    """A number of the dtype of `example`."""
    return numpy.asarray(val, dtypes.dtype(example)) if isinstance(example, numpy.ndarray) else val


def _ones(x: Any, *, fill_value: Any = 1, dtype: Any = None, shape: Any = None, sharding: Any = None) -> Any:
    """Ones of the type of `x`."""
    return lax.full_like(x, fill_value, dtype, shape, sharding=sharding)


def _zeros(x: Any, *, fill_value: Any = 0, dtype: Any = None, shape: Any = None, sharding: Any = None) -> Any:
    """Zeros of the type of `x`."""
    return lax.full_like(x, fill_value, dtype, shape, sharding=sharding)


def _one(x: Any) -> Any:
    """A one of the dtype of `x`."""
    return lax.full_like(x, 1, shape=())


def _zero(x: Any) -> Any:
    """A zero of the dtype of `x`."""
    return lax.full_like(x, 0, shape=())


def _tri(dtype: Any, shape: Sequence[int], offset: int) -> Any:
    """Ones on and below a diagonal, zeros above."""
    rows, columns = (lax.broadcasted_iota("int32", shape, d) for d in range(2))
    return (rows + offset >= columns).astype(dtype)


def _eye(dtype: Any, shape: Sequence[int], offset: int = 0) -> Any:
    """Ones on a diagonal, zeros elsewhere."""
    rows, columns = (lax.broadcasted_iota("int32", shape, d) for d in range(2))
    return (rows + offset == columns).astype(dtype)


def _delta(dtype: Any, shape: Sequence[int], axes: Sequence[int]) -> Any:
    """Ones where the indices of some dimensions are equal, with the other dimensions repeated."""
    sizes = tuple(shape[a] for a in axes)
    places = [lax.broadcasted_iota("int32", sizes, d) for d in range(len(sizes))]
    same = numpy.ones(sizes, bool)
    for first, second in itertools.pairwise(places):
        same = same & (first == second)
    return lax.broadcast_in_dim(same.astype(dtype), tuple(shape), tuple(axes))


def _isnan(x: Any) -> Any:
    """Where elements are no numbers."""
    return lax.ne(x, x)


def _ndim(x: Any) -> int:
    """How many dimensions there are."""
    return len(aval_of(x).shape)
