"""Quantiles, percentiles and medians, with and without NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.contexts import numpy_dtype_promotion
from meshrt.core.basic.shapes import reshape_p
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.cumulative import cumsum
from meshrt.numpy.indexing import take_along_axis
from meshrt.numpy.logic import isnan, logical_or
from meshrt.numpy.operands import ShapeError, broadcast_to_shape, canonical_axes, scalar_like
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.reductions import sum as total
from meshrt.numpy.shapes import expand_dims, moveaxis
from meshrt.primitives.axis_types import constrained, in_auto_mode

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


class EmptyError(errors.ArgumentTypeError, IndexError):
    """There is no element to choose as a quantile."""


def quantile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """The values over ``axis`` below which a part ``q`` (0 to 1) of the elements lies; NaN if there is one.

    Args:
      q: one number, or a vector of them, which gives the result a first dimension.
      method: between two elements, "linear" interpolates, "lower", "higher" and "nearest" take one of them, and
        "midpoint" their mean; "inverted_cdf" takes the first element that reaches ``q``.
      weights: how often elements count, for "inverted_cdf" only; of the shape of ``a`` or of its reduced dimensions.

    >>> jnp.quantile(jnp.array([1.0, 2.0, 3.0]), 0.25)
    Array(1.5, dtype=float32)
    """
    return _checked("quantile", a, q, axis, out, overwrite_input, method, keepdims, weights, skip_nan=False)


def nanquantile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """As :func:`quantile` of the elements that are not NaN.

    Args:
      a: an array, or what `asarray` makes one of.
      q: quantiles to find, from 0 to 1.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      overwrite_input: must be False: arrays are not written to.
      method: what lies between two elements: "linear", "lower", "higher", "midpoint" or "nearest".
      keepdims: keep reduced dimensions, with size 1.
      weights: weights of the elements.

    >>> jnp.nanquantile(jnp.array([1.0, jnp.nan, 3.0]), 0.5)
    Array(2., dtype=float32)
    """
    return _checked("nanquantile", a, q, axis, out, overwrite_input, method, keepdims, weights, skip_nan=True)


@in_auto_mode
def percentile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """As :func:`quantile` with ``q`` from 0 to 100; ``out_sharding`` is how the result is split over Explicit axes.

    Args:
      a: an array, or what `asarray` makes one of.
      q: percentiles to find, from 0 to 100.
      axis: the dimension or dimensions to reduce; all by default.
      out: must be None: arrays are not written to.
      overwrite_input: must be False: arrays are not written to.
      method: what lies between two elements: "linear", "lower", "higher", "midpoint" or "nearest".
      keepdims: keep reduced dimensions, with size 1.
      weights: weights of the elements.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.percentile(jnp.array([1.0, 2.0, 3.0]), 50)
    Array(2., dtype=float32)
    """
    a = operand_array("percentile", a)
    (q,) = promoted_inexact("percentile", operand_array("percentile", q, 1))
    result = _checked("percentile", a, q / 100, axis, out, overwrite_input, method, keepdims, weights, skip_nan=False)
    return constrained(result, out_sharding, "percentile")


def nanpercentile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """As :func:`percentile` of the elements that are not NaN.

    Args:
      a: an array, or what `asarray` makes one of.
      q: quantiles to find, from 0 to 1.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      overwrite_input: must be False: arrays are not written to.
      method: what lies between two elements: "linear", "lower", "higher", "midpoint" or "nearest".
      keepdims: keep reduced dimensions, with size 1.
      weights: weights of the elements.

    >>> jnp.nanpercentile(jnp.array([1.0, jnp.nan, 3.0]), 50)
    Array(2., dtype=float32)
    """
    (q,) = promoted_inexact("nanpercentile", q)
    return _checked("nanpercentile", a, q / 100, axis, out, overwrite_input, method, keepdims, weights, skip_nan=True)


@at_once(1)
def median(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle value over ``axis``, or the mean of the two middle ones; NaN if there is one.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      out: must be None: arrays are not written to.
      overwrite_input: must be False: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.median(jnp.array([3.0, 1.0, 2.0]))
    Array(2., dtype=float32)
    """
    return _checked("median", a, 0.5, axis, out, overwrite_input, "midpoint", keepdims, None, skip_nan=False)


