"""Programs that several processes run together: what is agreed before the first launch, and what is known afterwards.

A *circle* is a set of processes that run programs together. Each counts what it launches there, so that the job's door
(`meshrt.launch.membership`) sees who waits for whom. Programs of one process alone have no circle and pay nothing.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

from meshrt import errors
from meshrt.launch.membership import differences
from meshrt.runtime import backend, compile_cache
from meshrt.xla import jaxlib_api

__all__ = ["Circle", "Job", "Shared", "circle_of", "circles", "compiling", "explained", "quiet", "set_job"]

_SAMPLE_S = 0.25  # between looks at whether programs have finished
_TOLD_WITHIN_S = 3.0  # a broken connection is known here first, who broke it a moment later
_BROKEN = re.compile(r"gloo|connection (?:closed|reset)|broken pipe|socket closed|NCCL", re.IGNORECASE)
_COLLECTIVE = re.compile(
    r"stablehlo\.(all_reduce|all_gather|all_to_all|reduce_scatter|collective_permute|collective_broadcast)\b"
)
_SHOWN_COLLECTIVES = 3
_TRAIL = 64  # launches whose programs are remembered; a difference before them shows in the digest
# The type of `main` in MLIR's generic form, as our partitioner writes it, and in the pretty one.
_MAIN = re.compile(
    r'sym_name = "main", function_type = \((?P<takes>.*)\) -> (?P<gives>\(.*?\)|\S+)[,}]'
    r"|func\.func public @main\((?P<pretty_takes>.*?)\) -> (?P<pretty_gives>.*?) (?:attributes .*)?\{$",
    re.MULTILINE,
)


class Job(Protocol):
    """What this process's connection to the others does for programs."""

    @property
    def lost(self) -> Mapping[int, str]:
        """Who is lost, and why."""
        ...

    def agree(self, circle: Circle, number: int, record: Mapping[str, Any], text: Callable[[], str | None]) -> None:
        """Returns when all of the circle are about to launch this program; PeerLost, ProgramsDifferError."""
        ...

    def needs(self, lost: int, processes: Collection[int]) -> bool:
        """Whether programs of these processes cannot go on without `lost`."""
        ...

    def lost_error(self, lost: Mapping[int, str]) -> errors.PeerLost:
        """What is raised to the script because of these."""
        ...

    def await_loss(self, seconds: float) -> bool:
        """Waits until somebody is known to be lost; False if nobody is within `seconds`."""
        ...


_job: Job | None = None
_circles: dict[tuple[int, ...], Circle] = {}
_lock = threading.Lock()
_compiling: list[str] = []
_followers: list[threading.Thread] = []


def set_job(job: Job | None) -> None:
    """Says how this process hears of the others."""
    global _job
    _job = job
    _clear()


def circles() -> list[Circle]:
    """Those that this process has run programs in."""
    return list(_circles.values())


@contextlib.contextmanager
def compiling(name: str) -> Iterator[None]:
    """Around a compilation, for which others may have to wait long."""
    _compiling.append(name)
    try:
        yield
    finally:
        _compiling.remove(name)


def being_compiled() -> str | None:
    """What is being compiled now; asked by another thread than those that compile."""
    latest = _compiling[-1:]  # in one step: it may have ended a moment later
    return latest[0] if latest else None


def circle_of(devices: tuple[Any, ...]) -> Circle | None:
    """The circle of the processes of `devices`; None where they are one, or the job has no door."""
    if _job is None:
        return None
    processes = tuple(sorted({d.process_index for d in devices}))
    if len(processes) == 1:
        return None
    with _lock:
        return _circles.setdefault(processes, Circle(processes))


def lost_error(processes: Collection[int] | None = None) -> errors.PeerLost | None:
    """The error of those that are lost, all or those without whom `processes` cannot go on; None while nobody is."""
    if _job is None or not _job.lost:
        return None
    lost = _job.lost if processes is None else {p: why for p, why in _job.lost.items() if _job.needs(p, processes)}
    return _job.lost_error(lost) if lost else None


_NO_ROOM = (
    " The device has no room for it: split arrays over more devices (NamedSharding), donate arguments that are not "
    "needed any more (donate_argnums), or look at what a program holds (`meshrt inspect`, compiled.memory_analysis())"
)


def explained(error: Exception, what: str) -> errors.MeshrtError:
    """What to raise for `error` of the runtime: a PeerLost alone, if another process is gone (the runtime names an
    address at best, and its traceback says nothing beside that); else an ExecutionError, `what` could not be done, with
    `error` as its cause."""
    if _job is None or not _BROKEN.search(str(error)):
        failed = errors.ExecutionError(f"{what}: {error}{_NO_ROOM if 'RESOURCE_EXHAUSTED' in str(error) else ''}")
        failed.__cause__ = error
        return failed
    _job.await_loss(_TOLD_WITHIN_S)
    return lost_error() or errors.PeerLost(f"lost the connection to another process of the job: {error}")


