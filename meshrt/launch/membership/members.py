"""What the roster knows of a process, and of a program that processes are about to agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Agreement", "Member"]


@dataclass(slots=True)
class Member:
    """A process that has joined."""

    process: int
    rank: int  # the number that it came with, by which the launcher knows it
    about: Mapping[str, Any]  # host, pid, versions
    heard_at: float
    doing: Mapping[str, Any] = field(default_factory=dict)
    launched: dict[str, int] = field(default_factory=dict)
    waiting_since: dict[str, float] = field(default_factory=dict)  # per circle, while a program is pending
    finished: bool = False  # its script ended
    gone: bool = False  # and its process too
    regrouping: bool = False
    computed: tuple[float, float] | None = None  # since it is silent: when, and for how many seconds it had computed
    port: int | None = None  # on which its peers reach it in collectives

    @property
    def name(self) -> str:
        """For people."""
        return f"process {self.process} (host {self.about.get('host', '?')}, pid {self.about.get('pid', '?')})"

    @property
    def at(self) -> str:
        """What it does, as far as it has said so."""
        return self.doing.get("text") or "at work"


@dataclass(slots=True)
class Agreement:
    """What the processes of a circle say about its next new program."""

    since: float
    records: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    texts: dict[int, str | None] = field(default_factory=dict)  # of those that were asked for the program's text
    asked: tuple[int, ...] = ()
