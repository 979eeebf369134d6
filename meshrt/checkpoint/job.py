"""What the processes of a job tell each other while they save or restore: small texts in the coordination service."""

from __future__ import annotations

import json
from typing import Any

from meshrt import distributed, errors
from meshrt.distributed.state import DistributedContext, next_number
from meshrt.distributed.store import read
from meshrt.xla import jaxlib_api

__all__ = ["Job", "current"]

_LONGEST = 20_000  # characters of a text: the service refuses messages of megabytes


class Job:
    """The processes that save or restore together, as seen by one of them. Alone, nothing is sent.

    Every process makes the same calls of this package in the same order, so a number for each call is a common prefix
    of what is told about it.
    """

    def __init__(self, place: DistributedContext | None, prefix: str, timeout_s: float):
        self.rank, self.count = (0, 1) if place is None else (place.node_id, place.num_nodes)
        self._place, self.prefix, self.timeout_s = place, prefix, timeout_s

    @property
    def leads(self) -> bool:
        """Whether this process makes and commits directories."""
        return self.rank == 0

    def tell(self, key: str, message: dict[str, Any]) -> None:
        """Leaves a message for the others under a key of this call."""
        if self._place is None or self.count == 1:
            return
        text = json.dumps(message)
        if len(text) > _LONGEST:
            error = str(message.get("error", "a message that is too long"))
            text = json.dumps({"error": error[: _LONGEST // 4] + " ..."})
        self._place.client.key_value_set_bytes(f"{self.prefix}/{key}", text.encode())

    def ask(self, key: str, whose: str) -> dict[str, Any]:
        """The message under a key, waited for. CheckpointError if it does not come in time, PeerLost if a process is
        lost meanwhile."""
        assert self._place is not None  # alone, nobody is asked
        why = ""
        try:
            data = read(self._place, f"{self.prefix}/{key}", self.timeout_s)
        except jaxlib_api.XlaError as e:
            data, why = None, f": {_first_line(e)}"
        if data is None:
            raise errors.CheckpointError(
                f"process {self.rank} waited for {whose} for {self.timeout_s:.0f} s while a checkpoint was saved or "
                f"restored, in vain{why}. All processes must make the same calls of meshrt.checkpoint in "
                "the same order; give timeout= if writing takes longer"
            )
        found: dict[str, Any] = json.loads(data)
        return found

    def forget(self, *keys: str) -> None:
        """Removes messages that all have read."""
        if self._place is not None and self.count > 1:
            for key in keys:
                self._place.client.key_value_delete(f"{self.prefix}/{key}")


def current(timeout_s: float) -> Job:
    """The job for one call; numbered, so every process must ask for it once per call. ArgumentTypeError unless
    `timeout_s` is a number above 0."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise errors.ArgumentTypeError(f"timeout is a number of seconds above 0. Got {timeout_s!r}")
    number = next_number("checkpoint")
    return Job(distributed.context(), f"meshrt/checkpoint/{number}", timeout_s)


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0]
