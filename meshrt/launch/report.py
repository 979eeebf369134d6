"""What the launcher says about an incident: the first cause first, then its evidence, then its consequences."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from meshrt.launch.causes import first_cause
from meshrt.launch.model import Announce, Failure, Incident, IncidentKind, Phase, State, signal_name

_TRACEBACK_LINES = 30
_TRACEBACK_HEAD = 7  # the script's own frames come first, what it called last
_TAIL_LINES = 20
_LINE = 2000  # characters: who waits for whom in what takes some hundred
# What has terminals do something: sequences behind an escape, and characters that move the cursor or ring.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def describe(command: Announce, started_at: float) -> str:
    """The report of one incident, several lines. `started_at` is the job's start on the events' clock."""
    incident = command.incident
    after = f"{incident.at - started_at:.1f} s after the start"
    generation = f", generation {incident.generation}" if incident.generation or command.restart else ""
    cause = blamed(incident)
    if cause is None:
        lines = [f"meshrt launch: {without_cause(incident)} ({after}{generation})"]
    else:
        lines = [f"meshrt launch: {_name(cause)} failed first: {_reason(cause)} ({after}{generation})"]
        lines += _evidence(cause) + _hints(incident, cause)
    others = [f for f in incident.failures if f is not cause]
    if others:
        lines.append("  then: " + "; ".join(_consequence(f) for f in others))
    if cause is not None and incident.detail:
        lines.append(f"  {incident.detail}")
    if command.restart is not None:
        lines.append(f"meshrt launch: starting again, generation {command.restart}")
    if command.left is not None:
        ranks = "the rank that is left goes" if command.left == 1 else f"the {command.left} ranks that are left go"
        lines.append(f"meshrt launch: {ranks} on")
    return "\n".join(map(_shown, lines))


def _shown(line: str) -> str:
    """A line for a terminal: what a rank said in it cannot colour, move or hide what stands around it."""
    line = "\n".join(_CONTROL.sub("", part) for part in line.split("\n"))
    return line if len(line) <= _LINE else f"{line[:_LINE]} ... ({len(line)} characters)"


def blamed(incident: Incident) -> Failure | None:
    """The process that ended a generation; None where it was ended for another reason, and its processes with it."""
    return first_cause(incident.failures) if incident.kind in (IncidentKind.WORKER, IncidentKind.SERVICE) else None


def without_cause(incident: Incident) -> str:
    """Why a generation ended for which nobody is to blame."""
    if incident.kind is IncidentKind.CANCEL:
        how = "stopped" if incident.signal is None else f"stopped by {signal_name(incident.signal)}"
        return f"{how}: {incident.detail}" if incident.detail else how
    return incident.detail


def _name(failure: Failure) -> str:
    where = "" if failure.host is None else f" on {failure.host}"
    return ("the coordination service" if failure.rank is None else f"rank {failure.rank}") + where


def _reason(failure: Failure) -> str:
    status = failure.status.describe() if failure.status is not None else "still running"
    if failure.error is None:
        return status
    text = failure.error.message.strip().splitlines()
    first = f": {text[0]}" if text else ""
    return f"{failure.error.type}{first} [{status}]"


def _evidence(failure: Failure) -> list[str]:
    if failure.error is not None and failure.error.traceback:
        return evidence(failure.error.traceback)
    head = ["  its last lines on stderr:"] if failure.error is None and failure.tail else []
    return head + _quoted(failure.tail, _TAIL_LINES, 0)


def evidence(traceback: Sequence[str]) -> list[str]:
    """The lines of a traceback as reports show them."""
    return _quoted(traceback, _TRACEBACK_LINES, _TRACEBACK_HEAD)


def _quoted(lines: Sequence[str], limit: int, first: int) -> list[str]:
    if len(lines) > limit:
        lines = (*lines[:first], f"... {len(lines) - limit} lines left out", *lines[first - limit :])
    return [f"  | {line}" for line in lines]


def _hints(incident: Incident, cause: Failure) -> list[str]:
    hints = []
    if cause.status is not None and cause.status.signal == signal.SIGKILL:
        hints.append("  The launcher did not send this SIGKILL. If nobody did, the kernel was out of memory (dmesg).")
    if cause.consequence is not None:
        hints.append("  No rank reported a failure of its own: each that failed had lost a peer.")
        if incident.left_early:
            ranks = ", ".join(map(str, incident.left_early))
            hints.append(f"  Rank {ranks} had finished with exit code 0 before; do all ranks run the same steps?")
    return hints


def _consequence(failure: Failure) -> str:
    if failure.consequence is None:
        return f"{_name(failure)} failed too: {_reason(failure)}"
    status = f" [{failure.status.describe()}]" if failure.status is not None else ""
    return f"{_name(failure)} {failure.consequence}{status}"


def summary(state: State) -> str:
    """One line at the end, where there is something to say: nothing after an undisturbed success."""
    ending = {Phase.SUCCEEDED: "succeeded", Phase.FAILED: "gave up"}.get(state.phase)
    what = [f"after {state.restarts} restart{'s' if state.restarts > 1 else ''}"] if state.restarts else []
    lost, left = state.departed - state.parted, state.departed & state.parted
    what += [f"without rank {', '.join(map(str, lost))}"] if lost else []
    what += [f"without rank {', '.join(map(str, left))}, which left when asked to"] if left else []
    joined = sorted(set(range(state.first_size, state.size)) - set(state.departed))
    what += [f"with rank {', '.join(map(str, joined))}, which joined later"] if joined else []
    return f"meshrt launch: {ending} {', '.join(what)}" if ending is not None and what else ""


def write_json(state: State, exit_code: int, path: Path) -> None:
    """Everything known of the job: outcome, incidents with all failures, and the story of its phases."""
    last = (state.incident,) if state.incident is not None else ()
    content = {
        "phase": state.phase.value,
        "exit_code": exit_code,
        "restarts": state.restarts,
        "policy": dataclasses.asdict(state.policy),
        "incidents": [dataclasses.asdict(i) for i in (*state.incidents, *last)],
        "story": [dataclasses.asdict(line) for line in state.story],
    }
    path.write_text(json.dumps(content, indent=1, default=_plain) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{value!r} cannot be written as JSON")
