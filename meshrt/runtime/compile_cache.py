"""Compiled programs by content: in memory while they are used, and on disk if a directory is set.

Keys hold no device: the module's text, the number of devices, the options and the compiler (its version, the kind of
device and, for CPUs, the instruction set that code is generated for).

Entries on disk (`meshrt.runtime.disk_cache`) that fail their check are reported, recorded (`persistent_corrupt`) and
made again. Of processes that need the same entry one makes it and the others wait (`persistent_wait`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrt import config, errors
from meshrt.runtime import events
from meshrt.xla import jaxlib_api

if TYPE_CHECKING:
    from meshrt.runtime.disk_cache import DiskCache

__all__ = [
    "cached", "clear", "compiler_fingerprint", "compiler_of", "content", "discard_entry", "fingerprint", "load_entry",
    "making", "on_disk", "problems", "store_entry", "xla_flags",
]  # fmt: skip

_log = logging.getLogger("meshrt.compile_cache")

# ----------------------------------------------------------------------------------------------------------
# Keys.


def fingerprint(*parts: str | bytes) -> str:
    """A hex digest of the parts and their boundaries."""
    # Start-up time: OpenSSL is loaded with the first key, not with the library.
    import hashlib

    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


_LINES = re.compile(r" loc\(#loc\d+\)$", re.MULTILINE)


def content(module: str | bytes) -> str | bytes:
    """What of a module decides its program: its text without the lines that it was written on.

    With them, if the setting `compilation_cache_include_metadata_in_key` says so; bytecode is taken as it is.
    """
    if config.settings.compilation_cache_include_metadata_in_key or not isinstance(module, str):
        return module
    return _LINES.sub("", module).partition("\n#loc")[0]


def compiler_fingerprint(device: Any) -> str:
    """What compiles for this device and for which kind of hardware, as text."""
    parts = compiler_of(device)
    host = [parts.pop("host")] if "host" in parts else []
    return "\n".join([*parts.values(), xla_flags(), *host])


def compiler_of(device: Any) -> dict[str, str]:
    """What must be the same for compiled code to run: versions of the compiler, kind of hardware; for CPUs the host's
    instruction set."""
    client = device.client
    parts = {
        "jaxlib": ".".join(map(str, jaxlib_api.VERSION)),
        "platform": client.platform,
        "platform_version": client.platform_version,
        "device_kind": device.device_kind,
    }
    if client.platform == "cpu":
        parts["host"] = _cpu_features()
    return parts


def xla_flags() -> str:
    """The flags of this process that change code; not the number of host devices nor where dumps go."""
    return _changing(os.environ.get("XLA_FLAGS", ""))


@functools.lru_cache(8)
def _changing(flags: str) -> str:
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
    if config.settings.raise_persistent_cache_errors:
        raise problem
    _problems.append(problem)
    events.record("persistent_corrupt", problem=problem)
    _log.warning("%s", problem)


def on_disk() -> bool:
    """Whether programs are kept on disk."""
    return config.settings.compilation_cache_dir is not None and config.settings.enable_compilation_cache


def _disk() -> DiskCache | None:
    """The directory of the setting `compilation_cache_dir`, made and checked; None if there is none.

    Raises:
      CompileCacheError: it belongs to someone else, others can write to it, or it cannot be made.
    """
    if not on_disk():
        return None
    # Start-up time: a process without a directory of programs reads and writes no entries.
    from meshrt.launch.environment import compiled_bound
    from meshrt.runtime import disk_cache

    name, size = config.settings.compilation_cache_dir, config.settings.compilation_cache_max_size
    root = disk_cache.checked_directory(name)
    bounds = [bound for bound in (size if size >= 0 else None, compiled_bound(os.environ, name)) if bound is not None]
    return disk_cache.DiskCache(root, min(bounds, default=None))


def load_entry(name: str) -> bytes | None:
    """What is stored under `name` (KEY.xla, KEY.program); None if nothing is or it is damaged (which is reported)."""
    disk = _disk()
    if disk is None:
        return None
    # Start-up time: as in `_disk`.
    from meshrt.runtime.disk_cache import DamagedEntry

    try:
        _, content = disk.read(name)
    except FileNotFoundError:
        events.record("persistent_miss", key=name)
        _log.debug("PERSISTENT COMPILATION CACHE MISS for key '%s'", name)
        return None
    except OSError as e:
        what = f"cannot be read: {e}; the program is compiled again"
    except DamagedEntry as e:
        what = (
            f"is damaged ({e}); the program is compiled again and the entry replaced. If this repeats, clear the "
            "directory (meshrt cache clear)."
        )
    else:
        events.record("persistent_hit", key=name)
        _log.debug("Persistent compilation cache hit for key '%s'", name)
        return content
    _report(errors.CompileCacheError(f"the cache entry {disk.path(name)} {what}"))
    return None


@contextlib.contextmanager
def making(name: str) -> Iterator[bool]:
    """Around making an entry: other processes wait. Yields whether this one waited, so that it looks again."""
    disk = _disk()
    if disk is None:
        yield False
        return
    with disk.making(name, config.settings.compilation_cache_lock_timeout_secs) as waited:
        if waited:
            events.record("persistent_wait", key=name)
        yield waited


def store_entry(name: str, content: bytes, *, seconds: float, program: str, platform: str) -> None:
    """Writes what took `seconds` to make under `name`; a failure to write is reported, not raised.

    Nothing is written that took less time or fewer bytes than the settings ask for.
    """
    disk = _disk()
    if (
        disk is None
        or seconds < config.settings.persistent_cache_min_compile_time_secs
        or len(content) < config.settings.persistent_cache_min_entry_size_bytes
    ):
        return
    try:
        disk.write(
            name, content, program=program[:200], platform=platform, seconds=round(seconds, 4),
            jaxlib=".".join(map(str, jaxlib_api.VERSION)),
        )  # fmt: skip
    except OSError as e:
        _report(errors.CompileCacheError(f"a compiled program could not be stored in {disk.root}: {e}"))


def discard_entry(name: str, why: str) -> None:
    """Reports an entry that the runtime refused, and removes it."""
    disk = _disk()
    if disk is not None:
        disk.remove(name)
        _report(
            errors.CompileCacheError(
                f"the cache entry {disk.path(name)} cannot be loaded: {why}; the program is compiled again"
            )
        )
