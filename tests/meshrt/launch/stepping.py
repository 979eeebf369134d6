"""The launcher's state machine, stepped by hand: events with rising ids and times."""

from __future__ import annotations

import itertools
import signal

from meshrt.launch import machine
from meshrt.launch.model import (
    Event,
    ExitStatus,
    Phase,
    Policy,
    ServiceReady,
    SetTimer,
    Start,
    State,
    WorkerError,
    WorkerJoining,
    WorkerMeshed,
)

OK = ExitStatus(code=0)
TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)
GLOO = WorkerError("JaxRuntimeError", "UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:7597")


class Driver:
    """Feeds events with rising ids and times, checks the promises, and keeps all commands."""

    def __init__(self, **policy):
        self.state = State(Policy(**{"num_processes": 2, **policy}))
        self._ids = itertools.count()
        self.now = 0.0

    def __call__(self, kind: type[Event], **fields):
        self.now += 0.1
        event = kind(id=next(self._ids), at=self.now, **fields)
        self.state, commands = machine.step(self.state, event)
        machine.check(self.state)
        assert all(c.cause == event.id for c in commands)
        self.clocks = {c.timer: c.seconds for c in commands if isinstance(c, SetTimer)}
        return [c for c in commands if not isinstance(c, SetTimer)]

    def running(self):
        self(Start)
        self(ServiceReady, address="h:1")
        for rank in range(self.state.policy.num_processes):
            self(WorkerJoining, rank=rank)
            self(WorkerMeshed, rank=rank)
        assert self.state.phase is Phase.RUNNING
        return self


def kinds(commands):
    return [type(c) for c in commands]