class Shared:
    """A program that several processes run together, as they describe it to each other."""

    __slots__ = ("_where", "digest", "module", "name", "record")

    def __init__(self, portable: Any, devices: tuple[Any, ...]):
        self.name, self.module = portable.name, portable.module
        content = compile_cache.content(self.module) if self.module else portable.fingerprint
        order = ",".join(str(d.id) for d in devices)
        options = f"{portable.mode} {dict(portable.xla_options)}"
        self.digest = compile_cache.fingerprint(content, order, options, jaxlib_api.RELEASE)
        self.record = {
            "digest": self.digest, "name": self.name, "line": self._line(), "jaxlib": jaxlib_api.RELEASE,
            "devices": order, "options": options, **_signature(self.text() or ""),
        }  # fmt: skip
        self._where: str | None = None

    def text(self) -> str | None:
        """The program as text; None of one that came as compiled code."""
        return self.module if isinstance(self.module, str) and self.module else None

    @property
    def where(self) -> str:
        """Its collectives and the lines that they come from, in words; found when first asked for."""
        if self._where is None:
            self._where = self._collectives()
        return self._where

    def _line(self) -> str | None:
        text = self.text() or ""
        places = (differences.source_of(line, text) for line in text.splitlines() if " = " in line)
        return next((place for place in places if place is not None), None)

    def _collectives(self) -> str:
        text, found = self.text() or "", list[str]()
        lines = text.splitlines()
        for i, line in enumerate(lines):
            match = _COLLECTIVE.search(line)
            if match is None:
                continue
            # Of an operation with a body the location stands behind the body.
            ends = (
                x
                for x in lines[i:]
                if "loc(#" in x and (not line.rstrip().endswith("({") or x.lstrip().startswith("})"))
            )
            place = differences.source_of(next(ends, ""), text)
            words = f"{match.group(1)} at {place}" if place else match.group(1)
            if words not in found:
                found.append(words)
        if not found:
            return ""
        more = f" and {len(found) - _SHOWN_COLLECTIVES} more" if len(found) > _SHOWN_COLLECTIVES else ""
        return f", whose collectives are {', '.join(found[:_SHOWN_COLLECTIVES])}{more}"


def _signature(text: str) -> dict[str, str]:
    """The types of a program's arguments and results on one device, as `main` has them."""
    head = _MAIN.search(text)
    if head is None:
        return {}
    types = lambda part: ", ".join(re.findall(r"tensor<([^>]*)>", part)) or "nothing"
    takes, gives = (head[name] or head[f"pretty_{name}"] or "" for name in ("takes", "gives"))
    return {"arguments": types(takes), "results": types(gives)}


class Circle:
    """What this process has launched together with the others of `processes`."""

    def __init__(self, processes: tuple[int, ...]):
        self.processes = processes
        self.key = ",".join(map(str, processes))
        self.launched = 0
        self.current: Shared | None = None
        self.agreeing: Shared | None = None
        self._agreed: dict[str, int] = {}  # by digest, in the order agreed on, which is the same in all processes
        self._thread, self._threads = 0, 0  # who launched last, and how often that was another one than before
        self._trail: deque[tuple[int, int, int]] = deque(maxlen=_TRAIL)
        self._order = 0
        self._latest: tuple[int, Any] = (0, None)  # of the launches that came back: number, token
        self._finished = 0
        self._busy_since = 0.0  # or when something came out last
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def enter(self, program: Shared) -> None:
        """Before each launch. PeerLost if it could never finish; ProgramsDifferError if others launch another one."""
        if _job is not None and _job.lost:
            error = lost_error(self.processes)
            if error is not None:
                raise error
        if (thread := threading.get_ident()) != self._thread:
            self._thread, self._threads = thread, self._threads + 1
        if program.digest not in self._agreed:
            self._agree(program)
        if self._finished == self.launched:
            self._busy_since = time.monotonic()
        self.current = program
        self.launched += 1
        number = self._agreed[program.digest]
        self._order = hash((self._order, number))  # of whole numbers: the same in every process
        self._trail.append((self.launched, number, self._order))

    def launch(self, execute: Callable[..., Any], buffers: Any) -> tuple[Any, Any]:
        """The results of a launch and its token."""
        results = execute(buffers, with_tokens=True)
        token = results.consume_token()
        self._latest = (self.launched, token)
        return results, token

    def _agree(self, program: Shared) -> None:
        with self._lock:
            if program.digest in self._agreed or _job is None:
                return
            self.agreeing = program
            try:
                _job.agree(self, len(self._agreed), program.record, program.text)
            finally:
                self.agreeing = None
            self._agreed[program.digest] = len(self._agreed)
            if len(self._agreed) == 1:
                follower = threading.Thread(target=self._follow, name=f"meshrt-circle-{self.key}", daemon=True)
                _followers[:] = [*filter(threading.Thread.is_alive, _followers), follower]
                follower.start()

    @property
    def next_launch(self) -> int | None:
        """The number of the launch that is about to be made; None where other threads launch too, maybe before it."""
        return self.launched + 1 if self._threads == 1 else None

    def trail(self) -> list[tuple[int, int, int]]:
        """The last launches: which one, the number of its program, and a digest of all launches up to it."""
        return list(self._trail)

    def pending(self) -> float | None:
        """For how many seconds a launch has been unfinished without anything coming out; None if all have finished."""
        if self._finished >= self.launched:
            return None
        return time.monotonic() - self._busy_since

    def _follow(self) -> None:
        """Looks now and then whether what was launched last has finished; launches finish in order."""
        while not self._closed.is_set():
            number, token = self._latest
            if number > self._finished:
                with contextlib.suppress(jaxlib_api.XlaError):  # raised where somebody looks at the results
                    token.block_until_ready()
                self._busy_since = time.monotonic()
                self._finished = number
            del token
            self._closed.wait(_SAMPLE_S)

    def close(self) -> None:
        """Lets go of everything that belongs to the runtime."""
        self._closed.set()
        self._latest = (0, None)


def quiet(seconds: float) -> bool:
    """Whether within `seconds` no thread of the circles, which are closed, waits inside the runtime any more: an
    interpreter that ended meanwhile would be aborted."""
    deadline = time.monotonic() + seconds
    for follower in _followers:
        follower.join(max(0.0, deadline - time.monotonic()))
    return not any(follower.is_alive() for follower in _followers)


def _clear() -> None:
    with _lock:
        for circle in _circles.values():
            circle.close()
        _circles.clear()


backend.on_clear(_clear)
