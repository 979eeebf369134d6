"""What the launcher does where some of the ranks that run are to leave, and the others go on (``--elastic``).

The ranks of the hosts that are too many get a signal which ends nobody. Each of them says at the door that it wants to
leave; all of the job's ranks leave off at the same step, those that leave hand over what they alone hold of the state,
and end with exit code 0 (`meshrt.distributed.elastic.grows`). If they have not within ``--start-timeout``, or half of
the time for which a host that leaves stays, all ranks start again on fewer hosts.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from meshrt.errors import counted
from meshrt.launch import growing
from meshrt.launch.model import (
    Command,
    Event,
    HostLeaving,
    Phase,
    SetTimer,
    SignalWorkers,
    State,
    Tell,
    Timer,
    TimerFired,
    WorkerExited,
    WorkerGrowable,
    WorkerLeft,
)
from meshrt.launch.parting import LEAVE, host_stays_s
from meshrt.launch.ranks import Ranks
from meshrt.launch.transitions import Result, most_hosts

__all__ = ["adapt", "begin", "depart", "ended", "growable", "has_left", "late", "left", "patience"]


def adapt(state: State, event: Event) -> Result:
    """As many hosts as may be: some ranks are asked to leave, or others are started to join."""
    if not _too_many(state):
        return state, growing.look(state)
    if state.finished:
        return state, ()  # the others are about to end, too
    if not growing.in_process(state):
        return growing.resize(state, event)
    return _ask(state, _surplus(state))


def depart(state: State, event: Event) -> Result | None:
    """A host that leaves takes no part of the state along: its ranks are asked to leave the others, which go on. None
    where they cannot: the script lets nobody go, too few hosts would be left, or the coordination service leaves with
    its host, without which nobody goes on."""
    gone = {h for h in state.leaving if h in {state.host_of(r) for r in state.live - state.departed - state.parting}}
    least = 1 if state.policy.nodes is None else state.policy.nodes[0]
    if state.phase is not Phase.RUNNING or state.finished or not growing.in_process(state):
        return None
    if state.service_host in state.leaving or growing.used_hosts(state) - len(gone) < least:
        return None
    if not gone:  # ranks that were to leave in any case have less time from now on
        asked = {state.host_of(r) for r in state.parting & state.live}
        return (state, patience(state)) if isinstance(event, HostLeaving) and event.host in asked else None
    return _ask(state, Ranks(r for r in state.live - state.departed - state.parting if state.host_of(r) in gone))


def _ask(state: State, surplus: Ranks) -> Result:
    """These ranks are to leave; the others go on with the state."""
    # Newcomers among them have no part of the state, and the others do not wait for them.
    unborn = tuple(sorted(surplus & state.coming))
    leaving = surplus - state.coming
    state = replace(
        state, parting=state.parting | leaving, coming=state.coming - unborn, departed=state.departed | unborn,
    )  # fmt: skip
    commands: list[Command] = []
    if unborn:
        commands.append(SignalWorkers(ranks=unborn, signal=int(signal.SIGKILL)))
    if leaving:
        ranks = tuple(sorted(leaving))
        commands += [SignalWorkers(ranks=ranks, signal=LEAVE), *patience(state)]
        commands.append(Tell(text=f"{_who(state, ranks)} to leave; the others go on with the state"))
    return state, tuple(commands)


def begin(state: State, event: Event) -> Result:
    """All run: as many hosts as may be. Whether an elastic script lets ranks come and go is known when it first asks,
    and if it does not in time, all start again."""
    if state.policy.elastic and not state.growable and _too_many(state):
        return state, (SetTimer(timer=Timer.SHRINK, seconds=state.policy.form_s),)
    return adapt(state, event)


def growable(state: State, event: WorkerGrowable) -> Result:
    """While all run: the first rank tells that its script lets others come and go."""
    return (state, ()) if state.growable else adapt(replace(state, growable=True), event)


def _too_many(state: State) -> bool:
    return state.policy.nodes is not None and growing.used_hosts(state) > most_hosts(state)


def _surplus(state: State) -> Ranks:
    """The ranks of the hosts that came last."""
    runs = sorted(state.live - state.departed - state.parting)
    hosts = list(dict.fromkeys(state.host_of(rank) for rank in runs))
    kept = set(hosts[: most_hosts(state)])
    return Ranks(rank for rank in runs if state.host_of(rank) not in kept)


def _who(state: State, ranks: tuple[int, ...]) -> str:
    hosts = sorted({host for rank in ranks if (host := state.host_of(rank))})
    if len(ranks) == 1:
        return f"rank {ranks[0]} on {hosts[0]} is"
    return f"the ranks {', '.join(map(str, ranks))} on {', '.join(hosts)} are"


def patience(state: State) -> tuple[SetTimer, ...]:
    """How long those that are to leave may take, where there are any: on a host that leaves half of what its agent
    gives them, for all save in the other half if they have not left by then."""
    asked = state.parting & state.live
    if not asked:
        return ()
    leaves = any(state.host_of(rank) in state.leaving for rank in asked)
    half = host_stays_s(state.policy.checkpoint_s) / 2
    return (SetTimer(timer=Timer.SHRINK, seconds=min(state.policy.form_s, half) if leaves else state.policy.form_s),)


def late(state: State, event: TimerFired) -> Result:
    """They have not left in time: the script asks `grows` too seldom, or not in all ranks, or never. Those that have
    left and do not end are let go: the others have what they held."""
    if state.finished:
        return state, ()
    asked = state.parting & state.live
    if asked - state.parted or _too_many(state):
        return growing.resize(state, event)
    return state, (SignalWorkers(ranks=tuple(sorted(asked)), signal=int(signal.SIGKILL)),) if asked else ()


def left(state: State, event: WorkerLeft) -> Result:
    """A rank has handed over what it held, and is about to end: that it ends with exit code 0 is not the end of its
    work."""
    others = state.live - state.parted - state.coming - {event.rank}
    return replace(state, parted=state.parted | {event.rank}) if others else state, ()


def has_left(state: State, event: WorkerExited) -> bool:
    """Whether a rank that ends has left before."""
    return event.rank in state.parted


def ended(state: State, event: WorkerExited) -> Result:
    """A rank that has left has ended."""
    state = replace(state, live=state.live - {event.rank}, departed=state.departed | {event.rank})
    if state.parting & state.live:
        return state, ()
    running = state.live - state.coming
    left = f"{counted(len(running), 'rank')} on {counted(growing.used_hosts(state), 'host')}"
    told = Tell(text=f"the job has shrunk to {left}")
    return state, (SetTimer(timer=Timer.SHRINK, seconds=None), told, *growing.look(state))
