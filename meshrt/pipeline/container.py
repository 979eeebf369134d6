"""The container of a compiled program in a file: a description, machine code and data, without pickle.

Numbers are little-endian:

    bytes           what
    0 to 8          `MESHRTAO`
    8 to 12         u32 version of the format: 3
    12 to 16        u32 length of the description
    16 to 24        u64 length of the code
    24 to 32        u64 length of the data
    32 to 64        sha256 of all bytes before and after these
    64 and on       the description (a JSON object in UTF-8), the code, the data

Nothing is parsed before the lengths and the checksum have been found right. A checksum finds damage, not malice: the
code runs with its reader's rights, so a file is read only if nobody but its owner can have changed it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from meshrt import errors

__all__ = ["Content", "is_compiled", "pack", "read_file", "unpack", "write_file"]

_MAGIC = b"MESHRTAO"
VERSION = 3
_HEAD = struct.Struct("<8sIIQQ")
_DIGEST = 32
_START = _HEAD.size + _DIGEST
_MAX_DESCRIPTION = 1 << 26
_MAX_CODE = 1 << 32
_MAX_DATA = 1 << 36


class Content(NamedTuple):
    """What a container holds."""

    description: dict[str, Any]
    code: bytes
    data: bytes


def pack(description: Mapping[str, Any], code: bytes, data: bytes) -> bytes:
    """The container of these. SavedProgramError if they are too large."""
    text = json.dumps(description, separators=(",", ":"), sort_keys=False, allow_nan=False).encode()
    for what, size, limit in _sizes(len(text), len(code), len(data)):
        if size > limit:
            raise errors.SavedProgramError(f"the {what} of the program takes {size} bytes; files hold {limit}")
    head = _HEAD.pack(_MAGIC, VERSION, len(text), len(code), len(data))
    digest = hashlib.sha256()
    for part in (head, text, code, data):
        digest.update(part)
    return b"".join((head, digest.digest(), text, code, data))


def _sizes(text: int, code: int, data: int) -> list[tuple[str, int, int]]:
    return [("description", text, _MAX_DESCRIPTION), ("code", code, _MAX_CODE), ("data", data, _MAX_DATA)]


def is_compiled(content: bytes) -> bool:
    """Whether a file's bytes are a compiled program."""
    return content.startswith(_MAGIC)


def unpack(content: bytes, origin: str) -> Content:
    """What a container holds, checked; `origin` says in messages where it comes from.

    Raises:
      SavedProgramError: not a container, of another version, cut off, damaged, or larger than containers are.
    """
    if len(content) < _START or content[: len(_MAGIC)] != _MAGIC:
        what = "is cut off" if _MAGIC.startswith(content[: len(_MAGIC)]) else "is not a compiled program of meshrt's"
        raise errors.SavedProgramError(f"{origin} {what}; write one with Compiled.save(path)")
    _, version, *lengths = _HEAD.unpack_from(content)
    if version != VERSION:
        raise errors.SavedProgramError(
            f"{origin} is of version {version} of the format, and this meshrt reads version {VERSION}; save the "
            "program again with this one"
        )
    for what, size, limit in _sizes(*lengths):
        if size > limit:
            raise errors.SavedProgramError(f"{origin} is damaged: it claims {size} bytes of {what}, above {limit}")
    if len(content) != _START + sum(lengths):
        raise errors.SavedProgramError(
            f"{origin} is damaged: it has {len(content)} bytes and should have {_START + sum(lengths)}; copy or save "
            "it again"
        )
    view = memoryview(content)
    digest = hashlib.sha256(view[: _HEAD.size])
    digest.update(view[_START:])
    if digest.digest() != content[_HEAD.size : _START]:
        raise errors.SavedProgramError(f"{origin} is damaged: its checksum does not match; copy or save it again")
    text, code, _ = lengths
    try:
        description = json.loads(bytes(view[_START : _START + text]))
    except (ValueError, RecursionError) as e:
        raise errors.SavedProgramError(f"{origin} is damaged: its description is no JSON ({e})") from None
    if not isinstance(description, dict):
        raise errors.SavedProgramError(f"{origin} is damaged: its description is no JSON object")
    end = _START + text + code
    return Content(description, bytes(view[_START + text : end]), bytes(view[end:]))


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes all or nothing, as others see it. SavedProgramError if it cannot be written."""
    target = Path(path).expanduser()
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}-", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as e:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(e, OSError):
            raise errors.SavedProgramError(f"the program cannot be written to {target}: {e.strerror or e}") from e
        raise


def read_file(path: str | os.PathLike[str], if_trusted: str) -> bytes:
    """The bytes of a file that only its owner, this user or root, can have written.

    `if_trusted` says what else can be done with one that others can write, `{path!r}` in it being the path.

    Raises:
      SavedProgramError: there is none, it is no regular file, too large, or someone else can write it.
    """
    target = Path(path).expanduser()
    try:
        handle = os.open(target, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
        with os.fdopen(handle, "rb") as file:
            problem = _problem(os.fstat(file.fileno()), target, if_trusted)
            if problem is not None:
                raise errors.SavedProgramError(f"{target} cannot be loaded: {problem}")
            return file.read()
    except OSError as e:
        raise errors.SavedProgramError(f"{target} cannot be read: {e}") from e


def _problem(status: os.stat_result, target: Path, if_trusted: str) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_size > _START + _MAX_DESCRIPTION + _MAX_CODE + _MAX_DATA:
        return f"it is too large ({status.st_size} bytes)"
    trust = f"It is code that would run with your rights. If you trust it, {if_trusted.format(path=str(target))}"
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to user id {status.st_uid}, not to you ({os.getuid()}). {trust}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (mode {stat.filemode(status.st_mode)}); run `chmod go-w {target}`. {trust}"
    return None
