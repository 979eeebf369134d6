"""Normalisation and encoding: softmax, logsumexp, standardize, one_hot."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy import reductions as rd
from meshrt.numpy import ufuncs as uf
from meshrt.numpy.creation import asarray
from meshrt.numpy.operands import (
    broadcast_to_shape,
    canonical_axes,
    canonical_axis,
    operand,
    promote_inexact,
    scalar_like,
    static_int,
)
from meshrt.numpy.selection import where as select
from meshrt.primitives.reshape import expand_dims, iota_p

__all__ = ["log1mexp", "log_softmax", "logmeanexp", "logsumexp", "one_hot", "softmax", "standardize"]


def _array(name: str, x: Any) -> Any:
    return asarray(operand(name, x))


def _shifted(x: Any, axis: Any, where: Any) -> Any:
    """``x`` less its maximum along ``axis``, which counts as constant; -inf where ``where`` is false."""
    top = rd.max(x, axis, where=where, initial=-np.inf, keepdims=True)
    safe = x if where is None else select(where, x, -np.inf)
    return uf.subtract(safe, lax.stop_gradient(top))


def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """exp(x) / sum(exp(x)) over ``axis``, without overflow.

    Args:
      where: which elements take part; the others get 0.
    """
    x = asarray(promote_inexact("softmax", x)[0])
    powers = uf.exp(_shifted(x, axis, where))
    out = uf.divide(powers, rd.sum(powers, axis, where=where, keepdims=True))
    return out if where is None else select(where, out, 0)


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """log(softmax(x)) over ``axis``, without overflow; -inf for elements left out by ``where``."""
    x = asarray(promote_inexact("log_softmax", x)[0])
    shifted = _shifted(x, axis, where)
    out = uf.subtract(shifted, uf.log(rd.sum(uf.exp(shifted), axis, where=where, keepdims=True)))
    return out if where is None else select(where, out, -np.inf)


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(a))) over ``axis``, without overflow.

    Args:
      b: factors, 1 by default.
      return_sign: return ``(log of the absolute value, sign)`` instead; without, negative sums give NaN.
      where: which elements take part.
    """
    if where is not None:
        a = select(where, a, 0)
    if b is None:
        a = asarray(promote_inexact("logsumexp", a)[0])
    else:
        a, b = map(asarray, promote_inexact("logsumexp", a, b))
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = broadcast_to_shape(a, shape), broadcast_to_shape(b, shape)
        a = select(uf.not_equal(b, 0), a, -np.inf)
    axes = canonical_axes(axis, a.ndim, "logsumexp")
    top = rd.max(uf.real(a), axes, where=where, initial=-np.inf, keepdims=True)
    top = lax.stop_gradient(select(uf.isfinite(top), top, scalar_like(top, 0)))
    powers = uf.exp(uf.subtract(a, el.convert_element_type(top, a.dtype)))
    powers = powers if b is None else uf.multiply(powers, b)
    total = rd.sum(powers, axes, where=where, keepdims=keepdims)
    sign = uf.sign(total)
    if return_sign or a.dtype.kind != "c":
        total = uf.abs(total)
    kept = top if keepdims else lax.reshape(top, total.shape)
    out = uf.add(uf.log(total), el.convert_element_type(kept, total.dtype))
    if return_sign:
        return out, sign
    if b is not None and out.dtype.kind != "c":
        out = select(uf.less(sign, 0), scalar_like(out, np.nan), out)
    return out


def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Any:
    """log(mean(exp(x))) over ``axis``, without overflow."""
    x = asarray(promote_inexact("logmeanexp", x)[0])
    out = logsumexp(x, axis, keepdims=keepdims, where=where)
    if where is None:
        count = float(np.prod([x.shape[i] for i in canonical_axes(axis, x.ndim, "logmeanexp")], dtype=np.int64))
        return uf.subtract(out, scalar_like(out, np.log(count)))
    mask = broadcast_to_shape(_array("logmeanexp", where), x.shape)
    return uf.subtract(out, uf.log(rd.sum(mask, axis, out.dtype, keepdims=keepdims)))


def standardize(
    x: Any, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5, where: Any = None, *,
    algorithm: str = "fast",
) -> Any:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) over ``axis``.

    Args:
      algorithm: how the variance is computed: "fast" from the mean of squares, "stable" from distances to the mean.
    """
    x = _array("standardize", x)
    if mean is None:
        mean = rd.mean(x, axis, keepdims=True, where=where)
    if variance is None:
        if algorithm == "stable":
            variance = rd.mean(uf.square(uf.subtract(x, mean)), axis, keepdims=True, where=where)
        elif algorithm == "fast":
            squares = rd.mean(uf.square(x), axis, keepdims=True, where=where)
            variance = uf.maximum(0, uf.subtract(squares, uf.square(mean)))
        else:
            raise errors.ArgumentValueError(f"standardize: algorithm must be 'fast' or 'stable', got {algorithm!r}")
    return uf.multiply(uf.subtract(x, mean), el.rsqrt_p.bind(promote_inexact("standardize", uf.add(variance, epsilon))[0]))


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Any:
    """For each integer a vector along ``axis`` that is 1 at that position and 0 elsewhere (all 0 out of range)."""
    x = _array("one_hot", x)
    size = static_int(num_classes, "one_hot: num_classes")
    dtype = dtypes.default_float_dtype() if dtype is None else dtypes.check_user_dtype(dtype, "one_hot")
    axis = canonical_axis(axis, x.ndim + 1, "one_hot")
    shape = (*x.shape[:axis], size, *x.shape[axis:])
    kind = x.dtype if aval_of(x).dtype != np.bool_ else np.dtype("int32")
    classes = iota_p.bind(dtype=kind, shape=shape, dimension=axis)
    wide = broadcast_to_shape(expand_dims(el.convert_element_type(x, kind), (axis,)), shape)
    return el.convert_element_type(el.eq_p.bind(wide, classes), dtype)


def log1mexp(x: Any) -> Any:
    """log(1 - exp(-x)) for positive x, exact near 0."""
    x = asarray(promote_inexact("log1mexp", x)[0])
    near = uf.log(uf.negative(uf.expm1(uf.negative(x))))
    far = uf.log1p(uf.negative(uf.exp(uf.negative(x))))
    return select(uf.less(x, np.log(2.0)), near, far)
