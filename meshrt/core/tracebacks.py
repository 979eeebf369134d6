"""Tracebacks that show the user's program only: an error in a traced function has dozens of frames of ours otherwise.

What is called by users and calls their functions is a boundary. An error that leaves one loses the frames of this
package, unless it says that the package is at fault. `MESHRT_TRACEBACK_FILTERING=off` keeps all frames.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from meshrt import errors
from meshrt.config import settings
from meshrt.core.source import is_internal

__all__ = ["boundary", "strip"]

P = ParamSpec("P")
R = TypeVar("R")


def strip(error: BaseException) -> None:
    """Takes our frames out of the traceback of `error`, which is to be raised again by a bare `raise`.

    The error of the user's own code keeps the user's frames; one that we raise keeps those that led to it. Others are
    failures of ours and stay as they are.
    """
    if settings.traceback_filtering == "off" or isinstance(error, errors.InternalError):
        return
    frames: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        frames.append(entry)
        entry = entry.tb_next
    users = [f for f in frames if not is_internal(f.tb_frame.f_code)]
    if not isinstance(error, errors.MeshrtError) and (not users or users[-1] is not frames[-1]):
        return
    for this, following in zip(users, [*users[1:], None]):
        this.tb_next = following
    error.__traceback__ = users[0] if users else None


def boundary(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as a boundary."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            strip(e)
            raise

    return call
