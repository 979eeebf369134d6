"""Ten thousand agents, simulated, on one coordinator over real gRPC: how long they take to join, what they cost.

python -m benchmarks.fleet [--agents N] [--seconds S]

The agents are coroutines of some processes beside the coordinator's; each joins, opens a session and beats as a real
one does. `make bench-launch` prints the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import grpc.aio

from meshrt import _collection
from meshrt.launch.hosts import codec
from meshrt.launch.hosts.agent import versions
from meshrt.launch.hosts.engine import HostsEngine
from meshrt.launch.hosts.fleet import BEAT_S
from meshrt.launch.hosts.messages import Applicant, Beat
from meshrt.launch.hosts.security import Trust
from meshrt.launch.hosts.server import Server
from meshrt.launch.hosts.signing import Seal
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.hosts.wire import coordinator_pb2_grpc as stubs
from meshrt.launch.membership import frames

SECRET = "a secret of the benchmark"
VERSIONS = versions()
STUCK_S = 120.0  # without one more agent that is in; how long all of them take depends on what else the machine does
PROCESSES = 2  # that simulate agents
CHANNEL = 500  # agents on one connection: this machine has not the descriptors for one each
_players: list[subprocess.Popen[bytes]] = []


def coordinate(count: int, seconds: float) -> NoReturn:
    """Serves until all have joined and `seconds` more; tells the seconds to join and of its CPU for that, cores and MB
    used, hosts that were lost."""
    engine = HostsEngine(VERSIONS, lambda text: None)
    server = Server(engine, Trust(SECRET), "127.0.0.1", 0, "bench", os.getcwd(), "bench", lambda text: None)
    address = server.start()
    wake, _ = os.pipe()
    lost = joined = 0
    threading.Thread(target=_spawn, args=(address, count), daemon=True).start()
    started, before = time.monotonic(), time.process_time()
    joined_at = used = None
    most, grown_at = 0, started
    while joined_at is None or time.monotonic() < joined_at + seconds:
        for report in engine.wait(0.2, wake):
            kind = type(report).__name__
            joined, lost = joined + (kind == "HostUp"), lost + (kind == "HostDown")
        if joined_at is None:
            if joined - lost > most:
                most, grown_at = joined - lost, time.monotonic()
            if joined >= count and sum(connected for _, _, connected, *_ in engine.hosts()) >= count:
                joined_at, used = time.monotonic(), time.process_time()
            elif time.monotonic() > grown_at + STUCK_S:
                _leave(f"no more than {most} of {count} agents were in at once, for {STUCK_S:g} s; {lost} were lost", 1)
    cores = (time.process_time() - (used or 0.0)) / seconds
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {
        "join s": (joined_at or time.monotonic()) - started, "join CPU s": (used or 0.0) - before, "cores": cores,
        "MB": memory, "lost": float(lost),
    }  # fmt: skip
    _leave(json.dumps(found), 0)


def _leave(words: str, code: int) -> NoReturn:
    """Ends the agents, and this process without a farewell to each of them."""
    print(words, flush=True)
    for player in _players:
        player.kill()
    os._exit(code)


def _spawn(address: str, count: int) -> None:
    each = count // PROCESSES
    command = [sys.executable, "-m", "benchmarks.fleet", "--play", address]
    for number in range(PROCESSES):
        _players.append(subprocess.Popen([*command, "--agents", str(each), "--first", str(number * each)]))


def play(address: str, first: int, count: int) -> None:
    """Simulates `count` agents, until the coordinator ends."""
    asyncio.run(_play(address, first, count))


async def _play(address: str, first: int, count: int) -> None:
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(0, count, CHANNEL)
    ]
    mine = [stubs.CoordinatorStub(channel) for channel in channels]
    at_once = asyncio.Semaphore(64)
    await asyncio.gather(*(_agent(mine[i // CHANNEL], f"h{first + i}", at_once) for i in range(count)))


async def _agent(stub: Any, name: str, at_once: asyncio.Semaphore) -> None:
    def proof(method: str, digest: str, nonce: str) -> tuple[tuple[str, str], ...]:
        return ("meshrt-nonce", nonce), ("meshrt-proof", frames.proof(SECRET, "call", nonce, method, digest))

    while True:  # as a real one does, whatever broke
        try:
            await _live(stub, name, at_once, proof)
        except grpc.aio.AioRpcError:
            pass
        await asyncio.sleep(0.5)


async def _live(
    stub: Any, name: str, at_once: asyncio.Semaphore, proof: Callable[[str, str, str], tuple[tuple[str, str], ...]]
) -> None:
    async with at_once:
        nonce = (await stub.Knock(pb.KnockRequest(nonce="x"))).nonce
        session = stub.Session(metadata=proof("Session", "stream", nonce))
        up = Seal(Trust(SECRET), nonce, "Session", "up")
        join = codec.from_applicant(Applicant(name, "127.0.0.1", f"i{name}", VERSIONS))
        await session.write(up.sign(pb.AgentMessage(join=join)))
        if (first := await session.read()) is grpc.aio.EOF:
            return
        joined = codec.joined(first)
    answers = asyncio.ensure_future(_listen(session, beat := [joined.beat_s]))
    if joined.beat_s > BEAT_S:
        await asyncio.sleep(joined.beat_s)
    while not answers.done():
        try:
            await session.write(up.sign(codec.from_up(Beat(time.monotonic()))))
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            return  # it was lost; the coordinator's process counts those
        await asyncio.sleep(beat[0])


async def _listen(session: Any, beat: list[float]) -> None:
    try:
        while (answer := await session.read()) is not grpc.aio.EOF:
            if answer.HasField("alive"):
                beat[0] = answer.alive.beat_s
    except grpc.aio.AioRpcError:
        return


def measure(count: int, seconds: float) -> dict[str, float]:
    """The figures of a coordinator with `count` agents, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fleet", "--agents", str(count), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="to watch when all have joined")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        play(options.play, options.first, options.agents)
        return
    with _collection.seldom():  # as a coordinator does
        coordinate(options.agents, options.seconds)


if __name__ == "__main__":
    main()
