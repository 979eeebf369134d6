"""The list of a job's processes, and what follows from what each of them tells: a pure state machine without sockets.

Every process tells how many programs it has launched together with which others (a *circle* is a set of processes, as
text "0,1,2"), how many of those it knows to be finished, and where it is when it waits. From this follows who is lost:

* a process whose connection closed, or that said it failed: at once;
* one that said nothing for `silent_s`: stopped, or cut off;
* one that ended its script while others wait in a program that it never launched: they would wait for ever;
* one that keeps others waiting in a program for `stall_s`; after `report_s` everybody is told, since it may yet come.

A process that is lost stays lost. Everyone who is left is told who, why, and what it was doing.

Before processes launch a program together for the first time, each describes it. The roster compares: equal
descriptions are agreed on, different ones are answered to all with what differs (differences.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshrt.launch.membership import differences
from meshrt.launch.membership.growth import Growth, Newcomer
from meshrt.launch.membership.members import Agreement, Member
from meshrt.launch.membership.naps import Naps
from meshrt.launch.membership.patience import REPORT_S, SILENT_S, STALL_S
from meshrt.launch.membership.trails import Trails

__all__ = ["Patience", "RefusedError", "Roster", "Send"]

# A wait that was reported is reported again when it lasts this many times as long.
_REPORT_AGAIN = 10
_LOOK_S, _WORKING = 1.0, 0.2  # a silent process computes if it used so much of a core in that time


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds: silence after which a process counts as lost, waiting in a program after which the process that
    is waited for is named, and after which it counts as lost."""

    silent_s: float = SILENT_S
    report_s: float = REPORT_S
    stall_s: float = STALL_S


class RefusedError(Exception):
    """Why a process may not join. `fatal`: the job cannot come about, and everybody is to hear it."""

    def __init__(self, why: str, fatal: bool = False):
        super().__init__(why)
        self.fatal = fatal


@dataclass(frozen=True, slots=True)
class Send:
    """A message for one process."""

    process: int
    kind: str
    fields: Mapping[str, Any]


