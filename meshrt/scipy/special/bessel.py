"""Bessel functions."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import floating

__all__ = ["i0", "i0e", "i1", "i1e"]


def i0e(x: Any) -> Any:
    """exp(-|x|) I0(x), with I0 the modified Bessel function of order 0."""
    return lax.bessel_i0e(*floating("i0e", x))


def i1e(x: Any) -> Any:
    """exp(-|x|) I1(x), with I1 the modified Bessel function of order 1."""
    return lax.bessel_i1e(*floating("i1e", x))


@jit
def i0(x: Any) -> Any:
    """The modified Bessel function of order 0."""
    (x,) = floating("i0", x)
    return jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x)


@jit
def i1(x: Any) -> Any:
    """The modified Bessel function of order 1."""
    (x,) = floating("i1", x)
    return jnp.exp(jnp.abs(x)) * lax.bessel_i1e(x)
