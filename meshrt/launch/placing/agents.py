"""Agents of a coordinator, placed on hosts by a plan: what `coordinator.run` takes as `place`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from meshrt.launch.hosts.coordinator import Fates
from meshrt.launch.output import Console
from meshrt.launch.placing.fronts import Ended, Fronts
from meshrt.launch.placing.plans import Plan

__all__ = ["Agents"]

_LOOK_S = 0.5
_LEAVE_S = 10.0  # agents end by themselves when the job is over
_FAR_S = 10.0


class Agents:
    """Places agents. `failed` is the first front that failed before the job was over, None if none did; `exhausted` is
    whether the job was to end because all had ended."""

    def __init__(self, plan: Callable[[str], Plan], environ: Mapping[str, str], console: Console):
        self._plan, self._environ, self._console = plan, environ, console
        self._over = threading.Event()
        self._leave_s = _LEAVE_S
        self.failed: Ended | None = None
        self.exhausted = False

    @contextlib.contextmanager
    def place(self, address: str, fates: Fates) -> Iterator[None]:
        """Runs the plan for a coordinator at `address`; in a thread, since the coordinator has the main one."""
        fronts = Fronts(self._plan(address), self._environ, self._console)
        read_end, write_end = os.pipe()
        thread = threading.Thread(target=self._run, args=(fronts, fates, read_end), name="meshrt-placing")
        thread.start()
        try:
            yield
        except BaseException:  # there is no job, and nobody tells them
            self._leave_s = 0.0
            raise
        finally:
            self._over.set()
            os.write(write_end, b"\0")
            thread.join()
            os.close(read_end)
            os.close(write_end)

    def _run(self, fronts: Fronts, fates: Fates, wake: int) -> None:
        try:
            fronts.start()
            while fronts.running and not self._over.is_set():
                for found in fronts.wait(_LOOK_S, wake):
                    self._note(found, fates)
                if not fronts.running and not self._over.is_set():
                    self.exhausted = True
                    fates.ask_stop("no agent is left, and no other one can come")
            os.read(wake, 1)  # the job is over
            self._let_end(fronts, wake)
        finally:
            fronts.close()

    def _note(self, found: Ended, fates: Fates) -> None:
        how = found.status.describe()
        if not found.status.ok:
            self.failed = self.failed or found
            self._console.say(f"meshrt launch: {found.who}: what places an agent there ended: {how}")
        fates.agent_ended(found.front.name, f"what placed its agent ended: {how}")

    def _let_end(self, fronts: Fronts, wake: int) -> None:
        """Waits for the end of all; asks them to stop, and kills them, where they do not come to it."""
        for number, seconds in ((None, self._leave_s), (signal.SIGTERM, _FAR_S), (signal.SIGKILL, _FAR_S)):
            if number is not None:
                fronts.signal(number)
            deadline = time.monotonic() + seconds
            while fronts.running and time.monotonic() < deadline:
                fronts.wait(_LOOK_S, wake)
            if not fronts.running:
                return
