"""Normalisation and encoding: softmax, logsumexp, standardize, one_hot."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import broadcast_in_dim_p
from meshrt.core.dimensions.arithmetic import broadcast_shapes
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import averages, logic, powers
from meshrt.numpy import prims as el
from meshrt.numpy import reductions as rd
from meshrt.numpy import ufuncs as uf
from meshrt.numpy.arrays import asarray
from meshrt.numpy.operands import (
    broadcast_to_shape,
    canonical_axes,
    canonical_axis,
    operand,
    promote_inexact,
    scalar_like,
    size_as,
    static_size,
)
from meshrt.numpy.selection import clip
from meshrt.numpy.selection import where as select
from meshrt.primitives.axis_types import constrained, in_auto_mode
from meshrt.primitives.reduce import reduce_max_p
from meshrt.primitives.reshape import iota_p
from meshrt.transforms.custom_jvp import fused_custom_jvp

__all__ = ["log1mexp", "log_softmax", "logmeanexp", "logsumexp", "one_hot", "scaled_matmul", "softmax", "standardize"]


def _array(name: str, x: Any) -> Any:
    return asarray(operand(name, x))


def _axes(name: str, axis: Any, x: Any) -> tuple[Any, ...]:
    """The dimensions of ``axis``, counted from the start, and the names of axes in it."""
    places, names = rd.reduced_axes(name, axis, x.ndim)
    return (*places, *names)


def _along(x: Any, reduced: Any, axes: tuple[Any, ...]) -> Any:
    """A reduction of ``x`` over ``axes``, broadcast back to its shape in one step."""
    kept = tuple(i for i in range(x.ndim) if i not in axes)  # what is no dimension in `axes` names one of vmap
    return broadcast_in_dim_p.bind(reduced, shape=x.shape, broadcast_dimensions=kept)


def _numbers(name: str, x: Any) -> Any:
    """``x`` as an array of floating or complex numbers. ArgumentTypeError if it is bool, which has no differences."""
    if aval_of(x).dtype == np.bool_:
        raise errors.ArgumentTypeError(f"{name} does not accept dtype bool; convert with astype")
    return asarray(promote_inexact(name, x)[0])


def _shifted(x: Any, axes: tuple[Any, ...], where: Any) -> Any:
    """``x`` less its maximum along ``axes``, which counts as constant; -inf where ``where`` is false."""
    fixed = lax.stop_gradient(x)
    if where is None:
        named = any(type(a) is not int for a in axes)
        top = rd.max(fixed, axes, initial=-np.inf) if named else reduce_max_p.bind(fixed, axes=axes)
        return el.sub_p.bind(el.convert_element_type(x, x.dtype), _along(x, top, axes))
    top = rd.max(fixed, axes, where=where, initial=-np.inf)
    return uf.subtract(select(where, x, -np.inf), _along(x, top, axes))


@functools.cache
def _softmax_over(axes: tuple[Any, ...]) -> Any:
    """softmax over ``axes`` with its short derivative: y * (t - sum(y * t))."""

    @fused_custom_jvp
    def softmax(x: Any) -> Any:
        powers = el.exp_p.bind(_shifted(x, axes, None))
        return el.div_p.bind(powers, _along(x, rd.sum(powers, axes), axes))

    @softmax.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        y, t = softmax.fun(x), el.convert_element_type(t, t.dtype)  # whose transpose has the weak type of x
        mean = _along(y, rd.sum(el.mul_p.bind(y, t), axes), axes)
        return y, el.mul_p.bind(y, el.sub_p.bind(t, mean))

    return softmax


def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """exp(x) / sum(exp(x)) over ``axis``, without overflow.

    Args:
      where: which elements take part; the others get 0.

    >>> meshrt.nn.softmax(jnp.array([0.0, 0.0, -jnp.inf]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """
    x = _numbers("softmax", x)
    axes = _axes("softmax", axis, x)
    if where is None:
        return _softmax_over(axes)(x)
    powers = el.exp_p.bind(_shifted(x, axes, where))
    out = el.div_p.bind(powers, _along(x, rd.sum(powers, axes, where=where), axes))
    return select(where, out, 0)


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """log(softmax(x)) over ``axis``, without overflow; -inf for elements left out by ``where``.

    Args:
      x: an array.
      axis: the dimension, or several, to work along.
      where: which elements count.

    >>> meshrt.nn.log_softmax(jnp.array([0.0, 0.0]))
    Array([-0.6931472, -0.6931472], dtype=float32)
    """
    x = _numbers("log_softmax", x)
    axes = _axes("log_softmax", axis, x)
    shifted = _shifted(x, axes, where)
    total = el.log_p.bind(rd.sum(el.exp_p.bind(shifted), axes, where=where))
    out = el.sub_p.bind(shifted, _along(x, total, axes))
    return out if where is None else select(where, out, -np.inf)


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(a))) over ``axis``, without overflow.

    Args:
      b: factors, 1 by default.
      return_sign: return ``(log of the absolute value, sign)`` instead; without, negative sums give NaN.
      where: which elements take part.

    >>> meshrt.nn.logsumexp(jnp.array([1000.0, 1000.0]))
    Array(1000.6932, dtype=float32)
    """
    if where is not None:
        a = select(where, a, 0)
    if b is None:
        a = asarray(promote_inexact("logsumexp", a)[0])
    else:
        a, b = map(asarray, promote_inexact("logsumexp", a, b))
        shape = broadcast_shapes(a.shape, b.shape)
        a, b = broadcast_to_shape(a, shape), broadcast_to_shape(b, shape)
        a = select(uf.not_equal(b, 0), a, -np.inf)
    axes = _axes("logsumexp", axis, a)
    top = rd.max(lax.stop_gradient(uf.real(a)), axes, where=where, initial=-np.inf)
    top = select(logic.isfinite(top), top, scalar_like(top, 0))
    powers = uf.exp(el.sub_p.bind(a, el.convert_element_type(_along(a, top, axes), a.dtype)))
    powers = powers if b is None else uf.multiply(powers, b)
    total = rd.sum(powers, axes, where=where, keepdims=keepdims)
    sign = uf.sign(total)
    if return_sign or a.dtype.kind != "c":
        total = uf.abs(total)
    out = uf.add(uf.log(total), el.convert_element_type(lax.reshape(top, total.shape), total.dtype))
    if return_sign:
        return out, sign
    if b is not None and out.dtype.kind != "c":
        out = select(uf.less(sign, 0), scalar_like(out, np.nan), out)
    return out


def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Any:
    """log(mean(exp(x))) over ``axis``, without overflow.

    Args:
      x: an array.
      axis: the dimension, or several, to work along.
      where: which elements count.
      keepdims: keep reduced dimensions, with size 1.

    >>> meshrt.nn.logmeanexp(jnp.array([1.0, 1.0]))
    Array(1., dtype=float32)
    """
    x = asarray(promote_inexact("logmeanexp", x)[0])
    out = logsumexp(x, axis, keepdims=keepdims, where=where)
    if where is None:
        count = math.prod(x.shape[i] for i in canonical_axes(axis, x.ndim, "logmeanexp"))
        known = uf.log(size_as(count, out.dtype)) if is_symbolic_dim(count) else scalar_like(out, np.log(float(count)))
        return uf.subtract(out, known)
    mask = broadcast_to_shape(_array("logmeanexp", where), x.shape)
    return uf.subtract(out, uf.log(rd.sum(mask, axis, out.dtype, keepdims=keepdims)))


@at_once(1)
def standardize(
    x: Any, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5, where: Any = None, *,
    algorithm: str = "fast",
) -> Any:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) over ``axis``.

    Args:
      algorithm: how the variance is computed: "fast" from the mean of squares, "stable" from distances to the mean.

    >>> meshrt.nn.standardize(jnp.array([1.0, 3.0]))
    Array([-0.999995,  0.999995], dtype=float32)
    """
    x = _array("standardize", x)
    if mean is None:
        mean = averages.mean(x, axis, keepdims=True, where=where)
    if variance is None:
        if algorithm == "stable":
            variance = averages.mean(powers.square(uf.subtract(x, mean)), axis, keepdims=True, where=where)
        elif algorithm == "fast":
            squares = averages.mean(powers.square(x), axis, keepdims=True, where=where)
            variance = clip(uf.subtract(squares, powers.square(mean)), 0)  # differences may round below 0
        else:
            raise errors.ArgumentValueError(f"standardize: algorithm must be 'fast' or 'stable', got {algorithm!r}")
    return uf.multiply(
        uf.subtract(x, mean), el.rsqrt_p.bind(promote_inexact("standardize", uf.add(variance, epsilon))[0])
    )


@in_auto_mode
@at_once(1, ["num_classes"])
def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: Any = -1, out_sharding: Any = None) -> Any:
    """For each integer a vector along ``axis`` that is 1 at that position and 0 elsewhere (all 0 out of range).

    ``out_sharding`` says how Explicit axes split the result.

    Args:
      x: integers; those out of range give rows of zeros.
      num_classes: the number of classes.
      dtype: the dtype of the result.
      axis: where the new dimension goes; or the name of an axis of vmap or shard_map, along which the classes lie.
      out_sharding: the sharding of the result over Explicit axes.

    Returns:
      An array with one dimension more.

    >>> meshrt.nn.one_hot(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    x = asarray(x)
    if not dtypes.isdtype(x.dtype, "integral"):
        warnings.warn(
            f"jax.nn.one_hot input should be integer-typed; got dtype={x.dtype}", DeprecationWarning, stacklevel=2
        )
    size = static_size(num_classes, "in jax.nn.one_hot argument `num_classes`")
    dtype = dtypes.default_float_dtype() if dtype is None else dtypes.check_user_dtype(dtype, "one_hot")
    if isinstance(axis, str | tuple):
        return el.convert_element_type(uf.equal(x, lax.axis_index(axis)), dtype)
    axis = canonical_axis(axis, x.ndim + 1, "one_hot")
    shape = (*x.shape[:axis], size, *x.shape[axis:])
    kind = x.dtype if aval_of(x).dtype != np.bool_ else np.dtype("int32")
    classes = iota_p.bind(dtype=kind, shape=shape, dimension=axis)
    wide = _along_new(el.convert_element_type(x, kind), axis, shape)
    return constrained(el.convert_element_type(el.eq_p.bind(wide, classes), dtype), out_sharding, "one_hot")


def _along_new(x: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """``x`` repeated along a new dimension ``axis``."""
    kept = tuple(i for i in range(len(shape)) if i != axis)
    return broadcast_in_dim_p.bind(x, shape=shape, broadcast_dimensions=kept)


def log1mexp(x: Any) -> Any:
    """log(1 - exp(-x)) for positive x, exact near 0.

    >>> meshrt.nn.log1mexp(jnp.array([1.0, 2.0]))
    Array([-0.45867515, -0.14541346], dtype=float32)
    """
    return _log1mexp(asarray(promote_inexact("log1mexp", x)[0]))


@fused_custom_jvp
def _log1mexp(x: Any) -> Any:
    near = uf.log(uf.negative(uf.expm1(uf.negative(x))))
    far = uf.log1p(uf.negative(uf.exp(uf.negative(x))))
    return select(uf.less(x, np.log(2.0)), near, far)


@_log1mexp.defjvp
def _log1mexp_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return _log1mexp(x), t / uf.expm1(x)  # of either form, whose own derivative can be 0 * inf


def with_scales(x: Any, scales: Any) -> Any:
    """Elements times the scales that neighbours along the last dimension share: float32."""
    blocks = el.convert_element_type(x, np.float32).reshape(*scales.shape, -1)
    return (blocks * el.convert_element_type(scales, np.float32)[..., None]).reshape(x.shape)


def scaled_matmul(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = np.float32
) -> Any:
    """The products [b, m, n] of two batches of matrices [b, m, k] and [b, n, k], whose elements share scales.

    Scales [b, m, k / s] and [b, n, k / s] are each shared by s neighbours along the last dimension. Sums are kept in
    float32 and given as `preferred_element_type`.

    Raises:
      ArgumentValueError: an operand has not three dimensions, or sizes do not fit each other.

    >>> lhs, rhs = jnp.ones((1, 2, 32), jnp.float8_e4m3fn), jnp.ones((1, 3, 32), jnp.float8_e4m3fn)
    >>> scales = lambda n: jnp.full((1, n, 1), 2.0, jnp.float8_e8m0fnu)
    >>> meshrt.nn.scaled_matmul(lhs, rhs, scales(2), scales(3)).shape
    (1, 2, 3)
    """
    a, b, a_scales, b_scales = (_array("scaled_matmul", x) for x in (lhs, rhs, lhs_scales, rhs_scales))
    shapes = [x.shape for x in (a, b, a_scales, b_scales)]
    if any(len(s) != 3 for s in shapes):
        raise errors.ArgumentValueError(f"scaled_matmul requires all inputs to be 3-dimensional arrays, got {shapes}")
    (batch, rows, width), others = shapes[0], [shapes[1][0::2], shapes[2][:2], shapes[3][:2]]
    if others != [(batch, width), (batch, rows), shapes[1][:2]] or shapes[2][2] != shapes[3][2]:
        raise errors.ArgumentValueError(
            "scaled_matmul requires inputs a and b to have matching batch (B) and contract (K) dimensions, and scales "
            f"to match both each other and the non-contract dimensions of inputs, but got shapes {shapes}"
        )
    if not shapes[2][2] or width % shapes[2][2]:
        raise errors.ArgumentValueError(
            f"scaled_matmul cannot share {shapes[2][2]} scales evenly among {width} elements: shapes are {shapes}"
        )
    dtype = dtypes.check_user_dtype(preferred_element_type, "scaled_matmul")
    scaled = with_scales(a, a_scales), with_scales(b, b_scales)
    out = lax.dot_general(*scaled, (((2,), (2,)), ((0,), (0,))), preferred_element_type=np.float32)
    return el.convert_element_type(out, dtype)
