"""A directory of compiled programs that processes share.

    KEY.xla         an entry: machine code of XLA's, under a hash of everything that decides it
    KEY.program     an entry: one device's program and its boundary shardings (`meshrt.pipeline.stored`)
    .KEY.xla.used   a byte for each time that the entry was used; when it last was is when this file changed
    .KEY.xla.lock   held (`flock`) by the process that is making the entry

An entry is code that will run with its reader's rights, so the directory must belong to the user and be writable by
nobody else, and every entry carries a checksum over its name and content. It is written to a temporary file first.
Locks end with the process that holds them, however it ends. Beyond its size the directory loses the entries that were
not used for longest.

Layout of an entry, numbers little-endian: `MESHRTX2`, sha256 of all else, u32 length of the description, the
description (JSON), the content.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from meshrt import errors

__all__ = ["DamagedEntry", "DiskCache", "Entry", "checked_directory"]

_MAGIC = b"MESHRTX2"
_DIGEST = 32
_HEAD = len(_MAGIC) + _DIGEST + 4
_MAX_ENTRY = 1 << 32
_MAX_DESCRIPTION = 1 << 16
_KINDS = (".xla", ".program")
# `write` makes such files; others in the directory are the user's.
_TEMPORARY = re.compile(r"\..{1,16}-\d+-\d+-\d+\.tmp")
_OLD_TEMPORARY = 3600.0  # seconds after which a file that a killed process left half-written is removed


class DamagedEntry(Exception):
    """An entry whose bytes are not those that were written."""


class Entry(NamedTuple):
    """What is known of one entry without its content. Sizes are bytes, times seconds since the epoch."""

    name: str
    size: int
    created: float
    used: float
    hits: int
    program: str = "?"
    platform: str = "?"
    jaxlib: str = "?"
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def checked_directory(name: str | os.PathLike[str], make: bool = True) -> Path:
    """The directory, made unless it is there, and found to be this user's alone.

    Raises:
      CompileCacheError: it belongs to someone else, others can write to it, or it cannot be made.
    """
    path = Path(name).expanduser()
    try:
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as e:
        raise errors.CompileCacheError(
            f"the compilation cache directory {path} cannot be used: {e}. Set compilation_cache_dir to a directory "
            "that you can write to, or to None."
        ) from e
    if not stat.S_ISDIR(status.st_mode):
        raise errors.CompileCacheError(f"compilation_cache_dir {path} is not a directory; set another one or None")
    if status.st_uid != os.getuid():
        raise errors.CompileCacheError(
            f"the compilation cache directory {path} belongs to user id {status.st_uid}, not to you ({os.getuid()}). "
            "Its files are code that would run with your rights; set compilation_cache_dir to a directory of your own."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise errors.CompileCacheError(
            f"others can write to the compilation cache directory {path} (mode {stat.filemode(status.st_mode)}). Its "
            f"files are code that would run with your rights; run `chmod go-w {path}` or set another "
            "compilation_cache_dir."
        )
    return path


class DiskCache:
    """The entries in `root`, a directory that `checked_directory` gave.

    Args:
      max_bytes: what all entries together may take; None for no bound.
    """

    def __init__(self, root: Path, max_bytes: int | None = None):
        self.root, self.max_bytes = root, max_bytes

    # -- one entry -----------------------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return self.root / name

    def read(self, name: str) -> tuple[dict[str, Any], bytes]:
        """The description and the content of an entry; it counts as used.

        Raises:
          FileNotFoundError: there is none. OSError: it cannot be read, or is not a file of this user.
          DamagedEntry: its checksum does not match.
        """
        found = _parsed(name, _read(self.path(name)))
        self._note_use(name)
        return found

    def write(self, name: str, content: bytes, **about: Any) -> None:
        """Stores an entry, in one step as others see it. OSError if it cannot be.

        Where another process clears the directory meanwhile, the entry is gone as if it had been there before.
        """
        description = json.dumps({"created": time.time(), **about}).encode()
        data = struct.pack("<I", len(description)) + description + content
        temporary = self.root / f".{name[:16]}-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}.tmp"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _digest(name, data) + data)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.replace(temporary, self.path(name))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if self.max_bytes is not None:
            self.shrink(self.max_bytes, keep=name)

    def remove(self, name: str) -> bool:
        """Removes an entry, if it is there; False if it cannot be, as where somebody made a directory of its name."""
        try:
            for path in (self._uses(name), self.path(name)):
                path.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            return False
        return True

    @contextlib.contextmanager
    def making(self, name: str, timeout: float) -> Iterator[bool]:
        """Held by one process (and thread) at a time; yields whether it had to wait for another one.

        After `timeout` seconds the caller goes on without the lock: it makes what the other one was slow to make. So it
        does where the file system has no locks.
        """
        path, deadline, pause, waited = self.root / f".{name}.lock", time.monotonic() + timeout, 0.002, False
        handle: int | None = None
        while handle is None:
            try:
                handle = _lock(path)
            except BlockingIOError:
                waited = True
                if time.monotonic() >= deadline:
                    break
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
            except OSError:
                break
        try:
            yield waited
        finally:
            if handle is not None:
                path.unlink(missing_ok=True)  # whoever opened it meanwhile sees that it is gone, and makes a new one
                os.close(handle)

    def _uses(self, name: str) -> Path:
        return self.root / f".{name}.used"

    def _note_use(self, name: str) -> None:
        # One byte more, appended: processes need not agree on anything.
        with contextlib.suppress(OSError):
            handle = os.open(self._uses(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                os.write(handle, b".")
            finally:
                os.close(handle)

    # -- all entries ---------------------------------------------------------------------------------------------------

    def entries(self, *, check: bool = False) -> list[Entry]:
        """Every entry, that used last first. With `check` their content is read, and `problem` says what is wrong."""
        found = [self._entry(name, status, check) for name, status in self._statuses()]
        return sorted(found, key=lambda e: -e.used)

    def shrink(self, size: int, keep: str | None = None) -> list[str]:
        """Removes the entries not used for longest until all take at most `size` bytes; returns their names."""
        rows = []
        for name, status in self._statuses():
            used, _ = self._use(name, status)
            rows.append((name == keep, used, name, status.st_size))
        total, removed = sum(r[3] for r in rows), []
        for _, _, name, length in sorted(rows):
            if total <= size:
                break
            if self.remove(name):
                removed.append(name)
                total -= length
        return removed

    def clear(self) -> int:
        """Removes every entry and what belongs to them; returns how many entries were removed."""
        count = sum([self.remove(name) for name, _ in self._statuses()])
        for path in self.root.iterdir():
            uses = path.name.startswith(".") and path.name.endswith(tuple(f"{kind}.used" for kind in _KINDS))
            if uses or _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)
        return count

    def _statuses(self) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(self.root) as found:
            for item in found:
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    if item.name.endswith(_KINDS) and not item.name.startswith("."):
                        yield item.name, item.stat(follow_symlinks=False)
                    elif _TEMPORARY.fullmatch(item.name) and item.stat().st_mtime < time.time() - _OLD_TEMPORARY:
                        os.unlink(item.path)

    def _use(self, name: str, status: os.stat_result) -> tuple[float, int]:
        """When the entry was last used, and how often."""
        try:
            uses = self._uses(name).stat()
        except OSError:
            return status.st_mtime, 0
        return max(status.st_mtime, uses.st_mtime), uses.st_size

    def _entry(self, name: str, status: os.stat_result, check: bool) -> Entry:
        used, hits = self._use(name, status)
        entry = Entry(name, status.st_size, status.st_mtime, used, hits)
        try:
            if check:
                about, _ = _parsed(name, _read(self.path(name)))
            else:
                about = _description(_read(self.path(name), _HEAD + _MAX_DESCRIPTION))
        except (OSError, DamagedEntry) as e:
            return Entry(name, status.st_size, status.st_mtime, used, hits, problem=str(e))
        texts = [str(about.get(k, "?")) for k in ("program", "platform", "jaxlib")]
        return Entry(name, entry.size, entry.created, used, hits, *texts)


def _lock(path: Path) -> int:
    """The handle of the lock file, locked. BlockingIOError while another one holds it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:  # not removed by the one before, after we had opened it
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _read(path: Path, limit: int = _MAX_ENTRY) -> bytes:
    """The bytes of a file, `limit` at most. OSError unless it is a regular file of this user of a sensible size."""
    # Neither a link nor a pipe that another user may have put there is followed or waited for.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        problem = _problem(status)
        if problem is not None:
            raise OSError(f"it is {problem}")
        chunks, missing = [], min(status.st_size, limit)
        while missing and (chunk := os.read(handle, min(missing, 1 << 24))):
            chunks.append(chunk)
            missing -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    finally:
        os.close(handle)


