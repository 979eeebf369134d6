"""What `meshrt launch status` and `logs` show."""

from __future__ import annotations

from meshrt.errors import counted
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.output import picture

__all__ = ["log_line", "status"]


def status(found: pb.StatusReply) -> str:
    """Lines of at most 80 columns, but for long names."""
    nodes = f"{found.min_nodes}" if found.min_nodes == found.max_nodes else f"{found.min_nodes} to {found.max_nodes}"
    lines = [
        f"job {found.job}: {found.phase}, generation {found.generation}, {found.restarts} of {found.max_restarts} "
        f"restarts used, {_duration(found.running_s)}",
        f"  {found.command}",
        f"hosts: {len(found.hosts)} of {nodes}",
    ]
    state = {r.rank: r.state for r in found.ranks}
    apart = sum(word in ("started", "connecting") for word in state.values())
    if found.phase == "forming" and apart:
        lines.insert(
            2,
            f"  {counted(apart, 'rank')} of {len(state)} not in meshrt.distributed.initialize() yet (scripts that "
            "never call it stay so)",
        )
    for host in sorted(found.hosts, key=lambda h: (h.ranks[:1] or [1 << 31], h.name)):
        silent = f"silent for {host.silent_s:.0f} s" if host.silent_s > 3 else "connected" if host.connected else "away"
        ranks = ", ".join(f"{rank} {state.get(rank, '')}".strip() for rank in host.ranks) or "no ranks"
        lines.append(f"  {host.name:20} {host.address:16} {silent:14} {ranks}")
    if found.incidents:
        lines += ["what happened:", *(f"  {text}" for text in found.incidents)]
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def log_line(line: pb.LogLine) -> bytes:
    """A line as the launcher prints it."""
    who = line.task.rank if line.task.HasField("rank") else "service"
    return f"[{line.host}:{who}] ".encode() + picture(line.line) + b"\n"
