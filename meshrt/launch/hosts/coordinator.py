"""`meshrt launch coordinator`: the launcher's shell over an engine whose processes run on other hosts."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meshrt import _collection
from meshrt.launch import open_files, shell
from meshrt.launch.address import split_address
from meshrt.launch.hosts import library_words
from meshrt.launch.hosts.agent import versions
from meshrt.launch.hosts.engine import HostsEngine
from meshrt.launch.hosts.journal import Journal
from meshrt.launch.hosts.security import Trust
from meshrt.launch.hosts.server import Server
from meshrt.launch.model import FINAL
from meshrt.launch.noise import Sparing
from meshrt.launch.output import Console

__all__ = ["Fates", "Options", "Placing", "run"]

_PLAIN = (
    "meshrt launch: who joins must know the secret, and what is said is signed, but not encrypted: where others can "
    "listen on this network, use --tls (`meshrt launch certificates`)"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked of a coordinator. `listen` is HOST:PORT, port 0 any free one; `journal` a file from which
    another coordinator can go on."""

    listen: str
    trust: Trust
    journal: Path | None = None
    lease_s: float | None = None


class Fates(Protocol):
    """Who is told what becomes of agents."""

    def agent_ended(self, name: str, why: str) -> None:
        """The agent of this name has ended, and everything with it."""
        ...

    def ask_stop(self, why: str) -> None:
        """The job is to end, and why: no agent can come any more."""
        ...


# What puts agents on hosts, if the coordinator is to do that: given its address; ends them all when it is left.
Placing = Callable[[str, Fates], AbstractContextManager[None]]


def run(job: shell.Job, options: Options, console: Console | None = None, place: Placing | None = None) -> int:
    """Runs the job over the agents that join; gives its exit code. From the main thread only.

    Raises:
      ConfigError: it cannot listen, strangers could reach it and nothing keeps them out, the journal is of another job.
    """
    console = console or Console()
    host, port = split_address(options.listen)
    options.trust.check_address(host)
    command = shlex.join((*job.target[1:], *job.arguments))
    say = _Said(console)
    open_files.raised()  # each host has a connection
    journal = Journal(options.journal, _what(job), say.notice)
    engine = HostsEngine(versions(), say.notice, journal.expected, options.lease_s)
    server = Server(
        engine, options.trust, host, port or int(journal.header.get("port", 0)), journal.job, os.getcwd(), command,
        say.stranger,
    )  # fmt: skip
    with library_words.apart(console, say.stranger):
        return _serve(job, options, console, place, engine, server, journal)


def _serve(
    job: shell.Job, options: Options, console: Console, place: Placing | None, engine: HostsEngine, server: Server,
    journal: Journal,
) -> int:  # fmt: skip
    address = server.start()
    try:
        journal.note(port=split_address(address)[1])
        if options.trust.is_plain(split_address(options.listen)[0]):
            console.say(_PLAIN)
        if place is None:
            console.say(
                f"meshrt launch: the coordinator listens; on each host: meshrt launch agent --coordinator {address}"
            )
        with _collection.seldom(), nullcontext() if place is None else place(address, engine):
            code = shell.run(job, console, engine, record=journal, watch=engine.watch)
    finally:
        engine.close()
        server.stop()
    if engine.state is not None and engine.state.phase in FINAL:
        journal.finish()
    return code


def _what(job: shell.Job) -> Mapping[str, Any]:
    """What must be the same for a coordinator that takes up a job."""
    settings = job.settings
    return {
        "target": list(job.target), "arguments": list(job.arguments), "nproc": settings.nproc,
        "nodes": list(settings.nodes or ()), "max_restarts": settings.max_restarts, "env": dict(settings.env),
    }  # fmt: skip


class _Said:
    """What people are told beside the job's own lines."""

    def __init__(self, console: Console):
        self._console = console
        self.stranger = Sparing(self.notice, later=_later)  # something that a caller did

    def notice(self, text: str) -> None:
        """Something of the job's own."""
        self._console.say(f"meshrt launch: {text}")


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True  # no job waits for it
    timer.start()
