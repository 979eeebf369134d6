"""The container of exported functions: sections of bytes under names, without pickle. `docs/export-format.md` says it
byte by byte.

Nothing is looked into before all lengths and checksums have been found right; sections are views of the file's bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from meshrt import errors

__all__ = ["MAGIC", "VERSION", "json_of", "module_of", "pack", "unpack"]

MAGIC = b"MESHRTEX"
VERSION = 1
_HEAD = struct.Struct("<8sIIQ")  # magic, version, number of sections, length of the whole
_ENTRY = struct.Struct("<8sQQ32s")  # name, place, length, sha256
_DIGEST = 32
_MAX_SECTIONS = 16
_MAX_JSON = 1 << 26


def pack(sections: Mapping[str, bytes]) -> bytearray:
    """The container of these sections, in their order."""
    start = _HEAD.size + _DIGEST + len(sections) * _ENTRY.size
    total = start + sum(map(len, sections.values()))
    head, table, at = _HEAD.pack(MAGIC, VERSION, len(sections), total), b"", start
    for name, data in sections.items():
        table += _ENTRY.pack(name.encode(), at, len(data), hashlib.sha256(data).digest())
        at += len(data)
    return bytearray().join([head, hashlib.sha256(head + table).digest(), table, *sections.values()])


def unpack(blob: bytes | bytearray | memoryview) -> dict[str, memoryview]:
    """The sections of a container, checked.

    Raises:
      SavedProgramError: no container, of another version, cut off, or damaged.
    """
    view = memoryview(blob).cast("B").toreadonly()
    if bytes(view[:8]) != MAGIC:
        is_cut = MAGIC.startswith(bytes(view[:8]))
        raise _damaged("is cut off" if is_cut else "is no exported function of meshrt's (its first bytes are others)")
    if len(view) < _HEAD.size + _DIGEST:
        raise _damaged("is cut off")
    _, version, count, total = _HEAD.unpack_from(view)
    if version != VERSION:
        raise _damaged(f"is of version {version} of the format, and this meshrt reads version {VERSION}")
    start = _HEAD.size + _DIGEST + count * _ENTRY.size
    if count > _MAX_SECTIONS or total != len(view) or start > total:
        raise _damaged(f"has {len(view)} bytes and should have {total}, of them {count} sections")
    digest = hashlib.sha256(view[: _HEAD.size])
    digest.update(view[_HEAD.size + _DIGEST : start])
    if digest.digest() != view[_HEAD.size : _HEAD.size + _DIGEST]:
        raise _damaged("is damaged: the checksum of its head does not match")
    return _sections(view, start, count)


def _sections(view: memoryview, start: int, count: int) -> dict[str, memoryview]:
    found: dict[str, memoryview] = {}
    for i in range(count):
        raw, at, length, digest = _ENTRY.unpack_from(view, _HEAD.size + _DIGEST + i * _ENTRY.size)
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        if at != start or length > len(view) - at or name in found:
            raise _damaged(f"is damaged: its section {name!r} lies at {at} with {length} bytes of {len(view)}")
        found[name] = view[at : at + length]
        if hashlib.sha256(found[name]).digest() != digest:
            raise _damaged(f"is damaged: the checksum of its section {name!r} does not match")
        start = at + length
    if start != len(view):
        raise _damaged(f"is damaged: {len(view) - start} bytes belong to no section")
    return found


def module_of(blob: bytes | bytearray | memoryview) -> bytes:
    """The program of an exported function, by its tier an artifact, bytecode or text. SavedProgramError as `unpack`."""
    sections = unpack(blob)
    if "module" not in sections:
        raise _damaged("has no section 'module'")
    return bytes(sections["module"])


def json_of(sections: Mapping[str, memoryview], name: str) -> Any:
    """What a section of JSON says. SavedProgramError if there is none."""
    if name not in sections:
        raise _damaged(f"has no section {name!r}")
    if len(sections[name]) > _MAX_JSON:
        raise _damaged(f"has a section {name!r} of {len(sections[name])} bytes, above {_MAX_JSON}")
    try:
        return json.loads(bytes(sections[name]))
    except (ValueError, RecursionError) as e:
        raise _damaged(f"is damaged: its section {name!r} is no JSON ({e})") from None


def _damaged(what: str) -> errors.SavedProgramError:
    return errors.SavedProgramError(f"the exported function {what}; write it again with Exported.serialize()")
