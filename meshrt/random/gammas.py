"""The gamma distribution, and those whose numbers are made of gamma numbers.

The primitive stands here and not with the families of `meshrt.primitives`, because it is made of samplers. It is one so
that its derivative is not that of the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import bring_to_front
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.operands import ShapeError, broadcast_to_shape, scalar_like, shape_tuple, static_int
from meshrt.numpy.reductions import any as any_true
from meshrt.numpy.reductions import max as max_along
from meshrt.numpy.reductions import sum as sum_along
from meshrt.numpy.selection import where
from meshrt.primitives import random as rn
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.random.keys import typed
from meshrt.random.samplers import draw_normal, exponential, normal, rademacher
from meshrt.random.uniforms import (
    broadcast_shape,
    checked_dtype,
    draw_uniform,
    float_dtype,
    placed,
    sample_shape,
    two_keys,
)

__all__ = [
    "ball", "beta", "chisquare", "dirichlet", "f", "gamma", "generalized_normal", "loggamma", "random_gamma_p", "t",
]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# The primitive


def _new_keys(keys: Any, count: int) -> list[Any]:
    """``count`` arrays of new keys, one key in each for every key."""
    rank, drawn = aval_of(keys).ndim, rn.random_split(keys, (count,))
    return [lax.index_in_dim(drawn, i, rank, False) for i in range(count)]


def _positive_cubes(keys: Any, width: Any, pending: Any) -> tuple[Any, Any]:
    """Normal numbers x for which v = 1 + width x is positive, drawn again until it is; returns x², v³.

    Elements that are not ``pending`` are left as they are at the start.
    """

    def goes_on(carry: Any) -> Any:
        return any_true(carry[2] <= 0)

    def step(carry: Any) -> Any:
        keys, x, v = carry
        again = v <= 0
        after, drawing = _new_keys(keys, 2)
        drawn = draw_normal(drawing, (), aval_of(x).dtype)
        return where(again, after, keys), where(again, drawn, x), where(again, 1 + drawn * width, v)

    start = where(pending, scalar_like(width, -1), scalar_like(width, 1))
    _, x, v = lax.while_loop(goes_on, step, (keys, lax.full_like(width, 0), start))
    return x * x, v * v * v


def _random_gamma(log_space: bool, impl: dtypes.KeyImpl, words: Any, shape_parameter: Any) -> Any:
    """Marsaglia and Tsang's method (2000), all elements at once: each keeps what it has once that is accepted.

    Every element has a key of its own, so that its number does not depend on how often others are drawn.
    """
    a = shape_parameter
    keys = rn.random_wrap(words, impl)
    return _sample(log_space, rn.random_split(keys, a.shape[aval_of(keys).ndim :]), a)


def _sample(log_space: bool, keys: Any, a: Any) -> Any:
    """A number for every parameter, by a key of its own."""
    dtype = a.dtype
    large = a >= 1  # smaller parameters are raised by one, which a power of a uniform number makes up for
    depth = where(large, a, a + 1) - dtype.type(1 / 3)
    width = dtype.type(1 / 3) / lax.sqrt(depth)

    def rejected(square: Any, cube: Any, u: Any) -> Any:
        unsure = u >= 1 - dtype.type(0.0331) * (square * square)
        return unsure & (lax.log(u) >= square * dtype.type(0.5) + depth * ((1 - cube) + lax.log(cube)))

    def goes_on(carry: Any) -> Any:
        return any_true(rejected(*carry[1:]))

    def step(carry: Any) -> Any:
        keys, *kept = carry
        again = rejected(*kept)
        after, for_normal, for_uniform = _new_keys(keys, 3)
        drawn = (*_positive_cubes(for_normal, width, again), draw_uniform(for_uniform, (), dtype, 0.0, 1.0))
        return (where(again, after, keys), *(where(again, new, old) for new, old in zip(drawn, kept)))

    keys, for_power = _new_keys(keys, 2)
    start = [lax.full_like(a, value) for value in (0, 1, 2)]
    cube = lax.while_loop(goes_on, step, (keys, *start))[2]
    u = draw_uniform(for_power, (), dtype, 0.0, 1.0)
    if log_space:
        logarithm = lax.log1p(-u)
        power = where(large | (logarithm == 0), dtype.type(0), logarithm * (1 / a))
        return lax.log(depth) + lax.log(cube) + power
    return depth * cube * where(large, dtype.type(1), lax.pow(1 - u, 1 / a))


def _one_by_one(log_space: bool, impl: dtypes.KeyImpl, words: Any, shape_parameter: Any) -> Any:
    """`_random_gamma` of each element in turn: other generators may draw for an array of keys from the first only."""
    keys, shape = rn.random_wrap(words, impl), shape_parameter.shape
    keys = rn.random_unwrap(rn.random_split(keys, shape[aval_of(keys).ndim :]))
    flat = (
        lax.reshape(keys, (shape_parameter.size, *impl.key_shape)),
        lax.reshape(shape_parameter, (shape_parameter.size,)),
    )
    numbers = lax.map(lambda x: _sample(log_space, rn.random_wrap(x[0], impl), x[1]), flat)
    return lax.reshape(numbers, shape)


@functools.lru_cache(maxsize=512)
def _program(log_space: bool, impl: dtypes.KeyImpl, words: ShapedArray, a: ShapedArray) -> Jaxpr:
    fun = _random_gamma if impl.name == "threefry2x32" else _one_by_one
    closed = trace_to_jaxpr(lambda *xs: [fun(log_space, impl, *xs)], (words, a), "random_gamma")
    assert not closed.consts, "the method has scalar constants only"
    return closed.jaxpr


def _infer(keys: ShapedArray, a: ShapedArray, *, log_space: bool) -> ShapedArray:
    if not keys.is_key or not dtypes.issubdtype(a.dtype, np.floating):
        raise errors.ArgumentTypeError(
            f"random_gamma needs keys and floating parameters but got {keys.short()} and {a.short()}"
        )
    if a.shape[: keys.ndim] != keys.shape:
        raise errors.ArgumentTypeError(
            f"random_gamma needs parameters whose first dimensions are those of the keys but got {keys.short()} "
            f"and {a.short()}"
        )
    return ShapedArray(a.shape, a.dtype)


def _lower(ctx: LoweringContext, eqn: Eqn, words: Any, a: Any) -> Any:
    keys, parameter = (v.aval for v in eqn.invars)
    program = _program(
        eqn.params["log_space"], keys.dtype.impl, keys.physical(), ShapedArray(parameter.shape, parameter.dtype)
    )
    return ctx.call(program, [words, a], "random_gamma")[0]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, log_space: bool) -> tuple[Any, Any]:
    """How far a number moves with the parameter where its probability stays (`lax.random_gamma_grad`)."""
    keys, a = primals
    out = random_gamma_p.bind(keys, a, log_space=log_space)
    if tangents[1] is None:
        return out, None
    if not log_space:
        return out, el.mul_p.bind(tangents[1], lax.random_gamma_grad(a, out))
    number = lax.exp(out)  # which underflows for logarithms of small numbers
    number = where(number == 0, scalar_like(out, dtypes.finfo(aval_of(out).dtype).tiny), number)
    return out, el.mul_p.bind(tangents[1], el.div_p.bind(lax.random_gamma_grad(a, number), number))


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    return random_gamma_p.bind(*(bring_to_front(size, x, d) for x, d in zip(args, dims)), **params), 0


random_gamma_p: Primitive = Primitive(
    "random_gamma", _infer, lower=_lower, jvp=_jvp, batch=_batch,
    absent=NOT_LINEAR,
)  # fmt: skip


def _gamma(name: str, key: Any, a: Any, shape: Any, dtype: Any, log_space: bool) -> Any:
    key, _ = typed(name, key)
    dtype, shape = float_dtype(name, dtype), sample_shape(name, shape, a)
    a = broadcast_to_shape(asarray(el.convert_element_type(a, dtype)), shape)
    return random_gamma_p.bind(key, a, log_space=log_space)


@in_auto_mode
def gamma(key: Any, a: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the gamma distribution of shape parameter ``a`` and scale 1; differentiable in ``a``.

    Args:
      a: positive; an array that broadcasts to ``shape``.
      shape: the shape of the samples, by default that of ``a``.
      dtype: a floating dtype, by default the default one.

    Raises:
      ArgumentValueError: ``dtype`` is not floating. ShapeError: ``a`` does not broadcast to ``shape``.

    >>> random.gamma(random.key(0), 2.0, (3,)).shape
    (3,)
    """
    return placed(_gamma("gamma", key, a, shape, dtype, False), out_sharding)


