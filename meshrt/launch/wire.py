"""What workers and the coordination service tell the launcher: one JSON object per line on an inherited pipe.

A worker's script can write anything to that pipe, so a line is read with limits and a bad one ends in
WireError, never in a crash of the launcher. The sending side is in bootstrap.py, which must not import
meshrt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from meshrt.errors import DistributedError
from meshrt.launch.model import WorkerError

LINE_LIMIT = 256 * 1024  # bytes; a deep traceback takes some ten kilobytes
_TEXT_LIMIT = 16 * 1024
_TRACEBACK_LINES = 400


class WireError(DistributedError):
    """A line on the launcher's pipe that is not one of its messages."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The coordination service listens at `address`."""

    address: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The service's door found that a worker is lost to the others, or that they cannot go on because of it; `ended`:
    it has just vanished, which may be all right."""

    rank: int
    why: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Joining:
    """The worker begins to connect."""


@dataclass(frozen=True, slots=True)
class Meshed:
    """The worker is connected; `round` is how often its job has come together before."""

    round: int = 0


@dataclass(frozen=True, slots=True)
class Raised:
    """The worker's script ended by an exception."""

    error: WorkerError


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the worker is: steps, tokens in all, bytes in memory; None where it does not say."""

    step: int
    tokens: int | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Attentive:
    """The worker saves when it gets SIGTERM; `saving`: it was told that it is to, and asked about no step since."""

    saving: bool = False


@dataclass(frozen=True, slots=True)
class Growable:
    """The worker lets others in that are started to join."""


@dataclass(frozen=True, slots=True)
class Left:
    """The worker has left the others, which go on with what it held, and is about to end."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of a step is being written, or is complete."""

    step: int
    committed: bool


Message = Ready | Lost | Joining | Meshed | Raised | Progress | Attentive | Growable | Left | Checkpoint


def decode(line: bytes) -> Message:
    """The message a line holds. WireError says what is wrong with it."""
    if len(line) > LINE_LIMIT:
        raise WireError(f"a message that is longer than the limit of {LINE_LIMIT} bytes: {line[:80]!r}")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise WireError(f"a message that is not JSON ({e}): {line[:80]!r}") from None
    kind = fields.get("kind") if isinstance(fields, dict) else None
    match kind:
        case "ready":
            return Ready(_text(fields, "address"))
        case "lost":
            if not isinstance(rank := fields.get("rank"), int):
                raise WireError(f"the field 'rank' of a 'lost' message is {rank!r}, not a number")
            return Lost(rank, _text(fields, "why"), fields.get("ended") is True)
        case "joining":
            return Joining()
        case "meshed":
            return Meshed(_count(fields, "round") or 0)
        case "raised":
            lines = fields.get("traceback")
            if not isinstance(lines, list) or not all(isinstance(x, str) for x in lines):
                raise WireError("the field 'traceback' of a 'raised' message is not a list of lines")
            trace = tuple(x[:_TEXT_LIMIT] for x in lines[-_TRACEBACK_LINES:])
            return Raised(WorkerError(_text(fields, "type"), _text(fields, "message"), trace))
        case "progress":
            return Progress(_count(fields, "step") or 0, _count(fields, "tokens"), _count(fields, "memory"))
        case "attentive":
            return Attentive(fields.get("saving") is True)
        case "growable":
            return Growable()
        case "left":
            return Left()
        case "checkpoint":
            return Checkpoint(_count(fields, "step") or 0, fields.get("committed") is True)
    raise WireError(f"a message of unknown kind {kind!r}: {line[:80]!r}")


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise WireError(f"the field {name!r} of a {fields['kind']!r} message is {value!r}, not text")
    return value[:_TEXT_LIMIT]


def _count(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63):
        raise WireError(f"the field {name!r} of a {fields['kind']!r} message is {value!r}, not a number")
    return value
