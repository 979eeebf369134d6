"""jaxlib's profiler; imported only by programs that profile."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "ProfileData", "ProfileEvent", "ProfileOptions", "ProfilePlane", "Session", "TraceMe", "register_plugin",
    "register_subprocess", "set_metadata", "start_server",
]  # fmt: skip

_profiler: Any = importlib.import_module("jaxlib._profiler")
_profile_data: Any = importlib.import_module("jaxlib._profile_data")

ProfileData = _profile_data.ProfileData
ProfileEvent = _profile_data.ProfileEvent
ProfilePlane = _profile_data.ProfilePlane
ProfileOptions = _profiler.ProfileOptions
Session = _profiler.ProfilerSession
TraceMe = _profiler.TraceMe
register_plugin = _profiler.register_plugin_profiler
start_server = _profiler.start_server
register_subprocess = _profiler.register_subprocess


def set_metadata(entries: dict[str, str]) -> None:
    """Replaces what the next profile says of itself, where jaxlib lets it."""
    clear: Any = getattr(_profiler, "clear_metadata", None)
    write: Any = getattr(_profiler, "set_metadata", None)
    if clear is None or write is None:
        return
    clear()
    for key, value in entries.items():
        write(key, value)
