"""Evaluating single operations. Names are ``jax.interpreters.xla``'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dispatch, dtypes, errors
from meshrt.core.types import aval_rules
from meshrt.xla.jaxlib_api import Client as Backend

__all__ = ["Backend", "apply_primitive", "canonicalize_dtype_handlers"]


def apply_primitive(prim: Any, *args: Any, **params: Any) -> Any:
    """Compiles and runs a primitive on arrays."""
    return dispatch.evaluate(prim, args, params)


def _by_numpy(value: Any) -> np.ndarray:
    """The value as a NumPy array of the width in use: 64 bits only if they are enabled."""
    host = np.asarray(value)
    return host.astype(dtypes.canonicalize_dtype(host.dtype), copy=False)


class _Conversions:
    """How values of Python types become arrays, by type. All that have a type are converted by NumPy."""

    def __contains__(self, cls: type) -> bool:
        return cls in aval_rules

    def __getitem__(self, cls: type) -> Callable[[Any], np.ndarray]:
        if cls not in aval_rules:
            raise KeyError(cls)
        return _by_numpy

    def __setitem__(self, cls: type, conversion: Callable[[Any], Any]) -> None:
        if conversion is not _by_numpy:
            raise errors.UnsupportedError(
                f"values of {cls} cannot be converted by {conversion}: NumPy makes arrays of them. Give the class an "
                "__array__ method and assign canonicalize_dtype_handlers[numpy.ndarray]"
            )


canonicalize_dtype_handlers = _Conversions()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
