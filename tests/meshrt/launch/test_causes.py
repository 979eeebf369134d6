"""Which of several failures was the first, and which are echoes of it."""

from __future__ import annotations

import pytest

from meshrt.launch.causes import LOST_PEER, LOST_SERVICE, echo_of, first_cause
from meshrt.launch.model import ExitStatus, Failure, WorkerError
from tests.meshrt.launch.stepping import GLOO


@pytest.mark.parametrize(
    ("status", "error", "tail", "expected"),
    [
        (ExitStatus(code=1), GLOO, (), LOST_PEER),
        (ExitStatus(code=1), WorkerError("RuntimeError", "step failed", (*GLOO.message.splitlines(), "the above")), (),
         LOST_PEER),
        (ExitStatus(code=1), WorkerError("ValueError", "x"), (GLOO.message,), None),
        (ExitStatus(code=1), None, (GLOO.message,), LOST_PEER),
        (ExitStatus(signal=6), None, ("JAX distributed service detected fatal errors.",), LOST_SERVICE),
        (ExitStatus(signal=9), None, (GLOO.message,), None),
        (ExitStatus(signal=11), None, (), None),
    ],
)  # fmt: skip
def test_echoes_are_recognised(status, error, tail, expected):
    assert echo_of(status, error, tail) == expected


def test_the_earliest_is_the_cause_if_all_are_echoes():
    failures = (Failure(1, 2.0, consequence=LOST_PEER), Failure(0, 1.0, consequence=LOST_PEER))
    assert first_cause(failures).rank == 0
    assert first_cause(()) is None
