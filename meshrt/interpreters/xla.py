"""Evaluating single operations. Names are ``jax.interpreters.xla``'s."""

from __future__ import annotations

from typing import Any

from meshrt import dispatch, errors
from meshrt.runtime.jaxlib_api import Client as Backend

__all__ = ["Backend", "apply_primitive"]


def apply_primitive(prim: Any, *args: Any, **params: Any) -> Any:
    """Compiles and runs a primitive on arrays."""
    return dispatch.evaluate(prim, args, params)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
