"""What the launcher does about each event: ``step(state, event) -> (state, commands)``, pure and without a clock.

The table at the end of the file is the whole behaviour: an event that it does not list for a phase is a
broken promise of the shell and raises InvalidTransitionError. The workers of a generation are always gone
before its coordination service is retired (losing it makes the distributed runtime abort them), and both
before the next generation starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

from meshrt.errors import InternalError
from meshrt.launch import growing, regrouping, shrinking
from meshrt.launch import handlers as do
from meshrt.launch.model import (
    FINAL,
    CancelRequested,
    CheckpointTold,
    Event,
    HostJoined,
    HostLeaving,
    HostLost,
    Phase,
    ResizeRequested,
    ServiceExited,
    ServiceReady,
    Start,
    State,
    StoryLine,
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
from meshrt.launch.ranks import Ranks
from meshrt.launch.transitions import Result

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


def _what(event: Event) -> str:
    if isinstance(event, TimerFired):
        return f"timer {event.timer.value}"
    rank = getattr(event, "rank", None)
    status = getattr(event, "status", None)
    host = getattr(event, "host", "")
    who = f"rank {rank}" if rank is not None else host
    parts = [type(event).__name__, who, status.describe() if status else ""]
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
        _on(Phase.NEW, Start, do.start),
        # Nothing runs: too few hosts are there, or the job rests before another attempt.
        _on(Phase.GATHERING, HostJoined, do.host_joined_gathering),
        _on(Phase.GATHERING, HostLost, do.host_lost),
        _on(Phase.GATHERING, HostLeaving, do.host_leaving),
        _on(Phase.GATHERING, ResizeRequested, do.resize_gathering),
        _on_timer(Phase.GATHERING, Timer.GATHER, do.gather_late),
        _on_timer(Phase.GATHERING, Timer.LAST_CALL, do.last_call_over),
        _on_timer(Phase.GATHERING, Timer.BACKOFF, do.rested),
        _on_timer(Phase.GATHERING, Timer.JOB, do.job_late),
        _on(Phase.GATHERING, CancelRequested, do.cancel),
        # The coordination service is starting; no worker exists.
        _on(Phase.WAITING, HostJoined, do.host_joined),
        _on(Phase.WAITING, HostLost, do.host_lost_waiting),
        _on(Phase.WAITING, HostLeaving, do.host_leaving_waiting),
        _on(Phase.WAITING, ResizeRequested, do.resize_requested),
        _on(Phase.WAITING, ServiceReady, do.service_ready),
        _on(Phase.WAITING, ServiceExited, do.service_lost),
        _on_timer(Phase.WAITING, Timer.SERVICE, do.service_late),
        _on_timer(Phase.WAITING, Timer.JOB, do.job_late),
        _on(Phase.WAITING, CancelRequested, do.cancel),
        # Workers run; not all have connected (a script that needs no peers never does). To a launcher that takes up the
        # job of another one, what that one knew already may be told again: that the service is ready, too.
        _on(Phase.FORMING, HostJoined, do.host_joined),
        _on(Phase.FORMING, HostLost, do.host_lost),
        _on(Phase.FORMING, HostLeaving, do.host_leaving_running),
        _on(Phase.FORMING, ResizeRequested, do.resize_requested),
        _on(Phase.FORMING, ServiceReady, do.note),
        _on(Phase.FORMING, ServiceExited, do.service_lost),
        _on(Phase.FORMING, WorkerJoining, do.joining),
        _on(Phase.FORMING, WorkerMeshed, do.meshed),
        _on(Phase.FORMING, WorkerAttentive, do.attentive_running),
        _on(Phase.FORMING, WorkerGrowable, growing.growable),
        _on(Phase.FORMING, WorkerLeft, do.note),
        _on(Phase.FORMING, CheckpointTold, do.checkpoint),
        _on(Phase.FORMING, WorkerRaised, do.raised),
        _on(Phase.FORMING, WorkerLost, do.lost),
        _on(Phase.FORMING, WorkerExited, do.exited),
        _on_timer(Phase.FORMING, Timer.FORM, do.form_late),
        _on_timer(Phase.FORMING, Timer.JOB, do.job_late),
        _on(Phase.FORMING, CancelRequested, do.cancel),
        # All workers are connected.
        _on(Phase.RUNNING, HostJoined, do.host_joined_running),
        _on(Phase.RUNNING, HostLost, do.host_lost),
        _on(Phase.RUNNING, HostLeaving, do.host_leaving_running),
        _on(Phase.RUNNING, ResizeRequested, do.resize_running),
        _on_timer(Phase.RUNNING, Timer.REGROW, do.regrow),
        _on(Phase.RUNNING, ServiceReady, do.note),
        _on(Phase.RUNNING, ServiceExited, do.service_lost),
        _on(Phase.RUNNING, WorkerJoining, do.note),
        _on(Phase.RUNNING, WorkerMeshed, growing.meshed),
        _on(Phase.RUNNING, WorkerGrowable, shrinking.growable),
        _on(Phase.RUNNING, WorkerLeft, shrinking.left),
        _on_timer(Phase.RUNNING, Timer.GROW, growing.late),
        _on_timer(Phase.RUNNING, Timer.SHRINK, shrinking.late),
        _on(Phase.RUNNING, WorkerAttentive, do.attentive_running),
        _on(Phase.RUNNING, CheckpointTold, do.checkpoint),
        _on(Phase.RUNNING, WorkerRaised, regrouping.raised),
        _on(Phase.RUNNING, WorkerLost, regrouping.lost),
        _on(Phase.RUNNING, WorkerExited, regrouping.exited),
        _on_timer(Phase.RUNNING, Timer.JOB, do.job_late),
        _on(Phase.RUNNING, CancelRequested, do.cancel),
        # A worker failed, and the others come together without it.
        _on(Phase.REGROUPING, HostJoined, do.host_joined),
        _on(Phase.REGROUPING, HostLost, do.host_lost),
        _on(Phase.REGROUPING, HostLeaving, do.host_leaving),
        _on(Phase.REGROUPING, ResizeRequested, do.resize_requested),
        _on(Phase.REGROUPING, ServiceReady, do.note),
        _on(Phase.REGROUPING, ServiceExited, do.service_lost_settling),
        _on(Phase.REGROUPING, WorkerJoining, do.note),
        _on(Phase.REGROUPING, WorkerMeshed, regrouping.meshed),
        _on(Phase.REGROUPING, WorkerAttentive, do.attentive),
        _on(Phase.REGROUPING, WorkerGrowable, growing.growable),
        _on(Phase.REGROUPING, WorkerLeft, shrinking.left),
        _on(Phase.REGROUPING, CheckpointTold, do.checkpoint),
        _on(Phase.REGROUPING, WorkerRaised, regrouping.raised_regrouping),
        _on(Phase.REGROUPING, WorkerLost, regrouping.lost),
        _on(Phase.REGROUPING, WorkerExited, regrouping.exited_regrouping),
        _on_timer(Phase.REGROUPING, Timer.REGROUP, regrouping.late),
        _on_timer(Phase.REGROUPING, Timer.JOB, regrouping.job_late),
        _on(Phase.REGROUPING, CancelRequested, regrouping.cancel),
        # A worker failed; the others have a moment to fail by themselves, so that echoes are told from causes.
        _on(Phase.SETTLING, HostJoined, do.host_joined),
        _on(Phase.SETTLING, HostLost, do.host_lost),
        _on(Phase.SETTLING, HostLeaving, do.host_leaving),
        _on(Phase.SETTLING, ResizeRequested, do.resize_requested),
        _on(Phase.SETTLING, ServiceReady, do.note),
        _on(Phase.SETTLING, ServiceExited, do.service_lost_settling),
        _on(Phase.SETTLING, WorkerJoining, do.note),
        _on(Phase.SETTLING, WorkerMeshed, do.note),
        _on(Phase.SETTLING, WorkerAttentive, do.attentive),
        _on(Phase.SETTLING, WorkerGrowable, growing.growable),
        _on(Phase.SETTLING, WorkerLeft, shrinking.left),
        _on(Phase.SETTLING, CheckpointTold, do.checkpoint),
        _on(Phase.SETTLING, WorkerRaised, do.raised_settling),
        _on(Phase.SETTLING, WorkerLost, do.lost_settling),
        _on(Phase.SETTLING, WorkerExited, do.exited_settling),
        _on_timer(Phase.SETTLING, Timer.SETTLE, do.settled),
        _on_timer(Phase.SETTLING, Timer.JOB, do.job_late_ending),
        _on(Phase.SETTLING, CancelRequested, do.cancel_settling),
        # Everyone has been asked to stop; what fails now fails because of that.
        _on(Phase.STOPPING, HostJoined, do.host_joined),
        _on(Phase.STOPPING, HostLost, do.host_lost),
        _on(Phase.STOPPING, HostLeaving, do.host_leaving),
        _on(Phase.STOPPING, ResizeRequested, do.resize_requested),
        _on(Phase.STOPPING, ServiceReady, do.note),
        _on(Phase.STOPPING, ServiceExited, do.service_gone),
        _on(Phase.STOPPING, WorkerJoining, do.note),
        _on(Phase.STOPPING, WorkerMeshed, do.note),
        _on(Phase.STOPPING, WorkerAttentive, do.attentive),
        _on(Phase.STOPPING, WorkerGrowable, growing.growable),
        _on(Phase.STOPPING, WorkerLeft, shrinking.left),
        _on(Phase.STOPPING, CheckpointTold, do.checkpoint),
        _on(Phase.STOPPING, WorkerRaised, do.raised_stopping),
        _on(Phase.STOPPING, WorkerLost, do.note),
        _on(Phase.STOPPING, WorkerExited, do.exited_stopping),
        _on_timer(Phase.STOPPING, Timer.GRACE, do.grace_over),
        _on_timer(Phase.STOPPING, Timer.JOB, do.job_late_ending),
        _on(Phase.STOPPING, CancelRequested, do.cancel_stopping),
        # SIGKILL is on its way to whatever is left.
        _on(Phase.KILLING, HostJoined, do.host_joined),
        _on(Phase.KILLING, HostLost, do.host_lost),
        _on(Phase.KILLING, HostLeaving, do.host_leaving),
        _on(Phase.KILLING, ResizeRequested, do.resize_requested),
        _on(Phase.KILLING, ServiceReady, do.note),
        _on(Phase.KILLING, ServiceExited, do.service_gone),
        _on(Phase.KILLING, WorkerJoining, do.note),
        _on(Phase.KILLING, WorkerMeshed, do.note),
        _on(Phase.KILLING, WorkerAttentive, do.attentive),
        _on(Phase.KILLING, WorkerGrowable, growing.growable),
        _on(Phase.KILLING, WorkerLeft, shrinking.left),
        _on(Phase.KILLING, CheckpointTold, do.checkpoint),
        _on(Phase.KILLING, WorkerRaised, do.raised_stopping),
        _on(Phase.KILLING, WorkerLost, do.note),
        _on(Phase.KILLING, WorkerExited, do.exited_stopping),
        _on_timer(Phase.KILLING, Timer.KILL, do.unkillable),
        _on_timer(Phase.KILLING, Timer.JOB, do.job_late_ending),
        _on(Phase.KILLING, CancelRequested, do.cancel_killing),
    )
)

EVENT_KINDS: tuple[type[Event] | Timer, ...] = (
    Start, HostJoined, HostLeaving, HostLost, ResizeRequested, ServiceReady, ServiceExited, WorkerJoining, WorkerMeshed,
    WorkerAttentive, WorkerGrowable, WorkerLeft, CheckpointTold, WorkerRaised, WorkerLost, WorkerExited,
    CancelRequested, *Timer,
)  # fmt: skip


def check(state: State) -> None:
    """The promises that hold in every state; InternalError names the broken one."""
    everyone = Ranks.below(state.size)
    rules = {
        "live and finished ranks are apart": not state.live & state.finished,
        "ranks are in range": state.live | state.finished | state.joining | state.meshed | state.saving <= everyone,
        "workers are never left in a final phase, except after an unkillable one": not (
            state.phase in (Phase.SUCCEEDED, Phase.CANCELLED) and (state.live or state.service_live)
        ),
        "no worker before the service is ready": not (
            state.phase in (Phase.NEW, Phase.GATHERING, Phase.WAITING) and state.live
        ),
        "nothing runs while hosts are awaited": not (state.phase is Phase.GATHERING and state.service_live),
        "a generation keeps to the hosts it may have": state.policy.nodes is None
        or len(state.chosen) <= state.policy.nodes[1],
        "workers run only beside a service": state.phase not in (Phase.FORMING, Phase.RUNNING, Phase.REGROUPING)
        or (state.service_live and bool(state.live)),
        "a phase that ends a generation knows why": state.phase
        not in (Phase.REGROUPING, Phase.SETTLING, Phase.FAILED, Phase.CANCELLED)
        or state.incident is not None,
        "newcomers are beside ranks that run": state.coming <= state.live,
        "the restart budget is kept": state.charged <= state.policy.max_restarts,
        "success means all finished": state.phase is not Phase.SUCCEEDED
        or (bool(state.finished) and state.finished | state.departed == everyone),
        "something is left to wait for": state.phase in FINAL
        or state.phase in (Phase.NEW, Phase.GATHERING)
        or bool(state.live)
        or state.service_live,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise InternalError(f"the launcher's state breaks: {'; '.join(broken)}: {state}")
