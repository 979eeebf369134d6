"""Breaking off collectives that would never end: the sockets between the processes of a job, found in /proc and closed.

A thread that waits in a collective over TCP has no time limit and hears nothing of a peer that is stopped or cut off.
When its sockets are shut down, the collective fails, and the program that it stands in raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator

__all__ = ["break_off", "listening_ports"]

_LISTEN = "0A"
_PREFIX = "socket:["


def listening_ports() -> set[int]:
    """TCP ports on which this process listens; empty where the system does not tell (Linux does)."""
    return {local for _, local, _, state in _connections() if state == _LISTEN}


def break_off(own_port: int | None, ports: Collection[int]) -> int:
    """Shuts down this process's connections to or from these ports of collectives; gives how many there were.

    `own_port` is the one on which this process waits for its peers, `ports` those of its peers. A connection between
    two processes has one of them at one end.
    """
    # Start-up time: only jobs of several processes that break something off need sockets.
    import socket

    count = 0
    for fd, local, remote, state in _connections():
        if state == _LISTEN or not (local == own_port or remote in ports):
            continue
        try:
            with socket.socket(fileno=os.dup(fd)) as sock:
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # it has ended since
        count += 1
    return count


def _connections() -> Iterator[tuple[int, int, int, str]]:
    """This process's TCP sockets: descriptor, local port, remote port, state."""
    if not sys.platform.startswith("linux"):
        return
    table = {}
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, state, *_, inode = line.split()[:10]
            table[inode] = (int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16), state)
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(_PREFIX) and (found := table.get(target[len(_PREFIX) : -1])) is not None:
            yield int(name), *found
