"""The launcher's state machine: which events each phase accepts, and what holds in every state."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshrt.launch import machine
from meshrt.launch.model import (
    CancelRequested,
    CheckpointTold,
    HostJoined,
    HostLeaving,
    HostLost,
    Incident,
    IncidentKind,
    Phase,
    Policy,
    ResizeRequested,
    ServiceExited,
    ServiceReady,
    Start,
    State,
    Timer,
    TimerFired,
    WorkerAttentive,
    WorkerExited,
    WorkerGrowable,
    WorkerJoining,
    WorkerLeft,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.ranks import Ranks
from tests.meshrt.launch.stepping import GLOO, OK

# --- the table.

# Which events each phase accepts, written down a second time.
_ALWAYS = {Timer.JOB, CancelRequested, HostJoined, HostLeaving, HostLost, ResizeRequested}
_WORKERS = {
    WorkerJoining, WorkerMeshed, WorkerAttentive, WorkerGrowable, WorkerLeft, CheckpointTold, WorkerRaised, WorkerLost,
    WorkerExited,
}  # fmt: skip
EXPECTED = {
    Phase.NEW: {Start},
    Phase.GATHERING: _ALWAYS | {Timer.GATHER, Timer.LAST_CALL, Timer.BACKOFF},
    Phase.WAITING: _ALWAYS | {ServiceReady, ServiceExited, Timer.SERVICE},
    Phase.FORMING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.FORM},
    Phase.RUNNING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.REGROW, Timer.GROW, Timer.SHRINK},
    Phase.REGROUPING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.REGROUP},
    Phase.SETTLING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.SETTLE},
    Phase.STOPPING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.GRACE},
    Phase.KILLING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.KILL},
    Phase.SUCCEEDED: set(),
    Phase.FAILED: set(),
    Phase.CANCELLED: set(),
}
_FIELDS = {
    ServiceReady: {"address": "h:1"}, ServiceExited: {"status": OK}, WorkerJoining: {"rank": 0},
    WorkerMeshed: {"rank": 0}, WorkerRaised: {"rank": 0, "error": GLOO}, WorkerExited: {"rank": 0, "status": OK},
    WorkerLost: {"rank": 0, "why": "silent"}, CancelRequested: {"signal": 2}, WorkerAttentive: {"rank": 0},
    WorkerGrowable: {"rank": 0}, WorkerLeft: {"rank": 0},
    CheckpointTold: {"step": 10, "committed": True},
    HostJoined: {"host": "a"}, HostLost: {"host": "a", "why": "silent"}, HostLeaving: {"host": "a", "why": "asked"},
    ResizeRequested: {"nodes": 2},
}  # fmt: skip


def make(kind):
    if isinstance(kind, Timer):
        return TimerFired(id=7, at=1.0, timer=kind)
    return kind(id=7, at=1.0, **_FIELDS.get(kind, {}))


def test_the_table_holds_exactly_the_expected_pairs():
    assert set(EXPECTED) == set(Phase)
    assert set(machine.TABLE) == {(phase, kind) for phase, kinds in EXPECTED.items() for kind in kinds}


@pytest.mark.parametrize("phase", Phase, ids=lambda p: p.value)
def test_an_absent_pair_is_an_error_that_names_both(phase):
    for kind in set(machine.EVENT_KINDS) - EXPECTED[phase]:
        with pytest.raises(machine.InvalidTransitionError, match=rf"(?s)met .*id=7.* while {phase.value} "):
            machine.step(replace(State(Policy(1)), phase=phase), make(kind))


def test_the_glossary_of_phases_is_complete():
    text = (Path(machine.__file__).parent / "README.md").read_text()
    section = text.partition("## Phases")[2].partition("\nPromises")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == {p.value for p in Phase}


# --- what holds in every state.

_SOUND: dict[Phase, dict] = {
    Phase.NEW: {},
    Phase.GATHERING: {},
    Phase.WAITING: {"service_live": True},
    Phase.FORMING: {"service_live": True, "live": {0, 1}, "joining": {0}},
    Phase.RUNNING: {"service_live": True, "live": {1}, "finished": {0}, "meshed": {0, 1}},
    Phase.REGROUPING: {"service_live": True, "live": {1}, "incident": Incident(IncidentKind.WORKER, 0, 0.0, 0)},
    Phase.SETTLING: {"service_live": True, "live": {1}, "incident": Incident(IncidentKind.WORKER, 0, 0.0, 0)},
    Phase.STOPPING: {"service_live": True},
    Phase.KILLING: {"live": {0}},
    Phase.SUCCEEDED: {"finished": {0, 1}},
    Phase.FAILED: {"live": {1}, "incident": Incident(IncidentKind.WORKER, 0, 0.0, 0)},
    Phase.CANCELLED: {"incident": Incident(IncidentKind.CANCEL, 0, 0.0, 0)},
}


def sound(phase, **changes):
    fields = {k: Ranks(v) if isinstance(v, set) else v for k, v in {**_SOUND[phase], **changes}.items()}
    return State(Policy(2), phase=phase, **fields)


@pytest.mark.parametrize("phase", Phase, ids=lambda p: p.value)
def test_a_sound_state_of_each_phase_passes(phase):
    machine.check(sound(phase))


@pytest.mark.parametrize(
    ("phase", "changes", "rule"),
    [
        (Phase.RUNNING, {"finished": {0, 1}}, "live and finished ranks are apart"),
        (Phase.RUNNING, {"live": {1, 2}}, "ranks are in range"),
        (Phase.RUNNING, {"finished": {2}}, "ranks are in range"),
        (Phase.FORMING, {"joining": {2}}, "ranks are in range"),
        (Phase.FORMING, {"meshed": {5}}, "ranks are in range"),
        (Phase.SUCCEEDED, {"service_live": True}, "workers are never left in a final phase"),
        (Phase.CANCELLED, {"live": {0}}, "workers are never left in a final phase"),
        (Phase.NEW, {"live": {0}}, "no worker before the service is ready"),
        (Phase.WAITING, {"live": {0}}, "no worker before the service is ready"),
        (Phase.FORMING, {"service_live": False}, "workers run only beside a service"),
        (Phase.RUNNING, {"service_live": False}, "workers run only beside a service"),
        (Phase.RUNNING, {"live": set()}, "workers run only beside a service"),
        (Phase.REGROUPING, {"live": set()}, "workers run only beside a service"),
        (Phase.REGROUPING, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.SETTLING, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.FAILED, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.CANCELLED, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.NEW, {"generation": 1}, "the restart budget is kept"),
        (Phase.SUCCEEDED, {"finished": {1}}, "success means all finished"),
        (Phase.WAITING, {"service_live": False}, "something is left to wait for"),
        (Phase.STOPPING, {"service_live": False}, "something is left to wait for"),
        (Phase.KILLING, {"live": set()}, "something is left to wait for"),
    ],
)
def test_a_broken_promise_is_named_alone(phase, changes, rule):
    with pytest.raises(machine.InternalError) as found:
        machine.check(sound(phase, **changes))
    broken = str(found.value).removeprefix("the launcher's state breaks: ").partition(": State(")[0]
    assert broken.startswith(rule) and ";" not in broken
