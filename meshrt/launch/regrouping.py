"""What the launcher does where the ranks that are left go on when one fails (``--elastic``): one small function per
row of the table in machine.py.

The ranks do it by themselves (`meshrt.distributed.elastic`), through the door of the job. The launcher lets them, and
starts all of them again if they do not: if their scripts let the loss end them, or too few are left, or they do not
come together in time.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from meshrt.launch import handlers as do
from meshrt.launch.model import (
    NEVER_RESTART,
    Announce,
    CancelRequested,
    IncidentKind,
    Phase,
    SignalWorkers,
    State,
    TimerFired,
    WorkerExited,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.moves import Result, blame, enter, open_incident, stop


def raised(state: State, event: WorkerRaised) -> Result:
    """While all run."""
    if event.rank in state.departed:
        return state, ()
    return _look(blame(_opened(state, event), event, event.rank, error=event.error))


def lost(state: State, event: WorkerLost) -> Result:
    """While all run, or come together. A rank that is silent may wake up, and must not find the others gone on."""
    if event.rank in state.departed:
        return state, ()
    silent = event.rank in state.live
    after, commands = _look(blame(_opened(state, event), event, event.rank, error=do.lost_error(event)))
    if after.phase is not Phase.REGROUPING or not silent:
        return after, commands
    return after, (*commands, SignalWorkers(ranks=(event.rank,), signal=int(signal.SIGKILL)))


def exited(state: State, event: WorkerExited) -> Result:
    """While all run."""
    if event.rank not in state.departed and (event.status.ok or not state.policy.elastic):
        return do.exited(state, event)
    state = replace(state, live=state.live - {event.rank})
    if event.rank not in state.departed:
        state = blame(_opened(state, event), event, event.rank, event.status, tail=event.tail)
        return _look(state)
    return (state, ()) if state.live else stop(state, int(signal.SIGTERM))


def raised_regrouping(state: State, event: WorkerRaised) -> Result:
    return _look(blame(state, event, event.rank, error=event.error))


def exited_regrouping(state: State, event: WorkerExited) -> Result:
    known = _blamed(state)
    state = replace(state, live=state.live - {event.rank})
    if event.status.ok and event.rank not in known:
        state = replace(state, finished=state.finished | {event.rank})
    elif event.rank not in state.departed:
        state = blame(state, event, event.rank, event.status, tail=event.tail)
    return _look(state)


def meshed(state: State, event: WorkerMeshed) -> Result:
    return _look(replace(state, meshed=state.meshed | {event.rank}))


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


def _blamed(state: State) -> frozenset[int]:
    failures = state.incident.failures if state.incident is not None else ()
    return frozenset(f.rank for f in failures if f.rank is not None)


def _look(state: State) -> Result:
    """Something changed in a job that has lost somebody: do the others go on, and are they together?"""
    incident = state.incident
    assert incident is not None  # somebody is lost
    left = state.live - _blamed(state) - state.departed
    least = 1 if state.policy.nodes is None else state.policy.nodes[0] * state.policy.num_processes
    echoed = any(f.consequence is not None for f in incident.failures)  # the loss ends a script that does not take it
    if not state.live:
        return stop(state, int(signal.SIGTERM))
    hopeless = echoed or any(f.status is not None and f.status.code == NEVER_RESTART for f in incident.failures)
    if not state.policy.elastic or hopeless or len(left) < least or not _blamed(state) - state.finished:
        return enter(state, Phase.SETTLING)
    if state.phase is not Phase.REGROUPING:
        return enter(replace(state, meshed=frozenset()), Phase.REGROUPING)
    if not left <= state.meshed:
        return state, ()
    gone = state.departed | _blamed(state)
    doomed = tuple(sorted(gone & state.live))  # they failed, and have not left yet
    ends = (SignalWorkers(ranks=doomed, signal=int(signal.SIGKILL)),) if doomed else ()
    told = Announce(incident=incident, left=len(left))
    state = replace(state, departed=gone, incident=None, incidents=(*state.incidents, incident))
    return enter(state, Phase.RUNNING, told, *ends)
