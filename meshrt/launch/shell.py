"""The shell around the state machine: owns the engine, the clocks, the signals and what is printed; decides nothing.

One thread. Whatever the engine reports becomes an event; the machine's commands are carried out in order.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from meshrt.errors import ConfigError, InternalError
from meshrt.launch import binding, engines, machine, profiles, report, signals, wire
from meshrt.launch.engines.protocol import (
    Engine,
    Exited,
    HostDown,
    HostLeaves,
    HostUp,
    KnowsSilences,
    Output,
    Report,
    ResizeAsked,
    Said,
    ServiceSpec,
    Spec,
    StopAsked,
    Task,
    WorkerSpec,
)
from meshrt.launch.environment import ELASTIC, JOINS, PROFILE, Place
from meshrt.launch.membership.frames import new_secret
from meshrt.launch.model import (
    FINAL,
    Announce,
    CancelRequested,
    CheckpointTold,
    Command,
    Event,
    ExitStatus,
    Finish,
    HostJoined,
    HostLeaving,
    HostLost,
    Phase,
    ResizeRequested,
    RetireService,
    ServiceExited,
    ServiceReady,
    SetTimer,
    SignalWorkers,
    Start,
    StartNewcomers,
    StartService,
    StartWorkers,
    State,
    Tell,
    Timer,
    TimerFired,
    WorkerAttentive,
    WorkerExited,
    WorkerGrowable,
    WorkerJoining,
    WorkerLeft,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.output import Console, Log, Logs, Stream
from meshrt.launch.parting import LEAVE
from meshrt.launch.settings import Settings

if TYPE_CHECKING:
    from meshrt.launch.metrics import Board, Metrics
    from meshrt.launch.view import View


_SLEPT_S = 3.0  # behind the time when it wanted to look; Chosen: under load it waits some seconds for its turn


@dataclass(frozen=True, slots=True)
class Job:
    """What to run: `target` is ``("script", path)`` or ``("module", name)``, then its `arguments`."""

    settings: Settings
    target: tuple[str, str]
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None


class Record(Protocol):
    """What a launcher leaves behind for the one that takes its place if it is killed."""

    @property
    def secret(self) -> str:
        """The job's, the same for both."""
        ...

    @property
    def past(self) -> Sequence[Event]:
        """The events that a former launcher had met; empty for a new job."""
        ...

    def write(self, event: Event) -> None:
        """Keeps an event; called before anything is done about it."""
        ...


def run(
    job: Job, console: Console | None = None, engine: Engine | None = None,
    clock: Callable[[], float] = time.monotonic, record: Record | None = None,
    watch: Callable[[State], None] | None = None,
) -> int:  # fmt: skip
    """Runs the job to its end and returns the exit code. Only from the main thread, since it handles signals.

    Args:
      job: what to run, and where: `job.settings.engine` names the engine.
      console: where the processes' output and the launcher's own words go; this process's own streams if None.
      engine: another engine than the one that the settings name.
      clock: the engine's, in seconds.
      record: where events are kept; one that has a past goes on where that ended.
      watch: is given the state after each change.

    Raises:
      ConfigError: there is no such engine, it cannot do what the settings ask, or the log directory cannot be made.
    """
    environ = dict(os.environ if job.environ is None else job.environ)
    engine = engines.make(job.settings.engine, environ) if engine is None else engine
    return _Shell(job, console or Console(), engine, clock, record, watch).run()


class _Printed:
    """What one task prints: two streams and their log."""

    def __init__(self, name: str, console: Console, log: Log | None, verbose: bool):
        self._streams = {stream: Stream(stream, name, console, log, verbose) for stream in ("stdout", "stderr")}
        self._log = log

    def feed(self, output: Output) -> None:
        self._streams[output.stream].feed(output.data, output.at)

    def close(self) -> tuple[str, ...]:
        """Ends the streams; gives the last lines on stderr."""
        for stream in self._streams.values():
            stream.close()
        if self._log is not None:
            self._log.close()
        return self._streams["stderr"].tail


