"""The output of a host's tasks on its way to the coordinator: bounded, so that no print blocks a task, and kept until
the coordinator has dealt with it, so that no break of the connection loses any."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from meshrt.launch.engines.protocol import Output, Task
from meshrt.launch.hosts.messages import Chunk

__all__ = ["Outbound"]

# Chosen: a rank that prints more than this for long says nothing that anybody reads.
RATE = 4 << 20  # bytes a second of each task
BURST = 16 << 20
_HELD = 8 << 20  # bytes of all tasks that may wait for the network and for the coordinator
_CHUNK = 256 << 10
_KEEPING = 256  # bytes that it costs to keep a chunk, beside its content


class Outbound:
    """Chunks from the local engine's thread to a stream's, numbered from 1 as long as the agent lives. Each new stream
    begins with the first that is not settled. What is too much is dropped and counted, with a line that says so where
    it was."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}  # those that are not settled, in order
        self._held = 0
        self._changed = threading.Condition()
        self._number = self._settled = self._sent = 0
        self._last: dict[Task, int] = {}
        self._dropped: Counter[Task] = Counter()
        self._allowed: dict[Task, tuple[float, float]] = {}  # bytes, and as of when
        self._stream = 0

    def put(self, found: Output) -> None:
        """A task printed this."""
        with self._changed:
            if not self._may(found.task, len(found.data), found.at):
                self._dropped[found.task] += len(found.data)
                return
            self._note_dropped(found.task, found.at)
            for start in range(0, len(found.data), _CHUNK):
                self._add(found.task, found.at, found.stream == "stderr", found.data[start : start + _CHUNK])

    def end(self, task: Task, now: float) -> int:
        """A task ended: the number of the last chunk of its output, 0 if there was none."""
        with self._changed:
            self._note_dropped(task, now)
            self._allowed.pop(task, None)
            return self._last.pop(task, 0)

    @property
    def settled(self) -> int:
        """The number up to which no chunk is sent again."""
        return self._settled

    def settle(self, number: int) -> None:
        """The coordinator has dealt with the chunks up to this number."""
        with self._changed:
            for settled in range(self._settled + 1, min(number, self._number) + 1):
                self._held -= _size(self._chunks.pop(settled))
                self._settled = settled

    def forget(self) -> None:
        """Nobody wants what was printed so far: it is of a former life of the agent."""
        with self._changed:
            self._chunks.clear()
            self._last.clear()
            self._held, self._settled = 0, self._number

    def begin_stream(self) -> int:
        """A stream takes the chunks from now on, and the former one ends."""
        with self._changed:
            self._stream += 1
            self._changed.notify_all()
            return self._stream

    def wait(self, stream: int) -> int:
        """Waits until there is something to send, and gives the number of a stream that takes the place of this one,
        beginning with what is not settled; 0 if another one has it."""
        with self._changed:
            while not self._chunks and stream == self._stream:
                self._changed.wait()
            if stream != self._stream:
                return 0
            self._sent = self._settled
            return self.begin_stream()

    def take(self, stream: int) -> Iterator[Chunk]:
        """Chunks as they come, until another stream takes them."""
        while True:
            with self._changed:
                while self._number <= max(self._sent, self._settled) and stream == self._stream:
                    self._changed.wait()
                if stream != self._stream:
                    return
                self._sent = number = max(self._sent, self._settled) + 1
                chunk = self._chunks[number]
            yield chunk

    def _may(self, task: Task, size: int, now: float) -> bool:
        left, since = self._allowed.get(task, (float(BURST), now))
        left = min(float(BURST), left + (now - since) * RATE)
        allowed = size <= left and self._held + size <= _HELD
        self._allowed[task] = (left - size if allowed else left, now)
        return allowed

    def _note_dropped(self, task: Task, now: float) -> None:
        if dropped := self._dropped.pop(task, 0):
            note = f"\n[meshrt: {dropped} bytes that this rank printed were dropped: too much at once]\n"
            self._add(task, now, True, note.encode())

    def _add(self, task: Task, now: float, stderr: bool, data: bytes) -> None:
        self._number += 1
        self._chunks[self._number] = chunk = Chunk(task, now, stderr, data, self._number)
        self._held += _size(chunk)
        self._last[task] = self._number
        self._changed.notify_all()


def _size(chunk: Chunk) -> int:
    return len(chunk.data) + _KEEPING
