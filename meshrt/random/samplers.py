"""Samples from continuous and simple discrete distributions, made of uniform numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.types import aval_of
from meshrt.numpy import powers
from meshrt.numpy import prims as el
from meshrt.numpy import ufuncs as uf
from meshrt.numpy.arrays import asarray
from meshrt.numpy.linalg import norm
from meshrt.numpy.operands import broadcast_shapes, broadcast_to_shape, promote_inexact, scalar_like, shape_tuple
from meshrt.numpy.selection import clip, where
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.random.keys import typed
from meshrt.random.uniforms import (
    checked_dtype,
    draw_uniform,
    float_dtype,
    int_dtype,
    one_program,
    parameter,
    placed,
    sample_shape,
    two_keys,
    uniform,
)

__all__ = [
    "bernoulli", "cauchy", "double_sided_maxwell", "exponential", "geometric", "laplace", "logistic", "lognormal",
    "maxwell", "normal", "pareto", "rademacher", "rayleigh", "triangular", "truncated_normal", "wald", "weibull_min",
]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# Normal and related.


@in_auto_mode
def normal(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the standard normal distribution; complex ones have unit variance.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.normal(meshrt.random.key(0), (3,))
    Array([ 1.6226422 ,  2.0252647 , -0.43359444], dtype=float32)
    """
    key, _ = typed("normal", key)
    dtype = dtypes.check_user_dtype(float if dtype is None else dtype, "normal")
    if not dtypes.issubdtype(dtype, np.inexact):
        raise errors.ArgumentValueError(f"dtype argument to `normal` must be a float or complex dtype, got {dtype}")
    shape = shape_tuple(shape)
    if dtype.kind != "c":
        return placed(draw_normal(key, shape, dtype), out_sharding)
    part = np.dtype(dtypes.finfo(dtype).dtype)
    re, im = (draw_normal(k, shape, part) for k in two_keys(key))
    return placed(el.div_p.bind(el.complex(re, im), np.asarray(math.sqrt(2), dtype)[()]), out_sharding)