@in_auto_mode
def loggamma(key: Any, a: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Logarithms of numbers from the gamma distribution (see `gamma`), precise where those would underflow.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      a: the shape parameter.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.loggamma(meshrt.random.key(0), 2.0, (2,)).shape
    (2,)
    """
    return placed(_gamma("loggamma", key, a, shape, dtype, True), out_sharding)


# ---------------------------------------------------------------------------------------------------------------------
# Made of gamma numbers


@in_auto_mode
def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the beta distribution of positive parameters ``a`` and ``b``, differentiable in both.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      a: the shape parameter.
      b: the second shape parameter.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.beta(meshrt.random.key(0), 2.0, 3.0, (2,)).shape
    (2,)
    """
    key, _ = typed("beta", key)
    dtype = checked_dtype("beta", dtype, a, b)
    shape = sample_shape("beta", shape, a, b)
    a, b = (_gamma("beta", k, x, shape, dtype, True) for k, x in zip(two_keys(key), (a, b)))
    largest = lax.max(a, b)
    a, b = lax.exp(a - largest), lax.exp(b - largest)
    return placed(a / (a + b), out_sharding)


@in_auto_mode
def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Vectors of positive numbers whose sum is 1, from the Dirichlet distribution.

    Args:
      alpha: positive parameters; the last dimension is that of the vectors.
      shape: the shape of the samples without that of the vectors, by default that of ``alpha``.

    Raises:
      ShapeError: ``alpha`` is a scalar, or its other dimensions do not broadcast to ``shape``.

    >>> meshrt.random.dirichlet(meshrt.random.key(0), jnp.ones(3), (2,)).sum(1)
    Array([0.99999994, 0.99999994], dtype=float32)
    """
    key, _ = typed("dirichlet", key)
    dtype = float_dtype("dirichlet", dtype)
    dims = aval_of(alpha).shape
    if not dims:
        raise ShapeError(
            "dirichlet requires alpha.ndim >= 1, got a scalar: the last dimension has the parameters of one vector"
        )
    shape = broadcast_shape("dirichlet", shape, dims[:-1])
    x = _gamma("dirichlet", key, alpha, (*shape, dims[-1]), dtype, True)
    powers = lax.exp(x - lax.stop_gradient(max_along(x, axis=-1, keepdims=True)))
    return placed(powers / sum_along(powers, axis=-1, keepdims=True), out_sharding)


@in_auto_mode
def chisquare(key: Any, df: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the chi-square distribution of ``df`` degrees of freedom, differentiable in ``df``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      df: degrees of freedom.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.chisquare(meshrt.random.key(0), 3.0, (2,)).shape
    (2,)
    """
    key, _ = typed("chisquare", key)
    dtype = checked_dtype("chisquare", dtype, df)
    return placed(_chisquare("chisquare", key, df, shape, dtype), out_sharding)


def _chisquare(name: str, key: Any, df: Any, shape: Any, dtype: np.dtype) -> Any:
    half = asarray(el.convert_element_type(df, dtype)) / 2
    return lax.exp(_gamma(name, key, half, shape, dtype, True)) * 2


@in_auto_mode
def f(key: Any, dfnum: Any, dfden: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the F distribution: the ratio of two chi-square numbers, each by its degrees of freedom.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      dfnum: degrees of freedom of the numerator.
      dfden: degrees of freedom of the denominator.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.f(meshrt.random.key(0), 3.0, 5.0, (2,)).shape
    (2,)
    """
    key, _ = typed("f", key)
    dtype = checked_dtype("f", dtype, dfnum, dfden)
    shape = sample_shape("f", shape, dfnum, dfden)
    below, above = two_keys(key)
    dfnum, dfden = (broadcast_to_shape(asarray(el.convert_element_type(x, dtype)), shape) for x in (dfnum, dfden))
    above = _chisquare("f", above, dfnum, shape, dtype) / dfnum
    return placed(above / (_chisquare("f", below, dfden, shape, dtype) / dfden), out_sharding)


@in_auto_mode
def t(key: Any, df: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from Student's t distribution of ``df`` degrees of freedom, differentiable in ``df``.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      df: degrees of freedom.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.t(meshrt.random.key(0), 3.0, (2,)).shape
    (2,)
    """
    key, _ = typed("t", key)
    dtype = checked_dtype("t", dtype, df)
    shape = sample_shape("t", shape, df)
    for_normal, for_gamma = two_keys(key)
    half = broadcast_to_shape(asarray(el.convert_element_type(df, dtype)), shape) / 2
    g = _gamma("t", for_gamma, half, shape, dtype, False)
    return placed(normal(for_normal, shape, dtype) * lax.sqrt(half / g), out_sharding)


@in_auto_mode
def generalized_normal(key: Any, p: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers x of density proportional to exp(-|x|^p).

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      p: the power in the exponent.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.generalized_normal(meshrt.random.key(0), 2.0, (2,)).shape
    (2,)
    """
    key, _ = typed("generalized_normal", key)
    return placed(
        _generalized_normal(key, p, shape_tuple(shape), float_dtype("generalized_normal", dtype)), out_sharding
    )


def _generalized_normal(key: Any, p: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    for_gamma, for_sign = two_keys(key)
    g = _gamma("generalized_normal", for_gamma, 1 / p, shape, dtype, False)
    return rademacher(for_sign, shape, dtype) * g ** (1 / p)


@in_auto_mode
def ball(key: Any, d: Any, p: Any = 2, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Vectors of ``d`` numbers, uniformly from the unit ball of the ``p``-norm; their dimension is the last.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      d: the number of dimensions.
      p: the norm that is at most 1.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.ball(meshrt.random.key(0), 3, shape=(2,)).shape
    (2, 3)
    """
    key, _ = typed("ball", key)
    shape, dtype, d = shape_tuple(shape), float_dtype("ball", dtype), static_int(d, "ball: d")
    for_direction, for_length = two_keys(key)
    g = _generalized_normal(for_direction, p, (*shape, d), dtype)
    length = (sum_along(abs(g) ** p, axis=-1) + exponential(for_length, shape, dtype)) ** (1 / p)
    return placed(g / lax.expand_dims(length, (len(shape),)), out_sharding)
