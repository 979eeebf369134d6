"""Runs one program with meshrt and with JAX: results must be equal in type and value, or refused as the same error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

Program = Callable[[Any], Any]  # of the library

_ROUNDING = {"f": 1e-5, "c": 1e-5, "V": 2e-2}


def outcome(program: Program, library: Any) -> Any:
    """What the program returns, or the exception that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return program(library)
        except Exception as e:  # whatever JAX raises is what ours must raise
            return e


def builtin_kinds(error: Exception) -> tuple[type, ...]:
    """The nearest built-in classes that a caller may catch this error as."""
    if isinstance(error, NotImplementedError):
        return (NotImplementedError,)
    kinds = [
        k for k in type(error).__mro__ if k.__module__ == "builtins" and k not in (Exception, BaseException, object)
    ]
    return tuple(k for k in kinds if not any(k is not o and issubclass(o, k) for o in kinds))


def assert_alike(program: Program, rtol: float | None = None) -> None:
    """Fails unless meshrt gives what JAX gives: values, dtypes, weak types and structure, or a class of error."""
    theirs, ours = outcome(program, jax), outcome(program, meshrt)
    if isinstance(theirs, Exception):
        kinds = builtin_kinds(theirs)
        if not isinstance(ours, Exception):
            pytest.fail(f"JAX raises {type(theirs).__name__} ({str(theirs)[:200]}), ours gives {ours}")
        missing = [k.__name__ for k in kinds if not isinstance(ours, k)]
        assert not missing, f"no {missing}: {type(ours).__mro__}: {ours}; JAX: {str(theirs)[:200]}"
        assert not isinstance(ours, meshrt.errors.MissingFunctionError | meshrt.errors.InternalError), ours
        return
    if isinstance(ours, Exception):
        raise ours
    ours_flat, ours_tree = meshrt.tree_util.tree_flatten(ours)
    theirs_flat, theirs_tree = jax.tree_util.tree_flatten(theirs)
    assert str(ours_tree) == str(theirs_tree)
    for got, want in zip(ours_flat, theirs_flat, strict=True):
        _assert_leaf(got, want, rtol)


def _assert_leaf(got: Any, want: Any, rtol: float | None) -> None:
    if not hasattr(want, "dtype"):
        assert (type(got), got) == (type(want), want)
        return
    assert (str(got.dtype), got.shape) == (str(want.dtype), want.shape)
    weak = [getattr(x, "weak_type", False) for x in (got, want)]
    assert weak[0] == weak[1] or want.dtype == bool, f"weak type {weak[0]}, JAX has {weak[1]}"
    if isinstance(want, jax.ShapeDtypeStruct):
        return
    a, b = np.asarray(got), np.asarray(want)
    rounding = _ROUNDING.get(b.dtype.kind, 0) if rtol is None else rtol
    if not rounding or b.dtype.names is not None:
        np.testing.assert_array_equal(a, b)
        return
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=rounding, atol=rounding)
