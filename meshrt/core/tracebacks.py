"""Tracebacks that show the user's program only: an error in a traced function has dozens of frames of ours otherwise.

What users call is a boundary: the library's functions (`boundaries`), and what calls users' functions. An error that
leaves one loses the frames of this package, unless it says that the package is at fault.
`MESHRT_TRACEBACK_FILTERING=off` keeps all frames.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar

from meshrt import errors
from meshrt.config import settings
from meshrt.core.source import is_internal

__all__ = ["boundaries", "boundary", "is_boundary", "offer", "strip"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_known: weakref.WeakSet[Any] = weakref.WeakSet()
_offered: dict[FunctionType, Callable[..., Any]] = {}  # the library's functions as users have them


def strip(error: BaseException) -> None:
    """Takes our frames out of the traceback of `error`, which is to be raised again by a bare `raise`.

    The error of the user's own code keeps the user's frames; one that we raise keeps those that led to it. Others are
    failures of ours and stay as they are.
    """
    if settings.traceback_filtering == "off" or isinstance(error, errors.InternalError):
        return
    frames = _frames(error)
    users = [f for f in frames if not is_internal(f.tb_frame.f_code)]
    is_ours = isinstance(error, errors.MeshrtError)
    if not is_ours and (not users or users[-1] is not frames[-1]):
        return
    _keep(error, users)
    if is_ours:
        _strip_earlier(error)


def _strip_earlier(error: BaseException) -> None:
    """Takes our frames out of what led to an error of ours: the cause that it names stays, without them; what was
    merely being handled and never left this package, such as a miss in a table, does not."""
    cause = error.__cause__
    if cause is not None:
        _keep(cause, [f for f in _frames(cause) if not is_internal(f.tb_frame.f_code)])
    elif error.__context__ is not None and all(is_internal(f.tb_frame.f_code) for f in _frames(error.__context__)):
        error.__context__ = None


def _frames(error: BaseException) -> list[TracebackType]:
    frames: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        frames.append(entry)
        entry = entry.tb_next
    return frames


def _keep(error: BaseException, frames: list[TracebackType]) -> None:
    """Makes these, which are some of its frames, all that the traceback of `error` has."""
    for this, following in zip(frames, [*frames[1:], None]):
        this.tb_next = following
    error.__traceback__ = frames[0] if frames else None


def boundary(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as a boundary."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            strip(e)
            raise

    return is_boundary(call)


def is_boundary(function: F) -> F:
    """Notes that a function strips the errors that leave it, as one does that has no time for a call of another."""
    _known.add(function)
    return function


def boundaries(names: Mapping[str, Any], module: str) -> dict[str, Any]:
    """What a module is to offer to users, with each plain function as a boundary, which is found there when pickled."""
    found = dict(names)
    for name, value in names.items():
        if type(value) is FunctionType and value not in _known:
            if value not in _offered:
                _offered[value] = boundary(value)
            found[name] = made = _offered[value]
            if made.__name__ == made.__qualname__ == name and made.__module__ == value.__module__:
                made.__module__ = module
    return found


def offer(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Makes the plain functions of these names boundaries where they stand, in the globals of a module
    that users have."""
    namespace.update(boundaries({name: namespace[name] for name in names}, namespace["__name__"]))
