"""Which simulator runs kernels, whatever they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["force", "forced", "interpreted"]

_forced: ContextVar[Any] = ContextVar("meshrt_interpret", default=None)


def interpreted(interpret: Any) -> Any:
    """How a kernel is to be run that asks for `interpret`: as the context around says, if it does."""
    return _forced.get() or interpret


def force(params: Any) -> None:
    """Runs kernels that this thread traces from now on as `params` says (None: as they ask)."""
    _forced.set(params)


@contextmanager
def forced(params: Any) -> Iterator[None]:
    """Likewise inside of a `with`."""
    token = _forced.set(params)
    try:
        yield
    finally:
        _forced.reset(token)
