"""This process as a member of its job: a thread that keeps in touch with the door, and what other threads ask of it.

The thread tells once a second that this process lives, how far its programs are and what it does, and hears who is
lost. When somebody is, it breaks off the collectives that wait for them, so that the thread that waits raises PeerLost.
"""

from __future__ import annotations

import base64
import itertools
import os
import select
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from meshrt.distributed.connection import Entrance
from meshrt.distributed.doing import Observer
from meshrt.errors import DistributedError, PeerLost, ProgramsDifferError
from meshrt.launch import parting
from meshrt.launch.environment import ELASTIC
from meshrt.launch.membership import frames
from meshrt.launch.membership.naps import Naps
from meshrt.runtime import backend, process_groups
from meshrt.runtime.sockets import break_off

__all__ = ["DOOR", "Member"]

_BEAT_S = 1.0
_BREAK_AFTER_S = 0.5
_GIVE_UP_S = 8.0  # a program that still waits so long after its peers are lost cannot be broken off: the process ends
_READ = 256 * 1024
DOOR = -1  # who is lost when the door itself is


class Member:
    """One connection to the door, from entering to leaving."""

    def __init__(self, entrance: Entrance, process: int, silent_s: float):
        self.process = process
        self.generation = 0  # how often the processes of the job have come together anew
        self.carried = 0  # the last generation that was given the state of the one before
        self.lost: dict[int, str] = {}
        self.at_odds: dict[int, str] = {}  # of those the ones with which something wrong was computed
        self._told: set[int] = set()  # and those of which the script has heard, by an error
        self._sock, self._frames = entrance.sock, entrance.frames
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._formed = self._over = self._closed = False
        self._refused: str | None = None
        self._missing: list[int] = []
        self._agreed: set[tuple[str, int]] = set()
        self._disagreed: dict[tuple[str, int], str] = {}
        self._texts: dict[tuple[str, int], Callable[[], str | None]] = {}
        self._alive: dict[int, list[int]] = {}  # answers, by the number of the question
        self._turn = itertools.count()
        self._regrouped: Mapping[str, Any] | None = None
        self._passed = 0  # boundaries between steps
        self._growing = False  # somebody waits to join
        self._leave_at: int | None = None  # the boundary at which all let them in, or some leave; -1: at none
        self.without: frozenset[int] = frozenset()  # those that leave there
        self._ports: list[int] = []
        self._lost_at = 0.0
        self._break_at = 0.0
        self._patience = 2 * silent_s  # the door has to see to others first
        self._heard_at = time.monotonic()
        self._naps = Naps(_BEAT_S)
        self._slept: list[tuple[float, float]] = []  # until when, and for how long
        self._observer = Observer()
        self._thread = threading.Thread(target=self._run, name="meshrt-member", daemon=True)
        self._thread.start()

    # --- what other threads ask.

    def await_formed(self, timeout_s: float) -> None:
        """Returns when all processes have entered. DistributedError: somebody may not, or who did not come in time;
        PeerLost: a process was lost before."""
        if not self._wait(lambda: self._formed or self._refused or self.lost, timeout_s):
            who = ", ".join(map(str, self._missing)) or "not all"
            raise DistributedError(
                f"process {who} did not join the job within {timeout_s:g} s. Is it running, with this "
                "coordinator_address? A longer time is initialize(initialization_timeout=...)"
            )
        if self._refused is not None:
            raise DistributedError(f"the job cannot start: {self._refused}")
        if self.lost and not self._formed:
            raise self.lost_error(self.lost)

    def agree(
        self, circle: process_groups.Circle, number: int, record: Mapping[str, Any], text: Callable[[], str | None]
    ) -> None:
        """Returns when all of the circle are about to launch the program of this record; see `process_groups.Job`.

        ProgramsDifferError if they launch others; PeerLost if a process that they need is lost.
        """
        key = (circle.key, number)
        self._texts[key] = text
        known = {**record, "launch": circle.next_launch}
        self._send("agree", circle=circle.key, number=number, record=known, port=backend.collectives_port())
        hopeless = lambda: any(self.needs(p, circle.processes) for p in self.lost)
        self._wait(lambda: key in self._agreed or key in self._disagreed or hopeless())
        del self._texts[key]
        if key in self._disagreed:
            raise ProgramsDifferError(self._disagreed[key])
        if key not in self._agreed:
            raise self.lost_error(self.lost)

    def lost_error(self, lost: Mapping[int, str]) -> PeerLost:
        """What is raised to the script because of these, of which it knows then."""
        self.note_told(lost)
        return PeerLost("; ".join(lost.values()), dict(lost))

    def note_told(self, lost: Collection[int]) -> None:
        """An error says to the script that these are lost."""
        self._told.update(lost)

    @property
    def untold(self) -> Mapping[int, str]:
        """With whom something wrong was computed, while no error has said so to the script."""
        return {process: why for process, why in self.at_odds.items() if process not in self._told}

    def needs(self, lost: int, processes: Collection[int]) -> bool:
        """Whether programs of these processes cannot go on without `lost`."""
        return lost in processes or lost in (DOOR, self.process)

    def alive(self, processes: Collection[int], name: str = "", timeout_s: float | None = None) -> list[int]:
        """Those of `processes` that are there, when all of them have asked under this name: all get the same answer.

        DistributedError if not all have asked within `timeout_s`; PeerLost if this process is no member any more.
        """
        circle, turn = ",".join(map(str, sorted(processes))), next(self._turn)
        self._send("alive", circle=circle, name=name, turn=turn)
        answered = lambda: turn in self._alive or DOOR in self.lost or self.process in self.lost
        if not self._wait(answered, timeout_s):
            self._send("withdraw", circle=circle, name=name)
            raise DistributedError(
                f"process {self.process} waited {timeout_s:g} s at {name!r}, and not all of the processes {circle} "
                "came there. Every one must make the same calls in the same order"
            )
        if turn not in self._alive:
            raise self.lost_error(self.lost)
        return self._alive.pop(turn)

    def await_loss(self, seconds: float) -> bool:
        """Waits until somebody is known to be lost; False if nobody is within `seconds`."""
        return self._wait(lambda: bool(self.lost), seconds)

    def fail(self, why: str) -> None:
        """Says that this process leaves by failure."""
        self._send("failed", why=why)

    def finish(self, timeout_s: float) -> bool:
        """Says that this process's script ended, and waits until all others' have; False if they have not in time."""
        known = process_groups.circles()
        self._send("finished", launched={c.key: c.launched for c in known}, trails={c.key: c.trail() for c in known})
        gone = (DOOR, self.process)
        ended = self._wait(lambda: self._over or self._closed or any(p in self.lost for p in gone), timeout_s)
        return ended and (self._over or DOOR not in self.lost)

    def lets_in(self) -> bool:
        """Whether all leave off at this boundary between steps, to let newcomers in, or those `without` whom they go on
        leave. While nobody waits it only counts; else it waits until it is known where, and PeerLost says that somebody
        was lost instead."""
        with self._changed:
            if self._growing:
                self._changed.wait_for(lambda: self._leave_at is not None or self.lost)
                if self._leave_at is None:
                    raise self.lost_error(self.lost)
                self._growing = self._leave_at >= 0
            self._passed += 1
            return self._growing and self._passed >= (self._leave_at or 0)

    def await_place(self, timeout_s: float) -> Mapping[str, Any]:
        """The place of this newcomer, when the members have let it in. DistributedError if they do not."""
        decided = lambda: self._regrouped is not None or self._over or self.lost
        if not self._wait(decided, timeout_s) or self._regrouped is None:
            why = "; ".join(self.lost.values()) or ("it is over" if self._over else f"not within {timeout_s:g} s")
            raise DistributedError(f"the job did not let this process in: {why}")
        return self._regrouped

    def regroup(self, timeout_s: float) -> Mapping[str, Any]:
        """Asks to go on with those that are left and those that wait: the new place, when all members have asked.

        DistributedError if not all have within `timeout_s`; PeerLost if this process is no member any more.
        """
        self._regrouped = None
        self._send("regroup")
        if not self._wait(
            lambda: self._regrouped is not None or DOOR in self.lost or self.process in self.lost, timeout_s
        ):
            raise DistributedError(f"the processes that are left did not come together within {timeout_s:g} s")
        if self._regrouped is None:
            raise self.lost_error(self.lost)
        return self._regrouped

    def part(self, timeout_s: float) -> None:
        """Says that this process has handed over what it held, and waits until the others go on without it."""
        self._send("handed")
        self._wait(lambda: self._over or bool(self.lost), timeout_s)

    def close(self) -> None:
        """Leaves."""
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the door went first

    def _wait(self, done: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Whether it is done within so many seconds, not counted those in which this process slept: so did others."""
        with self._changed:
            if timeout_s is None:
                return bool(self._changed.wait_for(done))
            naps, before, left = Naps(_BEAT_S), time.monotonic(), timeout_s
            naps.slept(before)
            while not done() and left > 0:
                self._changed.wait(min(left, _BEAT_S))
                now = time.monotonic()
                left, before = left - (now - before) + naps.slept(now), now
            return bool(done())

    def _send(self, kind: str, **fields: Any) -> None:
        try:
            with self._sending:
                self._sock.sendall(frames.encode(kind, **fields))
        except OSError:
            return  # the thread that reads finds out why

    # --- the thread.

    def _run(self) -> None:
        try:
            for fields in self._frames.waiting:
                self._hear(fields)
            while not self._closed:
                self._wake()
                self._beat()
                if ELASTIC in os.environ and parting.is_asked():  # else the signal is somebody else's
                    self._send("wish")
                self._read(_BREAK_AFTER_S if self.lost else _BEAT_S)
                self._look_after_losses()
        except (OSError, frames.FrameError) as e:
            if not self._closed:
                self._lose_door(f"the connection to it broke: {e}")

    def _wake(self) -> None:
        """If this process has slept, the door may have spoken all the while, or slept too."""
        now = time.monotonic()
        if slept := self._naps.slept(now):
            self._heard_at = min(now, self._heard_at + slept)
            self._slept = [*self._slept[-99:], (now, slept)]

    def _awake(self, seconds: float) -> float:
        """Of so many seconds up to now those in which this process did not sleep."""
        since = time.monotonic() - seconds
        return max(0.0, seconds - sum(slept for until, slept in self._slept if until > since))

    def _beat(self) -> None:
        known = process_groups.circles()
        pending = {c.key: self._awake(seconds) for c in known if (seconds := c.pending()) is not None}
        launched = {c.key: c.launched for c in known}
        self._send(
            "beat", launched=launched, pending=pending, doing=self._observer.look(), port=backend.collectives_port(),
            trails={c.key: c.trail() for c in known},
        )  # fmt: skip

    def _read(self, seconds: float) -> None:
        """Hears what comes within `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._closed and (left := deadline - time.monotonic()) > 0:
            if not select.select([self._sock], [], [], left)[0]:
                break
            data = self._sock.recv(_READ)
            if not data:
                raise frames.FrameError("closed at the other end")
            self._heard_at = time.monotonic()
            for fields in self._frames.feed(data):
                self._hear(fields)
            if self.lost:
                return
        self._wake()
        if time.monotonic() - self._heard_at > self._patience:
            self._lose_door(f"nothing was heard of it for {self._patience:g} s: its host is stopped or cut off")

    def _hear(self, fields: Mapping[str, Any]) -> None:
        with self._changed:
            match fields["kind"]:
                case "formed":
                    self._formed = True
                case "refused":
                    self._refused = str(fields.get("why"))
                case "beat":
                    self._missing = list(fields.get("missing", ()))
                case "lost":
                    self._note_loss(int(fields["process"]), str(fields["why"]), fields)
                case "stalled":
                    print(f"meshrt.distributed: {fields['text']}", file=sys.stderr, flush=True)
                case "agreed":
                    self._agreed.add((str(fields["circle"]), int(fields["number"])))
                case "disagreed":
                    self._disagreed[str(fields["circle"]), int(fields["number"])] = str(fields["why"])
                case "explain":
                    self._explain((str(fields["circle"]), int(fields["number"])))
                case "alive":
                    self._alive[int(fields["turn"])] = list(fields["processes"])
                case "over":
                    self._over = True
                case "growing":  # told by this thread: the other may wait for processes that have come less far
                    self._growing, self._leave_at = True, None
                    self._send("boundary", passed=self._passed)
                case "leave":
                    self._leave_at = -1 if fields["at"] is None else int(fields["at"])
                    self.without = frozenset(map(int, fields.get("without", ())))
                case "regrouped":
                    self._take_place(fields)
            self._changed.notify_all()

    def _note_loss(self, process: int, why: str, fields: Mapping[str, Any]) -> None:
        if not self.lost:
            self._lost_at = time.monotonic()
            # What waits for a process that has ended fails by itself, and the connections to the others stay.
            self._break_at = self._lost_at + _BREAK_AFTER_S
        self.lost[process] = why
        self._ports = list(fields.get("ports", self._ports))
        if not fields.get("ended"):
            self._break_at = 0.0
        if fields.get("at_odds"):
            self.at_odds[process] = why

    def _take_place(self, fields: Mapping[str, Any]) -> None:
        self.process, self.generation = int(fields["process"]), int(fields["generation"])
        self.lost, self.at_odds, self._told = {}, {}, set()
        self._agreed, self._disagreed = set(), {}
        self._growing, self._leave_at, self._passed, self.without = False, None, 0, frozenset()
        self._regrouped = fields

    def _explain(self, key: tuple[str, int]) -> None:
        make = self._texts.get(key)
        text = make() if make is not None else None
        packed = base64.b64encode(zlib.compress(text.encode(), 1)).decode() if text else None
        if packed is not None and len(packed) > frames.LINE_LIMIT // 2:
            packed = None
        self._send("explained", circle=key[0], number=key[1], text=packed)

    def _lose_door(self, why: str) -> None:
        with self._changed:
            text = f"the coordination service of the job was lost: {why}"
            self._note_loss(DOOR, text, {})
            self._changed.notify_all()
        if not self._over and self.process not in self.lost:
            print(f"meshrt.distributed: {text}", file=sys.stderr, flush=True)
        self._look_after_losses()

    def _look_after_losses(self) -> None:
        """Breaks off what waits for somebody who is lost; ends the process where that does not help."""
        now = time.monotonic()
        if not self.lost or now < self._break_at:
            return
        concerned = [c for c in process_groups.circles() if any(self.needs(p, c.processes) for p in self.lost)]
        waiting = [seconds for c in concerned if (seconds := c.pending()) is not None]
        if not waiting:
            return
        self._break_at = now + _BREAK_AFTER_S
        break_off(backend.collectives_port(), self._ports)
        if max(waiting) > _GIVE_UP_S and now - self._lost_at > _GIVE_UP_S:
            text = "; ".join(self.lost.values())
            print(
                f"meshrt.distributed: process {self.process} waits in a program that cannot be broken off, and ends: "
                f"{text}", file=sys.stderr, flush=True,
            )  # fmt: skip
            os._exit(1)
