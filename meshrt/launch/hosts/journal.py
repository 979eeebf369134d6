"""What a coordinator writes down as it goes, so that another one can take its place: every event, before it counts.

A file of one JSON object per line, readable by its user only: what the job is, then its events in order. A line that a
kill cut off at the end is dropped; it had no consequences yet. One coordinator at a time has it. Where it cannot be
written any more (a full disk) it is removed: nobody must take up the job as it was then.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, get_type_hints

from meshrt.errors import ConfigError, DistributedError
from meshrt.launch import machine
from meshrt.launch.membership.frames import new_secret
from meshrt.launch.model import Event, ExitStatus, HostJoined, HostLost, Timer, TimerFired, WorkerError

__all__ = ["Journal"]

_FORMAT = 1
_HEADER = b'{"format": '  # how each journal begins
_KINDS = {kind.__name__: kind for kind in (*machine.EVENT_KINDS, TimerFired) if isinstance(kind, type)}
_PARTS: dict[str, type[Any]] = {"ExitStatus": ExitStatus, "WorkerError": WorkerError}


class Journal:
    """The record of one job; `path` None keeps it nowhere. `what` says what the job is: one that says something else
    is not this job's; `warn` is told if the journal ends before the job.

    Raises:
      ConfigError: the file is another job's, is in use, cannot be read or written, or is no journal.
    """

    def __init__(self, path: Path | None, what: Mapping[str, Any], warn: Callable[[str], None] = lambda text: None):
        self._path, self._warn = path, warn
        self._file: FileIO | None = None
        self.header: dict[str, Any] = {
            "format": _FORMAT,
            "what": dict(what),
            "secret": new_secret(),
            "job": new_secret(),
        }
        self.past: list[Event] = []
        if path is None:
            return
        self._file = _owned(path)
        try:
            if path.stat().st_size:
                self._read(path, what)
            _make_private(path)
            if not path.stat().st_size:
                self._append(self.header)
        except OSError as e:
            self._file.close()
            raise ConfigError(f"--journal {path}: cannot be written: {e.strerror}") from None
        except BaseException:
            self._file.close()
            raise

    @property
    def secret(self) -> str:
        """Of the job's ranks."""
        return str(self.header["secret"])

    @property
    def job(self) -> str:
        """The name of this life of the job."""
        return str(self.header["job"])[:12]

    @property
    def expected(self) -> dict[str, str]:
        """The hosts that were in the job, with the incarnations of their agents."""
        hosts: dict[str, str] = {}
        for event in self.past:
            if isinstance(event, HostJoined):
                hosts[event.host] = event.incarnation
            elif isinstance(event, HostLost):
                hosts.pop(event.host, None)
        return hosts

    def note(self, **fields: Any) -> None:
        """Keeps something of the job that was found at its start, as the port."""
        self.header.update(fields)
        self._keep({"header": fields})

    def write(self, event: Event) -> None:
        """Keeps an event."""
        self._keep({"event": type(event).__name__, **_plain(event)})

    def finish(self) -> None:
        """The job is over: nobody takes it up."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _append(self, fields: Mapping[str, Any]) -> None:
        data = json.dumps(fields).encode() + b"\n"
        while self._file is not None and data:
            data = data[self._file.write(data) :]

    def _keep(self, fields: Mapping[str, Any]) -> None:
        try:
            self._append(fields)
        except OSError as e:
            self._end(e)

    def _end(self, error: OSError) -> None:
        why = f"--journal {self._path}: cannot be written: {error.strerror}"
        try:
            self.finish()
        except OSError as e:
            raise DistributedError(
                f"{why}, nor removed: {e.strerror}; the job ends, since somebody could take it up as it was before"
            ) from None
        self._warn(f"{why}. It was removed, and the job goes on: if this coordinator is killed, it starts anew")

    def _read(self, path: Path, what: Mapping[str, Any]) -> None:
        try:
            content = path.read_bytes()
        except OSError as e:
            raise ConfigError(f"--journal {path}: cannot be read: {e.strerror}") from None
        whole = content.rfind(b"\n") + 1  # behind it is what a kill cut off
        if not whole and _HEADER.startswith(content[: len(_HEADER)]):  # it came while the first line was written
            os.truncate(path, 0)
            return
        lines = content[:whole].splitlines()
        try:
            header, *rest = [json.loads(line) for line in lines]
            for fields in rest:
                if "header" in fields:
                    header.update(fields["header"])
                else:
                    self.past.append(_event(fields))
            other = header["format"] != _FORMAT or header["what"] != json.loads(json.dumps(dict(what)))
            target = header["what"].get("target")
        except (ValueError, LookupError, TypeError, AttributeError) as e:
            raise ConfigError(f"--journal {path}: it is no journal of a job ({e}); remove it to start anew") from None
        if other:
            raise ConfigError(
                f"--journal {path}: it is of another job: {target}; give the same command as "
                "before, or remove the file to start anew"
            )
        self.header = header
        os.truncate(path, whole)


def _owned(path: Path) -> FileIO:
    """The file, opened to append, and locked as long as this process lives. ConfigError if another one has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a")
    except OSError as e:
        raise ConfigError(f"--journal {path}: cannot be written: {e.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"--journal {path}: another coordinator writes it; ask it with `meshrt launch status`, or give this job a "
            "journal of its own"
        ) from None
    except OSError:
        return file  # a file system without locks
    return file


def _make_private(path: Path) -> None:
    """For this user only, also a file that was there before: the secret of the ranks is in it."""
    try:
        path.chmod(0o600)
    except OSError as e:
        raise ConfigError(f"--journal {path}: others can read it, and it cannot be changed: {e.strerror}") from None


def _plain(event: Event) -> dict[str, Any]:
    fields = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Timer):
            value = value.value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {"part": type(value).__name__, **dataclasses.asdict(value)}
        fields[field.name] = value
    return fields


def _event(fields: Mapping[str, Any]) -> Event:
    fields = dict(fields)
    kind = _KINDS[fields.pop("event")]
    hints = get_type_hints(kind)
    return kind(**{name: _value(value, hints[name]) for name, value in fields.items()})


def _value(value: Any, hint: Any) -> Any:
    if hint is Timer:
        return Timer(value)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        made = _PARTS[value["part"]]
        return made(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k != "part"})
    return value
