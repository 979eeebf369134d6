"""What crosses the wire between coordinator and agents: the stubs in the package, and the values they carry."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")

from google.protobuf import descriptor_pb2

from meshrt.launch.engines.protocol import Exited, Said, ServiceSpec, Task, WorkerSpec
from meshrt.launch.environment import Place
from meshrt.launch.hosts import codec
from meshrt.launch.hosts import messages as m
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.model import ExitStatus
from meshrt.launch.parting import LEAVE

ROOT = Path(__file__).parents[3]
PROTO = "meshrt/launch/hosts/wire/coordinator.proto"


def test_the_stubs_are_those_of_the_proto_file(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    out = tmp_path / "set"
    assert protoc.main(["protoc", f"-I{ROOT}", f"--descriptor_set_out={out}", str(ROOT / PROTO)]) == 0
    (written,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    kept = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(kept)
    for message in (*written.message_type, *kept.message_type):
        clear_json_names(message)
    assert kept == written, "run `make protos`"


def clear_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """Stubs do not keep them."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        clear_json_names(nested)


SERVICE = ServiceSpec(3, 4, "h:0", "s", None, 8.0, 300.0)
WORKER = WorkerSpec(Place(2, 4, 3, 1, "h:1", "s"), ("script", "t.py", "--x"), 2, {"A": "b"})


@pytest.mark.parametrize(
    "message",
    [
        m.Beat(1.5),
        m.Leaving("why"),
        m.Happened(7, Said(Task(3), 2.0, b'{"kind": "ready"}')),
        m.Happened(8, Exited(Task(3, 0), 2.0, ExitStatus(code=0)), 5),
        m.Happened(8, Exited(Task(3, 1), 2.0, ExitStatus(signal=9))),
        m.Happened(8, Exited(Task(3, 1), 2.0, ExitStatus(reason="no file"))),
    ],
)
def test_what_agents_say_arrives_as_it_was(message):
    assert codec.up(pb.AgentMessage.FromString(codec.from_up(message).SerializeToString())) == message


@pytest.mark.parametrize(
    "message",
    [
        m.Alive(2.5),
        m.Prepare((SERVICE, WORKER)),
        m.Signal((Task(3), Task(3, 2)), 15),
        m.Signal((Task(3, 2),), LEAVE),
        m.Settled(9, 12),
        m.Stale("why"),
        m.Over(3, "failed"),
    ],
)
def test_what_the_coordinator_says_arrives_as_it_was(message):
    assert codec.down(pb.CoordinatorMessage.FromString(codec.from_down(message).SerializeToString())) == message


def test_who_joins_and_what_is_printed_arrive_as_they_were():
    who = m.Applicant("a", "10.0.0.1", "abc", {"meshrt": "1"}, (Task(0), Task(0, 1)), 8, True, 3)
    assert codec.applicant(pb.JoinRequest.FromString(codec.from_applicant(who).SerializeToString())) == who
    chunk = m.Chunk(Task(0, 1), 1.0, True, b"\xff\n", 7)
    assert codec.chunk(codec.from_chunk(chunk, "a", "abc")) == chunk


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_times_that_are_none_are_refused(at):
    with pytest.raises(m.RefusedError, match="malformed message"):
        codec.up(pb.AgentMessage(beat=pb.Beat(at=at)))


def test_words_of_the_other_side_cannot_pass_for_lines_of_somebody_else():
    forged = "gone\n\x1b[2Kmeshrt launch: all is well"
    shown = r"gone\x0a\x1b[2Kmeshrt launch: all is well"
    assert codec.up(codec.from_up(m.Leaving(forged))) == m.Leaving(shown)
    ended = m.Happened(1, Exited(Task(0, 1), 1.0, ExitStatus(reason=forged)))
    assert codec.up(codec.from_up(ended)).report.status.reason == shown
    assert codec.down(codec.from_down(m.Over(1, forged))) == m.Over(1, shown)
    assert codec.down(codec.from_down(m.Stale(forged))) == m.Stale(shown)
    who = m.Applicant("a", "h", "abc", {"meshrt": forged})
    assert codec.applicant(codec.from_applicant(who)).versions == {"meshrt": shown}


def test_the_signal_to_leave_has_one_number_between_hosts_of_all_systems(monkeypatch):
    """On macOS it is 16, which is another signal on Linux."""
    monkeypatch.setattr(codec, "LEAVE", 16)
    sent = codec.from_down(m.Signal((Task(3, 2),), 16))
    assert sent.signal.number == 23 and codec.down(sent) == m.Signal((Task(3, 2),), 16)
