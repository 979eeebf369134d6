"""Logistic functions, entropies, power transformations; sums of exponentials."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax, nn
from meshrt.jit import jit
from meshrt.nn.functions import logsumexp
from meshrt.scipy.operands import floating, inexact
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = [
    "boxcox", "boxcox1p", "entr", "expit", "kl_div", "log_softmax", "logit", "logsumexp", "rel_entr", "softmax",
    "xlog1py", "xlogy",
]  # fmt: skip


@custom_jvp
def _logit(x: Any) -> Any:
    return lax.log(x / (1 - x))


@_logit.defjvp
def _logit_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _logit(x), t / (x * (1 - x))


@jit
def logit(x: Any) -> Any:
    """log(x / (1 - x)), the inverse of `expit`.

    >>> meshrt.scipy.special.logit(0.5)
    Array(0., dtype=float32, weak_type=True)
    """
    return _logit(*inexact("logit", x))


def expit(x: Any) -> Any:
    """The logistic function 1 / (1 + exp(-x)).

    >>> meshrt.scipy.special.expit(0.0)
    Array(0.5, dtype=float32, weak_type=True)
    """
    return lax.logistic(*inexact("expit", x))


@custom_jvp
def _xlogy(x: Any, y: Any) -> Any:
    return jnp.where((x != 0) | jnp.isnan(y), x * lax.log(y), jnp.zeros_like(x))


@_xlogy.defjvp
def _xlogy_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _xlogy(x, y), dx * lax.log(y) + dy * x / y


@jit
def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0 and y no NaN.

    Args:
      x: an array.
      y: a second signal.

    >>> meshrt.scipy.special.xlogy(0.0, 0.0)
    Array(0., dtype=float32, weak_type=True)
    """
    return _xlogy(*inexact("xlogy", x, y))


@custom_jvp
def _xlog1py(x: Any, y: Any) -> Any:
    return jnp.where((x != 0) | jnp.isnan(y), x * lax.log1p(y), jnp.zeros_like(x))


@_xlog1py.defjvp
def _xlog1py_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _xlog1py(x, y), dx * lax.log1p(y) + dy * x / (1 + y)


@jit
def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0 and y no NaN.

    Args:
      x: an array.
      y: a second signal.

    >>> meshrt.scipy.special.xlog1py(0.0, -1.0)
    Array(0., dtype=float32, weak_type=True)
    """
    return _xlog1py(*inexact("xlog1py", x, y))


@custom_jvp
def _xlogx(x: Any) -> Any:
    return _xlogy(x, x)


@_xlogx.defjvp
def _xlogx_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _xlogx(x), t * (lax.log(x) + 1)


@jit
def entr(x: Any) -> Any:
    """-x log(x): 0 at 0, -inf for negative x.

    >>> meshrt.scipy.special.entr(jnp.array([0.0, 0.5]))
    Array([-0.       ,  0.3465736], dtype=float32)
    """
    (x,) = floating("entr", x)
    return jnp.where(x < 0, -np.inf, -_xlogx(x))


@custom_jvp
def _relative_entropy(p: Any, q: Any) -> Any:
    """p log(p / q) for positive p and q."""
    ratio = p / q
    usual = (ratio > 0) & (ratio < np.inf)  # else it has left the range of the dtype, which its logarithm has not
    return p * jnp.where(usual, lax.log(jnp.where(usual, ratio, 1)), lax.log(p) - lax.log(q))


@_relative_entropy.defjvp
def _relative_entropy_jvp(primals: Any, tangents: Any) -> Any:
    # The slopes of the quotient would take the square of q, which is 0 from q = 1e-23 on in float32.
    (p, q), (dp, dq) = primals, tangents
    return _relative_entropy(p, q), dp * (lax.log(p) - lax.log(q) + 1) - dq * (p / q)


@jit
def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q) for positive p and q; 0 for p = 0 and q >= 0; else inf.

    Args:
      p: an array.
      q: an array.

    >>> meshrt.scipy.special.rel_entr(jnp.array([0.5]), jnp.array([0.25]))
    Array([0.3465736], dtype=float32)
    """
    p, q = floating("rel_entr", p, q)
    both, none = (p > 0) & (q > 0), (p == 0) & (q >= 0)
    safe_p, safe_q = jnp.where(both, p, 1), jnp.where(both, q, 1)
    value = _relative_entropy(safe_p, safe_q)
    return jnp.where(both, value, jnp.where(none, jnp.zeros_like(p), np.inf))


@jit
def kl_div(p: Any, q: Any) -> Any:
    """rel_entr(p, q) - p + q: an addend of Kullback and Leibler's divergence.

    Args:
      p: an array.
      q: an array.

    >>> meshrt.scipy.special.kl_div(jnp.array([0.5]), jnp.array([0.25]))
    Array([0.09657359], dtype=float32)
    """
    p, q = floating("kl_div", p, q)
    return rel_entr(p, q) - p + q


def _power(logarithm: Any, exponent: Any) -> Any:
    """expm1(exponent * logarithm) / exponent, and its limit `logarithm` at 0."""
    zero = exponent == 0
    safe = jnp.where(zero, 1, exponent)
    return jnp.where(zero, logarithm, jnp.expm1(safe * logarithm) / safe)


@jit
def boxcox(x: Any, lmbda: Any) -> Any:
    """Box and Cox's transformation (x^lmbda - 1) / lmbda, log(x) for lmbda = 0; NaN for negative x.

    Args:
      x: an array.
      lmbda: the exponent.

    >>> meshrt.scipy.special.boxcox(2.0, 2.0)
    Array(1.5, dtype=float32, weak_type=True)
    """
    x, lmbda = inexact("boxcox", x, lmbda)
    return _power(jnp.log(x), lmbda)


@jit
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """`boxcox` of 1 + x.

    Args:
      x: an array.
      lmbda: the exponent.

    >>> meshrt.scipy.special.boxcox1p(1.0, 2.0)
    Array(1.5, dtype=float32, weak_type=True)
    """
    x, lmbda = inexact("boxcox1p", x, lmbda)
    return _power(jnp.log1p(x), lmbda)


def softmax(x: Any, /, *, axis: Any = None) -> Any:
    """exp(x) / sum(exp(x)) over `axis`, by default over all.

    Args:
      x: an array.
      axis: the dimension to work along.

    >>> meshrt.scipy.special.softmax(jnp.array([0.0, 0.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    return nn.softmax(x, axis=axis)


def log_softmax(x: Any, /, *, axis: Any = None) -> Any:
    """The logarithm of `softmax`.

    Args:
      x: an array.
      axis: the dimension to work along.

    >>> meshrt.scipy.special.log_softmax(jnp.array([0.0, 0.0]))
    Array([-0.6931472, -0.6931472], dtype=float32)
    """
    return nn.log_softmax(x, axis=axis)
