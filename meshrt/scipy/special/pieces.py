"""Pieces that special functions are written with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp

__all__ = ["in_range", "polynomial", "wide"]

Function = Callable[..., Any]


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """c[0] + c[1] x + c[2] x^2 + ..."""
    return functools.reduce(lambda total, c: total * x + c, reversed(coefficients[:-1]), coefficients[-1])


def in_range(x: Any, here: Any, elsewhere: float) -> Any:
    """x where a formula is used, and elsewhere a value that it can take: no NaN of its reaches a derivative."""
    return jnp.where(here, x, elsewhere).astype(x.dtype)


def wide(f: Function) -> Function:
    """f of float32 and float64, made to take narrower dtypes too: computed as float32 and rounded."""

    @functools.wraps(f)
    def widened(*args: Any) -> Any:
        dtype = args[0].dtype
        if dtype in (np.float32, np.float64, np.complex64, np.complex128):
            return f(*args)
        out = f(*(x.astype(np.float32) for x in args))
        return tuple(y.astype(dtype) for y in out) if isinstance(out, tuple) else out.astype(dtype)

    return widened
