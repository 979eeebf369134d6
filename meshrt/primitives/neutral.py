"""Neutral elements: the least and the largest value of a dtype, with which reductions by max and min begin."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes

__all__: list[str] = []


def lowest(dtype: Any) -> Any:
    """The neutral element of max: -inf, or the least value of dtypes without it."""
    if dtype == np.bool_:
        return False
    if dtypes.issubdtype(dtype, np.complexfloating):
        return complex(-np.inf, -np.inf)
    if not dtypes.issubdtype(dtype, np.floating):
        return dtypes.iinfo(dtype).min
    return -np.inf if has_infinity(dtype) else dtypes.finfo(dtype).min


def highest(dtype: Any) -> Any:
    """The neutral element of min: inf, or the largest value of dtypes without it."""
    if dtype == np.bool_:
        return True
    if dtypes.issubdtype(dtype, np.complexfloating):
        return complex(np.inf, np.inf)
    if not dtypes.issubdtype(dtype, np.floating):
        return dtypes.iinfo(dtype).max
    return np.inf if has_infinity(dtype) else dtypes.finfo(dtype).max


def has_infinity(dtype: Any) -> bool:
    """Whether a floating dtype has an infinity (several of 8 bits have none)."""
    return bool(np.isinf(np.asarray(np.inf, np.float32).astype(dtype).astype(np.float32)))
