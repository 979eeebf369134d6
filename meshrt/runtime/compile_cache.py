"""Compiled programs by content: in memory while they are used, and on disk if a directory is set.

Keys hold no device: the module's text, the number of devices, the options and the compiler (its version, the kind of
device and, for CPUs, the instruction set that code is generated for).

An entry on disk is machine code that will run with this user's rights. The directory must therefore belong to the
user and be writable by nobody else, each entry carries a checksum, and it is written to a temporary file first. An
entry that fails its check is reported, recorded (`persistent_corrupt`) and compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import stat
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

from meshrt import config, errors
from meshrt.runtime import events, jaxlib_api

__all__ = ["cached", "clear", "compiler_fingerprint", "fingerprint", "load_entry", "problems", "store_entry"]

_log = logging.getLogger("meshrt.compile_cache")
_MAGIC = b"MESHRTX1"
_DIGEST = 32
_MAX_ENTRY = 1 << 32

# ----------------------------------------------------------------------------------------------------------
# Keys.


def fingerprint(*parts: str | bytes) -> str:
    """A hex digest of the parts and their boundaries."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def compiler_fingerprint(device: Any) -> str:
    """What compiles for this device and for which kind of hardware, as text."""
    client = device.client
    parts = [".".join(map(str, jaxlib_api.VERSION)), client.platform, client.platform_version, device.device_kind]
    parts.append(_xla_flags(os.environ.get("XLA_FLAGS", "")))
    if client.platform == "cpu":
        parts.append(_cpu_features())
    return "\n".join(parts)


@functools.lru_cache(8)
def _xla_flags(flags: str) -> str:
    """The flags that change code; not the number of host devices nor where dumps go."""
    ignored = ("--xla_force_host_platform_device_count", "--xla_dump_")
    return " ".join(sorted(f for f in flags.split() if not f.startswith(ignored)))


@functools.cache
def _cpu_features() -> str:
    """The instruction set of this host: code made for one CPU may be illegal on another."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    lines = {line for line in text.splitlines() if line.startswith(("flags", "Features", "model name"))}
    return fingerprint(platform.machine(), *sorted(lines))


# ----------------------------------------------------------------------------------------------------------
# In memory.

_programs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def cached(key: str, make: Any) -> Any:
    """The program of this key that is still in use, else `make()`."""
    with _lock:
        found = _programs.get(key)
        if found is None:
            found = _programs[key] = make()
        return found


def clear() -> None:
    """Forgets the programs in memory."""
    with _lock:
        _programs.clear()


# ----------------------------------------------------------------------------------------------------------
# On disk.

_problems: list[errors.CompileCacheError] = []


def problems() -> list[errors.CompileCacheError]:
    """What went wrong with the directory so far, in order."""
    return list(_problems)


def _report(problem: errors.CompileCacheError) -> None:
    _problems.append(problem)
    events.record("persistent_corrupt", problem=problem)
    _log.warning("%s", problem)


def directory() -> Path | None:
    """The directory of the setting `compilation_cache_dir`, made and checked; None if there is none.

    Raises:
      CompileCacheError: it belongs to someone else, others can write to it, or it cannot be made.
    """
    name = config.settings.compilation_cache_dir
    if name is None:
        return None
    path = Path(name).expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as e:
        raise errors.CompileCacheError(
            f"the compilation cache directory {path} cannot be used: {e}. Set compilation_cache_dir to a directory "
            "that "
            "you can write to, or to None."
        ) from e
    if not stat.S_ISDIR(status.st_mode):
        raise errors.CompileCacheError(f"compilation_cache_dir {path} is not a directory; set another one or None")
    if status.st_uid != os.getuid():
        raise errors.CompileCacheError(
            f"the compilation cache directory {path} belongs to user id {status.st_uid}, not to you ({os.getuid()}). "
            "Its "
            "files are code that would run with your rights; set compilation_cache_dir to a directory of your own."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise errors.CompileCacheError(
            f"others can write to the compilation cache directory {path} (mode {stat.filemode(status.st_mode)}). Its "
            "files "
            f"are code that would run with your rights; run `chmod go-w {path}` or set another compilation_cache_dir."
        )
    return path


def load_entry(key: str) -> bytes | None:
    """The compiled code stored under `key`; None if there is none or it is damaged (which is reported)."""
    root = directory()
    if root is None:
        return None
    path = root / f"{key}.xla"
    try:
        data = _read(path)
    except FileNotFoundError:
        events.record("persistent_miss", key=key)
        return None
    except OSError as e:
        _report(errors.CompileCacheError(f"the cache entry {path} cannot be read: {e}; the program is compiled again"))
        return None
    blob = _checked(data, key)
    if blob is None:
        _report(
            errors.CompileCacheError(
                f"the cache entry {path} is damaged (its checksum does not match); the program is compiled again and "
                "the "
                "entry replaced. If this repeats, clear the directory."
            )
        )
        return None
    events.record("persistent_hit", key=key)
    return blob


def _read(path: Path) -> bytes:
    """The bytes of an entry. OSError unless it is a regular file of this user of a sensible size."""
    # Neither a link nor a pipe that another user may have put there is followed or waited for.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        problem = _entry_problem(os.fstat(handle))
        if problem is not None:
            raise OSError(f"it is {problem}")
        chunks = []
        while chunk := os.read(handle, 1 << 24):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(handle)


def _entry_problem(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_uid != os.getuid():
        return f"owned by user id {status.st_uid}, not by you"
    if status.st_size > _MAX_ENTRY:
        return f"too large ({status.st_size} bytes)"
    return None


def _digest(key: str, blob: bytes) -> bytes:
    return hashlib.sha256(_MAGIC + key.encode() + blob).digest()


def _checked(data: bytes, key: str) -> bytes | None:
    head = len(_MAGIC)
    if len(data) < head + _DIGEST or data[:head] != _MAGIC:
        return None
    blob = data[head + _DIGEST :]
    return blob if _digest(key, blob) == data[head : head + _DIGEST] else None


def store_entry(key: str, blob: bytes) -> None:
    """Writes compiled code under `key`; a failure to write is reported, not raised."""
    root = directory()
    if root is None:
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=root, prefix=f".{key[:16]}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _digest(key, blob) + blob)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, root / f"{key}.xla")
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as e:
        _report(errors.CompileCacheError(f"a compiled program could not be stored in {root}: {e}"))


def discard_entry(key: str, why: str) -> None:
    """Reports an entry that the runtime refused, and removes it."""
    root = directory()
    if root is None:
        return
    _report(
        errors.CompileCacheError(
            f"the cache entry {root / key}.xla cannot be loaded: {why}; the program is compiled again"
        )
    )
    (root / f"{key}.xla").unlink(missing_ok=True)
