"""Messages as protobuf. What comes from the wire is checked here: whatever passes is a sound value."""

from __future__ import annotations

import math
import re

from meshrt.launch.engines.protocol import Exited, Said, ServiceSpec, Spec, Task, WorkerSpec
from meshrt.launch.environment import Place
from meshrt.launch.hosts.messages import (
    Alive,
    Applicant,
    Beat,
    Chunk,
    Down,
    Happened,
    Leaving,
    Over,
    Prepare,
    RefusedError,
    Settled,
    Signal,
    Stale,
    Up,
    plain,
)
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.model import ExitStatus
from meshrt.launch.parting import LEAVE
from meshrt.launch.wire import LINE_LIMIT

__all__ = [
    "MESSAGE_LIMIT",
    "applicant",
    "chunk",
    "down",
    "from_applicant",
    "from_chunk",
    "from_down",
    "from_task",
    "from_up",
    "joined",
    "task",
    "up",
]

MESSAGE_LIMIT = 1 << 20  # bytes; a report is at most LINE_LIMIT long, and the ranks of one host fit easily
_TASKS = 65536
_LEAVE = 23  # what LEAVE is called here: systems have other numbers for it, but not for the other signals
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,251}")


def _malformed(what: str) -> RefusedError:
    return RefusedError(f"malformed message: {what}", "INVALID_ARGUMENT")


