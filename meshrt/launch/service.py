"""The coordination service of one generation, in a process of its own (serve.py), behind the door of the job.

The door (membership/door.py) is the address that people know. Behind it jaxlib's service listens on a socket in a
folder that only this user can open: jaxlib takes everybody, and a stranger who claims a place ends the job.

The process tells its parent the door's address on the pipe of bootstrap.py as soon as somebody can knock, before it has
loaded jaxlib. Then it waits to be killed, or, with ``--until-eof``, for the end of its stdin and of the last member. It
is separate because every worker is aborted by the distributed runtime as soon as its process is gone.
"""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from meshrt.errors import DistributedError
from meshrt.launch import bootstrap, open_files
from meshrt.launch.address import FUSE_S, join_address, split_address
from meshrt.launch.environment import SECRET
from meshrt.launch.membership.patience import REPORT_S, SILENT_S, STALL_S

_PORT_WAIT_S = 3.0  # a former job may be holding the port that long
_BACKLOG = 4096


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 picks a free one. DistributedError if it cannot."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while True:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            return listener
        except OSError as e:
            if e.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise DistributedError(
                f"the coordination service cannot listen on {join_address(host, port)}: {e.strerror}. Choose another "
                "port or address, or port 0 for any free port; behind address translation, name an address of this "
                "host in coordinator_bind_address."
            ) from None


class Services:
    """jaxlib's services of this process: one for the job, and one more for each time that it goes on with fewer.

    All stay until the end: a process that still holds something of an earlier one would be aborted with it.
    """

    def __init__(self, folder: str):
        self._folder, self._kept = folder, list[Any]()

    def make(self, count: int) -> str:
        """Starts one for `count` processes; gives its address."""
        from meshrt.xla import jaxlib_distributed  # start-up time: the door is open before it is loaded

        address = f"unix:{self._folder}/{len(self._kept)}"
        # Who is lost, and what follows, is the door's business: of itself the service ends nobody.
        service = jaxlib_distributed.distributed_service(address, count, heartbeat_timeout_s=FUSE_S, recoverable=True)
        self._kept.append(service)
        return address


def main(arguments: list[str] | None = None) -> None:
    """Serves until killed."""
    parser = argparse.ArgumentParser(prog="serve.py", description=__doc__)
    parser.add_argument("--num-processes", type=int, required=True)
    parser.add_argument("--bind", default="127.0.0.1:0")
    parser.add_argument("--silent", type=float, default=SILENT_S, help="seconds until a silent process is lost")
    parser.add_argument("--stall", type=float, default=STALL_S, help="seconds that one may keep others waiting")
    parser.add_argument("--until-eof", action="store_true", help="end when stdin has ended and all members have gone")
    options = parser.parse_args(arguments)
    open_files.raised()  # each process has a connection to the door, and one through it to jaxlib's service
    host, port = split_address(options.bind)
    listener = listen(host, port)
    bootstrap.send(kind="ready", address=join_address(host, listener.getsockname()[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the process that started this one
    # Start-up time: workers start when somebody listens, and what they say meanwhile waits on the socket.
    from meshrt.launch.membership.door import Door
    from meshrt.launch.membership.folders import private_folder, remove_folder
    from meshrt.launch.membership.neighbours import cpu_seconds
    from meshrt.launch.membership.roster import Patience, Roster

    folder = private_folder()
    signal.signal(signal.SIGTERM, lambda number, frame: _end(folder))
    services = Services(folder)
    try:
        patience = Patience(options.silent, min(REPORT_S, options.stall), options.stall)
        roster = Roster(options.num_processes, patience, cpu_seconds)
        door = Door(listener, os.environ.get(SECRET, ""), roster, services.make, _tell, _log)
        door.serve(_stdin_ended if options.until_eof else lambda: False)
    finally:
        remove_folder(folder)


def _end(folder: str) -> None:
    """At once: an exception would come out of whatever is being imported, with its traceback."""
    from meshrt.launch.membership.folders import remove_folder  # start-up time: as above

    remove_folder(folder)
    os._exit(0)


def _stdin_ended() -> bool:
    return bool(select.select([0], [], [], 0)[0])  # nobody writes to it: readable is ended


def _tell(rank: int, why: str, ended: bool) -> None:
    bootstrap.send(kind="lost", rank=rank, why=why, ended=ended)


def _log(text: str) -> None:
    print(f"meshrt: the door of the job: {text}", file=sys.stderr, flush=True)
