"""The coordination service of a job that no launcher started: a child process of process 0."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time

from meshrt.errors import DistributedError
from meshrt.launch import wire
from meshrt.launch.engines.protocol import SERVICE_SCRIPT
from meshrt.launch.environment import service_environment


class LocalService:
    """A running service. After `stop`, or the end of the process that started it, it ends with its last member."""

    def __init__(self, process: subprocess.Popen[bytes], address: str):
        self._process = process
        self.address = address

    @classmethod
    def start(
        cls, bind: str, num_processes: int, silent_s: float, timeout_s: float, stall_s: float | None = None
    ) -> LocalService:
        """Starts the service on `bind` (``host:port``) and waits until it listens; DistributedError if it cannot.

        A process that says nothing for `silent_s`, or keeps others waiting for `stall_s` (None: as long as usual), is
        lost.
        """
        read_end, write_end = os.pipe()
        try:
            command = [
                sys.executable, str(SERVICE_SCRIPT), "--num-processes", str(num_processes),
                "--bind", bind, "--silent", str(silent_s), "--until-eof",
                *([] if stall_s is None else ["--stall", str(stall_s)]),
            ]  # fmt: skip
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=(write_end,),
                env=service_environment(os.environ, write_end),
            )  # fmt: skip
            os.close(write_end)
            line = _first_line(read_end, timeout_s)
        finally:
            os.close(read_end)
        message = wire.decode(line) if line else None
        if not isinstance(message, wire.Ready):
            process.kill()
            code = process.wait()
            raise DistributedError(
                f"the coordination service could not be started on {bind} (exit code {code}); its message is above. "
                "Is the port taken? Choose another one in coordinator_address, the same for all processes."
            )
        return cls(process, message.address)

    def stop(self) -> None:
        """Lets the service end, when the last of the peers has left."""
        assert self._process.stdin is not None
        self._process.stdin.close()


def _first_line(fd: int, timeout_s: float) -> bytes:
    """What is written to `fd` up to the first line end; empty when it is closed or `timeout_s` passes before."""
    deadline, data = time.monotonic() + timeout_s, b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while b"\n" not in data:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return b""
            chunk = os.read(fd, 4096)
            if not chunk:
                return b""
            data += chunk
    return data.partition(b"\n")[0]
