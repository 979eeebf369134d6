"""Whoever should not be in a job on several hosts is refused in one line, and the job goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import pytest

pytest.importorskip("grpc")

import grpc

from meshrt.cli.main import main
from meshrt.errors import ConfigError
from meshrt.launch import open_files
from meshrt.launch.hosts import certificates, codec, library_words
from meshrt.launch.hosts.agent import versions
from meshrt.launch.hosts.calls import Calls, unreachable
from meshrt.launch.hosts.engine import HostsEngine
from meshrt.launch.hosts.messages import Applicant, Beat, RefusedError
from meshrt.launch.hosts.security import Nonces, Trust, read_secret
from meshrt.launch.hosts.server import Server
from meshrt.launch.hosts.wire import coordinator_pb2 as pb

SECRET = "a secret of sixteen and more"


class Serving:
    """A coordinator's engine and server without a job; `log` is what it says of strangers."""

    def __init__(self, trust: Trust):
        self.log: list[str] = []
        self.engine = HostsEngine(versions(), self.log.append)
        self.server = Server(self.engine, trust, "127.0.0.1", 0, "j", os.getcwd(), "train.py", self.log.append)
        self.address = self.server.start()
        wake, self._waker = os.pipe()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(wake,), daemon=True)
        self._thread.start()
        while not self.engine.serving:
            time.sleep(0.01)

    def _wait(self, wake: int) -> None:
        while not self._ending.is_set():
            self.engine.wait(0.05, wake)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self.engine.close()
        self.server.stop()


@pytest.fixture
def serve():
    made = []

    def start(trust: Trust) -> Serving:
        made.append(Serving(trust))
        return made[-1]

    yield start
    for serving in made:
        serving.close()


def someone(name: str = "a", **fields) -> pb.JoinRequest:
    return codec.from_applicant(Applicant(name, "127.0.0.1", "abc", versions(), **fields))


def join(calls: Calls, request: pb.JoinRequest, nonce: str | None = None) -> pb.JoinReply:
    """Joins as an agent does, and leaves; gives the coordinator's answer."""
    answers = list(calls.stream("Session", [pb.AgentMessage(join=request)], nonce or calls.knock()))
    return codec.joined(answers[0])


def status_of(error: pytest.ExceptionInfo) -> tuple[str, str]:
    return error.value.code().name, error.value.details()


def test_who_does_not_know_the_secret_is_told_so_and_logged(serve):
    serving = serve(Trust(SECRET))
    stranger = Calls(serving.address, Trust("another one of that length"))
    with pytest.raises(RefusedError, match="did not prove that it knows this job's secret"):
        stranger.call("Status", pb.StatusRequest())
    with pytest.raises(RefusedError, match="has a secret for its job, and none is given here: set MESHRT_JOB_SECRET, "):
        Calls(serving.address, Trust()).knock()
    nonce = Calls(serving.address, Trust(SECRET)).knock()
    with pytest.raises(grpc.RpcError) as error:
        join(stranger, someone(), nonce)
    assert status_of(error) == ("PERMISSION_DENIED", "it does not know this job's secret (MESHRT_JOB_SECRET)")
    *knocked, line = serving.log
    assert [k.partition(" knocked, and left: ")[2] for k in knocked] == [
        "it says that it has another secret than this job, or none (MESHRT_JOB_SECRET)"
    ] * 2
    assert line.startswith("refused Session from 127.0.0.1:") and line.endswith("(MESHRT_JOB_SECRET)")
    assert Calls(serving.address, Trust(SECRET)).call("Status", pb.StatusRequest()).job == "j"


def test_who_has_a_secret_where_the_job_has_none_is_logged(serve):
    serving = serve(Trust())
    with pytest.raises(RefusedError, match="did not prove that it knows this job's secret"):
        Calls(serving.address, Trust(SECRET)).knock()
    assert serving.log[0].endswith("it says that it has a secret, and this job has none (MESHRT_JOB_SECRET)")


