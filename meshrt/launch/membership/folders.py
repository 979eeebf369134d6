"""Folders for sockets that only this user can open."""

from __future__ import annotations

import contextlib
import os

from meshrt.launch.membership.frames import new_nonce

__all__ = ["private_folder", "remove_folder"]

_NAME = "meshrt-door-"  # then the number of the process, and a nonce
_LONGEST = 50  # bytes of the path of the parent: a socket's path is at most about 100 long on every system


def private_folder() -> str:
    """A new folder that only this user can open."""
    places = (os.environ.get(name, "") for name in ("XDG_RUNTIME_DIR", "TMPDIR"))
    parent = next((p for p in places if os.path.isdir(p) and os.access(p, os.W_OK) and len(p) <= _LONGEST), "/tmp")
    _sweep(parent)
    folder = f"{parent}/{_NAME}{os.getpid()}-{new_nonce()}"
    os.mkdir(folder, 0o700)
    return folder


def _sweep(parent: str) -> None:
    """Removes those whose processes were killed before they could."""
    for name in os.listdir(parent):
        pid = name.removeprefix(_NAME).partition("-")[0]
        if not name.startswith(_NAME) or not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        with contextlib.suppress(OSError):  # another user's, or another process is at it too
            if os.path.isdir("/proc/self"):
                remove_folder(f"{parent}/{name}")


def remove_folder(folder: str) -> None:
    """Removes it with its sockets."""
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")
    os.rmdir(folder)