def _number(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise _malformed(f"{what} is {value}")
    return value


def check_name(name: str) -> str:
    """The name of a host, checked: it appears on terminals and in keys."""
    if not _NAME.fullmatch(name):
        raise _malformed(f"{name[:60]!r} is no name of a host (letters, digits, and _ . : - inside)")
    return name


def is_address(text: str) -> bool:
    """Whether this can be the name or the address of a host."""
    return re.fullmatch(r"[A-Za-z0-9_.:%-]{1,253}", text) is not None


def task(message: pb.Task) -> Task:
    """A task from the wire."""
    return Task(message.generation, message.rank if message.HasField("rank") else None)


def from_task(task: Task) -> pb.Task:
    """A task for the wire."""
    return pb.Task(generation=task.generation, rank=task.rank)


def applicant(message: pb.JoinRequest) -> Applicant:
    """Who wants to join. RefusedError for what no agent says."""
    if not 0 < len(message.incarnation) <= 64 or not message.incarnation.isalnum():
        raise _malformed("a join without a sound incarnation")
    if len(message.tasks) > _TASKS or len(message.versions) > 20:
        raise _malformed("a join with more tasks or versions than an agent can have")
    if not is_address(message.address):
        raise _malformed(f"{message.address[:60]!r} is no address")
    versions = {plain(k, 40): plain(v, 80) for k, v in message.versions.items()}
    return Applicant(
        check_name(message.name), message.address, message.incarnation, versions, tuple(map(task, message.tasks)),
        message.cores, message.again, message.output,
    )  # fmt: skip


def from_applicant(who: Applicant) -> pb.JoinRequest:
    """The request of an agent."""
    return pb.JoinRequest(
        name=who.name, address=who.address, incarnation=who.incarnation, versions=dict(who.versions),
        tasks=map(from_task, who.tasks), cores=who.cores, again=who.again, output=who.output,
    )  # fmt: skip


def joined(message: pb.CoordinatorMessage) -> pb.JoinReply:
    """The first answer of a session."""
    if not message.HasField("joined"):
        raise _malformed("a session that does not begin with an answer to a join")
    return message.joined


def up(message: pb.AgentMessage) -> Up:
    """What an agent says in its session, but for the first message."""
    match message.WhichOneof("what"):
        case "beat":
            return Beat(_number(message.beat.at, "the time of a beat"))
        case "report":
            return _happened(message.report)
        case "leaving":
            return Leaving(plain(message.leaving.why))
        case other:
            raise _malformed(f"an agent's message of kind {other}")


def _happened(message: pb.Report) -> Happened:
    who, at = task(message.task), _number(message.at, "the time of a report")
    match message.WhichOneof("what"):
        case "said":
            return Happened(message.seq, Said(who, at, message.said[: LINE_LIMIT + 1]))
        case "exited":
            found = message.exited
            status = ExitStatus(
                code=found.code if found.HasField("code") else None,
                signal=found.signal if found.HasField("signal") else None,
                reason=plain(found.reason) if found.HasField("reason") else None,
            )
            return Happened(message.seq, Exited(who, at, status), found.output)
        case other:
            raise _malformed(f"a report of kind {other}")


def from_up(message: Up) -> pb.AgentMessage:
    """What an agent says, for the wire."""
    match message:
        case Beat():
            return pb.AgentMessage(beat=pb.Beat(at=message.at))
        case Leaving():
            return pb.AgentMessage(leaving=pb.Leaving(why=message.why))
        case Happened(report=report):
            written = pb.Report(seq=message.seq, task=from_task(report.task), at=report.at)
            if isinstance(report, Said):
                written.said = report.line
            else:
                status = report.status
                written.exited.CopyFrom(
                    pb.Exited(code=status.code, signal=status.signal, reason=status.reason, output=message.output)
                )
            return pb.AgentMessage(report=written)


def down(message: pb.CoordinatorMessage) -> Down:
    """What the coordinator says in a session, but for the first message."""
    match message.WhichOneof("what"):
        case "alive":
            return Alive(message.alive.beat_s)
        case "prepare":
            services = tuple(map(_service, message.prepare.services))
            return Prepare((*services, *map(_worker, message.prepare.workers)))
        case "signal":
            number = message.signal.number
            return Signal(tuple(map(task, message.signal.tasks)), LEAVE if number == _LEAVE else number)
        case "settled":
            return Settled(message.settled.seq, message.settled.output)
        case "stale":
            return Stale(plain(message.stale.why))
        case "over":
            return Over(message.over.exit_code, plain(message.over.why))
        case other:
            raise _malformed(f"a coordinator's message of kind {other}")


def from_down(message: Down) -> pb.CoordinatorMessage:
    """What the coordinator says, for the wire."""
    match message:
        case Alive():
            return pb.CoordinatorMessage(alive=pb.Alive(beat_s=message.beat_s))
        case Prepare():
            services = [_from_service(s) for s in message.specs if isinstance(s, ServiceSpec)]
            workers = [_from_worker(s) for s in message.specs if isinstance(s, WorkerSpec)]
            return pb.CoordinatorMessage(prepare=pb.Prepare(services=services, workers=workers))
        case Signal():
            tasks = map(from_task, message.tasks)
            number = _LEAVE if message.number == LEAVE else message.number
            return pb.CoordinatorMessage(signal=pb.Signal(tasks=tasks, number=number))
        case Settled():
            return pb.CoordinatorMessage(settled=pb.Settled(seq=message.seq, output=message.output))
        case Stale():
            return pb.CoordinatorMessage(stale=pb.Stale(why=message.why))
        case Over():
            return pb.CoordinatorMessage(over=pb.Over(exit_code=message.exit_code, why=message.why))


def _service(m: pb.ServiceSpec) -> Spec:
    return ServiceSpec(m.generation, m.num_processes, m.bind, m.secret, None, m.silent_s, m.stall_s)


def _from_service(spec: ServiceSpec) -> pb.ServiceSpec:
    return pb.ServiceSpec(
        generation=spec.generation, num_processes=spec.num_processes, bind=spec.bind, secret=spec.secret,
        silent_s=spec.silent_s, stall_s=spec.stall_s,
    )  # fmt: skip


def _worker(m: pb.WorkerSpec) -> Spec:
    place = Place(m.rank, m.num_processes, m.generation, m.max_restarts, m.address, m.secret)
    devices = m.devices_per_process if m.HasField("devices_per_process") else None
    return WorkerSpec(place, tuple(m.target), devices, dict(m.variables))


def _from_worker(spec: WorkerSpec) -> pb.WorkerSpec:
    place = spec.place
    return pb.WorkerSpec(
        generation=place.generation, rank=place.rank, num_processes=place.num_processes,
        max_restarts=place.max_restarts, address=place.address, secret=place.secret, target=spec.target,
        devices_per_process=spec.devices_per_process, variables=dict(spec.variables),
    )  # fmt: skip


def chunk(message: pb.LogChunk) -> Chunk:
    """A piece of output from the wire."""
    at = _number(message.at, "the time of output")
    return Chunk(task(message.task), at, message.stderr, message.data, message.number)


def from_chunk(found: Chunk, name: str, incarnation: str) -> pb.LogChunk:
    """A piece of output of that host for the wire."""
    return pb.LogChunk(
        name=name, incarnation=incarnation, task=from_task(found.task), stderr=found.stderr, data=found.data,
        at=found.at, number=found.number,
    )  # fmt: skip
