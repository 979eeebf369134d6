"""The engine of `meshrt launch` on one machine: child processes, in sessions of their own, read through one selector.

Reports come in the order in which the pipes became readable; the end of a process follows all that it printed.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from meshrt.launch.engines._processes import Child, Reaper
from meshrt.launch.engines.protocol import Capabilities, Engine, Exited, Report, Startable, Task, WorkerSpec
from meshrt.launch.environment import COMPILED, COMPILED_BOUND
from meshrt.launch.membership.folders import remove_folder, spacious_folder
from meshrt.launch.model import ExitStatus

__all__ = ["LocalEngine", "make"]

_SHARED_BYTES = 512 << 20  # Chosen: of compiled programs; those of a large model take some ten MB


def make(environ: Mapping[str, str]) -> Engine:
    """An engine whose processes inherit `environ`."""
    return LocalEngine(environ)


class LocalEngine:
    """Processes of this machine. The reaper, which ends them if the launcher is killed, is started with the first.

    Ranks share a folder of compiled programs, which goes with the engine, unless the user has named one: what one of
    them compiles the others load, and so do those that start again.
    """

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic):
        self.name, self.capabilities = "local", Capabilities()
        self._environ = environ
        self._clock = clock
        self._children: dict[Task, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._reaper: Reaper | None = None
        self._unstarted: list[Report] = []
        self._shared: str | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those that run."""
        return tuple(self._children)

    def start(self, specs: Sequence[Startable]) -> None:
        """Starts a child for each."""
        self._reaper = self._reaper or Reaper()
        for spec in specs:
            try:
                base = self._sharing() if isinstance(spec, WorkerSpec) else self._environ
                child = Child(spec.target, partial(spec.environment, base), spec.stdin)
            except OSError as e:
                self._unstarted.append(Exited(spec.task, self._clock(), ExitStatus(reason=str(e))))
                continue
            self._children[spec.task] = child
            if spec.stdin is None or not spec.stdin.stays:
                self._reaper.add(child.pid, child.mark)
            for fd in child.fds:
                self._selector.register(fd, selectors.EVENT_READ, (spec.task, child))

    def _sharing(self) -> Mapping[str, str]:
        """The environment, with a folder for compiled programs."""
        if COMPILED not in self._environ:
            self._shared = spacious_folder(_SHARED_BYTES)
            bound = {} if self._shared is None else {COMPILED_BOUND: f"{_SHARED_BYTES}:{self._shared}"}
            self._environ = {**self._environ, COMPILED: self._shared or "", **bound}
        return self._environ

    def signal(self, tasks: Sequence[Task], number: int) -> None:
        """Signals the process groups of those that still run."""
        for task in tasks:
            if task in self._children:
                self._children[task].signal(number)

    def wait(self, seconds: float | None, wake: int) -> list[Report]:
        """Looks for children that ended, and reads what can be read.

        The end of a child makes `wake` readable (SIGCHLD). One that ends behind the first look is found by the next
        call, which its byte in `wake` brings about.
        """
        reports, self._unstarted = self._unstarted + self._ended(), []
        self._selector.register(wake, selectors.EVENT_READ)
        try:
            ready = self._selector.select(0 if reports else seconds)
        finally:
            self._selector.unregister(wake)
        for key, _ in ready:
            if key.fd == wake:
                continue
            task, child = key.data
            found = child.read(key.fd, task, self._clock())
            if found is None:
                self._selector.unregister(key.fd)
            else:
                reports += found
        return reports

    def close(self) -> None:
        """Also after an error of the launcher: nobody is left behind. After a proper end there is nothing to do."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        self._children.clear()
        self._selector.close()
        if self._reaper is not None:
            self._reaper.close()
        if self._shared is not None:
            shared, self._shared = self._shared, None
            with contextlib.suppress(OSError):  # somebody still writes there: the next job sweeps it away
                remove_folder(shared)

    def _ended(self) -> list[Report]:
        reports: list[Report] = []
        for task, child in list(self._children.items()):
            status = child.exited()
            if status is None:
                continue
            del self._children[task]
            if self._reaper is not None:
                self._reaper.drop(child.pid)
            for fd in child.fds:
                if fd in self._selector.get_map():
                    self._selector.unregister(fd)
            now = self._clock()
            reports += [*child.close(task, now), Exited(task, now, status)]
        return reports
