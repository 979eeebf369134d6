"""`jax._src.error_check`: errors that functions note while they run, raised when they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.eager import ensure_compile_time_eval
from meshrt.core.source import capture
from meshrt.numpy import any as any_of
from meshrt.numpy import asarray, full, where
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.references import new_ref

__all__ = ["JaxValueError", "error_checking_context", "raise_if_error", "set_error_if"]

_NO_ERROR = np.uint32(np.iinfo(np.uint32).max)


class JaxValueError(errors.MeshrtError, ValueError):
    """What a check that failed says."""


class _Noted(threading.local):
    """The number of the first error of this thread, and the number of each check: what it says, and its line."""

    def __init__(self) -> None:
        self.ref: Any = None
        self.checks: dict[tuple[str, str], int] = {}


_noted = _Noted()


def _fresh() -> Any:
    with ensure_compile_time_eval():  # it is there after the trace, too, in which it is needed first
        return new_ref(full((), _NO_ERROR, "uint32"))


def set_error_if(pred: Any, /, msg: str) -> None:
    """Notes `msg` if `pred`, or an element of it, is true, and nothing was noted before. Works in jitted functions.

    >>> set_error_if(jnp.array(False), "never")
    """
    if _noted.ref is None:
        _noted.ref = _fresh()
    number = np.uint32(_noted.checks.setdefault((msg, str(capture())), len(_noted.checks)))
    now = _noted.ref[...]
    _noted.ref[...] = where((now == _NO_ERROR) & any_of(asarray(pred)), number, now)


def raise_if_error() -> None:
    """Raises what was noted, and forgets it. JaxValueError: a check failed."""
    if _noted.ref is None:
        return
    number = int(_noted.ref[...])
    _noted.ref[...] = full((), _NO_ERROR, "uint32")
    if number != _NO_ERROR:
        message, where_ = list(_noted.checks)[number]
        raise JaxValueError(f"{message} (checked at {where_})")


@contextmanager
def error_checking_context() -> Iterator[None]:
    """A block with errors of its own."""
    before, _noted.ref = _noted.ref, _fresh()
    try:
        yield
    finally:
        _noted.ref = before


__getattr__ = _missing("jax._src.error_check", __all__)