def test_a_call_counts_once_and_its_proof_is_of_its_content(serve):
    serving = serve(Trust(SECRET))
    calls = Calls(serving.address, Trust(SECRET))
    nonce = calls.knock()
    join(calls, someone(), nonce)
    with pytest.raises(grpc.RpcError) as error:
        join(calls, someone(), nonce)
    assert status_of(error) == ("UNAUTHENTICATED", "the call is too old, or was made before (its nonce is spent)")
    proofs = calls._metadata("Cancel", "stream", calls.knock())
    with pytest.raises(grpc.RpcError) as error:
        calls._stub.Resize(pb.ResizeRequest(nodes=1), metadata=proofs)
    assert status_of(error)[0] == "PERMISSION_DENIED"


def test_a_knock_is_small(serve):
    serving = serve(Trust(SECRET))
    with pytest.raises(grpc.RpcError) as error:
        Calls(serving.address, Trust(SECRET))._stub.Knock(pb.KnockRequest(nonce="x" * 1000))
    assert status_of(error)[0] == "INVALID_ARGUMENT" and "refused Knock" in serving.log[-1]


@pytest.mark.parametrize("method", ["/meshrt.launch.v1.Coordinator/Knock", "/meshrt.launch.v2.Coordinator/Join"])
def test_callers_of_another_version_are_told_so_and_so_is_the_coordinator(serve, method):
    serving = serve(Trust(SECRET))
    with grpc.insecure_channel(serving.address) as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(method)(pb.KnockRequest(nonce="1").SerializeToString(), timeout=10)
    told = "the coordinator has another version of meshrt: install the same on all hosts"
    assert status_of(error) == ("UNIMPLEMENTED", told)
    (line,) = serving.log
    assert line.startswith("refused a call from 127.0.0.1:") and method[1:] in line
    said = str(unreachable(serving.address, error.value))
    assert said.startswith(f"what answers at {serving.address} does not speak this meshrt's protocol ({told})")


def test_a_coordinator_of_an_older_version_is_told_from_one_that_is_not_there():
    server = grpc.server(futures.ThreadPoolExecutor(1))  # with none of the calls that are asked of it
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with pytest.raises(grpc.RpcError) as error:
        Calls(address, Trust(SECRET)).knock()
    server.stop(0)
    assert "install the same version of meshrt on all hosts" in str(unreachable(address, error.value))


