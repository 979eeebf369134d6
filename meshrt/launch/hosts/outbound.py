"""The output of a host's tasks on its way to the coordinator: bounded, so that no print blocks a task."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator

from meshrt.launch.engines.protocol import Output, Task
from meshrt.launch.hosts.messages import Chunk

__all__ = ["Outbound"]

# Chosen: a rank that prints more than this for long says nothing that anybody reads.
RATE = 4 << 20  # bytes a second of each task
BURST = 16 << 20
_HELD = 8 << 20  # bytes of all tasks that may wait for the network
_CHUNK = 256 << 10


class Outbound:
    """Chunks from the local engine's thread to a stream's. What is too much is dropped and counted, with a line that
    says so where it was."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._held = 0
        self._changed = threading.Condition()
        self._count: Counter[Task] = Counter()
        self._dropped: Counter[Task] = Counter()
        self._allowed: dict[Task, tuple[float, float]] = {}  # bytes, and as of when
        self._stream = 0

    def put(self, found: Output) -> None:
        """A task printed this."""
        with self._changed:
            if not self._may(found.task, len(found.data), found.at):
                self._dropped[found.task] += len(found.data)
                return
            if dropped := self._dropped.pop(found.task, 0):
                note = f"\n[meshrt: {dropped} bytes that this rank printed were dropped: too much at once]\n"
                self._add(Chunk(found.task, found.at, True, note.encode()))
            for start in range(0, len(found.data), _CHUNK):
                data = found.data[start : start + _CHUNK]
                self._add(Chunk(found.task, found.at, found.stream == "stderr", data))

    def count(self, task: Task) -> int:
        """How many chunks of a task there were."""
        with self._changed:
            self._allowed.pop(task, None)
            return self._count.pop(task, 0)

    def begin_stream(self) -> int:
        """A stream takes the chunks from now on, and the former one ends."""
        with self._changed:
            self._stream += 1
            self._changed.notify_all()
            return self._stream

    def take(self, stream: int) -> Iterator[Chunk]:
        """Chunks as they come, until another stream takes them."""
        while True:
            with self._changed:
                while not self._chunks and stream == self._stream:
                    self._changed.wait()
                if stream != self._stream:
                    return
                chunk = self._chunks.popleft()
                self._held -= len(chunk.data)
            yield chunk

    def _may(self, task: Task, size: int, now: float) -> bool:
        left, since = self._allowed.get(task, (float(BURST), now))
        left = min(float(BURST), left + (now - since) * RATE)
        allowed = size <= left and self._held + size <= _HELD
        self._allowed[task] = (left - size if allowed else left, now)
        return allowed

    def _add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._held += len(chunk.data)
        self._count[chunk.task] += 1
        self._changed.notify_all()
