"""Carries out a plan of ranks: starts its fronts, ends all when one fails, leaves nobody.

Decisions are few, since what runs elsewhere looks after itself: a front that fails gives the others a second to say
what they saw, then they are stopped; the first one's exit code is the job's.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from meshrt.launch import report, signals
from meshrt.launch.causes import echo_of
from meshrt.launch.model import WorkerError
from meshrt.launch.output import Console
from meshrt.launch.placing.fronts import Ended, Fronts, Told
from meshrt.launch.placing.plans import Plan

__all__ = ["run"]

_SETTLE_S = 1.0  # so that all that failed for one reason can say so
_FAR_S = 10.0  # beyond the grace, for those elsewhere to end and for the news of it
TIMED_OUT = 124


def run(
    plan: Plan, environ: Mapping[str, str], *, console: Console | None = None, grace: float = 5.0,
    timeout: float | None = None, log_dir: Path | None = None, verbose: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Runs the plan to its end and gives the exit code. Only from the main thread, since it handles signals.

    Args:
      plan: what to start.
      environ: the variables that fronts have beside their own.
      console: where output goes; this process's own streams if None.
      grace: seconds that processes have to stop.
      timeout: seconds until the job is ended with exit code 124.
      log_dir: where each rank's output is written, as ``g0000/rRANK.log``.
      verbose: whether noise of the runtime is shown too.
      clock: seconds.
    """
    console = console or Console()
    fronts = Fronts(plan, environ, console, log_dir, verbose, clock)
    return _Runner(fronts, console, grace, clock).run(timeout)


class _Runner:
    def __init__(self, fronts: Fronts, console: Console, grace: float, clock: Callable[[], float]):
        self._fronts, self._console, self._clock, self._grace = fronts, console, clock, grace
        self._started_at = clock()
        self._stop_at: float | None = None  # when those that run are asked to
        self._kill_at: float | None = None
        self._code: int | None = None
        self._first: tuple[Ended, str] | None = None  # which front failed first, and when; told in a moment

    def run(self, timeout: float | None) -> int:
        end = None if timeout is None else self._started_at + timeout
        try:
            with signals.heard() as wakeups:
                self._fronts.start()
                while self._fronts.running:
                    self._wait(wakeups, end)
                self._name_first()
        finally:
            self._fronts.close()
        return self._code or 0

    def _wait(self, wakeups: int, end: float | None) -> None:
        due = min((at for at in (self._stop_at, self._kill_at, end) if at is not None), default=None)
        for found in self._fronts.wait(None if due is None else max(0.0, due - self._clock()), wakeups):
            self._ended(found)
        for number in signals.cancelling(wakeups):
            self._cancel(128 + number, f"stopped by {signal.Signals(number).name}")
        if self._console.closed and self._code is None:
            self._cancel(128 + signal.SIGPIPE, "")
        now = self._clock()
        if end is not None and now >= end and self._code is None:
            self._cancel(TIMED_OUT, f"the job did not finish within {end - self._started_at:g} s (--timeout)")
        if self._stop_at is not None and now >= self._stop_at:
            self._name_first()
            self._stop_at, self._kill_at = None, now + self._grace + _FAR_S
            self._fronts.signal(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + _FAR_S
            self._fronts.signal(signal.SIGKILL)

    def _ended(self, found: Ended) -> None:
        if found.status.ok or self._code is not None:
            return
        self._code = found.status.shell_code or 1
        self._first = found, f"{self._clock() - self._started_at:.1f} s after the start"
        self._stop_at = self._clock() + _SETTLE_S

    def _name_first(self) -> None:
        """Says who failed first: the first rank that told of a failure of its own, else what ended first."""
        if self._first is None:
            return
        (ended, after), self._first = self._first, None
        told = [(t, _echo(t)) for t in self._fronts.told]
        cause = next((t for t, echo in told if echo is None), None)
        if cause is None:
            self._console.say(f"meshrt launch: {ended.who} failed first: {ended.status.describe()} ({after})")
            return
        name = f"rank {cause.rank}"
        how = ended.status.describe() if ended.who == name else f"{ended.who}: {ended.status.describe()}"
        how = "" if cause.words == how else f" [{how}]"
        lines = [f"meshrt launch: {name} failed first: {cause.words}{how} ({after})"]
        lines += report.evidence([line.decode("utf-8", "replace") for line in cause.lines])
        others = [f"rank {t.rank} {echo or f'failed too: {t.words}'}" for t, echo in told if t is not cause]
        self._console.say("\n".join([*lines, *([f"  then: {'; '.join(others)}"] if others else [])]))

    def _cancel(self, code: int, why: str) -> None:
        """Asks all to stop; a second time, ends them."""
        if self._kill_at is not None:
            self._kill_at = self._clock()
            return
        if self._code is None:
            self._code = code
            if why:
                self._console.say(f"meshrt launch: {why}")
        self._stop_at = self._clock()


def _echo(told: Told) -> str | None:
    """What the failure of a rank is an echo of; None for one of its own."""
    lines = tuple(line.decode("utf-8", "replace") for line in told.lines)
    return echo_of(None, WorkerError(told.words.partition(":")[0], told.words, lines), ())