def test_nonces_are_limited_in_time_and_number():
    nonces = Nonces()
    first = nonces.new(0.0)
    with pytest.raises(RefusedError, match="too old"):
        nonces.spend(first, "", "", "Join", "", 61.0)
    second = nonces.new(100.0)
    for _ in range(65536):
        nonces.new(100.0)
    with pytest.raises(RefusedError, match="too old"):
        nonces.spend(second, "", "", "Join", "", 100.0)


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (someone("a b"), "INVALID_ARGUMENT", "malformed message: 'a b' is no name of a host"),
        (someone("\x1b[31m"), "INVALID_ARGUMENT", r"malformed message: '\x1b[31m' is no name of a host"),
        (pb.JoinRequest(name="a", address="h", incarnation="x;y"), "INVALID_ARGUMENT", "without a sound incarnation"),
        (pb.JoinRequest(name="a", address="$(x)", incarnation="x"), "INVALID_ARGUMENT", "'$(x)' is no address"),
        (pb.JoinRequest(name="a", address="h", incarnation="x"), "FAILED_PRECONDITION", "host a has meshrt None, and"),
        (someone("a" * (2 << 20)), "RESOURCE_EXHAUSTED", "bytes, more than the 1048576 that are"),
        (someone("a" * (8 << 20)), "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)  # fmt: skip
def test_what_no_agent_says_is_refused(serve, request_, status, words):
    serving = serve(Trust(SECRET))
    calls = Calls(serving.address, Trust(SECRET))
    with pytest.raises(grpc.RpcError) as error:
        join(calls, request_)
    assert status_of(error)[0] == status and words in status_of(error)[1]
    assert join(calls, someone()).job == "j"


@pytest.mark.parametrize("big", [False, True], ids=["nonsense", "too large"])
@pytest.mark.parametrize("method", ["Knock", "Session", "ReportLog", "Status", "Resize", "Cancel", "Logs"])
def test_bytes_that_are_no_message_are_refused_and_told_whatever_is_called(serve, method, big):
    serving = serve(Trust(SECRET))
    calls = Calls(serving.address, Trust(SECRET))
    data = b"\x0a" + b"\x80\x80\x80\x01" + bytes(2 << 20) if big else b"\xff\xff"
    streams = {"Session": "stream_stream", "ReportLog": "stream_unary", "Logs": "unary_stream"}
    kind = streams.get(method, "unary_unary")
    with grpc.insecure_channel(serving.address) as channel, pytest.raises(grpc.RpcError) as error:
        call = getattr(channel, kind)(f"/meshrt.launch.v2.Coordinator/{method}")
        proofs = calls._metadata(method, "stream", calls.knock())
        answer = call(iter([data]) if kind.startswith("stream") else data, metadata=proofs, timeout=60)
        list(answer)
    why = "bytes, more than the 1048576 that are allowed" if big else "it is none of this protocol"
    assert status_of(error)[0] == ("RESOURCE_EXHAUSTED" if big else "INVALID_ARGUMENT")
    assert status_of(error)[1].startswith("malformed message: ") and status_of(error)[1].endswith(why)
    (line,) = serving.log
    assert line.startswith(f"refused {method} from 127.0.0.1:") and line.endswith(why)


def test_two_agents_of_one_name(serve):
    serving = serve(Trust(SECRET))
    calls = Calls(serving.address, Trust(SECRET))
    join(calls, someone())
    other = pb.JoinRequest(name="a", address="10.0.0.7", incarnation="other", versions=versions())
    with pytest.raises(grpc.RpcError) as error:
        join(calls, other)
    assert status_of(error)[0] == "ALREADY_EXISTS"
    assert "a host a is in this job already, at 127.0.0.1; give one of the agents another --name" in serving.log[-1]


def test_bad_messages_in_a_session_end_it_and_nothing_else(serve):
    serving = serve(Trust(SECRET))
    calls = Calls(serving.address, Trust(SECRET))
    answers = calls.stream("Session", [pb.AgentMessage(join=someone()), pb.AgentMessage()], calls.knock())
    assert [answer.WhichOneof("what") for answer in answers] == ["joined"]
    while not serving.log:
        time.sleep(0.01)
    assert "ended the session of host a" in serving.log[-1]
    assert "malformed message: an agent's message of kind None" in serving.log[-1]
    with pytest.raises(grpc.RpcError) as error:
        list(calls.stream("Session", [pb.AgentMessage()], calls.knock()))
    assert status_of(error) == ("INVALID_ARGUMENT", "malformed message: a session in which nobody joins")
    answers = calls.stream("Session", [pb.AgentMessage(join=someone()) for _ in range(2)], calls.knock())
    assert [answer.WhichOneof("what") for answer in answers] == ["joined"]
    deadline = time.monotonic() + 30
    while "malformed message: an agent's message of kind join" not in serving.log[-1]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert calls.call("Status", pb.StatusRequest()).hosts[0].name == "a"


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"])
def test_strange_clients_do_no_harm(serve, data):
    serving = serve(Trust(SECRET))
    host, port = serving.address.split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(data)
    assert join(Calls(serving.address, Trust(SECRET)), someone()).job == "j"


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_callers_take_no_more_descriptors_than_the_job_can_spare(serve, monkeypatch):
    monkeypatch.setattr(open_files, "limit", lambda: 80)
    serving = serve(Trust(SECRET))
    calls = Calls(serving.address, Trust(SECRET))
    hosts = calls.stream("Session", Talking(someone()), calls.knock())
    assert codec.joined(next(iter(hosts))).job == "j"
    host, port = serving.address.split(":")
    before, silent = len(os.listdir("/proc/self/fd")), []
    for _ in range(200):
        silent.append(socket.create_connection((host, int(port)), timeout=30))
    settled = time.monotonic() + 60
    while (taken := len(os.listdir("/proc/self/fd")) - before - len(silent)) > 50 and time.monotonic() < settled:
        time.sleep(0.05)
    assert taken <= 50
    assert calls.call("Status", pb.StatusRequest()).hosts[0].connected  # who is in stays in
    hosts.cancel()
    for sock in silent:
        sock.close()


def frame(kind: int, data: bytes) -> bytes:
    """One of HTTP/2's, of no stream."""
    return len(data).to_bytes(3, "big") + bytes([kind, 0]) + bytes(4) + data


def test_what_strangers_have_grpc_say_cannot_pass_for_lines_of_somebody_else(hosts):
    hosts.start("--nodes", 1, body="print('done')")
    host, port = hosts.address.rsplit(":", 1)
    goodbye = bytes(4) + (2).to_bytes(4, "big") + b"\x1b]0;owned\x07\nmeshrt launch: the job succeeded \xff"
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"") + frame(7, goodbye))
        line = hosts.until("owned")
    assert line.startswith("meshrt launch: gRPC says: ") and r"\x1b]0;owned\x07" in line
    hosts.agent("a")
    result = hosts.finish()
    assert result.code == 0 and "\nmeshrt launch: the job succeeded" not in result.err and "\x1b" not in result.err


