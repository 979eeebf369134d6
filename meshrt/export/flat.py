"""FlatBuffers as plain values: tables with numbered fields, vectors, strings.

A table is an i32 back to its vtable, then its fields; a vtable has its own size and that of the table, then for each
field where in the table it lies, 0 if it is absent. Tables, vectors and strings are referred to by how far ahead of the
reference they lie.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshrt import errors

__all__ = ["Reader", "write"]

_MAX_DEPTH = 64


class Reader:
    """A table in a buffer. Places outside of the buffer are a SavedProgramError."""

    def __init__(self, data: memoryview, at: int, depth: int = 0):
        if depth > _MAX_DEPTH:
            raise errors.SavedProgramError(f"tables nested deeper than {_MAX_DEPTH}")
        self._data, self._at, self._depth = data, at, depth
        self._vtable = at - self._number("<i", at)
        self._count = (self._number("<H", self._vtable) - 4) // 2

    @classmethod
    def root(cls, data: memoryview) -> Reader:
        """The table that a buffer holds."""
        if len(data) < 8:
            raise errors.SavedProgramError("the buffer is cut off")
        return cls(data, struct.unpack_from("<I", data)[0])

    def _number(self, kind: str, at: int) -> int:
        if not 0 <= at <= len(self._data) - struct.calcsize(kind):
            raise errors.SavedProgramError(f"a table leads to byte {at} of {len(self._data)}")
        value: int = struct.unpack_from(kind, self._data, at)[0]
        return value

    def _place(self, field: int) -> int | None:
        if field >= self._count:
            return None
        offset = self._number("<H", self._vtable + 4 + 2 * field)
        return self._at + offset if offset else None

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """A number of the struct format `kind`."""
        place = self._place(field)
        return default if place is None else self._number(kind, place)

    def _ahead(self, place: int) -> int:
        return place + self._number("<I", place)

    def _vector(self, field: int, width: int) -> tuple[int, int]:
        place = self._place(field)
        if place is None:
            return 0, 0
        start = self._ahead(place)
        count = self._number("<I", start)
        if count * width > len(self._data) - start - 4:
            raise errors.SavedProgramError(f"a vector of {count} elements reaches beyond the buffer")
        return start + 4, count

    def data(self, field: int) -> bytes:
        """A vector of bytes, or a string."""
        start, count = self._vector(field, 1)
        return bytes(self._data[start : start + count])

    def text(self, field: int) -> str:
        return self.data(field).decode("utf-8", "strict")

    def numbers(self, field: int, kind: str) -> list[int]:
        width = struct.calcsize(kind)
        start, count = self._vector(field, width)
        return [self._number(kind, start + width * i) for i in range(count)]

    def table(self, field: int) -> Reader | None:
        place = self._place(field)
        return None if place is None else Reader(self._data, self._ahead(place), self._depth + 1)

    def tables(self, field: int) -> list[Reader]:
        start, count = self._vector(field, 4)
        return [Reader(self._data, self._ahead(start + 4 * i), self._depth + 1) for i in range(count)]

    def texts(self, field: int) -> list[str]:
        start, count = self._vector(field, 4)
        found = []
        for i in range(count):
            at = self._ahead(start + 4 * i)
            length = self._number("<I", at)
            if length > len(self._data) - at - 4:
                raise errors.SavedProgramError("a string reaches beyond the buffer")
            found.append(bytes(self._data[at + 4 : at + 4 + length]).decode("utf-8"))
        return found


# ---------------------------------------------------------------------------------------------------------------------
# Writing: a field is (struct format, number), bytes, str, a table (a dict of fields by number), a list of tables or
# texts, or (struct format, list of numbers).


def write(table: Mapping[int, Any]) -> bytearray:
    """The buffer of a table."""
    out = bytearray(4)
    todo: list[Callable[[], None]] = []
    _refer(out, 0, table, todo)
    while todo:
        todo.pop(0)()
    return out


def _refer(out: bytearray, place: int, value: Any, todo: list[Callable[[], None]]) -> None:
    """Lets the reference at `place` lead to `value`, which is written at the end."""

    def run() -> None:
        _write_value(out, place, value, todo)

    todo.append(run)


def _align(out: bytearray, width: int) -> None:
    out.extend(bytes(-len(out) % width))


def _write_value(out: bytearray, place: int, value: Any, todo: list[Callable[[], None]]) -> None:
    _align(out, 4)
    if isinstance(value, Mapping):
        at = _write_table(out, value, todo)
    elif isinstance(value, tuple):
        kind, numbers = value
        width = struct.calcsize(kind)
        while (len(out) + 4) % max(width, 4):
            out.append(0)
        at = len(out)
        out.extend(struct.pack("<I", len(numbers)) + b"".join(struct.pack(kind, n) for n in numbers))
    elif isinstance(value, list):
        at = len(out)
        out.extend(struct.pack("<I", len(value)) + bytes(4 * len(value)))
        for i, item in enumerate(value):
            _refer(out, at + 4 + 4 * i, item, todo)
    else:
        data = value.encode() if isinstance(value, str) else bytes(value)
        at = len(out)
        out.extend(struct.pack("<I", len(data)) + data + (b"\0" if isinstance(value, str) else b""))
    struct.pack_into("<I", out, place, at - place)


def _write_table(out: bytearray, fields: Mapping[int, Any], todo: list[Callable[[], None]]) -> int:
    present = {k: v for k, v in sorted(fields.items()) if v is not None}
    count = max(present, default=-1) + 1
    offsets, size = [0] * count, 4
    for k, value in present.items():
        width = struct.calcsize(value[0]) if _is_number(value) else 4
        size += -size % width
        offsets[k] = size
        size += width
    vtable = len(out)
    out.extend(struct.pack(f"<HH{count}H", 4 + 2 * count, size, *offsets))
    _align(out, 4)
    at = len(out)
    out.extend(struct.pack("<i", at - vtable) + bytes(size - 4))
    for k, value in present.items():
        if _is_number(value):
            struct.pack_into(value[0], out, at + offsets[k], value[1])
        else:
            _refer(out, at + offsets[k], value, todo)
    return at


def _is_number(value: Any) -> bool:
    return isinstance(value, tuple) and not isinstance(value[1], Sequence)