class Roster:
    """Takes what happens, each with its time; what is to be sent collects in `outbox`, losses in `news`."""

    def __init__(
        self, count: int, patience: Patience | None = None,
        cpu_seconds: Callable[[Mapping[str, Any]], float | None] = lambda about: None,
    ):  # fmt: skip
        """`cpu_seconds` tells how long a process has computed, where that can be seen."""
        self.count = count
        self._cpu_seconds = cpu_seconds
        self.patience = patience or Patience()
        self.members: dict[int, Member] = {}
        self.lost: dict[int, str] = {}
        self._ended: set[int] = set()  # of those the ones whose connections ended too
        self._at_odds: set[int] = set()  # and those with which something wrong was computed
        self.outbox: list[Send] = []
        # What a launcher wants to hear: rank, why, and whether only its process can tell how it ended.
        self.news: list[tuple[int, str, bool]] = []
        self.formed = False
        self._doomed: str | None = None
        self._agreements: dict[tuple[str, int], Agreement] = {}
        self._reported: dict[tuple[str, int], float] = {}
        self._trails = Trails()
        # Who of a circle wants to know who is there, each with the number of its question.
        self._asking: dict[tuple[str, str], dict[int, int]] = {}
        self.growth = Growth()
        self._generation = 0  # how often the processes have come together anew
        self._naps = Naps()

    # --- who is here.

    @property
    def present(self) -> list[Member]:
        """Those that are there, in order."""
        return [m for p, m in sorted(self.members.items()) if p not in self.lost and not m.gone]

    def missing(self) -> list[int]:
        """Those that have not joined."""
        return [p for p in range(self.count) if p not in self.members]

    def join(self, process: int, count: int, about: Mapping[str, Any], now: float) -> None:
        """One more. RefusedError if it does not belong here; when all have joined, all are told."""
        if self._doomed is not None:
            raise RefusedError(self._doomed)
        mine = f"process {process} on host {about.get('host', '?')}"
        if count != self.count:
            raise RefusedError(
                f"{mine} was started as one of {count} processes, but this job has {self.count}. Give all processes "
                "the same num_processes",
                fatal=not self.formed,
            )
        if not 0 <= process < self.count:
            raise RefusedError(f"{mine}: process_id is a whole number from 0 to num_processes - 1 = {self.count - 1}")
        if process in self.members:
            raise RefusedError(
                f"{self.members[process].name} has joined as process {process} already. Give each process a process_id "
                "of its own; if this is another job, give it another coordinator_address"
            )
        self._check_versions(mine, about, fatal=True)
        self.members[process] = Member(process, process, about, now)
        if not self.missing():
            self.formed = True
            self._tell_all("formed", hosts={str(m.process): m.about.get("host") for m in self.present})

    def come(self, rank: int, batch: int, about: Mapping[str, Any], now: float) -> None:
        """One that wants to join a job which runs; it waits until the members let it in. RefusedError if it does not
        belong here. `rank` is its number at the launcher, `batch` how many were started with it."""
        mine = f"rank {rank} on host {about.get('host', '?')}"
        if not self.formed:
            raise RefusedError(f"{mine} was started to join a job that runs, but this one has not begun")
        if rank in self.growth.newcomers or any(m.rank == rank for m in self.members.values()):
            raise RefusedError(f"{mine}: somebody has come as rank {rank} already")
        self._check_versions(mine, about, fatal=False)
        self.growth.come(Newcomer(rank, batch, about, now))

    def _check_versions(self, mine: str, about: Mapping[str, Any], fatal: bool) -> None:
        for other in self.members.values():
            theirs, ours = other.about.get("versions"), about.get("versions")
            if theirs != ours:
                raise RefusedError(
                    f"{mine} runs {_versions(ours)}, but {other.name} runs {_versions(theirs)}. Install the same "
                    "versions everywhere",
                    fatal=fatal,
                )

    def refuse_all(self, why: str) -> None:
        """The job cannot come about: who is here is told, and so is who comes later."""
        self._doomed = why
        self._tell_all("refused", why=why)

    # --- how they fare.

    def beat(self, process: int, fields: Mapping[str, Any], now: float) -> None:
        """A sign of life, with what the process does: `launched` and `pending` per circle, `doing` for people."""
        member = self.members[process]
        member.heard_at, member.computed = now, None
        member.doing, member.port = _mapping(fields.get("doing")), fields.get("port")
        member.launched = {str(k): int(v) for k, v in _mapping(fields.get("launched")).items()}
        pending = _mapping(fields.get("pending"))  # seconds for which nothing has come out
        member.waiting_since = {self._circle(c): now - float(seconds) for c, seconds in pending.items()}
        self._compare_all(member, fields.get("trails"))
        self._look_for_stalls(now)

    def fail(self, process: int, why: str) -> None:
        """The process said that it leaves by failure."""
        self._lose(process, why, visible=True)

    def finish(self, process: int, launched: Mapping[str, Any], now: float, trails: object = None) -> None:
        """The script of a process ended; the process waits until all others' have. `trails` are its last launches, of
        which no sign of life may have told."""
        member = self.members[process]
        try:
            self._compare_all(member, trails)
        finally:  # whatever that was: the others wait for it
            member.finished, member.heard_at = True, now
            member.launched = {str(k): int(v) for k, v in launched.items()}
            self._look_for_stalls(now)
            if self.growth.asked:  # the others are about to end, too
                self.growth.end()
                self._tell_all("leave", at=None)
            self._release()

    def close(self, process: int) -> None:
        """The connection of a process ended."""
        member = self.members.get(process)
        if member is None or process in self.lost:
            return
        if member.finished or process in self.growth.left:
            member.gone = True
            self._release()
            return
        why = "its connection closed without a word: it was killed, it crashed, or it left by os._exit"
        self._lose(process, why, visible=True, vanished=True)

    def wake(self, now: float) -> None:
        """Called before anything that has come is looked at. If nobody could be heard for a while, because this process
        was stopped or its machine stood still, that counts as if no time had passed."""
        slept = self._naps.slept(now)
        for member in self.members.values() if slept else ():
            member.heard_at = min(now, member.heard_at + slept)
            member.waiting_since = {c: since + slept for c, since in member.waiting_since.items()}
        for agreement in self._agreements.values() if slept else ():
            agreement.since += slept

    def tick(self, now: float) -> None:
        """Time passed: who is silent?"""
        self.wake(now)
        for member in self.present:
            silent = now - member.heard_at
            if silent > self.patience.silent_s and not self._computes(member, now):
                why = "it is stopped, its host is cut off, or it sleeps in foreign code that holds Python's lock"
                self._lose(member.process, f"nothing was heard of it for {silent:.0f} s: {why}")
        self._look_for_stalls(now)
        if self.growth.due(now) and not self.lost and not any(m.finished for m in self.present):
            if set(self.growth.wishes) >= {m.process for m in self.present}:
                self.growth.wishes.clear()  # nobody would be left to go on
                return
            self.growth.begin()
            self._tell_all("growing")

    def _computes(self, member: Member, now: float) -> bool:
        """Whether a silent process is at work all the same, which is looked at for a second."""
        used = self._cpu_seconds(member.about)
        if used is None:
            return False
        since, before = member.computed or (now, used)
        if member.computed is None or now - since >= _LOOK_S:
            member.computed = (now, used)
        return now - since < _LOOK_S or used - before > _WORKING * (now - since)

    def _lose(
        self, process: int, why: str, visible: bool = False, at_odds: bool = False, vanished: bool = False
    ) -> None:
        """`visible`: who watches the process itself sees that it ended, and how; `vanished`: but not whether the others
        were done with it; `at_odds`: what it has computed with the others is wrong."""
        if process in self.lost:
            return
        member = self.members[process]
        text = f"{member.name} was lost: {why}"
        if member.doing.get("text") and not member.finished:
            text += f". It was last {member.doing['text']}"
        self.lost[process] = text
        if not visible or vanished:
            self.news.append((member.rank, text, vanished))
        if visible:
            self._ended.add(process)
        if at_odds:
            self._at_odds.add(process)
        self.outbox += [self._notice(m.process, process) for m in (*self.present, member)]
        self._release()

    def _notice(self, to: int, lost: int) -> Send:
        ports = [m.port for m in self.members.values() if m.port is not None]
        how = {"ended": lost in self._ended, "at_odds": lost in self._at_odds}
        return Send(to, "lost", {"process": lost, "why": self.lost[lost], "ports": ports, **how})

    def _release(self) -> None:
        """Those that wait for others wait only as long as there are others."""
        self._answer_alive()
        if not self._going_on():  # also who has left need not wait for others then
            self._tell_all("over")

    # --- waiting for one another.

    def _look_for_stalls(self, now: float) -> None:
        for member in self.present:
            for circle, since in list(member.waiting_since.items()):
                if self._broken(circle):
                    continue
                self._look_at(member, circle, member.launched.get(circle, 0), now - since)
        for (circle, number), agreement in list(self._agreements.items()):
            self._contradict(circle, number, agreement)
            for process in agreement.records if not self._broken(circle) else ():
                self._await_agreement(self.members[process], circle, number, now - agreement.since)

    def _look_at(self, member: Member, circle: str, launched: int, waited: float) -> None:
        """`member` waits in a program: for whom?"""
        others = [m for m in self._in(circle) if m is not member]
        behind = [m for m in others if m.launched.get(circle, 0) < launched]
        what = f"{member.name} is {member.at}"
        for other in behind:
            self._blame(other, circle, launched, waited, what)
        if not behind and all(m.doing.get("idle") for m in (member, *others)):
            # All are in it and none computes: each may be waiting for another.
            texts = "; ".join(f"{m.name} is {m.at}" for m in self._in(circle))
            self._stalled(circle, launched, waited, f"no process of {circle} computes or comes out: {texts}", member)

    def _await_agreement(self, member: Member, circle: str, number: int, waited: float) -> None:
        what = f"{member.name} is {member.at}"
        for other in self._in(circle):
            if other.process not in self._agreements[circle, number].records:
                self._blame(other, circle, -number, waited, what)

    def _blame(self, other: Member, circle: str, number: int, waited: float, what: str) -> None:
        if other.finished:
            count = other.launched.get(circle, 0)
            self._lose(
                other.process,
                f"its script ended after {count} programs together with others, which need it in more: {what}",
            )
            return
        text = f"{what}, and has waited {waited:.0f} s for {other.name}, which is {other.at}"
        self._stalled(circle, number, waited, text, other)

    def _stalled(self, circle: str, number: int, waited: float, text: str, culprit: Member) -> None:
        if culprit.doing.get("compiling"):
            return
        if waited > self.patience.stall_s:
            self._lose(culprit.process, f"it kept others waiting for {waited:.0f} s: {text}")
        elif waited > self.patience.report_s and waited > self._reported.get((circle, number), 0.0):
            self._reported[circle, number] = waited * _REPORT_AGAIN
            self._tell_all("stalled", text=f"{text}. The job ends if this lasts {self.patience.stall_s:.0f} s")

    def _circle(self, text: object) -> str:
        """A circle as a process names it. ValueError before it is kept, if it is none: every look at the others would
        stumble over it."""
        if not all(0 <= int(p) < self.count for p in str(text).split(",")):
            raise ValueError(f"{text!r} is no circle of this job's {self.count} processes")
        return str(text)

    def _broken(self, circle: str) -> bool:
        """Whether one of the circle is lost: nobody has to be blamed for it any more."""
        return any(int(p) in self.lost for p in circle.split(","))

    def _in(self, circle: str) -> list[Member]:
        processes = {int(p) for p in circle.split(",")}
        return [m for p, m in sorted(self.members.items()) if p in processes and p not in self.lost]

    # --- agreeing on programs.

    def agree(self, process: int, circle: str, number: int, record: Mapping[str, Any], now: float) -> None:
        """`process` is about to launch its `number`-th new program together with the others of `circle`."""
        agreement = self._agreements.setdefault((self._circle(circle), number), Agreement(now))
        agreement.records[process] = record
        gone = [p for p in map(int, circle.split(",")) if p in self.lost]
        if gone:
            self.outbox.append(self._notice(process, gone[0]))
            return
        if set(agreement.records) < {int(p) for p in circle.split(",")}:
            self._look_for_stalls(now)
            return
        if len({r.get("digest") for r in agreement.records.values()}) == 1:
            del self._agreements[circle, number]
            self._trails.agreed(circle, number, record)
            for p in agreement.records:
                self.outbox.append(Send(p, "agreed", {"circle": circle, "number": number}))
            return
        agreement.asked = differences.representatives(agreement.records)
        for p in agreement.asked:
            self.outbox.append(Send(p, "explain", {"circle": circle, "number": number}))

    def explained(self, process: int, circle: str, number: int, text: str | None) -> None:
        """The text of the program that `process` described, or None if it has none to show."""
        agreement = self._agreements.get((circle, number))
        if agreement is None or process not in agreement.asked:
            return
        agreement.texts[process] = text
        if len(agreement.texts) < len(agreement.asked):
            return
        del self._agreements[circle, number]
        why = differences.describe(agreement.records, agreement.texts)
        for p in agreement.records:
            self.outbox.append(Send(p, "disagreed", {"circle": circle, "number": number, "why": why}))
        self.news.append((self.members[min(agreement.asked[1:], default=process)].rank, why, False))

    def _compare_all(self, member: Member, trails: object) -> None:
        for circle, trail in _mapping(trails).items():
            self._compare(member, self._circle(circle), trail)

    def _compare(self, member: Member, circle: str, trail: Any) -> None:
        """Programs that were agreed on must also be launched in the same order."""
        if self._broken(circle):
            return
        if (found := self._trails.note(circle, member.process, trail)) is not None:
            other, what = found
            self._lose(
                member.process, f"it launched other programs than {self.members[other].name}: {what}. All processes "
                "must launch the same programs in the same order; what they computed together since is wrong",
                at_odds=True,
            )  # fmt: skip

    def _contradict(self, circle: str, number: int, agreement: Agreement) -> None:
        """Where some are about to launch a new program in place of one that others have launched, each waits for the
        other for ever. The fewer of them are lost to the more."""
        if self._broken(circle):
            return
        for process, record in agreement.records.items():
            if (found := self._trails.launch(circle, record.get("launch"))) is None or found[0] == process:
                continue  # nobody has come so far, or another thread of its own came first
            del self._agreements[circle, number]
            other, before = found
            why = differences.describe({other: before, **agreement.records}, {})
            for p in agreement.records:
                self.outbox.append(Send(p, "disagreed", {"circle": circle, "number": number, "why": why}))
            new, known = differences.program(record), differences.program(before)
            if 2 * len(agreement.records) > len(self._in(circle)):
                odd, text = other, f"it launched {known} where {self.members[process].name} is about to launch {new}"
            else:
                odd, text = process, f"it is about to launch {new} where {self.members[other].name} launched {known}"
            what = differences.fields({other: before, process: record})
            self._lose(odd, f"{text}{what}. All processes must launch the same programs in the same order")
            return

    # --- going on with those that are left, and with those that come.

    def ask_alive(self, process: int, circle: str, name: str, turn: int = 0) -> None:
        """`process` asks who of the circle is there; all of them are answered when all have asked. Several questions
        may be open at once under different names. `turn` comes back with the answer."""
        self._asking.setdefault((self._circle(circle), name), {})[process] = turn
        self._answer_alive()

    def withdraw(self, process: int, circle: str, name: str) -> None:
        """`process` has given up waiting for that answer: it has not asked."""
        asking = self._asking.get((self._circle(circle), name), {})
        asking.pop(process, None)
        if not asking:
            self._asking.pop((circle, name), None)

    def _answer_alive(self) -> None:
        for (circle, name), asking in list(self._asking.items()):
            alive = [m.process for m in self._in(circle) if not m.finished]
            if set(asking) >= set(alive):
                del self._asking[circle, name]
                fields = {"circle": circle, "name": name, "processes": alive}
                self.outbox += [Send(p, "alive", {**fields, "turn": turn}) for p, turn in asking.items()]

    def at_boundary(self, process: int, passed: int) -> None:
        """`process` has passed so many boundaries between steps, and passes no other one before it has heard where to
        leave off."""
        if not self.growth.asked:
            self.outbox.append(Send(process, "leave", {"at": None}))
            return
        told = self.growth.passed
        told[process] = passed
        if {m.process for m in self.present} <= set(told):
            self._tell_all("leave", at=1 + max(told.values()), without=list(self.growth.leaving))

    def wish(self, process: int, now: float) -> None:
        """`process` wants to leave the others, which go on."""
        self.growth.wishes[process] = now

    def hand_over(self, process: int) -> None:
        """`process` has handed over what it held, and waits until the others go on."""
        if process in self.growth.leaving:
            self.growth.left.add(process)

    def regroup(self, process: int, now: float) -> None:
        """`process` wants to go on in another job: without those that were lost, with those that wait."""
        self.members[process].regrouping = True
        self.members[process].heard_at = now

    def to_regroup(self) -> list[int]:
        """The processes that go on in the next job, once all that are left have asked for it; empty before."""
        left = self._going_on()
        return [m.process for m in left] if left and all(m.regrouping for m in left) else []

    def _going_on(self) -> list[Member]:
        return [m for m in self.present if not m.finished and m.process not in self.growth.left]

    def regrouped(self, service: str) -> None:
        """The next job has a service: the processes that are left get new numbers, and those that waited the numbers
        behind them."""
        left = self._going_on()
        came = [Member(-1, n.rank, n.about, n.heard_at) for _, n in sorted(self.growth.newcomers.items())]
        whole = not self.lost and len(left) + len(self.growth.left) == len(self.members)
        former = [m.process for m in left]
        wishes = [(m, since) for m in left if (since := self.growth.wishes.get(m.process)) is not None]
        self.count, self._generation = len(left) + len(came), self._generation + 1
        self._agreements.clear()
        self._reported.clear()
        self._asking.clear()
        self._trails.clear()
        self.growth = Growth()
        self.lost, self._ended, self._at_odds = {}, set(), set()
        self.members = dict(enumerate((*left, *came)))
        for new, member in self.members.items():
            member.process, member.regrouping = new, False
            member.launched, member.waiting_since, member.doing = {}, {}, {}
            fields = {
                "process": new, "processes": self.count, "former": former, "service": service,
                "whole": whole, "generation": self._generation,
            }  # fmt: skip
            self.outbox.append(Send(new, "regrouped", fields))
        self.growth.wishes = {member.process: since for member, since in wishes}

    def _tell_all(self, kind: str, **fields: Any) -> None:
        self.outbox += [Send(m.process, kind, fields) for m in self.present]


def _versions(versions: object) -> str:
    return ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else "other versions"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