class _Shell:
    def __init__(
        self, job: Job, console: Console, engine: Engine, clock: Callable[[], float], record: Record | None,
        watch: Callable[[State], None] | None,
    ):  # fmt: skip
        self._job = job
        self._console = console
        self._engine = engine
        self._clock = clock
        self._state = State(job.settings.policy())
        self._directory = Path(job.settings.log_dir) if job.settings.log_dir is not None else None
        self._logs = Logs(self._directory, self._console)
        self._ids = itertools.count()
        self._queue: deque[Event] = deque()
        self._tasks: dict[Task, _Printed] = {}  # those that run
        self._deadlines: dict[Timer, float] = {}
        self._started_at = clock()
        self._exit_code = 1
        self._record, self._watch = record, watch
        self._secret = new_secret() if record is None else record.secret
        self._silenced = False
        self._board: Board | None = None  # where somebody wants figures
        self._view: View | None = None

    # --- the loop.

    def run(self) -> int:
        metrics = None
        try:
            self._check_capabilities()
            if self._directory is not None:
                _make_directory(self._directory)
            if self._job.settings.metrics_port is not None:
                metrics = self._serve_metrics(str(self._job.settings.metrics_port))
            if self._job.settings.view:
                self._open_view()
            with signals.heard() as wakeups:
                if self._record is not None and self._record.past:
                    self._take_up(self._record.past)
                else:
                    self._push(Start)
                while self._state.phase not in FINAL:
                    self._drain_queue()
                    if self._state.phase not in FINAL:
                        self._wait(wakeups)
        finally:
            self._engine.close()
            if self._view is not None:
                self._view.hide()
            if metrics is not None:
                metrics.close()
        if self._directory is not None:
            path = self._directory / "report.json"
            try:
                report.write_json(self._state, self._exit_code, path)
            except OSError as e:
                self._console.say(f"meshrt launch: {path} cannot be written: {e.strerror}")
        return self._exit_code

    def _serve_metrics(self, place: str) -> Metrics:
        from meshrt.launch.metrics import Metrics  # start-up time: only for jobs that are watched

        metrics = Metrics(place, self._watched(), lambda text: self._console.say(f"meshrt launch: {text}"))
        self._console.say(f"meshrt launch: metrics at http://{metrics.address}/metrics")
        return metrics

    def _open_view(self) -> None:
        from meshrt.launch.view import View  # start-up time: only for jobs that are watched

        self._view = View(self._watched(), sys.stderr, self._clock, self._console.say)
        self._console.before_writing = self._view.hide

    def _watched(self) -> Board:
        """The board of the job, which is kept from now on."""
        from meshrt.launch.metrics import Board  # start-up time: only for jobs that are watched

        if self._board is None:
            engine = self._engine
            self._board = Board(self._clock, engine.silences if isinstance(engine, KnowsSilences) else dict)
            self._board.show(self._state)
        return self._board

    def _check_capabilities(self) -> None:
        settings, name, can = self._job.settings, self._engine.name, self._engine.capabilities
        if settings.max_restarts and not can.restarts:
            raise ConfigError(
                f"max_restarts = {settings.max_restarts}: the engine {name!r} cannot start a job's processes again; "
                "leave it out, and let what started the job start it again"
            )
        if settings.log_dir is not None and not can.output:
            raise ConfigError(
                f"log_dir = {settings.log_dir!r}: what the processes print does not come to the launcher with the "
                f"engine {name!r}; leave it out, and look for the output where they run"
            )

    def _drain_queue(self) -> None:
        while self._queue and self._state.phase not in FINAL:
            event = self._queue.popleft()
            if self._record is not None:
                self._record.write(event)
            self._state, commands = machine.step(self._state, event)
            machine.check(self._state)
            self._show()
            for command in commands:
                self._perform(command)

    def _show(self) -> None:
        if self._watch is not None:
            self._watch(self._state)
        if self._board is not None:
            self._board.show(self._state)

    def _push(self, kind: type[Event], at: float | None = None, **fields: object) -> None:
        self._queue.append(kind(id=next(self._ids), at=self._clock() if at is None else at, **fields))

    def _wait(self, wakeups: int) -> None:
        """Waits for the next thing to happen and turns it into events."""
        due = min(self._deadlines.values(), default=None)
        if self._view is not None:
            with self._console.alone:
                self._view.turn()
            due = self._view.due if due is None else min(due, self._view.due)
        before = self._clock()
        reports = self._engine.wait(None if due is None else max(0.0, due - before), wakeups)
        if due is not None and (woke := self._clock()) - max(due, before) > _SLEPT_S:
            self._put_off(woke - before)
        for found in reports:  # what takes long because a terminal is slow is no sleep, and no clock waits for it
            self._take(found)
        for number in signals.cancelling(wakeups):
            self._push(CancelRequested, signal=number)
        if self._console.closed and not self._silenced:  # stop the job, as a closed pipe stops its writer
            self._silenced = True
            self._push(CancelRequested, signal=int(signal.SIGPIPE))
        now = self._clock()
        for timer in [t for t, at in self._deadlines.items() if at <= now]:
            del self._deadlines[timer]
            self._push(TimerFired, timer=timer)

    def _put_off(self, seconds: float) -> None:
        """This process was stopped, or its machine stood still, for most of this time, and so were others, perhaps:
        they get what was left of theirs. The limit on the whole job stays."""
        self._deadlines = {t: at if t is Timer.JOB else at + seconds for t, at in self._deadlines.items()}

    # --- after another launcher.

    def _take_up(self, past: Sequence[Event]) -> None:
        """Goes on where a launcher ended that met these events, with the processes that it has left.

        What runs is started once more, which the engine knows to be running already unless the command was lost with
        that launcher; what was asked to end is asked again. Clocks begin anew.
        """
        for event in past:
            self._state, commands = machine.step(self._state, event)
            for command in commands:
                if isinstance(command, SetTimer | Finish):
                    self._perform(command)
        self._show()
        state, self._ids = self._state, itertools.count(past[-1].id + 1)
        self._logs.append = True
        self._console.say(f"meshrt launch: taking up the job where it was {state.phase.value}")
        if state.service_live:
            self._start([self._service()])
        if state.live:
            self._start(self._workers(sorted(state.live)))
            if parting := (state.parting - state.parted) & state.live:
                self._signal([Task(state.generation, rank) for rank in parting], LEAVE)
        if state.phase in (Phase.STOPPING, Phase.KILLING):
            number = int(signal.SIGTERM if state.phase is Phase.STOPPING else signal.SIGKILL)
            workers = [Task(state.generation, rank) for rank in sorted(state.live)]
            self._signal(workers or [Task(state.generation)], number)

    # --- what the engine reports.

    def _take(self, found: Report) -> None:
        match found:
            case HostUp():
                self._push(HostJoined, found.at, host=found.host, incarnation=found.incarnation)
            case HostDown():
                self._console.say(f"meshrt launch: host {found.host} is gone: {found.why}")
                self._push(HostLost, found.at, host=found.host, why=found.why)
            case HostLeaves():
                self._console.say(f"meshrt launch: host {found.host} leaves: {found.why}")
                self._push(HostLeaving, found.at, host=found.host, why=found.why)
            case StopAsked(why=why):
                self._push(CancelRequested, found.at, signal=None if why else int(signal.SIGTERM), why=why)
            case ResizeAsked():
                self._push(ResizeRequested, found.at, nodes=found.nodes)
            case _:
                self._take_of_task(found)

    def _take_of_task(self, found: Output | Said | Exited) -> None:
        printed = self._tasks.get(found.task)
        if printed is None:
            raise InternalError(f"the engine reports {found} of a task that does not run. This is a bug of the engine.")
        match found:
            case Output():
                printed.feed(found)
            case Said():
                self._hear(found)
            case Exited():
                del self._tasks[found.task]
                self._ended(found, printed.close())

    def _ended(self, found: Exited, tail: tuple[str, ...]) -> None:
        if found.task.rank is None:
            self._push(ServiceExited, found.at, status=found.status, tail=tail)
        else:
            self._push(WorkerExited, found.at, rank=found.task.rank, status=found.status, tail=tail)

    def _hear(self, said: Said) -> None:
        rank = said.task.rank
        try:
            message = wire.decode(said.line)
            if isinstance(message, wire.Ready | wire.Lost) != (rank is None):
                raise wire.WireError(f"a message that is not of its kind: {message}")
        except wire.WireError as e:
            who = "the coordination service" if rank is None else f"rank {rank}"
            self._console.say(f"meshrt launch: {who} sent {e}; it was ignored")
            return
        match message:
            case wire.Ready(address=address):
                self._push(ServiceReady, said.at, address=address)
            case wire.Lost(rank=lost, why=why, ended=ended) if 0 <= lost < self._state.size:
                self._push(WorkerLost, said.at, rank=lost, why=why, ended=ended)
            case wire.Joining():
                self._push(WorkerJoining, said.at, rank=rank)
            case wire.Meshed(round=number):
                self._push(WorkerMeshed, said.at, rank=rank, round=number)
            case wire.Attentive(saving=saving):
                self._push(WorkerAttentive, said.at, rank=rank, saving=saving)
            case wire.Growable():
                self._push(WorkerGrowable, said.at, rank=rank)
            case wire.Left():
                self._push(WorkerLeft, said.at, rank=rank)
            case wire.Checkpoint(step=step, committed=committed):
                self._push(CheckpointTold, said.at, step=step, committed=committed)
            case wire.Raised(error=error):
                self._push(WorkerRaised, said.at, rank=rank, error=error)
            case wire.Progress() if self._board is not None and rank is not None:
                self._board.note(rank, message)

    # --- commands.

    def _perform(self, command: Command) -> None:
        match command:
            case StartService():
                self._start([self._service()])
            case StartWorkers():
                self._start(self._workers(range(self._state.size)))
            case StartNewcomers():
                self._start(self._workers(command.ranks))
            case SignalWorkers():
                self._signal([Task(self._state.generation, rank) for rank in command.ranks], command.signal)
            case RetireService():  # the first time it may put things in order
                killing = self._state.phase is Phase.KILLING
                self._signal([Task(self._state.generation)], int(signal.SIGKILL if killing else signal.SIGTERM))
            case SetTimer():
                self._forget(command.timer)
                if command.seconds is not None:
                    self._deadlines[command.timer] = self._clock() + command.seconds
            case Announce():
                self._console.say(report.describe(command, self._started_at))
            case Tell():
                self._console.say(f"meshrt launch: {command.text}")
            case Finish():
                self._exit_code = command.exit_code
                self._console.say(report.summary(self._state))

    def _forget(self, timer: Timer) -> None:
        """Clears a timer, also one that fired in the same wait as the event that cleared it and is still queued."""
        self._deadlines.pop(timer, None)
        self._queue = deque(e for e in self._queue if not (isinstance(e, TimerFired) and e.timer is timer))

    def _service(self) -> Spec:
        settings = self._job.settings
        return ServiceSpec(
            self._state.generation, self._state.size, secret=self._secret, silent_s=settings.heartbeat_timeout,
            stall_s=settings.stall_timeout, host=self._state.service_host,
        )  # fmt: skip

    def _workers(self, ranks: Iterable[int]) -> list[Spec]:
        settings, target = self._job.settings, (*self._job.target, *self._job.arguments)
        state = self._state
        return [
            WorkerSpec(
                Place(rank, state.size, state.generation, settings.max_restarts, state.address, self._secret),
                target, settings.devices_per_process, self._variables(rank), state.host_of(rank),
            )
            for rank in ranks
        ]  # fmt: skip

    def _variables(self, rank: int) -> Mapping[str, str]:
        settings = self._job.settings
        own = {**settings.env, ELASTIC: "1"} if settings.elastic else settings.env
        if rank >= self._state.first_size:
            own = {**own, JOINS: str(max(1, len(self._state.coming)))}
        if settings.profile is not None and profiles.traced(settings.profile)(rank):
            own = {**own, PROFILE: profiles.request(settings.profile_dir, settings.profile_steps)}
        if settings.bind == "none":
            return own
        return {**own, binding.VARIABLE: f"{settings.bind}:{self._state.slot_of(rank)}:{settings.nproc}"}

    def _start(self, specs: Sequence[Spec]) -> None:
        """Starts those whose log can be opened; the others count as processes that could not be started."""
        able = []
        for spec in specs:
            task = spec.task
            try:
                log = self._logs.open(task.generation, "service" if task.rank is None else f"r{task.rank:04d}")
            except OSError as e:
                self._ended(Exited(task, self._clock(), ExitStatus(reason=str(e))), ())
                continue
            name = str(task) if spec.host is None else f"{spec.host}:{task}"
            self._tasks[task] = _Printed(name, self._console, log, self._job.settings.verbose)
            able.append(spec)
        if able:
            self._engine.start(able)

    def _signal(self, tasks: Sequence[Task], number: int) -> None:
        """Those among `tasks` that still run get the nearest signal that the engine can send. In place of the one that
        asks them to leave no other one will do: nobody is asked, and all start again a little later."""
        running = [task for task in tasks if task in self._tasks]
        nearest = self._engine.capabilities.nearest(number)
        if running and (nearest == number or number != LEAVE):
            self._engine.signal(running, nearest)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"log_dir: cannot make the directory {path}: {e.strerror}") from None
