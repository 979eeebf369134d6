"""Traces that are made again with more in the types of their arguments.

Types say little, so that a trace serves many calls. Where what is traced needs more than they say and the caller can
tell it (over which axes references are split), it asks: the trace ends there and begins again. The function that is
traced must not decide about that. So what ends the trace is no Exception, which functions catch; and if one went on
all the same, no trace that it is part of can be closed, so that none is kept or run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType

__all__ = ["TraceAgain", "ask_for_more", "end_if_asked", "is_told", "telling", "tells_more"]


class TraceAgain(BaseException):
    """Ends a trace whose caller makes it again."""


class tells_more:
    """What runs within the block may ask for more in the types of arguments: that ends the block, and sets `asked`.

    >>> with tells_more() as more:
    ...     ask_for_more()
    >>> more.asked
    True
    """

    __slots__ = ("_token", "asked")

    def __enter__(self) -> tells_more:
        self.asked = False
        self._token = _caller.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> bool:
        """Errors, too, are those of a trace that ended: the next one has its own."""
        _caller.reset(self._token)
        return self.asked and kind is not None and issubclass(kind, TraceAgain | Exception)


_caller: ContextVar[tells_more | None] = ContextVar("meshrt_again", default=None)
_told: ContextVar[bool] = ContextVar("meshrt_told", default=False)


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """What runs within the block is traced again, as something in it asked. Functions inside are told at once what is
    known: if each were traced without first, one in n others would be traced 2^n times."""
    token = _told.set(True)
    try:
        yield
    finally:
        _told.reset(token)


def is_told() -> bool:
    """Whether functions are to be told at once (`telling`)."""
    return _told.get()


def ask_for_more() -> None:
    """Ends the trace if its caller can tell more; returns if not."""
    caller = _caller.get()
    if caller is not None:
        caller.asked = True
        raise TraceAgain


def end_if_asked() -> None:
    """Ends a trace in which more was asked for, though the function went on."""
    caller = _caller.get()
    if caller is not None and caller.asked:
        raise TraceAgain
