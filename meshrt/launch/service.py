"""The coordination service of one generation, in a process of its own (serve.py).

It tells its parent the address on the pipe of bootstrap.py and then waits to be killed, or, with ``--until-eof``, for
the end of its stdin. It holds nothing that must be saved. It is separate because every worker is aborted by the
distributed runtime as soon as the process that holds the service is gone.
"""

from __future__ import annotations

import argparse
import errno
import signal
import socket
import sys
import time

from meshrt.errors import DistributedError
from meshrt.launch import bootstrap
from meshrt.launch.address import HEARTBEAT_S, join_address, split_address
from meshrt.runtime import jaxlib_api

# How long the service outlives the process that started it: its peers may still be disconnecting, and the
# runtime aborts a process that loses the service before. Also how long a port is waited for, which a former
# job may be holding so.
_LINGER_S = 0.5
_PORT_WAIT_S = 3.0


def reserve(host: str, port: int) -> socket.socket:
    """A socket that holds a port for the service, bound and not listening. Port 0 picks a free one.

    The service binds the same port a moment later, which SO_REUSEPORT allows to us and to nobody else; so no
    other process can take it in between. Binding a taken port inside the runtime would crash the process
    instead of failing.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + _PORT_WAIT_S
    while True:
        try:
            if port:  # another service of ours would let us share its port, and the jobs would mix
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((host, port))
            holder = socket.socket(family, socket.SOCK_STREAM)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind((host, port))
            return holder
        except OSError as e:
            if e.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise _cannot_listen(host, port, e) from None


def _cannot_listen(host: str, port: int, error: OSError) -> DistributedError:
    return DistributedError(
        f"the coordination service cannot listen on {host}:{port}: {error.strerror}. Choose another port or address, "
        "or port 0 for any free port."
    )


def main(arguments: list[str] | None = None) -> None:
    """Serves until killed."""
    parser = argparse.ArgumentParser(prog="serve.py", description=__doc__)
    parser.add_argument("--num-processes", type=int, required=True)
    parser.add_argument("--bind", default="127.0.0.1:0")
    parser.add_argument("--heartbeat", type=int, default=HEARTBEAT_S, help="seconds")
    parser.add_argument("--shutdown-timeout", type=int, default=300, help="seconds for all to disconnect")
    parser.add_argument("--until-eof", action="store_true", help="end a moment after stdin does")
    parser.add_argument("--recoverable", action="store_true", help="the loss of a process does not abort the others")
    options = parser.parse_args(arguments)
    host, port = split_address(options.bind)
    holder = reserve(host, port)
    address = join_address(host, holder.getsockname()[1])
    # Recoverable: the loss of one process does not abort the others, which the launcher stops itself. Without
    # a launcher they are to be aborted, and disconnect together, unless the job says that it goes on without.
    service = jaxlib_api.distributed_service(
        address, options.num_processes, heartbeat_timeout_s=options.heartbeat,
        shutdown_timeout_s=options.shutdown_timeout,
        recoverable=options.recoverable or not options.until_eof,
    )  # fmt: skip
    holder.close()
    bootstrap.send(kind="ready", address=address)
    _hold(service, options.until_eof)


def _hold(service: object, until_eof: bool) -> None:
    """Keeps `service` alive until a signal ends the process, or stdin ends."""
    if until_eof:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the process that started us
        sys.stdin.read()
        time.sleep(_LINGER_S)
        return
    while True:
        signal.pause()
