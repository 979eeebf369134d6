"""What the coordinator answers the command line about its job."""

from __future__ import annotations

from meshrt.errors import counted
from meshrt.launch.hosts.engine import HostsEngine
from meshrt.launch.hosts.messages import RefusedError
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.model import Incident, Phase, State
from meshrt.launch.report import blamed, without_cause

__all__ = ["reply", "resize"]

_INCIDENTS = 20


def reply(engine: HostsEngine, job: str, command: str, now: float) -> pb.StatusReply:
    """Hosts, ranks and what has happened, as of now."""
    hosts = [
        pb.HostStatus(name=name, address=address, connected=connected, silent_s=silent, ranks=ranks, cores=cores)
        for name, address, connected, silent, ranks, cores in engine.hosts()
    ]
    found = pb.StatusReply(job=job, command=command, hosts=hosts, running_s=now - engine.started_at)
    state = engine.state
    if state is None:
        return found
    found.phase, found.generation, found.restarts = state.phase.value, state.generation, state.restarts
    found.max_restarts = state.policy.max_restarts
    found.min_nodes, found.max_nodes = state.policy.nodes or (1, 1)
    found.ranks.extend(_rank(state, rank) for rank in range(state.size))
    past = (*state.incidents, *((state.incident,) if state.incident else ()))
    found.incidents.extend(_in_a_line(incident) for incident in past[-_INCIDENTS:])
    return found


def _rank(state: State, rank: int) -> pb.RankStatus:
    if rank in state.finished:
        what = "finished"
    elif rank not in state.live:
        what = "ended" if state.phase is not Phase.WAITING else "waiting"
    else:
        what = "running" if rank in state.meshed else "connecting" if rank in state.joining else "started"
    return pb.RankStatus(rank=rank, state=what, host=state.host_of(rank) or "")


def _in_a_line(incident: Incident) -> str:
    cause = blamed(incident)
    if cause is None:
        return f"generation {incident.generation}: {without_cause(incident)}"
    who = "the coordination service" if cause.rank is None else f"rank {cause.rank}"
    where = f" on {cause.host}" if cause.host else ""
    how = cause.error.message.splitlines()[0] if cause.error is not None and cause.error.message else ""
    what = f"{cause.error.type}: {how}" if cause.error is not None else ""
    ended = cause.status.describe() if cause.status is not None else ""
    text = " ".join(filter(None, (what, f"[{ended}]" if ended else "")))
    return f"generation {incident.generation}: {who}{where}: {text}"


def resize(engine: HostsEngine, nodes: int) -> str:
    """Asks for another number of hosts; RefusedError if the job cannot run on so many."""
    state = engine.state
    least, most = (state.policy.nodes if state is not None else None) or (1, 1)
    if not least <= nodes <= most:
        raise RefusedError(f"{counted(nodes, 'host')}: the job was started with --nodes {least}:{most}", "OUT_OF_RANGE")
    engine.ask_resize(nodes)
    return f"the job goes on with {counted(nodes, 'host')} as soon as so many are there"
