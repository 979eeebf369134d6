"""The shell around the state machine: owns processes, pipes, clocks and signals, and decides nothing.

One thread and one selector. Whatever happens becomes an event; the machine's commands are carried out in
order.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshrt.errors import ConfigError
from meshrt.launch import machine, report, wire
from meshrt.launch.environment import Place, service_environment, worker_environment
from meshrt.launch.model import (
    FINAL,
    Announce,
    CancelRequested,
    Command,
    Event,
    ExitStatus,
    Finish,
    RetireService,
    ServiceExited,
    ServiceReady,
    SetTimer,
    SignalWorkers,
    Start,
    StartService,
    StartWorkers,
    State,
    Timer,
    TimerFired,
    WorkerExited,
    WorkerJoining,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.output import Console, Logs, Stream
from meshrt.launch.processes import SERVICE_SCRIPT, Child, Keeper
from meshrt.launch.settings import Settings

_CANCELLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Job:
    """What to run: `target` is ``("script", path)`` or ``("module", name)``, then its `arguments`."""

    settings: Settings
    target: tuple[str, str]
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None


def run(job: Job, console: Console | None = None) -> int:
    """Runs the job to its end and returns the exit code. Only from the main thread, since it handles signals."""
    return _Shell(job, console or Console()).run()


class _Shell:
    def __init__(self, job: Job, console: Console):
        self._job = job
        self._console = console
        self._state = State(job.settings.policy())
        self._environ = dict(os.environ if job.environ is None else job.environ)
        directory = Path(job.settings.log_dir) if job.settings.log_dir is not None else None
        self._directory = directory
        self._logs = Logs(directory, self._console)
        self._ids = itertools.count()
        self._queue: deque[Event] = deque()
        self._workers: dict[int, Child] = {}
        self._service: Child | None = None
        self._selector = selectors.DefaultSelector()
        self._deadlines: dict[Timer, float] = {}
        self._started_at = time.monotonic()
        self._exit_code = 1
        self._silenced = False
        self._keeper: Keeper | None = None

    # --- the loop.

    def run(self) -> int:
        if self._directory is not None:
            _make_directory(self._directory)
        self._keeper = Keeper()
        try:
            with self._signals() as wakeups:
                self._push(Start)
                while self._state.phase not in FINAL:
                    self._drain_queue()
                    if self._state.phase not in FINAL:
                        self._wait(wakeups)
        finally:
            self._end_everything()
        if self._directory is not None:
            report.write_json(self._state, self._exit_code, self._directory / "report.json")
        return self._exit_code

    def _drain_queue(self) -> None:
        while self._queue and self._state.phase not in FINAL:
            event = self._queue.popleft()
            self._state, commands = machine.step(self._state, event)
            machine.check(self._state)
            for command in commands:
                self._perform(command)

    def _push(self, kind: type[Event], **fields: object) -> None:
        self._queue.append(kind(id=next(self._ids), at=time.monotonic(), **fields))

    def _wait(self, wakeups: int) -> None:
        """Waits for the next thing to happen and turns it into events."""
        now = time.monotonic()
        due = min(self._deadlines.values(), default=None)
        for key, _ in self._selector.select(None if due is None else max(0.0, due - now)):
            if key.fd == wakeups:
                self._take_signals(os.read(wakeups, 4096))
            else:
                self._read(key.data, key.fd)
        self._take_exits()
        if self._console.closed and not self._silenced:  # stop the job, as a closed pipe stops its writer
            self._silenced = True
            self._push(CancelRequested, signal=int(signal.SIGPIPE))
        now = time.monotonic()
        for timer in [t for t, at in self._deadlines.items() if at <= now]:
            del self._deadlines[timer]
            self._push(TimerFired, timer=timer)

    def _read(self, child: Child, fd: int) -> None:
        if child.read(fd, time.monotonic()) is False:
            self._selector.unregister(fd)

    # --- signals.

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Signals become bytes in a pipe, whose reading end is given; former handlers come back afterwards."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        old_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        numbers = {*_CANCELLING, signal.SIGCHLD}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
            numbers.remove(signal.SIGHUP)
        old = {n: signal.signal(n, lambda *_: None) for n in numbers}
        self._selector.register(read_end, selectors.EVENT_READ)
        try:
            yield read_end
        finally:
            self._selector.unregister(read_end)
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            os.close(read_end)
            os.close(write_end)

    def _take_signals(self, data: bytes) -> None:
        for number in data:
            if number in _CANCELLING:
                self._push(CancelRequested, signal=number)

    # --- processes.

    def _take_exits(self) -> None:
        for rank, child in list(self._workers.items()):
            if (status := child.exited()) is not None:
                del self._workers[rank]
                self._forget(child)
                self._push(WorkerExited, rank=rank, status=status, tail=child.err.tail)
        if self._service is not None and (status := self._service.exited()) is not None:
            child, self._service = self._service, None
            self._forget(child)
            self._push(ServiceExited, status=status, tail=child.err.tail)

    def _forget(self, child: Child) -> None:
        self._keeper.tell("drop", child.pid)
        for fd in child.fds:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        child.close(time.monotonic())

    def _spawn(
        self, target: list[str], make_env: Callable[[int], Mapping[str, str]], name: str, prefix: str,
        on_message: Callable[[wire.Message], None],
    ) -> Child:  # fmt: skip
        log = self._logs.open(self._state.generation, name)
        verbose = self._job.settings.verbose
        out = Stream("stdout", prefix, self._console, log, verbose)
        err = Stream("stderr", prefix, self._console, log, verbose)

        def on_line(line: bytes) -> None:
            try:
                on_message(wire.decode(line))
            except wire.WireError as e:
                self._console.say(f"meshrt launch: {prefix} sent {e}; it was ignored")

        child = Child(target, make_env, out, err, log, on_line)
        self._keeper.tell("add", child.pid)
        for fd in child.fds:
            self._selector.register(fd, selectors.EVENT_READ, child)
        return child

    def _end_everything(self) -> None:
        """Also after an error of our own: nobody is left behind. After a proper end there is nothing to do."""
        for child in filter(None, (*self._workers.values(), self._service)):
            child.signal(signal.SIGKILL)
        self._selector.close()
        if self._keeper is not None:
            self._keeper.close()

    # --- commands.

    def _perform(self, command: Command) -> None:
        match command:
            case StartService():
                self._start_service()
            case StartWorkers():
                self._start_workers(command)
            case SignalWorkers():
                for rank in command.ranks:
                    if rank in self._workers:
                        self._workers[rank].signal(command.signal)
            case RetireService():
                if self._service is not None:
                    self._service.signal(signal.SIGKILL)
            case SetTimer():
                self._deadlines.pop(command.timer, None)
                if command.seconds is not None:
                    self._deadlines[command.timer] = time.monotonic() + command.seconds
            case Announce():
                self._console.say(report.describe(command, self._started_at))
            case Finish():
                self._exit_code = command.exit_code
                self._console.say(report.summary(self._state))

    def _start_service(self) -> None:
        def on_message(message: wire.Message) -> None:
            if isinstance(message, wire.Ready):
                self._push(ServiceReady, address=message.address)

        target = ["script", str(SERVICE_SCRIPT), "--num-processes", str(self._job.settings.nproc)]
        try:
            self._service = self._spawn(
                target, lambda fd: service_environment(self._environ, fd), "service", "service", on_message
            )
        except OSError as e:
            self._push(ServiceExited, status=ExitStatus(reason=str(e)))

    def _start_workers(self, command: StartWorkers) -> None:
        settings = self._job.settings
        for rank in range(settings.nproc):
            place = Place(rank, settings.nproc, command.generation, settings.max_restarts, command.address)
            try:
                self._workers[rank] = self._spawn(
                    [*self._job.target, *self._job.arguments],
                    lambda fd, place=place: worker_environment(
                        self._environ, place, settings.devices_per_process, settings.env, fd
                    ),
                    f"r{rank:04d}", str(rank), lambda message, rank=rank: self._hear(rank, message),
                )  # fmt: skip
            except OSError as e:
                self._push(WorkerExited, rank=rank, status=ExitStatus(reason=str(e)))

    def _hear(self, rank: int, message: wire.Message) -> None:
        match message:
            case wire.Joining():
                self._push(WorkerJoining, rank=rank)
            case wire.Meshed():
                self._push(WorkerMeshed, rank=rank)
            case wire.Raised(error=error):
                self._push(WorkerRaised, rank=rank, error=error)
            case _:
                raise wire.WireError(f"a message that is not a worker's: {message}")


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"log_dir: cannot make the directory {path}: {e.strerror}") from None
