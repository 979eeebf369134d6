"""What the launcher does about each thing that can happen: one small function per row of the table in machine.py."""

from __future__ import annotations

import signal
from dataclasses import replace

from meshrt.errors import counted
from meshrt.launch import growing, shrinking
from meshrt.launch.causes import LOST
from meshrt.launch.model import (
    Announce,
    CancelRequested,
    CheckpointTold,
    Event,
    ExitStatus,
    HostJoined,
    HostLeaving,
    HostLost,
    IncidentKind,
    Phase,
    ResizeRequested,
    RetireService,
    ServiceExited,
    ServiceReady,
    SetTimer,
    SignalWorkers,
    Start,
    StartWorkers,
    State,
    Tell,
    Timer,
    TimerFired,
    WorkerAttentive,
    WorkerError,
    WorkerExited,
    WorkerJoining,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.ranks import Ranks
from meshrt.launch.transitions import (
    Result,
    await_no_longer,
    blame,
    conclude,
    enter,
    final,
    gather,
    kill,
    make_incident,
    most_hosts,
    open_incident,
    stop,
)


def start(state: State, event: Start) -> Result:
    limit = state.policy.timeout_s
    return gather(state, *(() if limit is None else (SetTimer(timer=Timer.JOB, seconds=limit),)))


# --- hosts.


def host_joined(state: State, event: HostJoined) -> Result:
    return _with_host(state, event), ()


def _with_host(state: State, event: HostJoined) -> State:
    hosts = state.hosts if event.host in state.hosts else (*state.hosts, event.host)
    return replace(state, hosts=hosts, leaving=state.leaving - {event.host})


def host_joined_gathering(state: State, event: HostJoined) -> Result:
    state = _with_host(state, event)
    assert state.policy.nodes is not None  # of a job to which hosts come
    after, commands = gather(state)
    if after.phase is not Phase.GATHERING:
        return after, commands
    last_call = not state.called and len(state.hosts) == state.policy.nodes[0]
    return state, (SetTimer(timer=Timer.LAST_CALL, seconds=state.policy.last_call_s),) if last_call else ()


def host_joined_running(state: State, event: HostJoined) -> Result:
    state = _with_host(state, event)
    return state, growing.look(state)


def host_lost(state: State, event: HostLost) -> Result:
    """What ran there ends beside this, and is blamed then."""
    crashed = Ranks(rank for rank in state.crashed if state.host_of(rank) != event.host)
    return replace(state, hosts=tuple(h for h in state.hosts if h != event.host), crashed=crashed), ()


def host_lost_waiting(state: State, event: HostLost) -> Result:
    return _without_host(host_lost(state, event)[0], event, f"host {event.host} is gone ({event.why})")


def host_leaving(state: State, event: HostLeaving) -> Result:
    hosts = tuple(h for h in state.hosts if h != event.host)
    return replace(state, hosts=hosts, leaving=state.leaving | {event.host}), ()


def host_leaving_waiting(state: State, event: HostLeaving) -> Result:
    return _without_host(host_leaving(state, event)[0], event, f"host {event.host} leaves ({event.why})")


def _without_host(state: State, event: HostLost | HostLeaving, what: str) -> Result:
    """Nothing has been started on it yet: the generation begins again, without it."""
    if event.host not in state.chosen:
        return state, ()
    detail = f"{what} before its ranks were started; the job starts without it"
    return stop(open_incident(state, event, IncidentKind.RESIZE, detail), int(signal.SIGTERM))


def host_leaving_running(state: State, event: HostLeaving) -> Result:
    after, _ = host_leaving(state, event)
    told_before = event.host in state.leaving  # an agent says it in each session
    return (after, ()) if told_before else leave_together(after, event)


def leave_together(state: State, event: Event) -> Result:
    """What becomes of the ranks of a host that leaves, while they still can; its agent leaves it to the coordinator to
    ask them.

    Where ranks come and go, they hand their part of the state over, and the others go on. Ranks that save when they are
    asked to do so together, all of them: what they return then is not the end of their work. Without the host of the
    coordination service nobody goes on, and where others would have, all start again. Other ranks end with their host.
    """
    if not state.leaving:
        return state, ()
    if (departing := shrinking.depart(state, event)) is not None:
        return departing
    going = _going(state)
    if not going:
        return state, ()
    if not (state.attentive or (state.policy.elastic and state.service_host in going)):
        return state, _end_there(state, going)
    why = f" ({event.why})" if isinstance(event, HostLeaving) else ""
    who = f"host {going[0]} leaves" if len(going) == 1 else f"hosts {', '.join(going)} leave"
    detail = f"{who}{why}; the job goes on without {'it' if len(going) == 1 else 'them'}"
    return stop(open_incident(state, event, IncidentKind.RESIZE, detail), int(signal.SIGTERM))


def _going(state: State) -> list[str]:
    """The hosts that leave with something that is needed, but for ranks that were asked to leave the others before."""
    ranks = state.live - state.coming - state.departed - state.parting
    needed = {state.host_of(rank) for rank in ranks}
    if state.service_live and not state.finished:  # else the others are about to end, too
        needed.add(state.service_host)
    return sorted(host for host in needed if host in state.leaving)


def _end_there(state: State, hosts: list[str]) -> tuple[SignalWorkers, ...]:
    ranks = tuple(sorted(r for r in state.live - state.parting if state.host_of(r) in hosts))
    return (SignalWorkers(ranks=ranks, signal=int(signal.SIGTERM)),) if ranks else ()


def regrow(state: State, event: TimerFired | ResizeRequested) -> Result:
    if not growing.may_grow(state):
        return state, ()
    return growing.grow(state) if growing.in_process(state) else growing.resize(state, event)


def resize_requested(state: State, event: ResizeRequested) -> Result:
    """Counts from the next generation on."""
    return replace(state, most=event.nodes), ()


def resize_running(state: State, event: ResizeRequested) -> Result:
    state = replace(state, most=event.nodes)
    return shrinking.adapt(state, event) if growing.used_hosts(state) > most_hosts(state) else regrow(state, event)


def resize_gathering(state: State, event: ResizeRequested) -> Result:
    return _gather_again(replace(state, most=event.nodes))


def _gather_again(state: State) -> Result:
    """Something changed while hosts are awaited: is that enough?"""
    after, commands = gather(state)
    return (state, ()) if after.phase is Phase.GATHERING else (after, commands)


def last_call_over(state: State, event: TimerFired) -> Result:
    return _gather_again(replace(state, called=True))


def rested(state: State, event: TimerFired) -> Result:
    return _gather_again(replace(state, resting=False))


def gather_late(state: State, event: TimerFired) -> Result:
    assert state.policy.nodes is not None  # of a job that waits for hosts
    here, verb = ", ".join(state.hosts) or "none", "is" if len(state.hosts) == 1 else "are"
    detail = (
        f"{counted(len(state.hosts), 'host')} of at least {state.policy.nodes[0]} {verb} there after "
        f"{state.policy.gather_s:g} s "
        f"({here}). Does `meshrt launch agent` run on the others, and can they reach the coordinator?"
    )
    state = open_incident(state, event, IncidentKind.FORMATION, detail)
    return stop(replace(state, no_restart=True), int(signal.SIGTERM))


# --- the coordination service and the workers.


def service_ready(state: State, event: ServiceReady) -> Result:
    state = replace(state, live=Ranks.below(state.size), address=event.address)
    command = StartWorkers(generation=state.generation, address=event.address, hosts=state.chosen)
    return enter(state, Phase.FORMING, command)


def service_lost(state: State, event: ServiceExited) -> Result:
    state = replace(state, service_live=False)
    when = "before it was ready" if state.phase is Phase.WAITING else "while workers needed it"
    state = open_incident(state, event, IncidentKind.SERVICE, f"the coordination service ended {when}")
    state = blame(state, event, None, event.status, tail=event.tail)
    return stop(state, int(signal.SIGTERM))


def service_late(state: State, event: TimerFired) -> Result:
    detail = f"the coordination service did not start within {state.policy.service_s:g} s"
    return stop(open_incident(state, event, IncidentKind.SERVICE, detail), int(signal.SIGTERM))


def joining(state: State, event: WorkerJoining) -> Result:
    first = not state.joining
    state = replace(state, joining=state.joining | {event.rank})
    return state, (SetTimer(timer=Timer.FORM, seconds=state.policy.form_s),) if first else ()


def meshed(state: State, event: WorkerMeshed) -> Result:
    state = replace(state, meshed=state.meshed | {event.rank})
    if len(state.meshed) < state.size:
        return state, ()
    running, commands = enter(state, Phase.RUNNING)
    after, more = shrinking.begin(running, event)
    return after, (*commands, *more)


def form_late(state: State, event: TimerFired) -> Result:
    missing = sorted(Ranks.below(state.size) - state.joining - state.finished)
    gone = sorted(state.finished - state.joining)
    parts = [f"rank {_ranks(missing)} did not call meshrt.distributed.initialize()"] if missing else []
    parts += [f"rank {_ranks(gone)} finished without it"] if gone else []
    reason = " and ".join(parts) or "the workers could not connect to each other"
    detail = f"{reason} within {state.policy.form_s:g} s of the first rank's call"
    return stop(open_incident(state, event, IncidentKind.FORMATION, detail), int(signal.SIGTERM))


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def raised(state: State, event: WorkerRaised) -> Result:
    state = blame(open_incident(state, event, IncidentKind.WORKER), event, event.rank, error=event.error)
    return enter(state, Phase.SETTLING)


def _gone(state: State, event: WorkerExited) -> State:
    finished = state.finished | {event.rank} if event.status.ok else state.finished
    return replace(state, live=state.live - {event.rank}, finished=finished)


def with_its_host(state: State, event: WorkerExited) -> WorkerExited:
    """What counts: a host that leaves has asked its ranks to end, so one that ends there has not ended its work, even
    if its script says so."""
    if not event.status.ok or state.host_of(event.rank) not in state.leaving:
        return event
    return replace(event, status=ExitStatus(lost="the host leaves, and had asked it to end"))


def exited(state: State, event: WorkerExited) -> Result:
    event = with_its_host(state, event)
    state = _gone(state, event)
    if not event.status.ok:
        state = open_incident(state, event, IncidentKind.WORKER)
        state = blame(state, event, event.rank, event.status, tail=event.tail)
        return enter(state, Phase.SETTLING) if state.live else stop(state, int(signal.SIGTERM))
    return (state, ()) if state.live - state.coming else ended(state, event)


def ended(state: State, event: WorkerExited) -> Result:
    """All ranks have ended, with their work; ranks whose last step was to save, because a SIGTERM asked them to, have
    not: they count as one that SIGTERM ends."""
    if saved := sorted(state.finished & state.saving):
        detail = f"rank {_ranks(saved)} saved and left, as SIGTERM to a rank had asked, before the work was done"
        state = open_incident(state, event, IncidentKind.WORKER, detail, int(signal.SIGTERM))
    return stop(state, int(signal.SIGTERM))


def lost(state: State, event: WorkerLost) -> Result:
    """The door blames a worker; the rest of them are about to fail for its sake."""
    if event.ended:
        return vanished(state, event)
    state = blame(open_incident(state, event, IncidentKind.WORKER), event, event.rank, error=lost_error(event))
    return enter(state, Phase.SETTLING)


def vanished(state: State, event: WorkerLost) -> Result:
    """Nothing follows before it is known how its process ended, and whether the others go on."""
    return replace(state, vanished=state.vanished | {event.rank}), ()


def lost_settling(state: State, event: WorkerLost) -> Result:
    if event.ended:
        return vanished(state, event)
    return blame(state, event, event.rank, error=lost_error(event)), ()


def lost_error(event: WorkerLost) -> WorkerError:
    """What is known of a worker that the door blames."""
    return WorkerError(LOST, event.why)


def raised_settling(state: State, event: WorkerRaised) -> Result:
    return blame(state, event, event.rank, error=event.error), ()


def exited_settling(state: State, event: WorkerExited) -> Result:
    state = _blame_exit(state, event, stopped=False)
    return (state, ()) if state.live else stop(state, int(signal.SIGTERM))


def raised_stopping(state: State, event: WorkerRaised) -> Result:
    return blame(state, event, event.rank, error=event.error, stopped=True) if state.incident else state, ()


def exited_stopping(state: State, event: WorkerExited) -> Result:
    # What is lost with its host was not ended by us: only now it is known why the others failed.
    state = _blame_exit(state, event, stopped=event.status.lost is None)
    if state.live:
        return (state, ()) if event.status.ok else await_no_longer(state)
    return (state, (RetireService(),)) if state.service_live else conclude(state)


def _blame_exit(state: State, event: WorkerExited, stopped: bool) -> State:
    """A worker left after the incident opened; one that had raised before completes its record."""
    state = _gone(state, event)
    if event.rank in state.departed or (event.status.ok and not _is_blamed(state, event.rank)):
        return state
    return blame(state, event, event.rank, event.status, tail=event.tail, stopped=stopped)


def _is_blamed(state: State, rank: int) -> bool:
    return state.incident is not None and any(f.rank == rank for f in state.incident.failures)


def settled(state: State, event: TimerFired) -> Result:
    return stop(state, int(signal.SIGTERM))


def service_lost_settling(state: State, event: ServiceExited) -> Result:
    state = blame(replace(state, service_live=False), event, None, event.status, tail=event.tail)
    return stop(state, int(signal.SIGTERM))


def service_gone(state: State, event: ServiceExited) -> Result:
    """The service left while stopping: as asked when no worker is left, else as one more failure."""
    state = replace(state, service_live=False)
    if not state.live:
        return conclude(state)
    return blame(state, event, None, event.status, tail=event.tail, stopped=event.status.lost is None), ()


def grace_over(state: State, event: TimerFired) -> Result:
    return kill(state)


def unkillable(state: State, event: TimerFired) -> Result:
    names = [f"rank {rank}" for rank in sorted(state.live)] or ["the coordination service"]
    detail = f"{', '.join(names)} did not end within {state.policy.kill_s:g} s of SIGKILL and had to be left behind"
    incident = state.incident or make_incident(state, event, IncidentKind.INTERNAL)
    incident = replace(incident, detail="; ".join(filter(None, (incident.detail, detail))))
    return final(replace(state, incident=incident), Phase.FAILED, Announce(incident=incident))


def job_late(state: State, event: TimerFired) -> Result:
    return stop(_out_of_time(state, event), int(signal.SIGTERM))


def _out_of_time(state: State, event: TimerFired) -> State:
    detail = f"the job did not finish within {state.policy.timeout_s:g} s (--timeout)"
    return open_incident(state, event, IncidentKind.TIMEOUT, detail)


def job_late_ending(state: State, event: TimerFired) -> Result:
    state = replace(state, no_restart=True)
    return (_out_of_time(state, event) if _ends_to_go_on(state) else state), ()


def _ends_to_go_on(state: State) -> bool:
    """Whether nothing has failed: who says now that the job is to end is why it ends."""
    return state.incident is not None and state.incident.kind is IncidentKind.RESIZE


def cancel(state: State, event: CancelRequested) -> Result:
    return stop(_cancelled(state, event), _passed_on(event.signal))


def _cancelled(state: State, event: CancelRequested) -> State:
    return open_incident(state, event, IncidentKind.CANCEL, event.why, event.signal)


def cancel_settling(state: State, event: CancelRequested) -> Result:
    return stop(replace(state, no_restart=True), _passed_on(event.signal))


def _passed_on(number: int | None) -> int:
    """Ctrl-C reaches the workers as such; whatever else stops the launcher (a closed terminal or pipe) as SIGTERM."""
    return int(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


def cancel_stopping(state: State, event: CancelRequested) -> Result:
    """The first request while stopping forbids a restart; one more (a second Ctrl-C) ends the grace."""
    if state.no_restart or (state.incident is not None and state.incident.kind is IncidentKind.CANCEL):
        return kill(state)
    return cancel_killing(state, event)


def cancel_killing(state: State, event: CancelRequested) -> Result:
    if _ends_to_go_on(state):
        state = _cancelled(state, event)
    return replace(state, no_restart=True), ()


# --- checkpoints.


def attentive(state: State, event: WorkerAttentive) -> Result:
    saving = state.saving | {event.rank} if event.saving else state.saving - {event.rank}
    return replace(state, attentive=True, saving=saving), ()


def attentive_running(state: State, event: WorkerAttentive) -> Result:
    return leave_together(attentive(state, event)[0], event)


def checkpoint(state: State, event: CheckpointTold) -> Result:
    """A job that came further than ever has all of its restarts again; one that saves the same step again has not."""
    if not event.committed:
        return replace(state, writing=state.writing | {event.step}), ()
    state = replace(state, writing=state.writing - {event.step})
    if event.step > state.committed:
        state = replace(state, committed=event.step, forgiven=state.restarts + state.replaced)
    if state.asked is None or event.step in state.asked:
        return state, ()
    return await_no_longer(state, Tell(text=f"the checkpoint of step {event.step} is complete"))


def note(state: State, event: Event) -> Result:
    """Nothing to do: the event confirms what is known, or comes too late to matter."""
    return state, ()
