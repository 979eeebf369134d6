"""How a process on another host reaches the coordination service: a socket of its own, led through the job's door."""

from __future__ import annotations

import atexit
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
    """Listens on a socket that only this user can open; every connection goes through the door at `door`.

    `address` is what to give jaxlib's client. It stays until the process ends.
    """

    def __init__(self, door: tuple[str, int], secret: str):
        self._door, self._secret = door, secret
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
            for source, target in ((inner, outer), (outer, inner)):
                threading.Thread(target=_pump, args=(source, target), name="meshrt-tunnel", daemon=True).start()

    def _through(self) -> socket.socket:
        """A connection to the service behind the door."""
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


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Passes on what comes until either side ends, and then ends both."""
    try:
        while data := source.recv(_READ):
            target.sendall(data)
    except OSError:
        pass  # the other direction ended both
    for sock in (source, target):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
