"""Reductions over segments: elements with one id are reduced together. Names and signatures are ``jax.ops``'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors
from meshrt.core.dimensions.arithmetic import ceil_div
from meshrt.core.dimensions.expression import as_size
from meshrt.core.trace import Tracer, not_concrete
from meshrt.numpy.broadcasting import ShapeError
from meshrt.numpy.operands import operand

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]


class _Kind(NamedTuple):
    """A reduction: the method of ``x.at[...]``, its neutral element of a dtype, the reduction along an axis."""

    method: str
    neutral: Callable[[Any], Any]
    along: Callable[..., Any]


def _least(dtype: Any) -> Any:
    if dtype == np.bool_:
        return False
    return -np.inf if dtypes.issubdtype(dtype, np.inexact) else dtypes.iinfo(dtype).min


def _greatest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return True
    return np.inf if dtypes.issubdtype(dtype, np.inexact) else dtypes.iinfo(dtype).max


_SUM = _Kind("add", lambda dtype: 0, jnp.sum)
_PROD = _Kind("multiply", lambda dtype: 1, jnp.prod)
_MAX = _Kind("max", _least, jnp.max)
_MIN = _Kind("min", _greatest, jnp.min)


def _count(name: str, segment_ids: Any, num_segments: Any) -> int:
    if num_segments is None:
        if isinstance(segment_ids, Tracer):
            raise not_concrete(
                segment_ids,
                f"{name}() `num_segments` argument. Without it the largest of segment_ids decides, on "
                "which the shape of the result depends",
            )
        ids = np.asarray(segment_ids)
        return int(ids.max()) + 1 if ids.size else 0
    if isinstance(num_segments, Tracer):
        raise not_concrete(num_segments, f"{name}() `num_segments` argument. The shape of the result depends on it")
    count = as_size(num_segments)
    if count < 0:
        raise errors.ArgumentValueError(f"{name}: num_segments must be non-negative, got {count}")
    return count


def _segments(
    name: str,
    kind: _Kind,
    data: Any,
    segment_ids: Any,
    num_segments: Any,
    indices_are_sorted: bool,
    unique_indices: bool,
    bucket_size: int | None,
    mode: Any,
    out_sharding: Any,
) -> Any:
    data = jnp.asarray(operand(name, data))
    count = _count(name, segment_ids, num_segments)
    ids = jnp.asarray(operand(name, segment_ids, 1))
    # As in JAX: the result has what follows the first dimension of data, and ids of several dimensions pick such rows.
    tail, neutral = data.shape[1:], kind.neutral(data.dtype)
    options = {
        "indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices,
        "mode": "drop" if mode is None else mode, "wrap_negative_indices": False,
    }  # fmt: skip
    if bucket_size is None:
        start = jnp.full((count, *tail), neutral, data.dtype)
        try:
            return getattr(start.at[ids], kind.method)(data, out_sharding=out_sharding, **options)
        except ShapeError as e:
            raise errors.ArgumentValueError(
                f"{e}: {name} needs an id for each element along the first dimension of data, which has shape "
                f"{data.shape}; segment_ids has {ids.shape}"
            ) from None
    if out_sharding is not None:
        raise errors.UnsupportedError(f"{name}: out_sharding does not go together with bucket_size")
    buckets = ceil_div(ids.size, bucket_size)
    start = jnp.full((buckets, count, *tail), neutral, data.dtype)
    where = jnp.arange(ids.shape[0]) // bucket_size
    return kind.along(getattr(start.at[where, ids], kind.method)(data, **options), axis=0).astype(data.dtype)


_DOC = """The {what} of the elements of `data` that have one id.

    Args:
      data: an array; `segment_ids` has an id for each element along its first dimension.
      segment_ids: integers, the segment of each element. Elements with ids outside [0, num_segments) are left out.
      num_segments: how many segments the result has, by default the largest id and one: it must be given in jit.
      indices_are_sorted: the ids rise. Promised, not checked.
      unique_indices: no id occurs twice. Promised, not checked.
      bucket_size: reduce as many elements at a time, then the results: rounding errors grow less.
      mode: what becomes of ids out of range, as in ``x.at[...]``.
      out_sharding: how the result is laid out over Explicit axes.

    Returns:
      An array [num_segments, ...]; {empty} for segments without elements.

    >>> {name}(jnp.array([5, 2, 3]), jnp.array([0, 0, 1]), num_segments=2)  # doctest: +SKIP
    """


def _function(name: str, kind: _Kind, what: str, empty: str) -> Callable[..., Any]:
    def function(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
        out_sharding: Any = None,
    ) -> Any:
        return _segments(
            name, kind, data, segment_ids, num_segments, indices_are_sorted, unique_indices, bucket_size, mode,
            out_sharding,
        )  # fmt: skip

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DOC.format(name=name, what=what, empty=empty)
    return function


segment_sum = _function("segment_sum", _SUM, "sum", "0")
segment_prod = _function("segment_prod", _PROD, "product", "1")
segment_max = _function("segment_max", _MAX, "maximum", "the least value of the dtype")
segment_min = _function("segment_min", _MIN, "minimum", "the greatest value of the dtype")