def _problem(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_uid != os.getuid():
        return f"owned by user id {status.st_uid}, not by you"
    if status.st_size > _MAX_ENTRY:
        return f"too large ({status.st_size} bytes)"
    return None


def _digest(name: str, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(_MAGIC + name.encode() + b"\0")
    digest.update(data)
    return digest.digest()


def _parsed(name: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    head = len(_MAGIC)
    if data[:head] != _MAGIC or _digest(name, memoryview(data)[head + _DIGEST :]) != data[head : head + _DIGEST]:
        raise DamagedEntry("its checksum does not match")
    return _description(data), data[_HEAD + _length(data) :]


def _length(data: bytes) -> int:
    if len(data) < _HEAD:
        raise DamagedEntry("it is cut short")
    length: int = struct.unpack_from("<I", data, _HEAD - 4)[0]
    return length


def _description(data: bytes) -> dict[str, Any]:
    if data[: len(_MAGIC)] != _MAGIC:
        raise DamagedEntry("it does not begin as an entry does")
    length = _length(data)
    try:
        about = json.loads(data[_HEAD : _HEAD + length])
    except ValueError as e:
        raise DamagedEntry(f"its description cannot be read ({e})") from None
    if not isinstance(about, dict) or length > _MAX_DESCRIPTION:
        raise DamagedEntry("its description cannot be read")
    return about
