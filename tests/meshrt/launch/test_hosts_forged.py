"""What somebody on the network between an agent and its coordinator can forge, where a secret has to do."""

from __future__ import annotations

import time
from concurrent import futures

import pytest

pytest.importorskip("grpc")

import grpc

from meshrt.errors import DistributedError
from meshrt.launch.hosts.agent import versions
from meshrt.launch.hosts.calls import Calls
from meshrt.launch.hosts.link import Broken, Gone, Link, Opened
from meshrt.launch.hosts.messages import Applicant, RefusedError
from meshrt.launch.hosts.outbound import Outbound
from meshrt.launch.hosts.security import Trust
from meshrt.launch.hosts.signing import AlteredError, Seal
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.hosts.wire import coordinator_pb2_grpc as stubs
from tests.meshrt.launch.test_hosts_strangers import SECRET, serve, someone
from tests.meshrt.launch.test_hosts_strangers import join as let_in

__all__ = ["serve"]

WHO = Applicant("a", "127.0.0.1", "abc", versions())


class Forger(stubs.CoordinatorServicer):
    """Stands on the way: lets knocks through, and answers the rest as `act` does with the true coordinator's stub."""

    def __init__(self, address, act):
        self._true = stubs.CoordinatorStub(grpc.insecure_channel(address))
        self._act = act
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        stubs.add_CoordinatorServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Knock(self, request, context):
        return self._true.Knock(request)

    def Session(self, requests, context):
        yield from self._act(self._true, requests, context)

    def Logs(self, request, context):
        yield from self._act(self._true, request, context)

    def close(self):
        self._server.stop(0)


@pytest.fixture
def forge():
    made = []

    def start(address, act):
        made.append(Forger(address, act))
        return made[-1].address

    yield start
    for forger in made:
        forger.close()


def refuse(code, *metadata):
    def act(true, request, context):
        context.set_trailing_metadata(metadata)
        context.abort(code, "leave")

    return act


def join(address, request, trust=None):
    """The refusal of a join, if it is believed."""
    calls = Calls(address, trust or Trust(SECRET))
    try:
        let_in(calls, request)
    except grpc.RpcError as e:
        return calls.refusal(e)
    finally:
        calls.close()
    raise AssertionError("it was let in")


def test_a_refusal_of_the_coordinator_is_believed_and_one_of_somebody_else_is_not(serve, forge):
    true = serve(Trust(SECRET)).address
    bad = someone("no name")
    assert "is no name of a host" in str(join(true, bad))
    for code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION):
        assert join(forge(true, refuse(code)), someone()) is None

    def again(stub, request, context):  # a refusal that the coordinator has given for another call
        calls = Calls(true, Trust(SECRET))
        with pytest.raises(grpc.RpcError) as caught:
            let_in(calls, bad)
        context.set_trailing_metadata([m for m in caught.value.trailing_metadata() if m[0].startswith("meshrt")])
        context.abort(caught.value.code(), caught.value.details())

    assert join(forge(true, again), someone()) is None


def test_who_proves_nothing_gets_no_refusal_made_for_the_call_of_another(serve):
    calls = Calls(serve(Trust(SECRET)).address, Trust(SECRET))
    nonce = calls.knock()
    with pytest.raises(grpc.RpcError) as caught:
        proofs = (("meshrt-nonce", nonce), ("meshrt-proof", "00"))
        list(calls._stub.Session(iter([pb.AgentMessage(join=someone())]), metadata=proofs))
    assert not [key for key, _ in caught.value.trailing_metadata() if key.startswith("meshrt")]


def test_without_a_secret_refusals_are_as_they_come(serve):
    assert "is no name of a host" in str(join(serve(Trust()).address, someone("no name"), Trust()))


def test_an_agent_goes_on_trying_whatever_is_forged_and_leaves_for_its_coordinator(serve, forge):
    true, news = serve(Trust(SECRET)).address, []
    forged = forge(true, refuse(grpc.StatusCode.ABORTED))
    link = Link(forged, Trust(SECRET), lambda: WHO, news.append, Outbound())
    wait_for(lambda: len(news) >= 2)
    link.close()
    assert all(isinstance(n, Broken) and not n.stale for n in news)  # so it ends nothing of what it runs
    assert "does not prove to know this job's secret" in news[0].why
    taken, other = [], Applicant("a", "127.0.0.2", "other", versions())
    first = Link(true, Trust(SECRET), lambda: WHO, lambda _: None, Outbound())
    wait_for(lambda: serving_hosts(true))
    second = Link(true, Trust(SECRET), lambda: other, taken.append, Outbound())
    wait_for(lambda: taken)
    assert isinstance(taken[0], Gone) and "a host a is in this job already" in str(taken[0].error)
    first.close()
    second.close()


def serving_hosts(address):
    return Calls(address, Trust(SECRET)).call("Status", pb.StatusRequest()).hosts


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_was_in_a_job_does_not_give_it_up_for_one_that_proves_nothing(serve):
    serving, news, trust = serve(Trust(SECRET)), [], Trust(SECRET)
    link = Link(serving.address, trust, lambda: WHO, news.append, Outbound())
    wait_for(lambda: any(isinstance(n, Opened) for n in news))
    link._trust = Trust("another one of that length")  # as if somebody else answered at that address
    link.renew()
    wait_for(lambda: any(isinstance(n, Broken) and "did not prove" in n.why for n in news))
    assert not any(isinstance(n, Gone) for n in news)
    link.close()


def test_an_answer_that_is_cut_short_is_noticed(serve, forge):
    true = serve(Trust(SECRET)).address
    ask = pb.LogsRequest(lines=5)
    assert list(Calls(true, Trust(SECRET)).listen("Logs", ask)) == []
    short = forge(true, lambda stub, request, context: ())
    with pytest.raises(AlteredError, match="what came is not all of it"):
        list(Calls(short, Trust(SECRET)).listen("Logs", ask))
    one, other = Seal(Trust(SECRET), "n", "Logs"), Seal(Trust(SECRET), "n", "Logs")
    one.sign(pb.LogLine())
    with pytest.raises(DistributedError):
        other.check_end(one.end())  # of another number of messages


def test_a_stranger_at_the_first_knock_ends_an_agent_with_a_reason(serve):
    news = []
    link = Link(serve(Trust("another one of that length")).address, Trust(SECRET), lambda: WHO, news.append, Outbound())
    wait_for(lambda: news)
    link.close()
    assert isinstance(news[0], Gone) and isinstance(news[0].error, RefusedError)
