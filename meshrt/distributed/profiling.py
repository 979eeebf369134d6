"""Traces of some steps of a process, as ``meshrt launch --profile`` asks for them."""

from __future__ import annotations

import atexit
import json
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from meshrt.launch.environment import GENERATION, PROCESS_ID, PROFILE
from meshrt.runtime import backend
from meshrt.xla import jaxlib_api

__all__ = ["Steps", "asked_for"]

_LEFT_OUT = 2  # Chosen: of the steps that are told, those in which programs are compiled


class Steps:
    """Records from one step to another, by what a script tells of its steps; see `meshrt.distributed.progress`.

    Args:
      folder: where the files go when the last step is over, or the script.
      first: the number of the first step; None for the third that is told.
      count: how many steps.
    """

    def __init__(self, folder: Path, first: int | None, count: int):
        self._folder, self._first, self._count = folder, first, count
        self._told = 0
        self._last: int | None = None
        self._session: Any = None
        self._step: Any = None
        self._over = False
        atexit.register(self._end_of_script)

    def told(self, step: int) -> None:
        """The script has done `step` steps."""
        if self._over:
            return
        self._told += 1
        first = step + 1 if self._first is None and self._told >= _LEFT_OUT else self._first
        if self._session is None and first is not None and step + 1 >= first:
            self._begin(step)
        elif self._session is not None:
            self._step.__exit__(None, None, None)
            if self._last is not None and step >= self._last:
                self._finish()
        if self._session is not None:
            self._mark(step + 1)

    def _begin(self, step: int) -> None:
        # Start-up time: only processes that are traced.
        from meshrt.xla import jaxlib_profiling

        backend.devices()  # clients that start later would not be recorded
        self._session = jaxlib_profiling.Session(jaxlib_profiling.ProfileOptions())
        self._last = step + self._count
        self._say(f"recording steps {step + 1} to {self._last}")

    def _mark(self, step: int) -> None:
        # Start-up time: as above.
        from meshrt.xla.jaxlib_profiling import TraceMe

        self._step = TraceMe("step", step_num=step, _r=1)
        self._step.__enter__()

    def _finish(self) -> None:
        session, self._session, self._over = self._session, None, True
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            session.stop_and_export(str(self._folder))
        except (OSError, jaxlib_api.XlaError) as e:
            self._give_up(f"the trace cannot be written to {self._folder}: {e}")
            return
        self._say(f"the trace is in {self._folder}")

    def _end_of_script(self) -> None:
        if self._session is not None:
            self._step.__exit__(None, None, None)
            self._finish()
        elif not self._over:
            wanted = f"from step {self._first} on" if self._first is not None else f"behind the first {_LEFT_OUT}"
            self._give_up(
                f"nothing was recorded: the script told no steps {wanted} ({self._told} in all). Let it call "
                "meshrt.distributed.progress(step) after each step"
            )

    def _give_up(self, why: str) -> None:
        self._over = True
        self._say(why)

    def _say(self, text: str) -> None:
        print(f"meshrt launch --profile: {text}", file=sys.stderr, flush=True)


def asked_for(environ: MutableMapping[str, str]) -> Steps | None:
    """What the launcher wants to have recorded of this process. The request is taken out: it is not for the processes
    that this one starts."""
    told = environ.pop(PROFILE, None)
    if told is None:
        return None
    found = json.loads(told)
    place = f"g{int(environ[GENERATION]):04d}-r{int(environ[PROCESS_ID]):04d}"
    return Steps(Path(found["folder"], place), found["first"], found["count"])
