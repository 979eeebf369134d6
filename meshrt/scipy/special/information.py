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
    """log(x / (1 - x)), the inverse of `expit`."""
    return _logit(*inexact("logit", x))


def expit(x: Any) -> Any:
    """The logistic function 1 / (1 + exp(-x))."""
    return lax.logistic(*inexact("expit", x))


@custom_jvp
def _xlogy(x: Any, y: Any) -> Any:
    return jnp.where((x != 0) | jnp.isnan(y), x * lax.log(y), 0).astype(x.dtype)


@_xlogy.defjvp
def _xlogy_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _xlogy(x, y), dx * lax.log(y) + dy * x / y


@jit
def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0 and y no NaN."""
    return _xlogy(*inexact("xlogy", x, y))


@custom_jvp
def _xlog1py(x: Any, y: Any) -> Any:
    return jnp.where((x != 0) | jnp.isnan(y), x * lax.log1p(y), 0).astype(x.dtype)


@_xlog1py.defjvp
def _xlog1py_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _xlog1py(x, y), dx * lax.log1p(y) + dy * x / (1 + y)


@jit
def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0 and y no NaN."""
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
    """-x log(x): 0 at 0, -inf for negative x."""
    (x,) = floating("entr", x)
    return jnp.where(x < 0, -np.inf, -_xlogx(x))


@jit
def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q) for positive p and q; 0 for p = 0 and q >= 0; else inf."""
    p, q = floating("rel_entr", p, q)
    both, none = (p > 0) & (q > 0), (p == 0) & (q >= 0)
    safe_p, safe_q = jnp.where(both, p, 1), jnp.where(both, q, 1)
    ratio = safe_p / safe_q
    usual = (ratio > 0) & (ratio < np.inf)  # else it has left the range of the dtype, which its logarithm has not
    apart = lax.log(safe_p) - lax.log(safe_q)
    value = safe_p * jnp.where(usual, lax.log(jnp.where(usual, ratio, 1)), apart)
    return jnp.where(both, value, jnp.where(none, 0, np.inf)).astype(p.dtype)


@jit
def kl_div(p: Any, q: Any) -> Any:
    """rel_entr(p, q) - p + q: an addend of Kullback and Leibler's divergence."""
    p, q = floating("kl_div", p, q)
    return rel_entr(p, q) - p + q


def _power(logarithm: Any, exponent: Any) -> Any:
    """expm1(exponent * logarithm) / exponent, and its limit `logarithm` at 0."""
    zero = exponent == 0
    safe = jnp.where(zero, 1, exponent)
    return jnp.where(zero, logarithm, jnp.expm1(safe * logarithm) / safe)


@jit
def boxcox(x: Any, lmbda: Any) -> Any:
    """Box and Cox's transformation (x^lmbda - 1) / lmbda, log(x) for lmbda = 0; NaN for negative x."""
    x, lmbda = floating("boxcox", x, lmbda)
    return _power(jnp.log(x), lmbda)


@jit
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """`boxcox` of 1 + x."""
    x, lmbda = floating("boxcox1p", x, lmbda)
    return _power(jnp.log1p(x), lmbda)


def softmax(x: Any, /, *, axis: Any = None) -> Any:
    """exp(x) / sum(exp(x)) over `axis`, by default over all."""
    return nn.softmax(x, axis=axis)


def log_softmax(x: Any, /, *, axis: Any = None) -> Any:
    """The logarithm of `softmax`."""
    return nn.log_softmax(x, axis=axis)
