"""How a process reaches the coordination service from another host, or outlives its end: by a socket of its own, which
leads through the job's door, or to the service itself.

jaxlib's client aborts its process as soon as its connection closes. The end of this one it does not see: the job's
door, which ends with the service, is what tells the process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading

from meshrt.errors import DistributedError
from meshrt.launch.membership import frames
from meshrt.launch.membership.folders import private_folder, remove_folder

__all__ = ["Tunnel", "reachable"]

_READ = 256 * 1024


def reachable(service: str) -> bool:
    """Whether the service's socket lies in this host's file system, and belongs to this user."""
    try:
        return os.stat(service.removeprefix("unix:")).st_uid == os.getuid()
    except OSError:
        return False


class Tunnel:
    """Listens on a socket that only this user can open; every connection goes through the door at `door`, or, where
    `service` is given, to that socket of this host.

    `address` is what to give jaxlib's client. It stays until the process ends, also when what it leads to does not.
    """

    def __init__(self, door: tuple[str, int], secret: str, service: str | None = None):
        self._door, self._secret, self._service = door, secret, service
        folder = private_folder()
        atexit.register(remove_folder, folder)
        self.address = f"unix:{folder}/0"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"{folder}/0")
        self._listener.listen()
        threading.Thread(target=self._serve, name="meshrt-tunnel", daemon=True).start()

    def _serve(self) -> None:
        while True:
            inner, _ = self._listener.accept()
            try:
                outer = self._through()
            except (OSError, DistributedError):
                inner.close()  # the client tries again, or says what it cannot reach
                continue
            for pump in (_out, _back):
                threading.Thread(target=pump, args=(inner, outer), name="meshrt-tunnel", daemon=True).start()

    def _through(self) -> socket.socket:
        """A connection to the service."""
        if self._service is not None:
            direct = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            direct.connect(self._service.removeprefix("unix:"))
            return direct
        outer = socket.create_connection(self._door, timeout=10)
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cut = frames.Frames()
        hello = frames.receive(outer, cut)
        proof = frames.proof(self._secret, "tunnel", hello.get("nonce", ""), None, None)
        outer.sendall(frames.encode("tunnel", proof=proof))
        answer = frames.receive(outer, cut)
        if answer["kind"] != "through":
            raise frames.FrameError(f"the door answered {answer['kind']!r}")
        outer.settimeout(None)
        return outer


def _out(inner: socket.socket, outer: socket.socket) -> None:
    """Passes on what the client says until it ends; into the void once nobody hears it any more."""
    with contextlib.suppress(OSError):  # the client has gone
        while data := inner.recv(_READ):
            with contextlib.suppress(OSError):  # the service has gone
                outer.sendall(data)
    with contextlib.suppress(OSError):
        outer.shutdown(socket.SHUT_RDWR)


def _back(inner: socket.socket, outer: socket.socket) -> None:
    """Passes on what the service says. When it ends, the client's connection stays."""
    with contextlib.suppress(OSError):
        while data := outer.recv(_READ):
            inner.sendall(data)
