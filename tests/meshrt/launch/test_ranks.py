"""Sets of ranks: as Python's frozen sets, at a cost that does not grow with the job."""

from __future__ import annotations

import operator
import time

from hypothesis import given
from hypothesis import strategies as st

from meshrt.launch import machine
from meshrt.launch.model import (
    ExitStatus,
    HostJoined,
    Phase,
    Policy,
    ServiceReady,
    Start,
    State,
    WorkerExited,
    WorkerJoining,
    WorkerMeshed,
)
from meshrt.launch.ranks import Ranks

SETS = st.frozensets(st.integers(0, 200), max_size=12)


@given(SETS, SETS, st.integers(-2, 210))
def test_they_are_frozen_sets(one, other, rank):
    for operation in (operator.or_, operator.and_, operator.sub):
        want = operation(one, other)
        for found in (operation(Ranks(one), other), operation(Ranks(one), Ranks(other)), operation(one, Ranks(other))):
            assert found == want and want == found and list(found) == sorted(want) and isinstance(found, Ranks)
    assert (Ranks(one) <= other) == (one <= other) and (Ranks(one) == Ranks(other)) == (one == other)
    assert (rank in Ranks(one)) == (rank in one) and len(Ranks(one)) == len(one) and bool(Ranks(one)) == bool(one)
    assert hash(Ranks(one)) == hash(one) and Ranks(range(rank)) == Ranks.below(max(0, rank)) == frozenset(range(rank))


def _seconds_per_event(count):
    """Of CPU, for a job on `count` hosts from its service to its last rank's end."""
    state, number = State(Policy(1, nodes=(count, count))), 0

    def step(kind, **fields):
        nonlocal state, number
        number += 1
        state, _ = machine.step(state, kind(id=number, at=float(number), **fields))
        machine.check(state)

    step(Start)
    for host in range(count):
        step(HostJoined, host=f"h{host}")
    step(ServiceReady, address="h:1")
    started, before = time.process_time(), number
    for rank in range(count):
        step(WorkerJoining, rank=rank)
    for rank in range(count):
        step(WorkerMeshed, rank=rank)
    assert state.phase is Phase.RUNNING
    for rank in range(count):
        step(WorkerExited, rank=rank, status=ExitStatus(code=0))
    assert state.phase is Phase.STOPPING
    return (time.process_time() - started) / (number - before)


def test_an_event_of_a_job_of_thousands_costs_what_one_of_hundreds_costs():
    assert min(_seconds_per_event(2000) / _seconds_per_event(250) for _ in range(2)) < 3.5  # 7 with frozen sets