@one_program
def draw_normal(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Numbers from the standard normal distribution: an array of ``shape`` for every key."""
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype), dtype=dtype)[()]
    u = draw_uniform(key, shape, dtype, low, np.asarray(1, dtype)[()])
    return el.mul_p.bind(np.asarray(math.sqrt(2), dtype)[()], el.erf_inv_p.bind(u))


@in_auto_mode
def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """Numbers from the standard normal distribution within (lower, upper).

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      lower: the lower bound.
      upper: the upper bound.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.truncated_normal(meshrt.random.key(0), -1.0, 1.0, (2,)).shape
    (2,)
    """
    key, _ = typed("truncated_normal", key)
    dtype = float_dtype("truncated_normal", dtype)
    shape = sample_shape("truncated_normal", shape, lower, upper)
    root = np.asarray(math.sqrt(2), dtype)[()]
    lower, upper = asarray(el.convert_element_type(lower, dtype)), asarray(el.convert_element_type(upper, dtype))
    a, b = (el.erf_p.bind(el.div_p.bind(v, root)) for v in (lower, upper))
    out = el.mul_p.bind(root, el.erf_inv_p.bind(draw_uniform(key, shape, dtype, a, b)))
    inside = [
        el.nextafter_p.bind(lax.stop_gradient(v), np.asarray(towards, dtype)[()])
        for v, towards in ((lower, np.inf), (upper, -np.inf))
    ]
    return placed(clip(out, *inside), out_sharding)


@in_auto_mode
def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Exponentials of normal numbers of standard deviation ``sigma``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      sigma: the standard deviation of the logarithm.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.lognormal(meshrt.random.key(0), 0.5, (2,)).shape
    (2,)
    """
    key, _ = typed("lognormal", key)
    dtype, shape = checked_dtype("lognormal", dtype, sigma), sample_shape("lognormal", shape, sigma)
    x = normal(key, shape, dtype)
    return placed(el.exp_p.bind(el.mul_p.bind(x, parameter(sigma, x.dtype, shape))), out_sharding)


@in_auto_mode
def maxwell(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Lengths of vectors of three normal numbers.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.maxwell(meshrt.random.key(0), (2,)).shape
    (2,)
    """
    key, _ = typed("maxwell", key)
    dtype = float_dtype("maxwell", dtype)
    return placed(norm(normal(key, (*shape_tuple(shape), 3), dtype), axis=-1), out_sharding)


def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Maxwell numbers with random signs, times ``scale``, plus ``loc``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      loc: where the distribution is centred.
      scale: by what it is stretched.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.

    >>> meshrt.random.double_sided_maxwell(meshrt.random.key(0), 0.0, 1.0, (2,)).shape
    (2,)
    """
    key, _ = typed("double_sided_maxwell", key)
    dtype = float_dtype("double_sided_maxwell", dtype)
    parameters = broadcast_shapes(aval_of(loc).shape, aval_of(scale).shape)
    shape = (shape_tuple(shape) or parameters) + parameters
    first, second = two_keys(key)
    return rademacher(second, shape, dtype) * maxwell(first, shape, dtype) * scale + loc


@in_auto_mode
def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the Rayleigh distribution.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      scale: by what it is stretched.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.rayleigh(meshrt.random.key(0), 1.0, (2,)).shape
    (2,)
    """
    key, _ = typed("rayleigh", key)
    dtype, shape = checked_dtype("rayleigh", dtype, scale), sample_shape("rayleigh", shape, scale)
    u = uniform(key, shape, dtype)
    root = el.sqrt_p.bind(el.mul_p.bind(el.log_p.bind(u), scalar_like(u, -2)))
    return placed(el.mul_p.bind(parameter(scale, dtype, shape), root), out_sharding)


# ----------------------------------------------------------------------------------------------------------
# By inversion.


@in_auto_mode
def exponential(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the exponential distribution of mean 1.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.exponential(meshrt.random.key(0), (2,)).shape
    (2,)
    """
    key, _ = typed("exponential", key)
    u = uniform(key, shape, float_dtype("exponential", dtype))
    return placed(el.neg_p.bind(el.log1p_p.bind(el.neg_p.bind(u))), out_sharding)


@in_auto_mode
def laplace(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the Laplace distribution of scale 1.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.laplace(meshrt.random.key(0), (2,)).shape
    (2,)
    """
    key, _ = typed("laplace", key)
    dtype = float_dtype("laplace", dtype)
    u = uniform(key, shape, dtype, minval=-1.0 + dtypes.finfo(dtype).epsneg, maxval=1.0)
    return placed(el.mul_p.bind(el.sign_p.bind(u), el.log1p_p.bind(el.neg_p.bind(el.abs_p.bind(u)))), out_sharding)


@in_auto_mode
def logistic(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the logistic distribution.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.logistic(meshrt.random.key(0), (2,)).shape
    (2,)
    """
    key, _ = typed("logistic", key)
    dtype = float_dtype("logistic", dtype)
    u = uniform(key, shape, dtype, minval=dtypes.finfo(dtype).tiny, maxval=1.0)
    return placed(el.sub_p.bind(el.log_p.bind(u), el.log1p_p.bind(el.neg_p.bind(u))), out_sharding)


@in_auto_mode
def cauchy(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the Cauchy distribution.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.cauchy(meshrt.random.key(0), (2,)).shape
    (2,)
    """
    key, _ = typed("cauchy", key)
    dtype = float_dtype("cauchy", dtype)
    u = uniform(key, shape, dtype, minval=dtypes.finfo(dtype).eps, maxval=1.0)
    angle = el.mul_p.bind(scalar_like(u, np.pi), el.sub_p.bind(u, scalar_like(u, 0.5)))
    return placed(el.tan_p.bind(angle), out_sharding)


@in_auto_mode
def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the Pareto distribution of shape parameter ``b``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      b: the second shape parameter.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.pareto(meshrt.random.key(0), 2.0, (2,)).shape
    (2,)
    """
    key, _ = typed("pareto", key)
    dtype, shape = checked_dtype("pareto", dtype, b), sample_shape("pareto", shape, b)
    e = exponential(key, shape, dtype)
    return placed(el.exp_p.bind(el.div_p.bind(e, parameter(b, dtype, shape))), out_sharding)


def weibull_min(key: Any, scale: Any, concentration: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers from the Weibull distribution.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      scale: by what it is stretched.
      concentration: the shape parameter.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.

    >>> meshrt.random.weibull_min(meshrt.random.key(0), 1.0, 2.0, (2,)).shape
    (2,)
    """
    key, _ = typed("weibull_min", key)
    dtype = float_dtype("weibull_min", dtype)
    u = uniform(key, shape, dtype)
    root = powers.power(el.neg_p.bind(el.log1p_p.bind(el.neg_p.bind(u))), uf.true_divide(1.0, concentration))
    return uf.multiply(root, scale)


@in_auto_mode
def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """Numbers from the triangular distribution on [left, right] with its peak at ``mode``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      left: the lower end.
      mode: where the density is highest.
      right: the upper end.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.triangular(meshrt.random.key(0), 0.0, 0.5, 1.0, (2,)).shape
    (2,)
    """
    key, _ = typed("triangular", key)
    dtype = checked_dtype("triangular", dtype, left, mode, right)
    shape = sample_shape("triangular", shape, left, mode, right)
    a, c, b = (asarray(el.convert_element_type(v, dtype)) for v in (left, mode, right))
    u = uniform(key, shape, dtype)
    rising = a + uf.sqrt(u * (b - a) * (c - a))
    falling = b - uf.sqrt((1 - u) * (b - a) * (b - c))
    return placed(where(u < (c - a) / (b - a), rising, falling), out_sharding)


@in_auto_mode
def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the Wald (inverse normal) distribution of shape parameter 1, of positive ``mean``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      mean: the mean.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.wald(meshrt.random.key(0), 1.0, (2,)).shape
    (2,)
    """
    key, _ = typed("wald", key)
    dtype = checked_dtype("wald", dtype, mean)
    shape = sample_shape("wald", shape, mean)
    first, second = two_keys(key)
    m = broadcast_to_shape(asarray(el.convert_element_type(mean, dtype)), shape)
    z, u = lax.integer_pow(normal(first, shape, dtype), 2), uniform(second, shape, dtype)
    square = lax.integer_pow(m, 2)
    x = m + square * z / 2 - m / 2 * lax.sqrt(4 * m * z + square * lax.integer_pow(z, 2))
    return placed(where(u <= m / (m + x), x, square / x), out_sharding)


# ----------------------------------------------------------------------------------------------------------
# Discrete.


@in_auto_mode
def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low", *, out_sharding: Any = None) -> Any:
    """True with probability ``p``. ``mode="high"`` resolves small probabilities more finely.

    Returns:
      Booleans.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      p: the probability of True.
      shape: sizes of the result; by default those of the parameters broadcast together.
      mode: "low" or "high": how small probabilities may be.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.bernoulli(meshrt.random.key(0), 0.3, (4,)).dtype
    dtype('bool')
    """
    key, _ = typed("bernoulli", key)
    if mode not in ("low", "high"):
        raise errors.ArgumentValueError(f"bernoulli: mode must be 'low' or 'high', got {mode!r}")
    dtype = aval_of(p).dtype
    if not dtypes.issubdtype(dtype, np.floating):
        raise errors.ArgumentTypeError(f"bernoulli: p must be floating, got dtype {dtype}")
    shape = sample_shape("bernoulli", shape, p)
    p = parameter(p, dtype, shape)
    if mode == "low":
        return placed(el.lt_p.bind(draw_uniform(key, shape, dtype, 0.0, 1.0), p), out_sharding)
    pair = draw_uniform(key, (2, *shape), dtype, 0.0, 1.0)
    fine = el.mul_p.bind(pair[1], scalar_like(pair, 2.0 ** -dtypes.finfo(dtype).nmant))
    return placed(el.lt_p.bind(fine, el.sub_p.bind(p, pair[0])), out_sharding)


@in_auto_mode
def rademacher(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """-1 or 1 with equal probability.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.rademacher(meshrt.random.key(0), (4,)).dtype
    dtype('int32')
    """
    key, _ = typed("rademacher", key)
    dtype = dtypes.check_user_dtype(int if dtype is None else dtype, "rademacher")
    # As bools, which cannot be subtracted, both are True.
    heads = el.convert_element_type(bernoulli(key, 0.5, shape_tuple(shape)), np.int32 if dtype == np.bool_ else dtype)
    signs = el.sub_p.bind(el.mul_p.bind(scalar_like(heads, 2), heads), scalar_like(heads, 1))
    return placed(el.convert_element_type(signs, dtype), out_sharding)


@in_auto_mode
def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The number of trials up to the first success of probability ``p``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      p: probability.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.geometric(meshrt.random.key(0), 0.5, (2,)).shape
    (2,)
    """
    key, _ = typed("geometric", key)
    dtype, shape = int_dtype("geometric", dtype), sample_shape("geometric", shape, p)
    p = asarray(promote_inexact("geometric", p)[0])
    u = uniform(key, shape, p.dtype)
    u = where(el.eq_p.bind(u, scalar_like(u, 0)), scalar_like(u, 1), u)
    misses = broadcast_to_shape(el.log1p_p.bind(el.neg_p.bind(p)), shape)
    count = el.floor_p.bind(el.div_p.bind(el.log_p.bind(u), misses))
    return placed(el.convert_element_type(el.add_p.bind(count, scalar_like(count, 1)), dtype), out_sharding)
