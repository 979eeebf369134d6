"""`jax._src.traceback_util`: whose frames are left out of tracebacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshrt.numpy.names import missing as _missing

__all__ = ["api_boundary", "register_exclusion"]

C = TypeVar("C", bound=Callable[..., Any])


def api_boundary(fun: C, **options: Any) -> C:
    """`fun` itself: meshrt filters tracebacks at its own functions (`meshrt.config.traceback_filtering`)."""
    return fun


def register_exclusion(path: str) -> None:
    """Accepted: only meshrt's own frames are left out of tracebacks."""


__getattr__ = _missing("jax._src.traceback_util", __all__)
