"""What is said of a sample: its most frequent value, its ranks, the error of its mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.contexts import usual_promotion
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.jit import jit
from meshrt.numpy.operands import canonical_axis, operand, size_as
from meshrt.scipy.operands import inexact
from meshrt.tree_files import register_namedtuple_serialization

__all__ = ["ModeResult", "mode", "rankdata", "sem"]


class ModeResult(NamedTuple):
    """The most frequent values, and how often they occur."""

    mode: Any
    count: Any


register_namedtuple_serialization(ModeResult, serialized_name="meshrt.scipy.stats.ModeResult")


def _check_nan_policy(name: str, policy: str) -> None:
    if policy not in ("propagate", "omit", "raise"):
        raise errors.ArgumentValueError(
            f"Illegal nan_policy value {policy!r} of {name}; expected one of 'propagate', 'omit', 'raise'"
        )
    if policy != "propagate":
        raise errors.UnsupportedError(
            f"{name}: Logic for `nan_policy` of {policy} is not implemented: whether an array has NaNs is not known "
            "before a program runs; look for them outside of it"
        )


@usual_promotion
@jit(static_argnames=("axis", "nan_policy", "keepdims"))
def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """The most frequent value along `axis` (None: of all), the least of several, and how often it occurs.

    Raises:
      ArgumentValueError: an unknown `nan_policy`. UnsupportedError: "omit" and "raise".

    Args:
      a: an array.
      axis: the dimension to work along.
      nan_policy: what NaNs mean: "propagate" or "omit".
      keepdims: keep reduced dimensions, with size 1.

    >>> meshrt.scipy.stats.mode(jnp.array([1, 2, 2]))
    ModeResult(mode=Array(2, dtype=int32), count=Array(2, dtype=int32))
    """
    _check_nan_policy("mode", nan_policy)
    x = jnp.atleast_1d(jnp.asarray(operand("mode", a)))
    if axis is None:
        shape = (1,) * x.ndim if keepdims else ()
        x, axis = x.ravel(), 0
    else:
        axis = canonical_axis(axis, x.ndim)
        shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape) if keepdims or i != axis)
    if not x.shape[axis]:
        return ModeResult(jnp.full(shape, np.nan, float), jnp.zeros(shape))
    ordered = jnp.sort(jnp.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]), axis=-1)
    places = jnp.arange(ordered.shape[-1])
    # NaNs count as one value, as in numpy.unique.
    begins = (ordered[:, 1:] != ordered[:, :-1]) & ~(jnp.isnan(ordered[:, 1:]) & jnp.isnan(ordered[:, :-1]))
    begins = jnp.pad(begins, ((0, 0), (1, 0)), constant_values=True)
    first = lax.cummax(jnp.where(begins, places, 0), axis=1)
    lengths = places - first + 1
    last = jnp.argmax(lengths, axis=-1)
    value = jnp.take_along_axis(ordered, last[:, None], axis=1)[:, 0]
    return ModeResult(value.reshape(shape), lengths.max(-1).reshape(shape))


_METHODS = ("average", "min", "max", "dense", "ordinal")


@usual_promotion
@jit(static_argnames=("method", "axis", "nan_policy"))
def rankdata(a: Any, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Any:
    """Ranks from 1 along `axis` (None: of all, as a vector), of equal values as `method` says.

    Args:
      method: "average", "min" or "max" of their ranks; "dense", as "min" without gaps; "ordinal", as they stand.

    Raises:
      ArgumentValueError: an unknown method or `nan_policy`. UnsupportedError: nan_policy "omit" and "raise".

    >>> meshrt.scipy.stats.rankdata(jnp.array([10.0, 30.0, 20.0, 30.0]))
    Array([1. , 3.5, 2. , 3.5], dtype=float32)
    """
    _check_nan_policy("rankdata", nan_policy)
    if method not in _METHODS:
        raise errors.ArgumentValueError(f"unknown method '{method}'; rankdata has {', '.join(_METHODS)}")
    x = jnp.asarray(operand("rankdata", a))
    if axis is None:
        return _ranks(x.ravel(), method)
    axis = canonical_axis(axis, x.ndim)
    return jnp.moveaxis(_ranks(jnp.moveaxis(x, axis, -1), method), -1, axis)


def _ranks(x: Any, method: str) -> Any:
    """Ranks along the last dimension; NaN where there is a NaN."""
    dtype = jnp.zeros(0).dtype
    order = jnp.argsort(x, axis=-1, stable=True)
    place = jnp.argsort(order, axis=-1)  # where each element stands among the ordered
    ordered = jnp.take_along_axis(x, order, axis=-1)
    count = x.shape[-1]
    begins = jnp.concatenate([jnp.ones((*x.shape[:-1], 1), bool), ordered[..., 1:] != ordered[..., :-1]], axis=-1)
    positions = jnp.arange(count)
    first = lax.cummax(jnp.where(begins, positions, 0), axis=x.ndim - 1)
    ends = jnp.concatenate([begins[..., 1:], jnp.ones((*x.shape[:-1], 1), bool)], axis=-1)
    last = lax.cummin(jnp.where(ends, positions, count), axis=x.ndim - 1, reverse=True)
    ranks = {
        "ordinal": lambda: positions + 1 + jnp.zeros_like(first), "dense": lambda: jnp.cumsum(begins, axis=-1),
        "min": lambda: first + 1, "max": lambda: last + 1, "average": lambda: 0.5 * (first + last) + 1,
    }[method]().astype(dtype)  # fmt: skip
    found = jnp.take_along_axis(ranks, place, axis=-1)
    return jnp.where(jnp.isnan(x).any(-1, keepdims=True), np.nan, found)


@jit(static_argnames=("axis", "ddof", "nan_policy", "keepdims"))
def sem(a: Any, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False) -> Any:
    """The standard error of the mean along `axis`: the standard deviation by the root of the number of values.

    Args:
      nan_policy: "propagate", or "omit": NaNs do not count.

    Raises:
      ArgumentValueError: another `nan_policy`.

    >>> meshrt.scipy.stats.sem(jnp.array([1.0, 3.0]))
    Array(0.99999994, dtype=float32)
    """
    (x,) = inexact("sem", a)
    if nan_policy == "propagate":
        count = x.size if axis is None else x.shape[axis]
        known = not is_symbolic_dim(count)
        root = np.sqrt(count).astype(x.dtype) if known else jnp.sqrt(size_as(count, x.dtype))
        return x.std(axis, ddof=ddof, keepdims=keepdims) / root
    if nan_policy == "omit":
        number = (~jnp.isnan(x)).sum(axis, keepdims=keepdims).astype(x.dtype)
        return jnp.nanstd(x, axis, ddof=ddof, keepdims=keepdims) / jnp.sqrt(number)
    raise errors.ArgumentValueError(f"{nan_policy} is not supported as nan_policy of sem")
