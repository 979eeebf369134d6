"""Means and variances. Those of 16-bit floats are computed in float32 and rounded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import reshape_p
from meshrt.core.dimensions.arithmetic import broadcast_shapes
from meshrt.core.operators import ArrayOperators
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import operand_array
from meshrt.numpy.choose import choose
from meshrt.numpy.filled import full
from meshrt.numpy.operands import (
    ShapeError,
    broadcast_to_shape,
    canonical_axes,
    promote_inexact,
    size_as,
    to_dtype,
    unsupported_argument,
)
from meshrt.numpy.reductions import boolean_mask, computation_dtype, reduced_axes, sum

__all__ = ["average", "mean", "std", "var"]


def _count(x: Any, axis: Any, keepdims: bool, where: Any, dtype: Any) -> Any:
    """How many elements are averaged: a static scalar, or an array where ``where`` decides."""
    if where is None:
        axes, names = reduced_axes("mean", axis, x.ndim)
        return size_as(math.prod([x.shape[i] for i in axes] + [lax.axis_size(n) for n in names]), dtype)
    mask = boolean_mask("mean", where)
    if broadcast_shapes(mask.shape, x.shape) != x.shape:
        raise ShapeError(f"where of shape {mask.shape} cannot be broadcast to the shape {x.shape} of the operand")
    mask = broadcast_to_shape(mask, x.shape)
    return sum(mask, axis, dtype, keepdims=keepdims)


@at_once(1)
def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """The arithmetic mean over ``axis``; integers give floats.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      where: a boolean array that broadcasts with the operand: which elements count.

    Returns:
      An array without the reduced dimensions, of a floating dtype.

    >>> jnp.mean(jnp.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    Array([2., 3.], dtype=float32)
    """
    unsupported_argument("mean", "out", out)
    where = boolean_mask("mean", where)
    x = operand_array("mean", a)
    places, names = reduced_axes("mean", axis, x.ndim)
    axis = (*places, *names)
    if dtype is None:
        result = dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(x.dtype))
        work = computation_dtype(result)
    else:
        result = work = dtypes.check_user_dtype(dtype, "mean")
    total = sum(x, axis, work, keepdims=keepdims, where=where)
    return to_dtype(el.div_p.bind(total, _count(x, axis, keepdims, where, work)), result)


@at_once(1, ["returned"])
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    """The mean over ``axis``, weighted if ``weights`` are given; with ``returned`` also the sum of weights.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      weights: weights of the elements.
      returned: also return the sum of the weights.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.average(jnp.array([1.0, 3.0]), weights=jnp.array([3.0, 1.0]))
    Array(1.5, dtype=float32)
    """
    x = operand_array("average", a)
    axes = canonical_axes(axis, x.ndim, "average")
    if weights is None:
        out = mean(x, axis, keepdims=keepdims)
        total = full((), size_as(math.prod(x.shape[i] for i in axes), out.dtype), out.dtype)
    else:
        w = operand_array("average", weights)
        if w.shape != x.shape:
            if axis is None or w.shape != tuple(x.shape[i] for i in axes):
                problem = (
                    "Axis must be specified when shapes of a and weights differ."
                    if axis is None
                    else "Shape of weights must be consistent with shape of a along specified axis."
                )
                raise ShapeError(f"average: {problem} Weights have shape {w.shape}, a {x.shape}, axis={axis}")
            order = sorted(range(len(axes)), key=lambda i: axes[i])
            w = lax.transpose(w, order)
            w = reshape_p.bind(w, new_sizes=tuple(n if i in axes else 1 for i, n in enumerate(x.shape)))
            w = broadcast_to_shape(w, x.shape)
        x, w = promote_inexact("average", x, w)
        total = sum(w, axis, keepdims=keepdims)
        out = el.div_p.bind(sum(el.mul_p.bind(x, w), axis, keepdims=keepdims), total)
    return (out, broadcast_to_shape(total, out.shape)) if returned else out


@at_once(1)
def var(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The mean squared distance from the mean over ``axis``; divides by the count less ``ddof``.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      ddof: what is subtracted from the number of elements in the divisor.
      keepdims: keep reduced dimensions, with size 1.
      where: a boolean array that broadcasts with the operand: which elements count.
      mean: the mean, if it is known.
      correction: the same under the name of the array API.

    >>> jnp.var(jnp.array([1.0, 3.0]))
    Array(1., dtype=float32)
    """
    unsupported_argument("var", "out", out)
    where = boolean_mask("var", where)
    return _variance(a, axis, dtype, _correction(ddof, correction), keepdims, where, mean)


@at_once(1)
def std(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The square root of :func:`var`.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      ddof: what is subtracted from the number of elements in the divisor.
      keepdims: keep reduced dimensions, with size 1.
      where: a boolean array that broadcasts with the operand: which elements count.
      mean: the mean, if it is known.
      correction: the same under the name of the array API.

    >>> jnp.std(jnp.array([1.0, 3.0]))
    Array(1., dtype=float32)
    """
    unsupported_argument("std", "out", out)
    where = boolean_mask("std", where)
    if dtype is not None and not dtypes.issubdtype(dtypes.check_user_dtype(dtype, "std"), np.inexact):
        raise errors.ArgumentValueError(f"dtype argument to jnp.std must be inexact; got {dtype}")
    variance = _variance(a, axis, dtype, _correction(ddof, correction), keepdims, where, mean)
    return el.sqrt_p.bind(variance)


def _correction(ddof: int, correction: float | None) -> float:
    if correction is None:
        return ddof
    if ddof:
        raise errors.ArgumentValueError("ddof and correction can't be provided simultaneously; give one of them")
    return correction


def _variance(a: Any, axis: Any, dtype: Any, correction: float, keepdims: bool, where: Any, center: Any) -> Any:
    x = operand_array("var", a)
    if dtype is None:
        work = dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(x.dtype))
        result = np.dtype(dtypes.finfo(work).dtype)
    else:
        work = result = dtypes.check_user_dtype(dtype, "var")
        if x.dtype.kind == "c" and result.kind != "c":
            raise errors.ArgumentValueError(
                f"var does not yet support real dtype parameters when computing the variance of an array of complex "
                f"values; got {x.dtype} and dtype={result}; take abs first"
            )
    work = computation_dtype(work)
    x = el.convert_element_type(x, work)
    if center is None:
        center = mean_of(x, axis, work, where)
    else:
        center = el.convert_element_type(operand_array("var", center), work)
    apart = el.sub_p.bind(x, broadcast_to_shape(center, x.shape))
    if work.kind == "c":
        apart = el.real_p.bind(el.mul_p.bind(apart, el.conj(apart)))
    else:
        apart = el.integer_pow_p.bind(apart, y=2)
    count = _count(x, axis, keepdims, where, apart.dtype)
    total = sum(apart, axis, apart.dtype, keepdims=keepdims, where=where)
    if where is None:
        divisor = count - np.asarray(correction, apart.dtype)[()]
        out = el.convert_element_type(el.div_p.bind(total, divisor), result)
        if result.kind not in "fcV":  # of whole numbers, which have no NaN: as beside the scalar NaN
            return el.convert_element_type(out, dtypes.default_float_dtype(), True)
        if isinstance(divisor, ArrayOperators):  # of symbolic sizes
            return choose(el.gt_p.bind(divisor, np.zeros((), divisor.dtype)[()]), out, np.asarray(np.nan, result)[()])
        return out if divisor > 0 else full(out.shape, np.nan, result)
    divisor = el.sub(count, correction)
    out = el.convert_element_type(el.div_p.bind(total, divisor), result)
    if result.kind not in "fcV":
        return out
    return choose(el.gt_p.bind(divisor, np.zeros((), divisor.dtype)[()]), out, np.asarray(np.nan, result)[()])


def mean_of(x: Any, axis: Any, dtype: Any, where: Any) -> Any:
    """The mean with reduced dimensions kept."""
    return mean(x, axis, dtype, keepdims=True, where=where)