@at_once(1)
def nanmedian(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle value over ``axis`` of elements that are not NaN.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      overwrite_input: must be False: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.nanmedian(jnp.array([1.0, jnp.nan, 3.0]))
    Array(2., dtype=float32)
    """
    return _checked("nanmedian", a, 0.5, axis, out, overwrite_input, "midpoint", keepdims, None, skip_nan=True)


def _checked(
    name: str, a: Any, q: Any, axis: Any, out: Any, overwrite_input: bool, method: str, keepdims: bool, weights: Any,
    skip_nan: bool,
) -> Any:  # fmt: skip
    a, q = operand_array(name, a), operand_array(name, q, 1)
    if overwrite_input or out is not None:
        raise errors.ArgumentValueError(f"{name} does not support overwrite_input=True or out; use the result")
    if method not in _METHODS:
        raise errors.ArgumentValueError(
            "method can only be 'linear', 'lower', 'higher', 'midpoint', 'nearest' or 'inverted_cdf'; "
            f"{name} got {method!r}"
        )
    if dtypes.issubdtype(a.dtype, np.complexfloating):
        raise errors.ArgumentValueError(
            f"quantile does not support complex input, as the operation is poorly defined. {name} got dtype {a.dtype}"
        )
    if weights is not None and method != "inverted_cdf":
        raise errors.UnsupportedError(f"{name}: {method} doesn't support weights. Only method 'inverted_cdf' does")
    if q.ndim > 1:
        raise ShapeError(f"{name}: q must be a number or a vector, got shape {q.shape}")
    if method != "inverted_cdf" and not dtypes.issubdtype(q.dtype, np.floating):
        raise errors.ArgumentTypeError(f"{name}: q must be floating, got dtype {q.dtype}")
    axes = canonical_axes(axis, a.ndim, name)
    if not math.prod(a.shape[i] for i in axes):
        raise EmptyError(f"{name} of an array of shape {a.shape} has nothing to choose from")
    if weights is None:
        (x,) = promoted_inexact(name, a)
    else:
        x, weights = _weighted(name, a, operand_array(name, weights), method, axis, axes)
    result = _of_rows(_merged(x, axes), q, method, None if weights is None else _merged(weights, axes), skip_nan)
    if keepdims:
        # (JAX makes a vector of a number before it looks for quantiles along no axis in particular.)
        kept = tuple(1 if i in axes else n for i, n in enumerate(a.shape)) or ((1,) if axis is None else ())
        result = reshape_p.bind(result, new_sizes=(*q.shape, *kept))
    return el.convert_element_type(result, x.dtype)


def _weighted(name: str, a: Any, weights: Any, method: str, axis: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    if dtypes.issubdtype(weights.dtype, np.complexfloating):
        raise errors.ArgumentValueError(f"{name}: weights must be real, got dtype {weights.dtype}")
    if method != "inverted_cdf":
        raise errors.UnsupportedError(f"{name}: weights go with method='inverted_cdf' only, not {method!r}")
    a, weights = promoted_inexact(name, a, weights)
    if weights.shape != a.shape:
        if axis is None or weights.shape != tuple(a.shape[i] for i in axes):
            raise ShapeError(f"{name}: weights of shape {weights.shape} do not fit {a.shape} along axis={axis}")
        weights = lax.broadcast_in_dim(weights, a.shape, axes)
    return a, weights


def _merged(x: Any, axes: tuple[int, ...]) -> Any:
    """``x`` with the reduced dimensions merged into a last one."""
    kept = [i for i in range(x.ndim) if i not in axes]
    x = lax.transpose(x, (*kept, *axes))
    size = math.prod(x.shape[len(kept) :])
    return reshape_p.bind(x, new_sizes=(*x.shape[: len(kept)], size))


def _of_rows(x: Any, q: Any, method: str, weights: Any, skip_nan: bool) -> Any:
    """Quantiles over the last dimension: shape (*q.shape, *x.shape[:-1])."""
    missing = isnan(x)
    if not skip_nan:  # one NaN makes all of its row NaN
        missing = broadcast_to_shape(any_(missing, -1, keepdims=True), x.shape)
    x = choose(missing, scalar_like(x, np.nan), x)
    if weights is not None:
        x, weights = lax.sort_key_val(x, weights, dimension=x.ndim - 1)
    else:
        x = lax.sort(x, dimension=x.ndim - 1)
    if method == "inverted_cdf":
        return _first_reaching(x, q, weights, skip_nan)
    (q,) = promoted_inexact("quantile", q)
    with numpy_dtype_promotion("standard"):  # q is no operand beside the elements: the result has their dtype
        if not q.aval.weak_type and not _is_narrow(x):
            q = el.convert_element_type(q, dtypes.promote_types(q.dtype, x.dtype))
        size = total(el.not_p.bind(isnan(x)), -1, q.dtype, keepdims=True) if skip_nan else asarray(x.shape[-1], q.dtype)
        return _between(x, expand_dims(q, 0) if q.ndim == 0 else q, size, method, q.ndim == 0)


def _between(x: Any, q: Any, size: Any, method: str, single: bool) -> Any:
    """Elements beside the places q * (size - 1) of sorted rows; ``size`` is one number or a column of counts."""
    last = size - 1
    if last.ndim:
        q = lax.expand_dims(q, tuple(range(last.ndim - 1)))
    place = q * last  # (..., q) with a column, else (q,)
    zero = scalar_like(place, 0)
    below, above = el.floor_p.bind(place), el.ceil_p.bind(place)
    up = el.sub_p.bind(place, below)
    limit = broadcast_to_shape(last, place.shape)
    index = [
        el.convert_element_type(el.max_p.bind(zero, el.min_p.bind(edge, limit)), dtypes.default_int_dtype())
        for edge in (below, above)
    ]
    shape = (*x.shape[:-1], q.shape[-1])
    low, high = (take_along_axis(x, broadcast_to_shape(i, shape), -1, mode="clip") for i in index)
    out = moveaxis(_mixed(low, high, broadcast_to_shape(up, shape), method), -1, 0)
    return out[0] if single else out


def _mixed(low: Any, high: Any, up: Any, method: str) -> Any:
    match method:
        case "lower":
            return low
        case "higher":
            return high
        case "nearest":
            return choose(up <= 0.5, low, high)
        case "midpoint":
            return el.mul(el.add_p.bind(low, high), 0.5)
    if _is_narrow(low):  # such a float promotes to no other
        low, high = (el.convert_element_type(v, up.dtype) for v in (low, high))
    return low * (1 - up) + high * up


def _is_narrow(x: Any) -> bool:
    return dtypes.itemsize_bits(x.dtype) < 16


def _first_reaching(x: Any, q: Any, weights: Any, skip_nan: bool) -> Any:
    """The first elements of sorted rows at which the sum of weights reaches q of all weights."""
    weights = choose(isnan(x), scalar_like(x, 1), scalar_like(x, 1)) if weights is None else weights
    bad = logical_or(weights < 0, isnan(weights))
    summed = cumsum(choose(logical_or(bad, isnan(x)), scalar_like(weights, 0), weights), -1)
    sums = lax.index_in_dim(summed, -1, summed.ndim - 1, keepdims=False)
    rows_of = (*q.shape, *x.shape[:-1])
    whole = (*q.shape, *x.shape)
    each = lax.expand_dims(q, tuple(range(q.ndim, q.ndim + sums.ndim)))
    target = broadcast_to_shape(each, rows_of) * broadcast_to_shape(sums, rows_of)
    before = broadcast_to_shape(summed, whole) < broadcast_to_shape(target[..., None], whole)
    reached = total(before, -1, dtypes.default_int_dtype())
    valid = total(el.not_p.bind(isnan(x)), -1, dtypes.default_int_dtype())
    last = valid - 1 if skip_nan else asarray(x.shape[-1] - 1, dtypes.default_int_dtype())
    index = el.max_p.bind(scalar_like(reached, 0), el.min_p.bind(reached, broadcast_to_shape(last, reached.shape)))
    rows = take_along_axis(broadcast_to_shape(x, whole), index[..., None], -1, mode="clip")[..., 0]
    none = valid == 0 if skip_nan else any_(isnan(x), -1)
    undefined = broadcast_to_shape(logical_or(any_(bad, -1), none), rows_of)
    return choose(undefined, scalar_like(rows, np.nan), rows)
