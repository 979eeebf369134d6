"""Changes of shape without arithmetic (squeeze, expand_dims, collapse), and arrays made from nothing (iota, full).

The primitives they are written with, broadcast_in_dim, reshape and transpose, are in `meshrt.core.basic.shapes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import (
    broadcast_in_dim,
    broadcast_in_dim_p,
    canonical_axis,
    canonical_shape,
    not_negative,
    reshape,
    transpose,
)
from meshrt.core.completion import asked
from meshrt.core.primitive import Primitive, also
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.traced_scalars import as_constant

__all__ = [
    "broadcast", "broadcast_in_dim", "broadcasted_iota", "collapse", "expand_dims", "iota",
    "reshape", "squeeze", "transpose",
]  # fmt: skip


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """Adds leading dimensions of the given sizes.

    Args:
      operand: an array.
      sizes: sizes of the new dimensions, which stand in front.
      out_sharding: the sharding of the result over Explicit axes.

    >>> lax.broadcast(jnp.array([1, 2]), (2,))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    aval = aval_of(operand)
    shape = (*canonical_shape(sizes), *aval.shape)
    return broadcast_in_dim(operand, shape, range(len(sizes), len(shape)), out_sharding=out_sharding)


# ---------------------------------------------------------------------------------------------------------------------
# squeeze, expand_dims, collapse


def _distinct(name: str, dimensions: Sequence[int], ndim: int) -> set[int]:
    """Dimension numbers in [0, ndim), all different."""
    found = [canonical_axis(d, ndim) for d in dimensions]
    if len(set(found)) < len(found):
        raise errors.ArgumentValueError(
            f"{name}: dimensions are not unique, a repeated axis in lax.{name}: {tuple(dimensions)}; name each once"
        )
    return set(found)


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` without the listed dimensions, which must have size 1.

    Args:
      array: an array.
      dimensions: dimension numbers.

    >>> lax.squeeze(jnp.ones((1, 3)), (0,)).shape
    (3,)
    """
    aval = aval_of(array)
    drop = _distinct("squeeze", dimensions, aval.ndim)
    for d in drop:
        if aval.shape[d] != 1:
            raise errors.ArgumentValueError(
                "cannot select an axis to squeeze out which has size not equal to one, got "
                f"shape={aval.shape} and dimensions={tuple(dimensions)}: axis {d} has size {aval.shape[d]}"
            )
    return reshape(array, tuple(n for i, n in enumerate(aval.shape) if i not in drop))


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` with new dimensions of size 1 at the listed positions of the result.

    Args:
      array: an array.
      dimensions: dimension numbers.

    >>> lax.expand_dims(jnp.ones(3), (0, 2)).shape
    (1, 3, 1)
    """
    aval = aval_of(array)
    ndim = aval.ndim + len(dimensions)
    new = _distinct("expand_dims", dimensions, ndim)
    kept = [i for i in range(ndim) if i not in new]
    shape = [1] * ndim
    for i, n in zip(kept, aval.shape):
        shape[i] = n
    return broadcast_in_dim(array, shape, kept)


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Merges dimensions [start, stop) into one.

    Args:
      operand: an array.
      start_dimension: the first of them.
      stop_dimension: the one behind the last of them.

    >>> lax.collapse(jnp.ones((2, 3, 4)), 0, 2).shape
    (6, 4)
    """
    shape = aval_of(operand).shape
    stop = len(shape) if stop_dimension is None else stop_dimension
    start, stop = (d + len(shape) if d < 0 else d for d in (start_dimension or 0, stop))
    if start > stop:
        raise errors.ArgumentValueError(f"Invalid dimension range passed to collapse: {shape}[{start}:{stop}]")
    return reshape(operand, (*shape[:start], math.prod(shape[start:stop]), *shape[stop:]))


# ---------------------------------------------------------------------------------------------------------------------
# iota and constants