def test_who_has_a_certificate_of_another_job_is_told_of_in_plain_words(hosts, tmp_path):
    certificates.make(tmp_path / "ours", "j", 1.0)
    certificates.make(tmp_path / "theirs", "k", 1.0)
    hosts.start("--nodes", 1, "--tls", "ours", body="print('done')")
    foreign = certificates.read(tmp_path / "theirs", "agent")
    trusting = certificates.Certificates((tmp_path / "ours" / "ca.pem").read_bytes(), foreign.certificate, foreign.key)
    with pytest.raises(grpc.RpcError):
        Calls(hosts.address, Trust(SECRET, trusting)).knock()
    line = hosts.until("somebody was not let in")
    assert line.startswith("meshrt launch: somebody was not let in, as the TLS handshake failed: CERTIFICATE_VERIFY_")
    hosts.agents["a"] = hosts.command("agent", "--name", "a", "--tls", "ours")
    assert hosts.finish().code == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("I1128 04:50:27.749859   13924 a_b.cc:25] x \x1b[1m", r"gRPC says: x \x1b[1m"),
        ("meshrt launch: x", "gRPC says: meshrt launch: x"),
        ("", ""),
        (
            "I1128 04:50:27.7  1 ssl.cc:2] Handshake failed with error SSL: error:1:SSL routines:OPENSSL_internal:W: v",
            "somebody was not let in, as the TLS handshake failed: W: v",
        ),
    ],
    ids=["control", "other", "empty", "tls"],
)
def test_lines_of_grpc_in_words(line, words):
    assert library_words.told(line) == words


class Talking:
    """What an agent says that joins and stays."""

    def __init__(self, request: pb.JoinRequest):
        self._said = iter([pb.AgentMessage(join=request)])

    def __iter__(self):
        return self

    def __next__(self) -> pb.AgentMessage:
        for message in self._said:
            return message
        time.sleep(0.2)
        return codec.from_up(Beat(time.monotonic()))


@pytest.mark.slow
def test_who_says_nothing_is_let_go(serve):
    serving = serve(Trust(SECRET))
    host, port = serving.address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        while sock.recv(4096):  # gRPC greets first
            pass


# --- certificates.


