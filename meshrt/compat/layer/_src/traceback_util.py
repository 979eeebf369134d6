"""`jax._src.traceback_util`: whose frames are left out of tracebacks."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from meshrt.core.source import exclude as _exclude
from meshrt.core.source import include as _include
from meshrt.core.source import is_internal as _is_internal
from meshrt.numpy.names import missing as _missing

__all__ = ["api_boundary", "include_frame", "register_exclusion"]

C = TypeVar("C", bound=Callable[..., Any])


def api_boundary(fun: C, **options: Any) -> C:
    """`fun` itself: meshrt filters tracebacks at its own functions (`meshrt.config.traceback_filtering`)."""
    return fun


class _Paths(list[str]):
    """Files and folders whose frames are left out, as a list that libraries add to and take from."""

    def append(self, path: str) -> None:
        """Leaves frames of `path` out."""
        _exclude(path)
        super().append(path)

    def remove(self, path: str) -> None:
        """Shows frames of `path` again."""
        super().remove(path)
        _include(path)


_exclude_paths = _Paths()


def include_frame(frame: FrameType) -> bool:
    """Whether a frame is the user's, neither meshrt's nor of a folder that is left out."""
    return not _is_internal(frame.f_code)


def register_exclusion(path: str) -> None:
    """Leaves the frames of a file or folder out of tracebacks."""
    _exclude_paths.append(path)


__getattr__ = _missing("jax._src.traceback_util", (*__all__, "_exclude_paths"))
