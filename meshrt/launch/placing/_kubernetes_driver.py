"""The front of ``--engine kubernetes``: applies a manifest by kubectl, follows its pods, and takes them away again.

Run by path. Reads one line of JSON (see kubernetes.py); the end of stdin means that the job is to be deleted. Prints
what the pods print as ``RANK: line``, and exits with the code of the first pod that failed. Standard library only.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from typing import Any

_LOOK_S = 2.0
_ASK_S = 60.0
_DRAIN_S = 10.0
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

    def follow(self, pod: str, rank: str) -> threading.Thread:
        """Copies a pod's output until it ends."""
        thread = threading.Thread(target=self._copy, args=(pod, rank), daemon=True)
        thread.start()
        return thread

    def _copy(self, pod: str, rank: str) -> None:
        command = [*self._command, "logs", "--follow", f"pod/{pod}"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.buffer.write(f"{rank}: ".encode() + line.rstrip(b"\n") + b"\n")
                sys.stdout.buffer.flush()


class Job:
    """What is known of the job in the cluster."""

    def __init__(self, told: dict[str, Any]):
        self._told, self._kubectl = told, Kubectl(told["kubectl"])
        self._followed: dict[str, threading.Thread] = {}
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
            self._followed[name] = self._kubectl.follow(name, rank)
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
        for thread in self._followed.values():
            thread.join(_DRAIN_S)
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