def test_with_certificates_only_those_of_the_same_job_get_in(serve, tmp_path):
    certificates.make(tmp_path / "ours", "j", 1.0)
    certificates.make(tmp_path / "theirs", "k", 1.0)
    certificates.make(tmp_path / "old", "j", -0.002)
    serving = serve(Trust("", certificates.read(tmp_path / "ours", "coordinator")))
    ours = Calls(serving.address, Trust("", certificates.read(tmp_path / "ours", "agent")))
    assert join(ours, someone()).job == "j"
    old = certificates.Certificates(
        *((tmp_path / "old" / n).read_bytes() for n in ("ca.pem", "agent.pem", "agent.key"))
    )
    for certificate in (None, certificates.read(tmp_path / "theirs", "agent"), old):
        with pytest.raises(grpc.RpcError) as error:
            Calls(serving.address, Trust("", certificate)).call("Status", pb.StatusRequest())
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert ours.call("Status", pb.StatusRequest()).job == "j"
    impostor = serve(Trust("", certificates.read(tmp_path / "ours", "agent")))  # what an agent has makes no coordinator
    with pytest.raises(grpc.RpcError) as error:
        Calls(impostor.address, Trust("", certificates.read(tmp_path / "ours", "agent"))).knock()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_who_has_other_certificates_reads_why_and_no_words_of_the_network_library(serve, tmp_path):
    certificates.make(tmp_path / "ours", "j", 1.0)
    certificates.make(tmp_path / "theirs", "k", 1.0)
    serving = serve(Trust("", certificates.read(tmp_path / "ours", "coordinator")))
    command = [sys.executable, "-m", "meshrt", "launch", "status", "--coordinator", serving.address, "--tls", "theirs"]
    asked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 2 and asked.stderr.splitlines() == [
        f"meshrt: error: no coordinator answers at {serving.address} (CERTIFICATE_VERIFY_FAILED: unable to get local "
        "issuer certificate); the certificates of the two sides are not of one job, or have expired"
    ], asked.stderr


def test_certificates_are_private_dated_and_never_written_over(tmp_path):
    certificates.make(tmp_path, "j", 1.0)
    assert (tmp_path / "agent.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists already"):
        certificates.make(tmp_path, "j", 1.0)
    (tmp_path / "agent.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"others can read it \(mode 0644\); do: chmod 600"):
        certificates.read(tmp_path, "agent")
    certificates.make(tmp_path / "old", "j", -0.002)
    with pytest.raises(ConfigError, match=r"the certificate counts from .* UTC, and it is .* make new ones"):
        certificates.read(tmp_path / "old", "agent")
    (tmp_path / "ca.pem").write_text("x")
    with pytest.raises(ConfigError, match="it is no certificate"):
        certificates.read(tmp_path, "coordinator")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ca.pem", "agent.pem: it was not signed by the authority of .*ca.pem: the files are of different jobs"),
        ("agent.pem", "agent.pem: it was not signed by the authority of .*ca.pem: the files are of different jobs"),
        ("agent.key", "agent.key: it is not the key of .*agent.pem: the files are of different jobs"),
    ],
)
def test_a_folder_with_files_of_two_jobs_is_refused_where_it_is_read(tmp_path, name, words):
    for folder in ("ours", "theirs"):
        certificates.make(tmp_path / folder, "j", 1.0)
    (tmp_path / "ours" / name).write_bytes((tmp_path / "theirs" / name).read_bytes())
    with pytest.raises(ConfigError, match=words):
        certificates.read(tmp_path / "ours", "agent")
    (tmp_path / "theirs" / "agent.key").write_text("x")
    with pytest.raises(ConfigError, match="it is no private key without a password"):
        certificates.read(tmp_path / "theirs", "agent")


def test_who_is_not_let_in_by_its_certificate_reads_that_it_may_be_that(serve, tmp_path):
    certificates.make(tmp_path / "ours", "j", 1.0)
    certificates.make(tmp_path / "theirs", "k", 1.0)
    serving = serve(Trust("", certificates.read(tmp_path / "ours", "coordinator")))
    foreign = certificates.read(tmp_path / "theirs", "agent")
    trusting = certificates.Certificates((tmp_path / "ours" / "ca.pem").read_bytes(), foreign.certificate, foreign.key)
    for trust in (Trust("", trusting), Trust()):
        with pytest.raises(grpc.RpcError) as error:
            Calls(serving.address, trust).knock()
        assert "or the certificate of this side is of another job" in str(unreachable(serving.address, error.value))


