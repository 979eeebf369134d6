"""Activation functions. Integer operands become floating where the function needs it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.dispatch import at_once
from meshrt.numpy import powers
from meshrt.numpy import prims as el
from meshrt.numpy import ufuncs as uf
from meshrt.numpy.arrays import asarray
from meshrt.numpy.operands import canonical_axis, operand, promote_inexact, scalar_like
from meshrt.numpy.selection import clip, where
from meshrt.numpy.splitting import split
from meshrt.numpy.transcendental import logaddexp
from meshrt.transforms.custom_jvp import fused_custom_jvp

__all__ = [
    "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu",
    "log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus",
    "sparse_sigmoid", "squareplus", "swish", "tanh",
]  # fmt: skip


def _array(name: str, x: Any) -> Any:
    return asarray(operand(name, x))


def identity(x: Any) -> Any:
    """x itself.

    >>> meshrt.nn.identity(jnp.array([1.0, 2.0]))
    Array([1., 2.], dtype=float32)
    """
    return _array("identity", x)


@at_once(1)
def relu(x: Any) -> Any:
    """max(x, 0), with derivative 0 at 0 and where x is NaN.

    >>> meshrt.nn.relu(jnp.array([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """
    x = _array("relu", x)
    return uf.maximum(x, 0) if x.dtype == np.bool_ else _relu(x)


@fused_custom_jvp
def _relu(x: Any) -> Any:
    return el.max_p.bind(x, scalar_like(x, 0))  # zero, or NaN where x is NaN


@_relu.defjvp
def _relu_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    zero = scalar_like(x, 0)
    # Complex numbers are ordered by their real parts first, as by NumPy.
    positive = uf.greater(x, zero) if x.dtype.kind == "c" else el.gt_p.bind(x, zero)
    return _relu(x), where(positive, t, scalar_like(t, 0))


@at_once(1)
def relu6(x: Any) -> Any:
    """min(max(x, 0), 6), with derivative 0 at 0 and 6.

    >>> meshrt.nn.relu6(jnp.array([-1.0, 2.0, 9.0]))
    Array([0., 2., 6.], dtype=float32)
    """
    x = relu(x)
    return where(uf.greater_equal(x, 6.0), 6.0, x)


@at_once(1)
def squareplus(x: Any, b: Any = 4) -> Any:
    """(x + sqrt(x**2 + b)) / 2.

    Args:
      x: an array.
      b: how round the corner is.

    >>> meshrt.nn.squareplus(jnp.array([0.0, 3.0]))
    Array([1.       , 3.3027756], dtype=float32)
    """
    x = _array("squareplus", x)
    return (x + uf.sqrt(powers.square(x) + b)) / 2


@at_once(1)
def softplus(x: Any) -> Any:
    """log(1 + exp(x)).

    >>> meshrt.nn.softplus(jnp.array([0.0, 100.0]))
    Array([  0.6931472, 100.       ], dtype=float32)
    """
    return logaddexp(x, 0)


@at_once(1)
def sparse_plus(x: Any) -> Any:
    """0 below -1, x above 1, and (x + 1)**2 / 4 between.

    >>> meshrt.nn.sparse_plus(jnp.array([-2.0, 0.0, 2.0]))
    Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    x = _array("sparse_plus", x)
    return where(x <= -1.0, 0.0, where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


@at_once(1)
def soft_sign(x: Any) -> Any:
    """x / (|x| + 1).

    >>> meshrt.nn.soft_sign(jnp.array([-1.0, 3.0]))
    Array([-0.5 ,  0.75], dtype=float32)
    """
    x = _array("soft_sign", x)
    return x / (uf.abs(x) + 1)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)).

    Raises:
      ArgumentTypeError: ``x`` is not floating or complex.

    >>> meshrt.nn.sigmoid(jnp.array([0.0, 100.0]))
    Array([0.5, 1. ], dtype=float32)
    """
    return el.logistic_p.bind(_array("sigmoid", x))


@at_once(1)
def sparse_sigmoid(x: Any) -> Any:
    """0 below -1, 1 above 1, and (x + 1) / 2 between.

    >>> meshrt.nn.sparse_sigmoid(jnp.array([-2.0, 0.0, 2.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return 0.5 * clip(_array("sparse_sigmoid", x) + 1.0, 0.0, 2.0)


def silu(x: Any) -> Any:
    """x * sigmoid(x).

    Raises:
      ArgumentTypeError: ``x`` is not floating or complex.

    >>> meshrt.nn.silu(jnp.array([0.0, 1.0]))
    Array([0.       , 0.7310586], dtype=float32)
    """
    x = _array("silu", x)
    return el.mul_p.bind(x, el.logistic_p.bind(x))


swish = silu


@at_once(1)
def mish(x: Any) -> Any:
    """x * tanh(softplus(x)).

    >>> meshrt.nn.mish(jnp.array([0.0, 1.0]))
    Array([0.       , 0.8650985], dtype=float32)
    """
    x = _array("mish", x)
    return x * uf.tanh(softplus(x))


@at_once(1)
def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)).

    >>> meshrt.nn.log_sigmoid(jnp.array([0.0, 100.0]))
    Array([-0.6931472, -0.       ], dtype=float32)
    """
    return -softplus(-_array("log_sigmoid", x))


def tanh(x: Any, /) -> Any:
    """Hyperbolic tangent.

    >>> meshrt.nn.tanh(jnp.array([0.0, 1.0]))
    Array([0.       , 0.7615942], dtype=float32)
    """
    return uf.tanh(x)


@at_once(1)
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where positive, else alpha * (exp(x) - 1).

    Args:
      x: an array.
      alpha: by what negative values are scaled.

    >>> meshrt.nn.elu(jnp.array([-1.0, 2.0]))
    Array([-0.63212055,  2.        ], dtype=float32)
    """
    x = _array("elu", x)
    positive = x > 0
    return where(positive, x, alpha * uf.expm1(where(positive, 0.0, x)))


@at_once(1)
def leaky_relu(x: Any, negative_slope: Any = 1e-2) -> Any:
    """x where not negative, else negative_slope * x.

    Args:
      x: an array.
      negative_slope: the slope for negative values.

    >>> meshrt.nn.leaky_relu(jnp.array([-1.0, 2.0]))
    Array([-0.01,  2.  ], dtype=float32)
    """
    x = _array("leaky_relu", x)
    return where(x >= 0, x, negative_slope * x)


@at_once(1)
def hard_tanh(x: Any) -> Any:
    """x limited to [-1, 1].

    >>> meshrt.nn.hard_tanh(jnp.array([-4.0, 0.5, 4.0]))
    Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    x = _array("hard_tanh", x)
    return where(x > 1, 1, where(x < -1, -1, x))


@at_once(1)
def celu(x: Any, alpha: Any = 1.0) -> Any:
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1).

    Args:
      x: an array.
      alpha: by what negative values are scaled.

    >>> meshrt.nn.celu(jnp.array([-1.0, 2.0]))
    Array([-0.63212055,  2.        ], dtype=float32)
    """
    return uf.maximum(x, 0.0) + alpha * uf.expm1(uf.minimum(x, 0.0) / alpha)


@at_once(1)
def selu(x: Any) -> Any:
    """The self-normalising :func:`elu`.

    >>> meshrt.nn.selu(jnp.array([-1.0, 2.0]))
    Array([-1.1113307,  2.101402 ], dtype=float32)
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x; by a tanh formula if ``approximate``, else by erfc.

    Args:
      x: an array.
      approximate: use the approximation by tanh.

    >>> meshrt.nn.gelu(jnp.array([-1.0, 0.0, 2.0]))
    Array([-0.15880796,  0.        ,  1.9545977 ], dtype=float32)
    """
    x = asarray(promote_inexact("gelu", x)[0])
    if x.dtype.kind == "c" and not approximate:
        raise errors.ArgumentTypeError(
            f"gelu with approximate=False does not support complex values, got dtype {x.dtype}; erfc takes real numbers"
        )
    if approximate:
        cubic = el.mul_p.bind(scalar_like(x, 0.044715), el.integer_pow_p.bind(x, y=3))
        total = el.add_p.bind(x, cubic)
        inner = el.mul_p.bind(
            np.asarray(math.sqrt(2 / math.pi), x.dtype)[()], el.convert_element_type(total, total.dtype)
        )
        cdf = el.mul_p.bind(scalar_like(x, 0.5), el.add_p.bind(scalar_like(x, 1), el.tanh_p.bind(inner)))
        return el.mul_p.bind(el.convert_element_type(x, x.dtype), cdf)
    x = el.convert_element_type(x, x.dtype)
    tail = el.erfc_p.bind(el.mul_p.bind(el.neg_p.bind(x), np.asarray(math.sqrt(0.5), x.dtype)[()]))
    return el.mul_p.bind(el.mul_p.bind(scalar_like(x, 0.5), x), tail)


def glu(x: Any, axis: int = -1) -> Any:
    """The first half of ``x`` along ``axis`` times the sigmoid of the second.

    Args:
      x: an array.
      axis: the dimension, or several, to work along.

    >>> meshrt.nn.glu(jnp.array([1.0, 2.0, 0.0, 0.0]))
    Array([0.5, 1. ], dtype=float32)
    """
    x = _array("glu", x)
    axis = canonical_axis(axis, x.ndim, "glu")
    if x.shape[axis] % 2:
        raise errors.OddSizeError(f"glu: axis size must be divisible by 2, got shape {x.shape} and axis {axis}")
    first, second = split(x, 2, axis)
    return first * sigmoid(second)


@at_once(1)
def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6.

    >>> meshrt.nn.hard_sigmoid(jnp.array([-4.0, 0.0, 4.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return relu6(_array("hard_sigmoid", x) + 3.0) / 6.0


@at_once(1)
def hard_silu(x: Any) -> Any:
    """x * hard_sigmoid(x).

    >>> meshrt.nn.hard_silu(jnp.array([-4.0, 0.0, 4.0]))
    Array([-0.,  0.,  4.], dtype=float32)
    """
    x = _array("hard_silu", x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu
