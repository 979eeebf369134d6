"""What the launcher does about each event: ``step(state, event) -> (state, commands)``, pure and without a clock.

The table at the end of the file is the whole behaviour: an event that it does not list for a phase is a
broken promise of the shell and raises InvalidTransitionError. The workers of a generation are always gone
before its coordination service is retired (losing it makes the distributed runtime abort them), and both
before the next generation starts.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

from meshrt.errors import InternalError
from meshrt.launch.causes import LOST, STOPPED, echo_of, first_cause
from meshrt.launch.model import (
    FINAL,
    NEVER_RESTART,
    Announce,
    CancelRequested,
    Command,
    Event,
    ExitStatus,
    Failure,
    Finish,
    Incident,
    IncidentKind,
    Phase,
    Policy,
    RetireService,
    ServiceExited,
    ServiceReady,
    SetTimer,
    SignalWorkers,
    Start,
    StartService,
    StartWorkers,
    State,
    StoryLine,
    Timer,
    TimerFired,
    WorkerError,
    WorkerExited,
    WorkerJoining,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)

Result = tuple[State, tuple[Command, ...]]
Handler = Callable[[State, Event], Result]


class InvalidTransitionError(InternalError):
    """An event that cannot happen in the phase the job is in."""


def step(state: State, event: Event) -> Result:
    """The state after `event` and the commands to carry out, in order."""
    handler = TABLE.get((state.phase, kind_of(event)))
    if handler is None:
        trail = "".join(f"\n  {s.event}: {s.before.value} -> {s.after.value} ({s.what})" for s in state.story)
        raise InvalidTransitionError(
            f"the launcher met {event} while {state.phase.value} (generation {state.generation}). This is a bug of "
            f"meshrt; please report it with the story so far:{trail or ' none'}"
        )
    after, commands = handler(state, event)
    if after.phase is not state.phase:
        line = StoryLine(event.id, event.at, _what(event), state.generation, state.phase, after.phase)
        after = replace(after, story=(*after.story, line))
    return after, tuple(replace(c, cause=event.id) for c in commands)


def kind_of(event: Event) -> type[Event] | Timer:
    """The column of the table: the event's type, or which timer fired."""
    return event.timer if isinstance(event, TimerFired) else type(event)


def exit_code(state: State) -> int:
    """The launcher's exit code for a job in a final phase: 0, the first cause's, 124 (timeout), 128 + signal."""
    incident = state.incident
    if state.phase is Phase.SUCCEEDED or incident is None:
        return 0
    if incident.kind is IncidentKind.TIMEOUT:
        return 124
    if incident.kind is IncidentKind.CANCEL:
        return 128 + (incident.signal or 0)
    cause = first_cause(incident.failures) if incident.kind in (IncidentKind.WORKER, IncidentKind.SERVICE) else None
    if cause is None or cause.status is None or (cause.error is not None and cause.status.signal is not None):
        return 1  # of an exception whose process had to be stopped, the exception counts, not our signal
    return cause.status.shell_code or 1


# --- moving between phases.

_PHASE_TIMER = {
    Phase.WAITING: Timer.SERVICE,
    Phase.FORMING: Timer.FORM,
    Phase.SETTLING: Timer.SETTLE,
    Phase.STOPPING: Timer.GRACE,
    Phase.KILLING: Timer.KILL,
}


def _patience(policy: Policy, phase: Phase) -> float | None:
    # FORMING's clock starts when the first worker tries to connect: a script may prepare as long as it likes.
    return {
        Phase.WAITING: policy.service_s,
        Phase.SETTLING: policy.settle_s,
        Phase.STOPPING: policy.grace_s,
        Phase.KILLING: policy.kill_s,
    }.get(phase)


def _enter(state: State, phase: Phase, *commands: Command) -> Result:
    """Moves to `phase`: the old phase's timer is cleared, the new one's set, before the commands."""
    timers = []
    if (old := _PHASE_TIMER.get(state.phase)) is not None:
        timers.append(SetTimer(timer=old, seconds=None))
    if (seconds := _patience(state.policy, phase)) is not None:
        timers.append(SetTimer(timer=_PHASE_TIMER[phase], seconds=seconds))
    return replace(state, phase=phase), (*timers, *commands)


def _stop(state: State, number: int) -> Result:
    """Ends the generation: asks the live workers to stop by signal, or goes on at once where none is left."""
    if state.live:
        return _enter(state, Phase.STOPPING, SignalWorkers(ranks=tuple(sorted(state.live)), signal=number))
    if state.service_live:
        return _enter(state, Phase.STOPPING, RetireService())
    return _conclude(state)


def _kill(state: State) -> Result:
    if state.live:
        ranks = tuple(sorted(state.live))
        return _enter(state, Phase.KILLING, SignalWorkers(ranks=ranks, signal=int(signal.SIGKILL)))
    return _enter(state, Phase.KILLING, RetireService())


def _conclude(state: State) -> Result:
    """Nothing of this generation is left: the job succeeded, failed, was cancelled, or starts again."""
    incident = state.incident
    if incident is None:
        return _final(state, Phase.SUCCEEDED)
    if not may_restart(state):
        final = Phase.CANCELLED if incident.kind is IncidentKind.CANCEL else Phase.FAILED
        return _final(state, final, Announce(incident=incident))
    following = state.generation + 1
    fresh = State(
        policy=state.policy, phase=state.phase, generation=following, service_live=True,
        incidents=(*state.incidents, incident), story=state.story,
    )  # fmt: skip
    return _enter(
        fresh, Phase.WAITING, Announce(incident=incident, restart=following), StartService(generation=following)
    )


def may_restart(state: State) -> bool:
    """Whether another generation follows the incident: budget left, nobody asked to stop, and it can help."""
    incident = state.incident
    if incident is None or state.no_restart or state.generation >= state.policy.max_restarts:
        return False
    if incident.kind in (IncidentKind.CANCEL, IncidentKind.TIMEOUT, IncidentKind.INTERNAL):
        return False
    cause = first_cause(incident.failures)
    return not (cause and cause.status and cause.status.code == NEVER_RESTART)


def _final(state: State, phase: Phase, *commands: Command) -> Result:
    after, all_commands = _enter(state, phase, SetTimer(timer=Timer.JOB, seconds=None), *commands)
    return after, (*all_commands, Finish(exit_code=exit_code(after)))


def _incident(state: State, event: Event, kind: IncidentKind, detail: str = "", signal: int | None = None) -> Incident:
    left = tuple(sorted(state.finished))
    return Incident(kind, state.generation, event.at, event.id, detail, signal, left_early=left)


def _open(state: State, event: Event, kind: IncidentKind, detail: str = "", signal: int | None = None) -> State:
    return replace(state, incident=_incident(state, event, kind, detail, signal))


def _blame(
    state: State, event: Event, rank: int | None, status: ExitStatus | None = None,
    error: WorkerError | None = None, tail: tuple[str, ...] = (), stopped: bool = False,
) -> State:  # fmt: skip
    """Adds a failure to the open incident, or completes the one known of this rank (it raised, now it exited)."""
    incident = state.incident
    assert incident is not None
    known = next((f for f in incident.failures if f.rank == rank), None)
    if known is not None:
        merged = replace(known, status=known.status or status, error=known.error or error, tail=known.tail or tail)
        failures = tuple(merged if f is known else f for f in incident.failures)
    else:
        echo = echo_of(status, error, tail) if rank is not None else None
        consequence = STOPPED if stopped else echo
        failures = (*incident.failures, Failure(rank, event.at, status, error, tail, consequence))
    return replace(state, incident=replace(incident, failures=failures))


def _gone(state: State, event: WorkerExited) -> State:
    finished = state.finished | {event.rank} if event.status.ok else state.finished
    return replace(state, live=state.live - {event.rank}, finished=finished)


# --- handlers, one per thing that can happen.


def _start(state: State, event: Start) -> Result:
    state = replace(state, service_live=True)
    commands: tuple[Command, ...] = (StartService(generation=0),)
    if state.policy.timeout_s is not None:
        commands = (SetTimer(timer=Timer.JOB, seconds=state.policy.timeout_s), *commands)
    return _enter(state, Phase.WAITING, *commands)


def _service_ready(state: State, event: ServiceReady) -> Result:
    state = replace(state, live=frozenset(range(state.policy.num_processes)))
    return _enter(state, Phase.FORMING, StartWorkers(generation=state.generation, address=event.address))


def _service_lost(state: State, event: ServiceExited) -> Result:
    state = replace(state, service_live=False)
    when = "before it was ready" if state.phase is Phase.WAITING else "while workers needed it"
    state = _open(state, event, IncidentKind.SERVICE, f"the coordination service ended {when}")
    state = _blame(state, event, None, event.status, tail=event.tail)
    return _stop(state, int(signal.SIGTERM))


def _service_late(state: State, event: TimerFired) -> Result:
    detail = f"the coordination service did not start within {state.policy.service_s:g} s"
    return _stop(_open(state, event, IncidentKind.SERVICE, detail), int(signal.SIGTERM))


def _joining(state: State, event: WorkerJoining) -> Result:
    first = not state.joining
    state = replace(state, joining=state.joining | {event.rank})
    return state, (SetTimer(timer=Timer.FORM, seconds=state.policy.form_s),) if first else ()


def _meshed(state: State, event: WorkerMeshed) -> Result:
    state = replace(state, meshed=state.meshed | {event.rank})
    if len(state.meshed) == state.policy.num_processes:
        return _enter(state, Phase.RUNNING)
    return state, ()


def _form_late(state: State, event: TimerFired) -> Result:
    missing = sorted(set(range(state.policy.num_processes)) - state.joining - state.finished)
    gone = sorted(state.finished - state.joining)
    parts = [f"rank {_ranks(missing)} did not call meshrt.distributed.initialize()"] if missing else []
    parts += [f"rank {_ranks(gone)} finished without it"] if gone else []
    reason = " and ".join(parts) or "the workers could not connect to each other"
    detail = f"{reason} within {state.policy.form_s:g} s of the first rank's call"
    return _stop(_open(state, event, IncidentKind.FORMATION, detail), int(signal.SIGTERM))


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _raised(state: State, event: WorkerRaised) -> Result:
    state = _blame(_open(state, event, IncidentKind.WORKER), event, event.rank, error=event.error)
    return _enter(state, Phase.SETTLING)


def _exited(state: State, event: WorkerExited) -> Result:
    state = _gone(state, event)
    if not event.status.ok:
        state = _open(state, event, IncidentKind.WORKER)
        state = _blame(state, event, event.rank, event.status, tail=event.tail)
        return _enter(state, Phase.SETTLING) if state.live else _stop(state, int(signal.SIGTERM))
    return (state, ()) if state.live else _stop(state, int(signal.SIGTERM))


def _lost(state: State, event: WorkerLost) -> Result:
    """The door blames a worker; the rest of them are about to fail for its sake."""
    state = _blame(_open(state, event, IncidentKind.WORKER), event, event.rank, error=_lost_error(event))
    return _enter(state, Phase.SETTLING)


def _lost_settling(state: State, event: WorkerLost) -> Result:
    return _blame(state, event, event.rank, error=_lost_error(event)), ()


def _lost_error(event: WorkerLost) -> WorkerError:
    return WorkerError(LOST, event.why)


def _raised_settling(state: State, event: WorkerRaised) -> Result:
    return _blame(state, event, event.rank, error=event.error), ()


def _exited_settling(state: State, event: WorkerExited) -> Result:
    state = _blame_exit(state, event, stopped=False)
    return (state, ()) if state.live else _stop(state, int(signal.SIGTERM))


def _raised_stopping(state: State, event: WorkerRaised) -> Result:
    return _blame(state, event, event.rank, error=event.error, stopped=True) if state.incident else state, ()


def _exited_stopping(state: State, event: WorkerExited) -> Result:
    state = _blame_exit(state, event, stopped=True)
    if state.live:
        return state, ()
    return (state, (RetireService(),)) if state.service_live else _conclude(state)


def _blame_exit(state: State, event: WorkerExited, stopped: bool) -> State:
    """A worker left after the incident opened; one that had raised before completes its record."""
    state = _gone(state, event)
    known = state.incident is not None and any(f.rank == event.rank for f in state.incident.failures)
    if event.status.ok and not known:
        return state
    return _blame(state, event, event.rank, event.status, tail=event.tail, stopped=stopped)


def _settled(state: State, event: TimerFired) -> Result:
    return _stop(state, int(signal.SIGTERM))


def _service_lost_settling(state: State, event: ServiceExited) -> Result:
    state = _blame(replace(state, service_live=False), event, None, event.status, tail=event.tail)
    return _stop(state, int(signal.SIGTERM))


def _service_gone(state: State, event: ServiceExited) -> Result:
    """The service left while stopping: as asked when no worker is left, else as one more failure."""
    state = replace(state, service_live=False)
    if not state.live:
        return _conclude(state)
    return _blame(state, event, None, event.status, tail=event.tail, stopped=True), ()


def _grace_over(state: State, event: TimerFired) -> Result:
    return _kill(state)


def _unkillable(state: State, event: TimerFired) -> Result:
    names = [f"rank {rank}" for rank in sorted(state.live)] or ["the coordination service"]
    detail = f"{', '.join(names)} did not end within {state.policy.kill_s:g} s of SIGKILL and had to be left behind"
    incident = state.incident or _incident(state, event, IncidentKind.INTERNAL)
    incident = replace(incident, detail="; ".join(filter(None, (incident.detail, detail))))
    return _final(replace(state, incident=incident), Phase.FAILED, Announce(incident=incident))


def _job_late(state: State, event: TimerFired) -> Result:
    detail = f"the job did not finish within {state.policy.timeout_s:g} s (--timeout)"
    return _stop(_open(state, event, IncidentKind.TIMEOUT, detail), int(signal.SIGTERM))


def _job_late_ending(state: State, event: TimerFired) -> Result:
    return replace(state, no_restart=True), ()


def _cancel(state: State, event: CancelRequested) -> Result:
    return _stop(_open(state, event, IncidentKind.CANCEL, signal=event.signal), _passed_on(event.signal))


def _cancel_settling(state: State, event: CancelRequested) -> Result:
    return _stop(replace(state, no_restart=True), _passed_on(event.signal))


def _passed_on(number: int) -> int:
    """Ctrl-C reaches the workers as such; whatever else stops the launcher (a closed terminal or pipe) as SIGTERM."""
    return number if number == signal.SIGINT else int(signal.SIGTERM)


def _cancel_stopping(state: State, event: CancelRequested) -> Result:
    """The first request while stopping forbids a restart; one more (a second Ctrl-C) ends the grace."""
    if state.no_restart or (state.incident is not None and state.incident.kind is IncidentKind.CANCEL):
        return _kill(state)
    return replace(state, no_restart=True), ()


def _cancel_killing(state: State, event: CancelRequested) -> Result:
    return replace(state, no_restart=True), ()


def _note(state: State, event: Event) -> Result:
    """Nothing to do: the event confirms what is known, or comes too late to matter."""
    return state, ()


def _what(event: Event) -> str:
    if isinstance(event, TimerFired):
        return f"timer {event.timer.value}"
    rank = getattr(event, "rank", None)
    status = getattr(event, "status", None)
    parts = [type(event).__name__, f"rank {rank}" if rank is not None else "", status.describe() if status else ""]
    return " ".join(filter(None, parts))


Key = tuple[Phase, type[Event] | Timer]
_E = TypeVar("_E", bound=Event)


def _on(phase: Phase, kind: type[_E], handler: Callable[[State, _E], Result]) -> tuple[Key, Handler]:
    """A row of the table: what an event of this type does in this phase."""
    return (phase, kind), cast("Handler", handler)  # `step` looks the row up by the event's own type


def _on_timer(phase: Phase, timer: Timer, handler: Callable[[State, TimerFired], Result]) -> tuple[Key, Handler]:
    """A row of the table: what this timer does in this phase."""
    return (phase, timer), cast("Handler", handler)


TABLE: dict[Key, Handler] = dict(
    (
        _on(Phase.NEW, Start, _start),
        # The coordination service is starting; no worker exists.
        _on(Phase.WAITING, ServiceReady, _service_ready),
        _on(Phase.WAITING, ServiceExited, _service_lost),
        _on_timer(Phase.WAITING, Timer.SERVICE, _service_late),
        _on_timer(Phase.WAITING, Timer.JOB, _job_late),
        _on(Phase.WAITING, CancelRequested, _cancel),
        # Workers run; not all have connected (a script that needs no peers never does).
        _on(Phase.FORMING, ServiceExited, _service_lost),
        _on(Phase.FORMING, WorkerJoining, _joining),
        _on(Phase.FORMING, WorkerMeshed, _meshed),
        _on(Phase.FORMING, WorkerRaised, _raised),
        _on(Phase.FORMING, WorkerLost, _lost),
        _on(Phase.FORMING, WorkerExited, _exited),
        _on_timer(Phase.FORMING, Timer.FORM, _form_late),
        _on_timer(Phase.FORMING, Timer.JOB, _job_late),
        _on(Phase.FORMING, CancelRequested, _cancel),
        # All workers are connected.
        _on(Phase.RUNNING, ServiceExited, _service_lost),
        _on(Phase.RUNNING, WorkerJoining, _note),
        _on(Phase.RUNNING, WorkerMeshed, _note),
        _on(Phase.RUNNING, WorkerRaised, _raised),
        _on(Phase.RUNNING, WorkerLost, _lost),
        _on(Phase.RUNNING, WorkerExited, _exited),
        _on_timer(Phase.RUNNING, Timer.JOB, _job_late),
        _on(Phase.RUNNING, CancelRequested, _cancel),
        # A worker failed; the others have a moment to fail by themselves, so that echoes are told from causes.
        _on(Phase.SETTLING, ServiceExited, _service_lost_settling),
        _on(Phase.SETTLING, WorkerJoining, _note),
        _on(Phase.SETTLING, WorkerMeshed, _note),
        _on(Phase.SETTLING, WorkerRaised, _raised_settling),
        _on(Phase.SETTLING, WorkerLost, _lost_settling),
        _on(Phase.SETTLING, WorkerExited, _exited_settling),
        _on_timer(Phase.SETTLING, Timer.SETTLE, _settled),
        _on_timer(Phase.SETTLING, Timer.JOB, _job_late_ending),
        _on(Phase.SETTLING, CancelRequested, _cancel_settling),
        # Everyone has been asked to stop; what fails now fails because of that.
        _on(Phase.STOPPING, ServiceReady, _note),
        _on(Phase.STOPPING, ServiceExited, _service_gone),
        _on(Phase.STOPPING, WorkerJoining, _note),
        _on(Phase.STOPPING, WorkerMeshed, _note),
        _on(Phase.STOPPING, WorkerRaised, _raised_stopping),
        _on(Phase.STOPPING, WorkerLost, _note),
        _on(Phase.STOPPING, WorkerExited, _exited_stopping),
        _on_timer(Phase.STOPPING, Timer.GRACE, _grace_over),
        _on_timer(Phase.STOPPING, Timer.JOB, _job_late_ending),
        _on(Phase.STOPPING, CancelRequested, _cancel_stopping),
        # SIGKILL is on its way to whatever is left.
        _on(Phase.KILLING, ServiceReady, _note),
        _on(Phase.KILLING, ServiceExited, _service_gone),
        _on(Phase.KILLING, WorkerJoining, _note),
        _on(Phase.KILLING, WorkerMeshed, _note),
        _on(Phase.KILLING, WorkerRaised, _raised_stopping),
        _on(Phase.KILLING, WorkerLost, _note),
        _on(Phase.KILLING, WorkerExited, _exited_stopping),
        _on_timer(Phase.KILLING, Timer.KILL, _unkillable),
        _on_timer(Phase.KILLING, Timer.JOB, _job_late_ending),
        _on(Phase.KILLING, CancelRequested, _cancel_killing),
    )
)

EVENT_KINDS: tuple[type[Event] | Timer, ...] = (
    Start, ServiceReady, ServiceExited, WorkerJoining, WorkerMeshed, WorkerRaised, WorkerLost, WorkerExited,
    CancelRequested,
    *Timer,
)  # fmt: skip


def check(state: State) -> None:
    """The promises that hold in every state; InternalError names the broken one."""
    everyone = frozenset(range(state.policy.num_processes))
    rules = {
        "live and finished ranks are apart": not state.live & state.finished,
        "ranks are in range": state.live | state.finished | state.joining | state.meshed <= everyone,
        "workers are never left in a final phase, except after an unkillable one": not (
            state.phase in (Phase.SUCCEEDED, Phase.CANCELLED) and (state.live or state.service_live)
        ),
        "no worker before the service is ready": not (state.phase in (Phase.NEW, Phase.WAITING) and state.live),
        "workers run only beside a service": state.phase not in (Phase.FORMING, Phase.RUNNING)
        or (state.service_live and bool(state.live)),
        "a phase that ends a generation knows why": state.phase not in (Phase.SETTLING, Phase.FAILED, Phase.CANCELLED)
        or state.incident is not None,
        "the restart budget is kept": state.generation <= state.policy.max_restarts,
        "success means all finished": state.phase is not Phase.SUCCEEDED or state.finished == everyone,
        "something is left to wait for": state.phase in FINAL
        or state.phase is Phase.NEW
        or bool(state.live)
        or state.service_live,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise InternalError(f"the launcher's state breaks: {'; '.join(broken)}: {state}")