# --- secrets.


def test_secrets_come_from_the_environment_or_a_private_file(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    assert read_secret({"MESHRT_JOB_SECRET_FILE": str(file)}) == SECRET
    assert read_secret({"MESHRT_JOB_SECRET": SECRET, "MESHRT_JOB_SECRET_FILE": "nowhere"}) == SECRET
    assert read_secret({}) == ""
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read it"):
        read_secret({"MESHRT_JOB_SECRET_FILE": str(file)})
    with pytest.raises(ConfigError, match=r"MESHRT_JOB_SECRET_FILE=.*: cannot be read: No such file"):
        read_secret({"MESHRT_JOB_SECRET_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="shorter than 16 characters"):
        read_secret({"MESHRT_JOB_SECRET": "short"})


# --- as a user meets it.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["coordinator", "SCRIPT"], "--nodes MIN[:MAX]: how many hosts does the job have?"),
        (["coordinator", "--nodes", "2:1", "SCRIPT"], "nodes = 2:1: the fewest hosts are more than the most"),
        (["coordinator", "--nodes", "x", "SCRIPT"], "nodes = 'x': expected a number of hosts"),
        (["coordinator", "--nodes", "2", "none.py"], "none.py: no such script"),
        (["coordinator", "--nodes", "2", "--listen", "0.0.0.0:0", "SCRIPT"], "0.0.0.0 can be reached from other"),
        (["coordinator", "--nodes", "2", "--tls", "none", "SCRIPT"], "none/ca.pem: cannot"),
        (["coordinator", "--nodes", "2", "--journal", "SCRIPT", "SCRIPT"], "it is no journal of a job"),
        (["coordinator", "--nodes", "2", "--engine", "ssh", "SCRIPT"], "engine = 'ssh': a coordinator waits"),
        (["certificates", ""], "expected the name of a folder"),
        (["agent"], "Missing option '--coordinator'"),
        (["agent", "--coordinator", "127.0.0.1:1", "--address", "a b"], "'a b' is no name or address of a host"),
        (["agent", "--coordinator", "nowhere"], "'nowhere' is not an address"),
        (["agent", "--coordinator", "203.0.113.7:1"], "203.0.113.7 can be reached from other machines"),
        (["agent", "--coordinator", "127.0.0.1:1", "--name", "a b"], "'a b' is no name of a host"),
        (["agent", "--coordinator", "127.0.0.1:1", "--join-timeout", "0.5"], "no coordinator let this host in"),
        (["status", "--coordinator", "127.0.0.1:1"], "no coordinator answers at 127.0.0.1:1 (Connection refused); it"),
        (["logs", "--coordinator", "127.0.0.1:1"], "no coordinator answers at 127.0.0.1:1"),
        (["stop", "--coordinator", "127.0.0.1:1"], "no coordinator answers at 127.0.0.1:1"),
        (["--nodes", "2", "--engine", "none", "SCRIPT"], "engine = 'none'"),
    ],
)  # fmt: skip
def test_a_users_mistakes_end_in_one_line(tmp_path, monkeypatch, capfd, arguments, words):
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    monkeypatch.chdir(tmp_path)
    for name in ("MESHRT_JOB_SECRET", "MESHRT_JOB_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as caught:
        main(["launch", *(str(script) if a == "SCRIPT" else a for a in arguments)])
    said = capfd.readouterr()
    assert caught.value.code in (1, 2) and "Traceback" not in said.err
    assert words in said.err.splitlines()[-1]
    assert len(said.err.splitlines()) <= 2 and "ran" not in said.out


@pytest.mark.parametrize("command", ["agent", "status"])
def test_port_0_is_nowhere(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["launch", command, "--coordinator", "127.0.0.1:0"])
    assert ended.value.code == 2 and "nothing can be reached at port 0" in capsys.readouterr().err
