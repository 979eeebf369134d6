"""Reductions and cumulative functions.

Sums and means of 16-bit floats are computed in float32 and rounded once; integer sums use the default integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import reshape_p
from meshrt.core.dimensions.expression import min_dim, non_negative_dim
from meshrt.core.operators import ArrayOperators
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array
from meshrt.numpy.choose import choose
from meshrt.numpy.filled import full
from meshrt.numpy.joining import concatenate
from meshrt.numpy.operands import (
    PYTHON_SCALARS,
    ShapeError,
    broadcast_to_shape,
    canonical_axes,
    canonical_axis,
    promote_inexact,
    size_as,
    to_dtype,
    unsupported_argument,
)
from meshrt.numpy.ufuncs import real
from meshrt.primitives import reduce as rd

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "average", "count_nonzero", "cumprod", "cumsum",
    "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "ptp", "std",
    "sum", "var",
]  # fmt: skip


_HALF = frozenset([np.dtype("float16"), np.dtype(dtypes.bfloat16)])


def computation_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which a reduction to ``dtype`` runs: float32 for 16-bit floats."""
    return np.dtype("float32") if dtype in _HALF else dtype


def _promoted_integer(dtype: Any) -> np.dtype:
    """Small integers and bool become the default integer of their kind."""
    if dtype.kind in "fc":
        return dtype
    if dtype == np.bool_:
        return dtypes.default_int_dtype()
    for kind, default in (
        (np.unsignedinteger, dtypes.default_uint_dtype),
        (np.signedinteger, dtypes.default_int_dtype),
    ):
        if dtypes.issubdtype(dtype, kind):
            wide = default()
            return wide if dtypes.iinfo(dtype).bits < dtypes.iinfo(wide).bits else dtype
    return dtype


def boolean_mask(name: str, where: Any) -> Any:
    """The argument ``where`` of the function `name` as an array, or None."""
    if where is None:
        return None
    where = operand_array(name, where)
    if where.dtype != np.bool_:
        raise errors.ArgumentValueError(f"jnp.{name}: where must be None or a boolean array, got dtype {where.dtype}")
    return where


def _masked(name: str, x: Any, where: Any, identity: Any) -> Any:
    return x if where is None else choose(boolean_mask(name, where), x, np.asarray(identity, x.dtype)[()])


