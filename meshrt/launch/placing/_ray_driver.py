"""The front of ``--engine ray``: actors that hold the processes, and their output as ``RANK: line``.

Run by path by an interpreter that has ray; needs nothing of meshrt. Reads one line of JSON (see ray.py); the end of
stdin means that all are to stop. Exits with the code of the first process that failed.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from typing import Any, BinaryIO

_LOST = 1  # exit code of a process whose actor or host went away
_NOT_STARTED = 2
_WAIT_S = 0.5


class Holder:
    """Holds one process; dies with its driver, and then hold.py ends the process."""

    def __init__(self) -> None:
        self._found: Any = queue.Queue()
        self._process: Any = None

    def address(self) -> str:
        """This host, as others reach it."""
        import ray  # optional wheel

        return str(ray.util.get_node_ip_address())

    def start(self, hold: list[str], told: bytes) -> None:
        """Starts the process; one that cannot be started has ended, and why is what it printed."""
        try:
            self._process = subprocess.Popen(
                hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
            self._process.stdin.write(told)
            self._process.stdin.flush()
        except OSError as e:
            self._found.put(("stderr", f"meshrt launch: cannot start {hold[0]}: {e}\n".encode()))
            self._found.put(("exit", _NOT_STARTED))
            return
        threads = [
            threading.Thread(target=self._copy, args=(name, getattr(self._process, name)), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for thread in threads:
            thread.start()
        threading.Thread(target=self._await, args=(threads,), daemon=True).start()

    def _copy(self, name: str, pipe: Any) -> None:
        for line in iter(pipe.readline, b""):
            self._found.put((name, line))

    def _await(self, threads: Any) -> None:
        code = self._process.wait()
        for thread in threads:
            thread.join(1.0)
        self._found.put(("exit", code))

    def read(self, seconds: float) -> list[tuple[str, Any]]:
        """What has happened since, after at most `seconds`."""
        found = []
        try:
            found.append(self._found.get(timeout=seconds))
            while True:
                found.append(self._found.get_nowait())
        except queue.Empty:
            return found

    def stop(self) -> None:
        """Asks the process to stop."""
        if self._process is not None:
            self._process.stdin.close()


def main() -> int:
    """Runs the job; its exit code."""
    import ray  # optional wheel
    from ray.util.placement_group import placement_group, remove_placement_group  # optional wheel

    stopping = threading.Event()
    # Unbuffered, since the interpreter cannot end while a thread waits in a buffered stdin.
    given = open(0, "rb", buffering=0)  # noqa: SIM115 -- as long as the process lives
    told = json.loads(given.readline())
    threading.Thread(target=_await_end, args=(given, stopping), daemon=True).start()
    try:
        ray.init(address=told["address"], log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as e:
        print(f"meshrt launch: no Ray cluster at {told['address']!r}: {e}. Start one with `ray start --head`",
              file=sys.stderr)  # fmt: skip
        return 2
    group = placement_group(told["bundles"], strategy=told["strategy"])
    try:
        if not _placed(group, told["wait"], stopping):
            if stopping.is_set():
                return 143
            has = {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")}
            print(f"meshrt launch: Ray found no place for {told['bundles']} ({told['strategy']}) within "
                  f"{told['wait']} s; the cluster has {has}", file=sys.stderr)  # fmt: skip
            return 2
        return _run(told, group, stopping)
    finally:
        remove_placement_group(group)
        ray.shutdown()


def _await_end(given: BinaryIO, stopping: threading.Event) -> None:
    given.read()
    stopping.set()


def _placed(group: Any, seconds: float, stopping: threading.Event) -> bool:
    import ray  # optional wheel

    waited = 0.0
    while waited < seconds and not stopping.is_set():
        if ray.wait([group.ready()], timeout=_WAIT_S)[0]:
            return True
        waited += _WAIT_S
    return False


def _run(told: dict[str, Any], group: Any, stopping: threading.Event) -> int:
    import ray  # optional wheel
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # optional wheel

    count = len(told["bundles"]) * told["each"]
    holders = [
        ray.remote(Holder).options(
            num_cpus=told["cpus"], num_gpus=told["gpus"], max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, i // told["each"]),
        ).remote()
        for i in range(count)
    ]  # fmt: skip
    address = f"{ray.get(holders[0].address.remote())}:{told['port']}"
    for i, holder in enumerate(holders):
        holder.start.remote(told["hold"], _line(told, address, count, i))
    pending = {holder.read.remote(_WAIT_S): i for i, holder in enumerate(holders)}
    code, asked = 0, False
    while pending:
        if (stopping.is_set() or code) and not asked:
            asked = True
            for i in pending.values():
                holders[i].stop.remote()
        for ready in ray.wait(list(pending), num_returns=1, timeout=_WAIT_S)[0]:
            i = pending.pop(ready)
            ended = _shown(ready, i)
            if ended is None:
                pending[holders[i].read.remote(_WAIT_S)] = i
            else:
                code = code or ended
    return code


def _line(told: dict[str, Any], address: str, count: int, rank: int) -> bytes:
    place = {"MESHRT_AGENT_NAME": f"ray{rank}"}
    if told["port"] is not None:
        place = {
            "MESHRT_COORDINATOR_ADDRESS": address,
            "MESHRT_NUM_PROCESSES": str(count),
            "MESHRT_PROCESS_ID": str(rank),
        }
    fields = {k: told[k] for k in ("command", "directory", "grace")}
    return json.dumps({**fields, "variables": {**told["variables"], **place}}).encode() + b"\n"


def _shown(ready: Any, rank: int) -> int | None:
    """Prints what a holder has read; the exit code of its process, if it ended."""
    import ray  # optional wheel

    try:
        found = ray.get(ready)
    except ray.exceptions.RayActorError as e:
        print(f"{rank}: meshrt launch: its actor is gone: {str(e).splitlines()[0]}", file=sys.stderr, flush=True)
        return _LOST
    for name, value in found:
        if name == "exit":
            return int(value)
        stream = getattr(sys, name).buffer
        stream.write(f"{rank}: ".encode() + value)
        stream.flush()
    return None


if __name__ == "__main__":
    sys.exit(main())
