"""How the launcher moves from one phase to the next: what each move clears, sets and commands. Pure, as machine.py."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from meshrt.launch.causes import LOST, STOPPED, echo_of, first_cause
from meshrt.launch.model import (
    NEVER_RESTART,
    Announce,
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
    SetTimer,
    SignalWorkers,
    StartService,
    State,
    Tell,
    Timer,
    WorkerError,
)
from meshrt.launch.ranks import Ranks

Result = tuple[State, tuple[Command, ...]]


def exit_code(state: State) -> int:
    """The launcher's exit code for a job in a final phase: 0, the first cause's, 124 (timeout), 128 + signal."""
    incident = state.incident
    if state.phase is Phase.SUCCEEDED or incident is None:
        return 0
    if incident.kind is IncidentKind.TIMEOUT:
        return 124
    cause = first_cause(incident.failures) if incident.kind in (IncidentKind.WORKER, IncidentKind.SERVICE) else None
    if cause is None and incident.signal is not None:
        return 128 + incident.signal
    if cause is not None and cause.error is not None and cause.error.type == "KeyboardInterrupt":
        return 128 + signal.SIGINT
    if cause is None or cause.status is None or (cause.error is not None and cause.status.signal is not None):
        return 1  # of an exception whose process had to be stopped, the exception counts, not our signal
    return cause.status.shell_code or 1


# --- moving between phases.

# The first is set when the phase is entered, if `_patience` knows for how long; all are cleared when it is left.
_PHASE_TIMERS = {
    Phase.GATHERING: (Timer.GATHER, Timer.LAST_CALL, Timer.BACKOFF),
    Phase.WAITING: (Timer.SERVICE,),
    Phase.FORMING: (Timer.FORM,),
    Phase.RUNNING: (Timer.REGROW, Timer.GROW, Timer.SHRINK),
    Phase.REGROUPING: (Timer.REGROUP,),
    Phase.SETTLING: (Timer.SETTLE,),
    Phase.STOPPING: (Timer.GRACE,),
    Phase.KILLING: (Timer.KILL,),
}


_ENDING = (Phase.SETTLING, Phase.STOPPING, Phase.KILLING)  # nobody is let in any more


def _patience(policy: Policy, phase: Phase) -> float | None:
    # FORMING's clock starts when the first worker tries to connect: a script may prepare as long as it likes.
    return {
        Phase.GATHERING: policy.gather_s,
        Phase.WAITING: policy.service_s,
        Phase.REGROUPING: policy.form_s,
        Phase.SETTLING: policy.settle_s,
        Phase.STOPPING: policy.grace_s,
        Phase.KILLING: policy.kill_s,
    }.get(phase)


def enter(state: State, phase: Phase, *commands: Command) -> Result:
    """Moves to `phase`: the old phase's timer is cleared, the new one's set, before the commands."""
    if phase in _ENDING and state.coming:
        state = replace(state, departed=state.departed | state.coming, coming=Ranks())
    timers = [SetTimer(timer=old, seconds=None) for old in _PHASE_TIMERS.get(state.phase, ())]
    if (seconds := _patience(state.policy, phase)) is not None:
        timers.append(SetTimer(timer=_PHASE_TIMERS[phase][0], seconds=seconds))
    return replace(state, phase=phase), (*timers, *commands)


def stop(state: State, number: int) -> Result:
    """Ends the generation: asks the live workers to stop by signal, or goes on at once where none is left."""
    if state.live:
        after, commands = enter(state, Phase.STOPPING, SignalWorkers(ranks=tuple(sorted(state.live)), signal=number))
        return (after, commands) if number != signal.SIGTERM else _await_checkpoint(after, commands)
    if state.service_live:
        return enter(state, Phase.STOPPING, RetireService())
    return conclude(state)


def _await_checkpoint(state: State, commands: tuple[Command, ...]) -> Result:
    """Workers that save when they are asked to get the time for it, if none of them has failed: they save together."""
    seconds = state.policy.checkpoint_s
    if not state.attentive or state.incident is None or state.incident.failures:
        return state, commands
    text = f"asked the ranks for a checkpoint, and waits up to {seconds:g} s for them (--checkpoint-timeout)"
    timer = SetTimer(timer=Timer.GRACE, seconds=seconds)
    return replace(state, asked=state.writing), (*commands, timer, Tell(text=text))


def await_no_longer(state: State, *commands: Command) -> Result:
    """The workers have saved, or cannot any more: from now on they have the ordinary grace."""
    if state.asked is None or state.phase is not Phase.STOPPING:
        return state, commands
    timer = SetTimer(timer=Timer.GRACE, seconds=state.policy.grace_s)
    return replace(state, asked=None), (timer, *commands)


def kill(state: State) -> Result:
    """The end of all patience with what is left of the generation."""
    if state.live:
        ranks = tuple(sorted(state.live))
        return enter(state, Phase.KILLING, SignalWorkers(ranks=ranks, signal=int(signal.SIGKILL)))
    return enter(state, Phase.KILLING, RetireService())


def conclude(state: State) -> Result:
    """Nothing of this generation is left: the job succeeded, failed, was cancelled, or starts again."""
    state = _blame_vanished(state)
    incident = state.incident
    if incident is None:
        return final(state, Phase.SUCCEEDED)
    if not may_restart(state):
        ending = Phase.CANCELLED if incident.kind is IncidentKind.CANCEL else Phase.FAILED
        return final(state, ending, Announce(incident=incident))
    following = state.generation + 1
    fresh = State(
        policy=state.policy, phase=state.phase, generation=following, hosts=state.hosts, chosen=state.chosen,
        most=state.most, called=True, committed=state.committed, forgiven=state.forgiven, replaced=state.replaced,
        incidents=(*state.incidents, incident), story=state.story,
    )  # fmt: skip
    rest = 0.0 if incident.kind is IncidentKind.RESIZE else backoff(state.policy, fresh.charged)
    fresh = replace(fresh, resting=rest > 0)
    timers = (SetTimer(timer=Timer.BACKOFF, seconds=rest),) if rest else ()
    return gather(fresh, Announce(incident=incident, restart=following), *timers)


def _blame_vanished(state: State) -> State:
    """Where all that failed had lost somebody, who left without a word is to blame, also if by exit code 0."""
    incident = state.incident
    cause = first_cause(incident.failures) if incident is not None else None
    if incident is None or cause is None or cause.consequence is None:
        return state
    error = WorkerError(LOST, "it left without a word (by os._exit?), and the others needed it")
    left = state.finished & state.vanished
    failures = (Failure(rank, incident.at, ExitStatus(code=0), error, host=state.host_of(rank)) for rank in left)
    return replace(state, incident=replace(incident, failures=(*incident.failures, *failures)))


def backoff(policy: Policy, restarts: int) -> float:
    """Seconds of rest before the restart of this number, from 1. The first one follows at once."""
    if restarts < 2:
        return 0.0
    return min(policy.backoff_limit_s, policy.backoff_s * 2.0 ** min(restarts - 2, 30))


def gather(state: State, *commands: Command) -> Result:
    """Starts the coordination service of this generation if enough hosts are there and the job has rested, else waits.

    Hosts that were in the former generation come first, in their order, so that their ranks stay where they can; then
    others by name, with numbers in it in their order.
    """
    if state.resting or not _enough_hosts(state):
        return enter(replace(state, chosen=()), Phase.GATHERING, *commands)
    here = [h for h in state.chosen if h in state.hosts]
    here += sorted((h for h in state.hosts if h not in here), key=_natural)
    chosen = tuple(here[: most_hosts(state)])
    state = replace(state, chosen=chosen, service_live=True)
    return enter(state, Phase.WAITING, *commands, StartService(generation=state.generation, hosts=chosen))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def most_hosts(state: State) -> int:
    """On how many hosts a generation runs at most; 0 in a job of one machine."""
    if state.policy.nodes is None:
        return 0
    least, most = state.policy.nodes
    return most if state.most is None else max(least, min(most, state.most))


def _enough_hosts(state: State) -> bool:
    if state.policy.nodes is None:
        return True
    there = len(state.hosts)
    return there >= most_hosts(state) or (there >= state.policy.nodes[0] and state.called)


def may_restart(state: State) -> bool:
    """Whether another generation follows the incident: budget left, nobody asked to stop, and it can help."""
    incident = state.incident
    if incident is None or state.no_restart:
        return False
    if incident.kind is IncidentKind.RESIZE:
        return True
    if state.charged >= state.policy.max_restarts:
        return False
    if incident.kind in (IncidentKind.CANCEL, IncidentKind.TIMEOUT, IncidentKind.INTERNAL):
        return False
    cause = first_cause(incident.failures)
    return not (cause and cause.status and cause.status.code == NEVER_RESTART)


def final(state: State, phase: Phase, *commands: Command) -> Result:
    """The job is over."""
    after, all_commands = enter(state, phase, SetTimer(timer=Timer.JOB, seconds=None), *commands)
    return after, (*all_commands, Finish(exit_code=exit_code(after)))


def make_incident(
    state: State, event: Event, kind: IncidentKind, detail: str = "", signal: int | None = None
) -> Incident:
    """An incident of what has happened now."""
    left = tuple(sorted(state.finished))
    return Incident(kind, state.generation, event.at, event.id, detail, signal, left_early=left)


def open_incident(state: State, event: Event, kind: IncidentKind, detail: str = "", signal: int | None = None) -> State:
    """The generation ends because of this."""
    return replace(state, incident=make_incident(state, event, kind, detail, signal))


def blame(
    state: State, event: Event, rank: int | None, status: ExitStatus | None = None,
    error: WorkerError | None = None, tail: tuple[str, ...] = (), stopped: bool = False,
) -> State:  # fmt: skip
    """Adds a failure to the open incident, or completes the one known of this rank (it raised, now it exited). Ranks
    without which the others went on have no part in it."""
    if rank in state.departed:
        return state
    incident = state.incident
    assert incident is not None
    known = next((f for f in incident.failures if f.rank == rank), None)
    if known is not None:
        merged = replace(known, status=known.status or status, error=known.error or error, tail=known.tail or tail)
        failures = tuple(merged if f is known else f for f in incident.failures)
    else:
        echo = echo_of(status, error, tail) if rank is not None else None
        consequence = STOPPED if stopped else echo
        host = state.host_of(rank or 0)
        failures = (*incident.failures, Failure(rank, event.at, status, error, tail, consequence, host))
    return replace(state, incident=replace(incident, failures=failures))
