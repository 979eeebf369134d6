"""What the launcher does where the ranks that are left go on when one fails (``--elastic``): one small function per
row of the table in machine.py.

The ranks do it by themselves (`meshrt.distributed.elastic`), through the door of the job. The launcher lets them, and
starts all of them again if they do not: if their scripts let the loss end them, or too few are left, or they do not
come together in time.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from meshrt.launch import growing, shrinking
from meshrt.launch import handlers as do
from meshrt.launch.model import (
    NEVER_RESTART,
    Announce,
    CancelRequested,
    Command,
    Event,
    IncidentKind,
    Phase,
    SignalWorkers,
    State,
    Tell,
    TimerFired,
    WorkerExited,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.ranks import Ranks
from meshrt.launch.transitions import Result, blame, enter, open_incident, stop


def raised(state: State, event: WorkerRaised) -> Result:
    """While all run."""
    if event.rank in state.departed | state.parted:
        return state, ()
    if event.rank in state.coming:
        return growing.raised(state, event)
    return _look(blame(_opened(state, event), event, event.rank, error=event.error), event)


def lost(state: State, event: WorkerLost) -> Result:
    """While all run, or come together. A rank that is silent may wake up, and must not find the others gone on."""
    if event.ended:
        after, _ = do.vanished(state, event)
        return growing.without_vanished(after) if state.phase is Phase.RUNNING else (after, ())
    if event.rank in state.departed | state.parted:
        return state, ()
    silent = event.rank in state.live
    after, commands = _look(blame(_opened(state, event), event, event.rank, error=do.lost_error(event)), event)
    if after.phase is not Phase.REGROUPING or not silent:
        return after, commands
    return after, (*commands, SignalWorkers(ranks=(event.rank,), signal=int(signal.SIGKILL)))


def exited(state: State, event: WorkerExited) -> Result:
    """While all run."""
    if event.rank in state.coming:
        return growing.fell(state, event)
    if shrinking.has_left(state, event):
        after, told = shrinking.ended(state, event)
        return (after, told) if after.live - after.coming else do.ended(after, event)
    event = do.with_its_host(state, event)
    if event.rank not in state.departed and (event.status.ok or not state.policy.elastic):
        after, commands = do.exited(state, event)
        if after.phase is not Phase.RUNNING:
            return after, commands
        after, told = growing.without_vanished(after)
        return after, (*commands, *told)
    state = replace(state, live=state.live - {event.rank})
    if event.rank not in state.departed:
        state = blame(_opened(state, event), event, event.rank, event.status, tail=event.tail)
        return _look(state, event)
    return (state, ()) if state.live - state.coming else do.ended(state, event)


def raised_regrouping(state: State, event: WorkerRaised) -> Result:
    if event.rank in state.coming:
        return growing.raised(state, event)
    if event.rank in state.parted:
        return state, ()
    return _look(blame(state, event, event.rank, error=event.error), event)


def exited_regrouping(state: State, event: WorkerExited) -> Result:
    if event.rank in state.coming:
        fallen, told = growing.fell(state, event)
        after, commands = _look(fallen, event)
        return after, (*(c for c in told if isinstance(c, Tell)), *commands)
    if shrinking.has_left(state, event):
        return _look(shrinking.ended(state, event)[0], event)
    event = do.with_its_host(state, event)
    known = _blamed(state)
    state = replace(state, live=state.live - {event.rank})
    if event.status.ok and event.rank not in known:
        state = replace(state, finished=state.finished | {event.rank})
    elif event.rank not in state.departed:
        state = blame(state, event, event.rank, event.status, tail=event.tail)
    return _look(state, event)


def meshed(state: State, event: WorkerMeshed) -> Result:
    return _look(growing.together(state, event), event)


def late(state: State, event: TimerFired) -> Result:
    """They did not come together in time."""
    return stop(state, int(signal.SIGTERM))


def cancel(state: State, event: CancelRequested) -> Result:
    """Nobody can save now."""
    return do.cancel(replace(state, attentive=False), event)


def job_late(state: State, event: TimerFired) -> Result:
    return do.job_late(replace(state, attentive=False), event)


def _opened(state: State, event: WorkerRaised | WorkerLost | WorkerExited) -> State:
    return state if state.incident is not None else open_incident(state, event, IncidentKind.WORKER)


def _blamed(state: State) -> Ranks:
    failures = state.incident.failures if state.incident is not None else ()
    return Ranks(f.rank for f in failures if f.rank is not None)


def _look(state: State, event: Event) -> Result:
    """Something changed in a job that has lost somebody: do the others go on, and are they together?"""
    incident = state.incident
    assert incident is not None  # somebody is lost
    left = state.live - _blamed(state) - state.departed - state.coming - state.parted
    least = 1 if state.policy.nodes is None else state.policy.nodes[0] * state.policy.num_processes
    echoed = any(f.consequence is not None for f in incident.failures)  # the loss ends a script that does not take it
    if not state.live:
        return stop(state, int(signal.SIGTERM))
    hopeless = echoed or any(f.status is not None and f.status.code == NEVER_RESTART for f in incident.failures)
    if not state.policy.elastic or hopeless or len(left) < least or not _blamed(state) - state.finished:
        return enter(state, Phase.SETTLING)
    first: tuple[Command, ...] = ()
    if state.phase is not Phase.REGROUPING:
        state, first = enter(state, Phase.REGROUPING)
    if not left <= state.meshed or state.meshed & _blamed(state):
        return state, first
    after, commands = _went_on(state, event, len(left))
    return after, (*first, *commands)


def _went_on(state: State, event: Event, left: int) -> Result:
    """Those that are left are together."""
    incident = state.incident
    assert incident is not None  # somebody is lost
    gone = state.departed | _blamed(state)
    doomed = tuple(sorted(gone & state.live))  # they failed, and have not left yet
    ends = (SignalWorkers(ranks=doomed, signal=int(signal.SIGKILL)),) if doomed else ()
    crashed = state.crashed | {rank for rank in _blamed(state) if not growing.went_with_its_host(state, rank)}
    parting = state.parting - gone
    if state.live - gone - state.coming <= parting:  # those that were to leave are all that is left
        parting = Ranks()
    state = replace(
        state, departed=gone, crashed=crashed, coming=state.coming - gone, parting=parting, incident=None,
        incidents=(*state.incidents, incident),
    )  # fmt: skip
    after, commands = enter(state, Phase.RUNNING, Announce(incident=incident, left=left), *ends)
    after, told = growing.without_vanished(after)
    commands = (*commands, *told, *growing.patience(after), *shrinking.patience(after))
    after, more = shrinking.adapt(after, event)
    commands = (*commands, *more)
    if after.phase is not Phase.RUNNING:
        return after, commands
    after, more = do.leave_together(after, event)  # hosts that leave do so also while the others come together
    return after, (*commands, *more)
