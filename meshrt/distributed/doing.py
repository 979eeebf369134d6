"""What this process is doing, in words for the others: in which program it waits, or at which line its script is."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

from meshrt.core import source
from meshrt.runtime import process_groups

__all__ = ["Observer"]

# Start-up time: found without being imported, which a process that only loads compiled programs never does.
_OURS = [importlib.util.find_spec(package) for package in ("collectives", "propagation")]
_LIBRARIES = (
    sys.prefix, sys.base_prefix, *(os.path.dirname(spec.origin) for spec in _OURS if spec is not None and spec.origin),
)  # fmt: skip
_IDLE = 0.1  # of a core: below it nobody computes
_WAITING_S = 1.0  # pending for less long is no news


class Observer:
    """Looks at this process now and then. Only one thread may ask."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def look(self) -> dict[str, Any]:
        """`text` for people; `compiling`, if others must be patient; `idle`, if nothing has been computed since."""
        wall, cpu = time.monotonic(), time.process_time()
        used = (cpu - self._cpu) / max(wall - self._wall, 1e-3)
        self._wall, self._cpu = wall, cpu
        compiled = process_groups.being_compiled()
        return {"text": _text(compiled), "compiling": compiled is not None, "idle": used < _IDLE}


def _text(compiled: str | None) -> str:
    place = _where()
    for circle in process_groups.circles():
        # Each is read once: the thread that launches goes on meanwhile.
        program, launched = circle.agreeing, circle.current
        if program is not None:
            line = f" ({program.record['line']})" if program.record.get("line") else ""
            return f"about to launch {program.name}{line} for the first time{place}"
        seconds = circle.pending()
        if seconds is not None and seconds > _WAITING_S and launched is not None:
            where = f"{launched.name}{launched.where}"
            return f"in step {circle.launched} of its shared programs, {where}; its script is{place}"
    return f"compiling {compiled}{place}" if compiled is not None else place.strip()


def _where() -> str:
    """The line that the script has reached: the innermost frame of the main thread that is the user's."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    inner = frame
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    frame = frame or inner
    if frame is None:
        return ""
    return f" at {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_qualname})"


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    library = name.startswith(_LIBRARIES) or name.startswith("<")
    return not library and not source.is_internal(frame.f_code)
