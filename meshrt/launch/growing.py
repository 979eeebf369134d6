"""What the launcher does where ranks are started while others run, to join them (``--elastic``): one small function
per row of the table in machine.py.

Hosts that come, and ranks that failed while the others went on, leave vacancies. A little later new ranks are started
for them, under numbers of their own. They wait at the door until the others let them in between two steps
(`meshrt.distributed.elastic.grows`); the others stop for nothing else. A rank that does not make it is let go, and
costs the job nothing. To take the place of one that failed by itself uses a restart of the budget, hosts that come are
free.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace

from meshrt.errors import counted
from meshrt.launch.model import (
    Command,
    Event,
    IncidentKind,
    SetTimer,
    SignalWorkers,
    StartNewcomers,
    State,
    Tell,
    Timer,
    TimerFired,
    WorkerExited,
    WorkerGrowable,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.ranks import Ranks
from meshrt.launch.transitions import Result, most_hosts, open_incident, stop


def growable(state: State, event: WorkerGrowable) -> Result:
    return replace(state, growable=True), ()


def look(state: State) -> tuple[SetTimer, ...]:
    """More ranks may be used than there are: a little later, when more hosts have come too."""
    return (SetTimer(timer=Timer.REGROW, seconds=state.policy.regrow_s),) if may_grow(state) else ()


def in_process(state: State) -> bool:
    """Whether the ranks that run can let others in; else all have to start again."""
    return state.policy.elastic and state.growable


def may_grow(state: State) -> bool:
    """Whether the job could run on more hosts than it does, or with more ranks on them."""
    if in_process(state):
        return bool(vacancies(state))
    failed = {state.host_of(rank) for rank in state.crashed} - _used(state)
    return len(_used(state)) < min(len(set(state.hosts) - failed), most_hosts(state))


def used_hosts(state: State) -> int:
    """Hosts of this generation, but for those whose workers are all gone, or are to leave, while others go on."""
    return len(_used(state))


def _used(state: State) -> set[str | None]:
    gone = state.departed | state.parting
    return {state.host_of(rank) for rank in range(state.size) if rank not in gone}


def resize(state: State, event: Event) -> Result:
    """All ranks start again, on as many hosts as may be."""
    count = min(len(state.hosts), most_hosts(state))
    former = {state.host_of(rank) for rank in range(state.size) if rank not in state.departed}
    detail = f"the job goes on with {counted(count, 'host')} in place of {len(former)}"
    return stop(open_incident(state, event, IncidentKind.RESIZE, detail), int(signal.SIGTERM))


def vacancies(state: State) -> tuple[str | None, ...]:
    """The host of each rank that could be started now: None on the one machine of a job without hosts. In a job whose
    ranks begin to finish, or of which some are to leave, there are none."""
    if state.coming or state.finished or state.parting & state.live:
        return ()
    there = Counter(state.host_of(rank) for rank in range(state.size) if rank not in state.departed)
    hosts: tuple[str | None, ...] = (None,)
    if state.policy.nodes is not None:
        more = most_hosts(state) - len(there)
        fresh = [host for host in state.hosts if host not in there]
        hosts = (*(host for host in state.hosts if host in there), *fresh[: max(0, more)])
    spent = state.charged >= state.policy.max_restarts
    failed = {state.host_of(rank) for rank in state.crashed}
    open_to = (host for host in hosts if not (spent and host in failed))
    return tuple(host for host in open_to for _ in range(state.policy.num_processes - there[host]))


def grow(state: State) -> Result:
    """Starts ranks for all vacancies."""
    hosts = vacancies(state)
    ranks = tuple(range(state.size, state.size + len(hosts)))
    replaced = [rank for rank in state.crashed if state.host_of(rank) in hosts]
    state = replace(
        state, added=(*state.added, *hosts), slots=(*state.slots, *_free_slots(state, hosts)),
        live=state.live | ranks, coming=Ranks(ranks), crashed=state.crashed - replaced,
        replaced=state.replaced + bool(replaced),
    )  # fmt: skip
    where = f" on {', '.join(sorted({h for h in hosts if h}))}" if state.policy.nodes is not None else ""
    told = Tell(text=f"starting {_ranks(ranks)}{where}, to join the ranks that run")
    return state, (StartNewcomers(ranks=ranks), *patience(state), told)


def _free_slots(state: State, hosts: tuple[str | None, ...]) -> tuple[int, ...]:
    """The places on these hosts, each named once for each rank, that nobody has."""
    there = (rank for rank in range(state.size) if rank not in state.departed)
    taken = {(state.host_of(rank), state.slot_of(rank)) for rank in there}
    places = range(state.policy.num_processes)
    free = {host: iter([place for place in places if (host, place) not in taken]) for host in hosts}
    return tuple(next(free[host]) for host in hosts)


def patience(state: State) -> tuple[SetTimer, ...]:
    """How long newcomers may take, where there are any."""
    return (SetTimer(timer=Timer.GROW, seconds=state.policy.form_s),) if state.coming else ()


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def together(state: State, event: WorkerMeshed) -> State:
    """A rank has come together with others, be it one of them or a newcomer. They may do so before the launcher knows
    why: the loss of a host is known to the door first."""
    if event.round < state.round:
        return state
    meshed = state.meshed if event.round == state.round else Ranks()
    return replace(state, meshed=meshed | {event.rank}, round=event.round, coming=state.coming - {event.rank})


def meshed(state: State, event: WorkerMeshed) -> Result:
    """While all run."""
    came = event.rank in state.coming
    state, told = without_vanished(together(state, event))
    if not came or state.coming:
        return state, told
    grown = Tell(text=f"the job has grown to {counted(len(state.live), 'rank')}")
    return state, (*told, SetTimer(timer=Timer.GROW, seconds=None), grown, *look(state))


def without_vanished(state: State) -> tuple[State, tuple[Command, ...]]:
    """Where the others have come together anew, who left them without a word, and with exit code 0, has not done its
    work: it counts as one that failed, and its place may be taken. What the door tells of it, how its process ended and
    that the others are together come in any order."""
    gone = state.finished & (state.vanished - state.meshed)
    if not gone or not state.live - state.parted - state.coming:  # nobody goes on: those that parted are about to end
        return state, ()
    text = f"{_ranks(tuple(gone))} left without a word, with exit code 0 (by os._exit?); the others go on"
    crashed = state.crashed | {rank for rank in gone if not went_with_its_host(state, rank)}
    state = replace(state, finished=state.finished - gone, departed=state.departed | gone, crashed=crashed)
    return state, (Tell(text=text), *look(state))


def went_with_its_host(state: State, rank: int) -> bool:
    """Whether the host of a rank that failed is gone too: nobody takes its place there."""
    return state.policy.nodes is not None and state.host_of(rank) not in state.hosts


def raised(state: State, event: WorkerRaised) -> Result:
    """A newcomer fails; its process is about to end."""
    text = event.error.message.strip().partition("\n")[0]
    said = f"rank {event.rank}, which was to join, raised {event.error.type}{': ' if text else ''}{text[:500]}"
    return state, (Tell(text=said),)


def fell(state: State, event: WorkerExited) -> Result:
    """A newcomer ended before it was let in: the others notice nothing."""
    rank = event.rank
    state = replace(
        state, live=state.live - {rank}, coming=state.coming - {rank}, departed=state.departed | {rank},
        crashed=state.crashed | {rank} if event.status.lost is None else state.crashed,
    )  # fmt: skip
    told = Tell(text=f"rank {rank}, which was to join, ended: {event.status.describe()}; the others go on without it")
    if state.coming:
        return state, (told,)
    return state, (SetTimer(timer=Timer.GROW, seconds=None), told, *look(state))


def late(state: State, event: TimerFired) -> Result:
    """Those that run do not let the newcomers in, or those do not come."""
    ranks = tuple(sorted(state.coming))
    text = f"{_ranks(ranks)} did not join within {state.policy.form_s:g} s (--start-timeout), and must end"
    return state, (Tell(text=text), SignalWorkers(ranks=ranks, signal=int(signal.SIGKILL)))
