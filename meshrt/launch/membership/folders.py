"""Folders that only this user can open: for sockets, and for what the processes of a job share on a host."""

from __future__ import annotations

import contextlib
import os
import zlib

from meshrt.launch.membership.frames import new_nonce
from meshrt.launch.membership.neighbours import where

__all__ = ["private_folder", "remove_folder", "spacious_folder"]

_NAME = "meshrt-door-"  # then a digest of the running system, the number of the process in it, and a nonce
_LONGEST = 50  # bytes of the path of the parent: a socket's path is at most about 100 long on every system


def private_folder() -> str:
    """A new folder that only this user can open."""
    places = (os.environ.get(name, "") for name in ("XDG_RUNTIME_DIR", "TMPDIR"))
    parent = next((p for p in places if os.path.isdir(p) and os.access(p, os.W_OK) and len(p) <= _LONGEST), "/tmp")
    return _made(parent)


def spacious_folder(needed: int) -> str | None:
    """A new folder that only this user can open, in memory if there is room there for `needed` bytes and as many again,
    else on disk; None where neither has."""
    for parent in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp"):
        with contextlib.suppress(OSError):  # it is not there, or full, or closed to this user
            there = os.statvfs(parent)
            if there.f_bavail * there.f_frsize >= 2 * needed:
                return _made(parent)
    return None


def _made(parent: str) -> str:
    _sweep(parent)
    folder = f"{parent}/{_here()}{os.getpid()}-{new_nonce()[:12]}"
    os.mkdir(folder, 0o700)
    return folder


def _sweep(parent: str) -> None:
    """Removes those whose processes were killed before they could, on this system: containers and hosts may share the
    parent, and their processes' numbers mean nothing here."""
    if not where():
        return
    for name in os.listdir(parent):
        pid = name.removeprefix(_here()).partition("-")[0]
        if not name.startswith(_here()) or not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        with contextlib.suppress(OSError):  # another user's, or another process is at it too
            remove_folder(f"{parent}/{name}")


def _here() -> str:
    return f"{_NAME}{zlib.crc32(where().encode()):08x}-"


def remove_folder(folder: str) -> None:
    """Removes it with its sockets. OSError if it is not this user's own: where everybody may write, anybody can put a
    link of such a name that leads to this user's files."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        for name in os.listdir(handle):
            os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(folder)