def _iota_infer(*, dtype: Any, shape: tuple[int, ...], dimension: int) -> ShapedArray:
    not_negative("iota", shape)
    if dtype == np.bool_:
        raise errors.ArgumentTypeError("iota does not accept dtype bool: it counts; use an integer dtype and compare")
    return ShapedArray(shape, dtype)


iota_p = Primitive(
    "iota",
    _iota_infer,
    shown=also("sharding"),
    lower=lambda ctx, eqn: ctx.op(
        "stablehlo.iota", [], eqn.outvars[0].aval, f"iota_dimension = {eqn.params['dimension']} : i64"),
    absent=dict.fromkeys(("jvp", "transpose", "batch"), "it has no operands"), finite=True,
    optional=("sharding",),
)  # fmt: skip


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, *, out_sharding: Any = None) -> Any:
    """The array whose element is its own position along `dimension`.

    Args:
      dtype: the dtype of the result.
      shape: sizes of the result.
      dimension: the dimension along which numbers ascend.
      out_sharding: the sharding of the result over Explicit axes.

    >>> lax.broadcasted_iota(jnp.int32, (2, 3), 1)
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    shape = canonical_shape(shape)
    dtype = dtypes.canonicalize_dtype(dtypes.dtype(dtype))
    given, dimension = dimension, canonical_axis(dimension, len(shape))
    if given != dimension:  # it counts from the end, which JAX does not take here
        raise errors.ArgumentValueError(
            f"iota dimension must be between 0 and len(shape), got dimension={given} for shape={shape}"
        )
    if dtype == np.bool_ or isinstance(dtype, dtypes.ExtendedDType):
        raise errors.ArgumentTypeError(f"iota does not accept dtype {dtype}")
    wanted = asked(out_sharding, len(shape), "broadcasted_iota")
    return iota_p.bind(dtype=dtype, shape=shape, dimension=dimension, **wanted)


def iota(dtype: Any, size: int) -> Any:
    """[0, 1, ..., size - 1].

    Args:
      dtype: the dtype of the result.
      size: how many.

    >>> lax.iota(jnp.int32, 3)
    Array([0, 1, 2], dtype=int32)
    """
    return broadcasted_iota(dtype, (size,), 0)


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None) -> Any:
    """An array of `shape` filled with the scalar `fill_value`; `meshrt.lax.full` also says where it lies."""
    shape, value = filling(shape, fill_value, dtype)
    return spread(value, shape)


def spread(value: Any, shape: tuple[int, ...]) -> Any:
    """A scalar as an array of `shape`, all of whose elements it is; without an equation where that is a scalar too."""
    if not shape and (traced := value if isinstance(value, Tracer) else as_constant(value)) is not None:
        return traced
    return broadcast_in_dim_p.bind(value, shape=shape, broadcast_dimensions=())


def filling(shape: Sequence[int], fill_value: Any, dtype: Any) -> tuple[tuple[int, ...], Any]:
    """The canonical shape, and the scalar in the dtype of the array that it is to fill."""
    aval = aval_of(fill_value)
    if aval.ndim:
        raise errors.ArgumentTypeError(
            f"full must be called with scalar fill_value, got fill_value.shape {aval.shape}."
        )
    weak = dtype is None and aval.weak_type
    dtype = aval.dtype if dtype is None else dtypes.canonicalize_dtype(dtypes.dtype(dtype))
    if isinstance(dtype, dtypes.ExtendedDType) and dtype != aval.dtype and not isinstance(dtype, dtypes.KeyType):
        return canonical_shape(shape), dtype.rule("full")((), fill_value, dtype)
    if type(fill_value) is complex and dtype.kind not in "bc":
        raise errors.ArgumentTypeError(f"full: a complex number such as {fill_value} cannot become {dtype}")
    if isinstance(fill_value, bool | int | float | complex | np.generic | np.ndarray):
        value = fill_value if weak else np.asarray(fill_value).astype(dtype)[()]
    else:
        value = convert_element_type(fill_value, dtype, weak)
    return canonical_shape(shape), value
