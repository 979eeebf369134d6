"""The front of ``--engine kubernetes``: applies a manifest by kubectl, follows its pods, and takes them away again.

Run by path. Reads one line of JSON (see kubernetes.py); the end of stdin means that the job is to be deleted. Prints
what the pods print as ``RANK: line``, and exits with the code of the first pod that failed. Standard library only.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

_LOOK_S = 2.0
_ASK_S = 60.0
_DRAIN_S = 10.0
_AGAIN_S = 1.0  # before a log that broke off is taken up
_LAST_TRIES = 3  # to read the log of a pod that has ended
_INDEX = "batch.kubernetes.io/job-completion-index"
_ENDS = {"Complete": 0, "Completed": 0, "Failed": 1}  # conditions of Jobs and JobSets
_PATIENT = ("ContainerCreating", "PodInitializing", None)
_UNREACHABLE_S = 120.0


class Kubectl:
    """The program with its options."""

    def __init__(self, command: list[str]):
        self._command = command

    def __call__(self, *arguments: str, given: str | None = None) -> tuple[int, str, str]:
        """Its exit code, stdout and stderr."""
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_ASK_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            return 1, "", str(e)
        return done.returncode, done.stdout, done.stderr

    def lines(self, *arguments: str) -> Iterator[bytes]:
        """What it prints on stdout as it comes, without ends of lines; BrokenOffError with its reason if it fails."""
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                [*self._command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                yield line.rstrip(b"\n")
            if process.wait():
                errors.seek(0)
                raise BrokenOffError(
                    errors.read().decode(errors="replace").strip() or f"exit code {process.returncode}"
                )


class BrokenOffError(Exception):
    """A command of kubectl failed while its output was read."""


class Follower:
    """Copies what a pod prints, each line once: where the connection breaks off before the pod has ended, it is taken
    up again with the lines of the last second that was seen, which tell apart what is new."""

    def __init__(self, kubectl: Kubectl, pod: str, rank: str):
        self._kubectl, self._pod, self._rank = kubectl, pod, rank
        self._second = b""
        self._seen: Counter[bytes] = Counter()  # the lines of that second, with their times
        self.pod_ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Waits for the rest of what an ended pod has printed."""
        self.pod_ended.set()
        self._thread.join(seconds)

    def _follow(self) -> None:
        complained, left = False, _LAST_TRIES
        while left:
            left -= self.pod_ended.is_set()
            try:
                self._copy()
            except (BrokenOffError, OSError) as e:
                if not complained:
                    complained = True
                    _say(f"the log of rank {self._rank} (pod {self._pod}) broke off, and is taken up again: {e}")
                time.sleep(_AGAIN_S)
            else:
                if self.pod_ended.is_set():
                    return
                self.pod_ended.wait(_AGAIN_S)

    def _copy(self) -> None:
        since = [f"--since-time={self._second.decode()}Z"] if self._second else []
        known = self._seen.copy()
        for line in self._kubectl.lines("logs", "--follow", "--timestamps", *since, f"pod/{self._pod}"):
            if known[line] > 0:
                known[line] -= 1
                continue
            stamp, _, text = line.partition(b" ")
            if (second := stamp[: len("2030-01-01T00:00:00")]) != self._second:
                self._second = second
                self._seen.clear()
            self._seen[line] += 1
            sys.stdout.buffer.write(f"{self._rank}: ".encode() + text + b"\n")
            sys.stdout.buffer.flush()


class Job:
    """What is known of the job in the cluster."""

    def __init__(self, told: dict[str, Any]):
        self._told, self._kubectl = told, Kubectl(told["kubectl"])
        self._followed: dict[str, Follower] = {}
        self._failed: list[tuple[str, str, int]] = []  # when, pod, exit code
        self._said: set[tuple[str, str]] = set()
        self._answered_at = time.monotonic()

    def submit(self) -> bool:
        """Applies the manifest; False if the cluster does not take it, which is said."""
        code, _, why = self._kubectl("apply", "-f", "-", given=json.dumps(self._told["manifest"]))
        if code:
            _say(f"the cluster did not take the job: {why.strip()}")
            self.delete()
        return code == 0

    def look(self) -> int | None:
        """Looks at the pods and at the job: its exit code once it ended."""
        code, text, why = self._kubectl("get", "pods", "-l", self._told["selector"], "-o", "json")
        if code:
            return self._no_answer(why)
        for pod in json.loads(text)["items"]:
            self._look_at(pod)
        code, text, why = self._kubectl("get", self._told["kind"], self._told["name"], "-o", "json")
        if code:
            return self._no_answer(why)
        self._answered_at = time.monotonic()
        for condition in json.loads(text).get("status", {}).get("conditions", []):
            if condition["status"] == "True" and condition["type"] in _ENDS:
                return self._ended(_ENDS[condition["type"]], condition)
        return None

    def delete(self) -> None:
        """Takes everything out of the cluster."""
        kinds = f"{self._told['kind']},service,secret"
        code, _, why = self._kubectl(
            "delete", kinds, "-l", self._told["selector"], "--ignore-not-found", "--wait=false"
        )
        if code:
            _say(f"what is left in the cluster could not be deleted: {why.strip()}")

    def _look_at(self, pod: dict[str, Any]) -> None:
        metadata, status = pod["metadata"], pod.get("status", {})
        marks = {**metadata.get("annotations", {}), **metadata.get("labels", {})}
        rank, name = marks.get(_INDEX, "?"), metadata["name"]
        if status.get("phase") in ("Running", "Succeeded", "Failed") and name not in self._followed:
            self._followed[name] = Follower(self._kubectl, name, rank)
        if status.get("phase") in ("Succeeded", "Failed"):
            self._followed[name].pod_ended.set()
        for container in status.get("containerStatuses", []):
            waiting = container["state"].get("waiting", {}).get("reason")
            if waiting not in _PATIENT and (name, waiting) not in self._said:
                self._said.add((name, waiting))
                _say(f"rank {rank} (pod {name}) waits: {waiting}")
            ended = container["state"].get("terminated")
            if ended and ended["exitCode"] and all(name != seen for _, seen, _ in self._failed):
                self._failed.append((ended.get("finishedAt") or "", name, ended["exitCode"]))
                _say(f"rank {rank} (pod {name}) failed: exit code {ended['exitCode']} ({ended.get('reason')})")

    def _no_answer(self, why: str) -> int | None:
        if time.monotonic() - self._answered_at < _UNREACHABLE_S:
            return None
        _say(f"the cluster has not answered for {_UNREACHABLE_S:g} s: {why.strip()}")
        return 1

    def _ended(self, code: int, condition: dict[str, Any]) -> int:
        for follower in self._followed.values():
            follower.join(_DRAIN_S)
        if code:
            _say(f"the job failed: {condition.get('reason', '')} {condition.get('message', '')}".rstrip())
            return min(self._failed)[2] if self._failed else code
        return 0


def _say(text: str) -> None:
    print(f"meshrt launch: {text}", file=sys.stderr, flush=True)


def _asked_to_stop(seconds: float) -> bool:
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready)  # nothing more is ever written


def main() -> int:
    """Runs the job; its exit code."""
    with open(0, "rb", buffering=0, closefd=False) as given:
        told = json.loads(given.readline())
    job = Job(told)
    if not job.submit():
        return 2
    try:
        while (code := job.look()) is None:
            if _asked_to_stop(_LOOK_S):
                return 143
        return code
    finally:
        if not told["keep"]:
            job.delete()


if __name__ == "__main__":
    sys.exit(main())