def keep_dimensions(out: Any, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> Any:
    """A reduced array with its reduced dimensions back at size 1, if ``keepdims``."""
    if not keepdims:
        return out
    return reshape_p.bind(out, new_sizes=tuple(1 if i in axes else n for i, n in enumerate(shape)))


def reduce_with(
    name: str, p: Primitive, x: Any, axis: Any, keepdims: bool, initial: Any, where: Any,
    combine: Callable[..., Any] | None, identity: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """The reduction of an array that already has the dtype to compute in."""
    axes = canonical_axes(axis, x.ndim, name)
    if where is not None:
        x = _masked(name, x, where, identity(x.dtype))
    out = p.bind(x, axes=axes)
    if initial is not None:
        assert combine is not None  # what has no initial value has none
        out = combine(el.convert_element_type(_initial(name, initial), x.dtype), out)
    return keep_dimensions(out, x.shape, axes, keepdims)


def _initial(name: str, initial: Any) -> Any:
    if aval_of(initial).ndim:
        shape = aval_of(initial).shape
        raise errors.ArgumentValueError(f"{name}: the initial value must be a scalar. Got array of shape {shape}")
    return initial


# ----------------------------------------------------------------------------------------------------------
# Sum, product.


def _accumulate(
    name: str, p: Primitive, a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any,
    promote_integers: bool, combine: Callable[..., Any], identity: int,
) -> Any:  # fmt: skip
    x = operand_array(name, a)
    if dtype is None:
        result = _promoted_integer(x.dtype) if promote_integers or x.dtype == np.bool_ else x.dtype
        work = computation_dtype(result)
    else:
        result = work = dtypes.check_user_dtype(dtype, name)
    if work == np.bool_:
        p, combine = (rd.reduce_or_p, el.or_p.bind) if identity == 0 else (rd.reduce_and_p, el.and_p.bind)
    x = to_dtype(x, work)
    out = reduce_with(name, p, x, axis, keepdims, initial, where, combine, lambda d: identity)
    return to_dtype(out, result)


@at_once(1)
def sum(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None, promote_integers: bool = True,
) -> Any:  # fmt: skip
    """The sum over ``axis`` (all by default). ``where`` chooses the elements that count.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.
      promote_integers: sum small integers in the default integer dtype.

    Returns:
      An array without the reduced dimensions, of the dtype in which it is summed.

    >>> jnp.sum(jnp.array([[1, 2], [3, 4]]), axis=0)
    Array([4, 6], dtype=int32)
    """
    unsupported_argument("sum", "out", out)
    return _accumulate(
        "sum", rd.reduce_sum_p, a, axis, dtype, keepdims, initial, where, promote_integers, el.add_p.bind, 0
    )


@at_once(1)
def prod(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None, promote_integers: bool = True,
) -> Any:  # fmt: skip
    """The product over ``axis`` (all by default).

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.
      promote_integers: multiply small integers in the default integer dtype.

    >>> jnp.prod(jnp.array([2, 3, 4]))
    Array(24, dtype=int32)
    """
    unsupported_argument("prod", "out", out)
    return _accumulate(
        "prod", rd.reduce_prod_p, a, axis, dtype, keepdims, initial, where, promote_integers, el.mul_p.bind, 1
    )


@at_once(1)
def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements that are not zero.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.count_nonzero(jnp.array([0, 1, 2]))
    Array(2, dtype=int32)
    """
    x = operand_array("count_nonzero", a)
    return sum(el.ne_p.bind(x, np.zeros((), x.dtype)[()]), axis, dtypes.default_int_dtype(), keepdims=keepdims)


# ----------------------------------------------------------------------------------------------------------
# Extremes and truth.


def _extreme(
    name: str, p: Primitive, combine: Callable[..., Any], identity: Callable[[Any], Any], doc: str, example: str
) -> Callable[..., Any]:
    def function(
        a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        unsupported_argument(name, "out", out)
        x = operand_array(name, a)
        if initial is None:
            if where is not None:
                raise errors.ArgumentValueError(f"{name} has no identity: with where, give initial as well")
            empty = [i for i in canonical_axes(axis, x.ndim, name) if x.shape[i] == 0]
            if empty:
                raise ShapeError(
                    f"zero-size array to reduction operation {name} which has no identity: shape {x.shape} along "
                    f"{empty}; give initial="
                )
        x = to_dtype(x, x.dtype)
        return reduce_with(name, p, x, axis, keepdims, initial, where, combine, identity)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\n{example}\n"
    return at_once(1)(function)


max = amax = _extreme(
    "max",
    rd.reduce_max_p,
    el.max_p.bind,
    rd.lowest,
    "The largest element over ``axis``; NaN if there is one.",
    ">>> print(jnp.max(jnp.array([[5, 3], [4, 1]]), axis=0))\n[5 3]",
)
min = amin = _extreme(
    "min",
    rd.reduce_min_p,
    el.min_p.bind,
    rd.highest,
    "The smallest element over ``axis``; NaN if there is one.",
    ">>> print(jnp.min(jnp.array([[5, 3], [4, 1]]), axis=0))\n[4 1]",
)


def _truth(name: str, p: Primitive, identity: bool, doc: str, example: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
        unsupported_argument(name, "out", out)
        x = operand_array(name, a)
        if x.dtype.kind == "c":
            x = real(x)
        x = el.convert_element_type(x, np.dtype(bool))
        return reduce_with(name, p, x, axis, keepdims, None, where, None, lambda d: identity)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\n{example}\n"
    return at_once(1)(function)


all = _truth(
    "all",
    rd.reduce_and_p,
    True,
    "Whether all elements over ``axis`` are true (nonzero).",
    ">>> print(jnp.all(jnp.array([[True, False], [True, True]]), axis=0))\n[ True False]",
)
any = _truth(
    "any",
    rd.reduce_or_p,
    False,
    "Whether any element over ``axis`` is true (nonzero).",
    ">>> print(jnp.any(jnp.array([0, 3])))\nTrue",
)


@at_once(1)
def ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The largest minus the smallest element over ``axis``.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.ptp(jnp.array([3, 9, 4]))
    Array(6, dtype=int32)
    """
    unsupported_argument("ptp", "out", out)
    return el.sub_p.bind(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


def _arg(name: str, find: Callable[..., Any], doc: str, example: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
        unsupported_argument(name, "out", out)
        x = operand_array(name, a)
        shape, axes = x.shape, canonical_axes(axis, x.ndim, name)
        if (axis is not None and len(axes) != 1) or isinstance(axis, tuple | list):
            raise errors.ArgumentTypeError(
                f"{name} takes one axis or None, not {axis!r}; reshape the axes to one first"
            )
        if axis is None:
            x, at = reshape_p.bind(x, new_sizes=(x.size,)), 0
        else:
            at = axes[0]
        if x.shape[at] == 0:
            raise ShapeError(f"attempt to get {name} of an empty sequence: dimension {at} of shape {shape}")
        out = find(x, at, dtypes.default_int_dtype())
        return keep_dimensions(out, shape, axes, bool(keepdims))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\n{example}\n"
    return at_once(1)(function)


argmax = _arg(
    "argmax",
    rd.argmax,
    "The position of the first maximum along ``axis`` (flattened by default).",
    ">>> print(jnp.argmax(jnp.array([5, 3, 9])))\n2",
)
argmin = _arg(
    "argmin",
    rd.argmin,
    "The position of the first minimum along ``axis`` (flattened by default).",
    ">>> print(jnp.argmin(jnp.array([5, 3, 9])))\n1",
)


# ----------------------------------------------------------------------------------------------------------
# Mean and variance.


def _count(x: Any, axis: Any, keepdims: bool, where: Any, dtype: Any) -> Any:
    """How many elements are averaged: a static scalar, or an array where ``where`` decides."""
    axes = canonical_axes(axis, x.ndim, "mean")
    if where is None:
        return size_as(math.prod(x.shape[i] for i in axes), dtype)
    mask = broadcast_to_shape(boolean_mask("mean", where), x.shape)
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
    axis = canonical_axes(axis, x.ndim, "mean")
    if dtype is None:
        result = dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(x.dtype))
        work = computation_dtype(result)
    else:
        result = work = dtypes.check_user_dtype(dtype, "mean")
    total = sum(x, axis, work, keepdims=keepdims, where=where)
    return to_dtype(el.div_p.bind(total, _count(x, axis, keepdims, where, work)), result)


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


# ----------------------------------------------------------------------------------------------------------
# Cumulative.


def _cumulative(name: str, p: Callable[..., Any], a: Any, axis: Any, dtype: Any, out: Any) -> Any:
    unsupported_argument(name, "out", out)
    x = operand_array(name, a)
    if axis is None or x.ndim == 0:
        x, axis = reshape_p.bind(x, new_sizes=(x.size,)), 0
    axis = canonical_axis(axis, x.ndim, name)
    if dtype is None:
        result = work = _promoted_integer(x.dtype) if x.dtype == np.bool_ else x.dtype
    else:
        result = work = dtypes.check_user_dtype(dtype, name)
        if result == np.bool_:
            x, work = el.convert_element_type(x, np.dtype(bool)), dtypes.default_int_dtype()
    return el.convert_element_type(p(el.convert_element_type(x, work), axis), result)


@at_once(1)
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Sums of the elements up to each position along ``axis`` (of the flattened array by default).

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension; None (the default) runs over the flattened array.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.

    Returns:
      An array of the shape of `a`.

    >>> jnp.cumsum(jnp.array([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """
    return _cumulative("cumsum", lax.cumsum, a, axis, dtype, out)


@at_once(1)
def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Products of the elements up to each position along ``axis`` (of the flattened array by default).

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension; None (the default) runs over the flattened array.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.

    >>> jnp.cumprod(jnp.array([1, 2, 3]))
    Array([1, 2, 6], dtype=int32)
    """
    return _cumulative("cumprod", lax.cumprod, a, axis, dtype, out)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """As :func:`cumsum` along a dimension that only vectors may leave out.

    Args:
      x: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      include_initial: put the neutral element in front.

    >>> jnp.cumulative_sum(jnp.array([2, 3]), include_initial=True)
    Array([0, 2, 5], dtype=int32)
    """
    return _array_api_cumulative("cumulative_sum", cumsum, x, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """As :func:`cumprod` along a dimension that only vectors may leave out.

    Args:
      x: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      include_initial: put the neutral element in front.

    >>> jnp.cumulative_prod(jnp.array([2, 3]), include_initial=True)
    Array([1, 2, 6], dtype=int32)
    """
    return _array_api_cumulative("cumulative_prod", cumprod, x, axis, dtype, include_initial)


def _array_api_cumulative(
    name: str, function: Callable[..., Any], x: Any, axis: int | None, dtype: Any, include_initial: bool
) -> Any:
    x = operand_array(name, x)
    if x.ndim == 0:
        raise ShapeError(f"{name}: The input must be non-scalar to take sums or products along a dimension")
    if axis is None and x.ndim > 1:
        raise ShapeError(
            f"{name}: The input array has rank {x.ndim}, however no axis was given; only vectors need none"
        )
    axis = canonical_axis(0 if axis is None else axis, x.ndim, name)
    if dtype is None and function is cumsum:  # products keep the dtypes of small integers
        dtype = _promoted_integer(x.dtype)
    out = function(x, axis, dtype)
    if include_initial:
        start = full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), 0 if function is cumsum else 1, out.dtype)
        out = lax.concatenate([start, out], axis)
    return out


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along ``axis``, taken ``n`` times.

    Args:
      a: an array, or what `asarray` makes one of.
      n: how often.
      axis: the dimension to work along; negative numbers count from the end.
      prepend: values to put before the array.
      append: values to put behind the array.

    >>> jnp.diff(jnp.array([1, 4, 9]))
    Array([3, 5], dtype=int32)
    """
    x = operand_array("diff", a)
    if x.ndim == 0:
        raise ShapeError("diff needs an array of at least one dimension")
    if n < 0:
        raise ShapeError(f"diff: the order n must be non-negative, got {n}")
    if n == 0:
        return x
    axis = canonical_axis(axis, x.ndim, "diff")
    edge = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    parts = [
        broadcast_to_shape(asarray(p), edge) if isinstance(p, PYTHON_SCALARS) or np.ndim(p) == 0 else p
        for p in (prepend, x, append)
        if p is not None and p is not x
    ]
    if parts:
        before = [parts[0]] if prepend is not None else []
        after = [parts[-1]] if append is not None else []
        x = concatenate([*before, x, *after], axis)
    subtract = el.ne_p.bind if x.dtype == np.bool_ else el.sub_p.bind
    for _ in range(n):
        size = x.shape[axis]
        x = subtract(
            lax.slice_in_dim(x, min_dim(1, size), size, axis=axis),
            lax.slice_in_dim(x, 0, non_negative_dim(size - 1), axis=axis),
        )
    return x


def min_int(a: int, b: int) -> int:
    """The smaller of two ints (``min`` is the reduction here)."""
    return a if a < b else b
