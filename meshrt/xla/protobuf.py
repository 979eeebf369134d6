"""The wire format of protocol buffers, as far as XLA's options need it: a field of a message is changed or left out.

Source: the encoding guide of Protocol Buffers (protobuf.dev/programming-guides/encoding). Numbers of fields are never
given to another field, so they hold for every version of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

__all__ = ["changed"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def changed(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """`message` with `change` of the value of the field that `path` leads to: numbers of fields, outer messages first.
    A field of which nothing is left, or that holds a number, is left out.

    Raises:
      ValueError: it is not a message.
    """
    first, rest = path[0], path[1:]
    out = []
    for number, kind, start, body, end in _fields(message):
        if number != first:
            out.append(message[start:end])
        elif kind == _BYTES:
            inner = changed(message[body:end], rest, change) if rest else change(message[body:end])
            if rest or inner:
                out += [_varint(number << 3 | kind), _varint(len(inner)), inner]
    return b"".join(out)


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, kind, where it starts, where its value starts, where it ends) of each field."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _read(message, at)
        kind = tag & 7
        if kind == _VARINT:
            body = at
            _, at = _read(message, at)
        elif kind == _BYTES:
            length, body = _read(message, at)
            at = body + length
        elif kind in (_FIXED64, _FIXED32):
            body = at
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of the unknown kind {kind} at byte {start}")
        if at > len(message):
            raise ValueError(f"the field at byte {start} is cut short")
        yield tag >> 3, kind, start, body, at


def _read(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError(f"no number ends at byte {at}")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
