"""Reductions and cumulative functions against jax.numpy."""

import jax.numpy as jj
import ml_dtypes
import numpy as np
import pytest

import meshrt.numpy as mj

from .judge import Cases, Weak, sample

BF16 = ml_dtypes.bfloat16
X = sample((3, 4, 5), "float32")
MASK = sample((3, 4, 5), bool)
AXES = [None, 0, -1, (0, 2), ()]


def pairs(*names):
    return [(getattr(mj, n), getattr(jj, n)) for n in names]


def test_sums_and_products():
    cases = Cases()
    for f, g in pairs("sum", "prod", "mean"):
        for axis in AXES:
            cases.add(f, g, X, axis=axis, tol=1e-5)
        cases.add(f, g, X, axis=1, keepdims=True, tol=1e-5)
        cases.add(f, g, X, where=MASK, axis=0, tol=1e-5)
        for dtype in (BF16, "float16", "int8", "uint8", bool, "int32", "complex64"):
            cases.add(f, g, sample((3, 4), dtype, -2, 2), axis=1, tol=2e-2 if dtype in (BF16, "float16") else 1e-5)
        cases.add(f, g, sample((3, 4), BF16), dtype="float32", tol=1e-5)
        cases.add(f, g, sample((3, 4), "int32"), dtype=bool)
        cases.add(f, g, Weak(2.0))
        cases.add(f, g, 3)
        cases.add(f, g, np.zeros((0, 3), np.float32), axis=0)
    for f, g in pairs("sum", "prod"):
        cases.add(f, g, X, axis=1, initial=2.0, tol=1e-5)
        cases.add(f, g, sample((4,), "int8"), promote_integers=False)
    cases.run()


def test_extremes_and_truth():
    cases = Cases()
    with_nan = np.where(MASK, X, np.nan)
    for f, g in pairs("max", "min"):
        for axis in AXES:
            cases.add(f, g, X, axis=axis)
            cases.add(f, g, with_nan, axis=axis)
        cases.add(f, g, X, axis=0, where=MASK, initial=0.5, keepdims=True)
        cases.add(f, g, X, axis=0, where=MASK)
        cases.add(f, g, np.zeros((0, 3), np.float32), axis=0)
        cases.add(f, g, np.zeros((0, 3), np.float32), axis=1)
        for dtype in (BF16, "int8", "uint8", bool):
            cases.add(f, g, sample((3, 4), dtype), axis=1)
        cases.add(f, g, Weak(2.0))
    for f, g in pairs("all", "any"):
        for x in (MASK, X, sample((3, 4, 5), "int32"), sample((3, 4, 5), "complex64")):
            cases.add(f, g, x, axis=1)
        cases.add(f, g, X, where=MASK)
    for f, g in pairs("argmax", "argmin"):
        for axis in (None, 0, -1):
            cases.add(f, g, X, axis=axis)
            cases.add(f, g, with_nan, axis=axis, keepdims=True)
            cases.add(f, g, sample((3, 4, 5), "int32"), axis=axis)
    for f, g in pairs("ptp", "count_nonzero"):
        cases.add(f, g, sample((3, 4), "int32"), axis=0)
    cases.run()


def test_spread():
    cases = Cases()
    for f, g in pairs("var", "std"):
        for axis in AXES:
            cases.add(f, g, X, axis=axis, tol=1e-5)
        cases.add(f, g, X, axis=1, ddof=1, keepdims=True, tol=1e-5)
        cases.add(f, g, X, axis=1, correction=0.5, tol=1e-5)
        cases.add(f, g, X, axis=1, where=MASK, tol=1e-5)
        cases.add(f, g, X[:, :1], axis=1, ddof=1)
        for dtype in (BF16, "float16", "int32", "complex64"):
            cases.add(f, g, sample((3, 4), dtype), axis=0, tol=2e-2 if dtype in (BF16, "float16") else 1e-5)
    cases.add(mj.average, jj.average, X, axis=1, weights=np.arange(4.0, dtype=np.float32), tol=1e-5)
    cases.add(mj.average, jj.average, X, axis=(0, 2), weights=np.abs(X[:, 0]), returned=True, tol=1e-5)
    cases.add(mj.average, jj.average, X, returned=True, tol=1e-5)
    cases.add(mj.median, jj.median, X, axis=1)
    cases.add(mj.median, jj.median, X[:2], axis=0, keepdims=True)
    cases.run()


def test_ignoring_nan():
    cases = Cases()
    x = np.where(MASK, X, np.nan)
    x[0, 0] = np.nan
    for name in (
        "nansum",
        "nanprod",
        "nanmax",
        "nanmin",
        "nanmean",
        "nanvar",
        "nanstd",
        "nanargmax",
        "nanargmin",
        "nanmedian",
    ):
        f, g = getattr(mj, name), getattr(jj, name)
        for axis in (None, 0, 2):
            cases.add(f, g, x, axis=axis, tol=1e-5)
        cases.add(f, g, sample((3, 4), "int32"), axis=1, tol=1e-5)
    cases.run()


def test_cumulative():
    cases = Cases()
    for f, g in pairs("cumsum", "cumprod"):
        for axis in (None, 0, -1):
            cases.add(f, g, X, axis=axis, tol=1e-5)
        for dtype in ("int8", bool, "uint8", BF16):
            cases.add(f, g, sample((3, 4), dtype, 0, 2), axis=1, tol=3e-2 if dtype == BF16 else None)
        cases.add(f, g, sample((4,), "int32"), dtype="float32")
    for f, g in pairs("cumulative_sum", "cumulative_prod"):
        cases.add(f, g, X, axis=1, include_initial=True, tol=1e-5)
    for n in (1, 2):
        cases.add(mj.diff, jj.diff, X, n=n, axis=1)
    cases.add(mj.diff, jj.diff, X, prepend=1.0, append=2.0)
    cases.add(mj.diff, jj.diff, MASK)
    cases.run()


def test_errors():
    with pytest.raises(IndexError, match="sum: axis 3 is out of bounds for array of dimension 3"):
        mj.sum(mj.asarray(X), axis=3)
    with pytest.raises(ValueError, match="repeated axis"):
        mj.sum(mj.asarray(X), axis=(0, -3))
    with pytest.raises(NotImplementedError, match=r"'out' argument to jnp\.sum is not supported"):
        mj.sum(mj.asarray(X), out=np.zeros(3))
    with pytest.raises(TypeError, match=r"sum requires ndarray or scalar arguments, got .*list"):
        mj.sum([1, 2])
