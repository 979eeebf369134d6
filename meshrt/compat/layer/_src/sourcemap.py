"""`jax._src.sourcemap`: source maps (version 3), which say where in sources each column of a text comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from meshrt.numpy.names import missing as _missing

__all__ = [
    "Mappings", "MappingsGenerator", "Segment", "SourceMap", "decode_segment", "decode_vlq", "deserialize_mappings",
    "encode_segment", "encode_vlq", "serialize_mappings",
]  # fmt: skip

# Base 64: five bits each, least significant first; the sixth says that more follow. The lowest bit of all is the sign.
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {byte: value for value, byte in enumerate(_ALPHABET)}

# (column,) or (column, source, line, column there) or that and a name; columns of the text, and all others, are
# counted from those before.
Segment = tuple[int] | tuple[int, int, int, int] | tuple[int, int, int, int, int]
Mappings = Sequence[Sequence[Segment]]


def encode_vlq(value: int) -> bytes:
    """A number in base 64, as short as it gets."""
    rest, found = abs(value) << 1 | (value < 0), bytearray()
    while True:
        digit, rest = rest & 31, rest >> 5
        found.append(_ALPHABET[digit | (32 if rest else 0)])
        if not rest:
            return bytes(found)


def decode_vlq(enc: Iterable[int]) -> int:
    """The number at the start of bytes, which are read as far as it goes."""
    found, shift = 0, 0
    for byte in enc:
        digit = _VALUES[byte]
        found |= (digit & 31) << shift
        shift += 5
        if not digit & 32:
            break
    return -(found >> 1) if found & 1 else found >> 1


def encode_segment(seg: Iterable[int]) -> bytes:
    """The numbers of a segment, one after another."""
    return b"".join(map(encode_vlq, seg))


def decode_segment(enc: Iterable[int]) -> Any:
    """The numbers of a segment."""
    rest, numbers = bytes(enc), []
    while rest:
        length = next(i for i, byte in enumerate(rest, 1) if not _VALUES[byte] & 32)
        numbers.append(decode_vlq(rest[:length]))
        rest = rest[length:]
    return tuple(numbers)


def serialize_mappings(mappings: Mappings) -> str:
    """Mappings as text: lines end with a semicolon, segments are separated by commas."""
    return ";".join(b",".join(map(encode_segment, line)).decode("ascii") for line in mappings)


def deserialize_mappings(mappings_str: str) -> Mappings:
    """Mappings of their text."""
    return [
        [decode_segment(part.encode("ascii")) for part in line.split(",")] if line else []
        for line in mappings_str.split(";")
    ]


_WORDS = {"sources_content": "sourcesContent"}  # what fields are called in files, where that is another word


@dataclass(frozen=True)
class SourceMap:
    """A source map: `mappings` has for each line of the text its segments."""

    version: int
    sources: Sequence[str]
    sources_content: Sequence[str]
    names: Sequence[str]
    mappings: Mappings

    @classmethod
    def from_json(cls, json_data: str) -> SourceMap:
        """Reads one."""
        data = json.loads(json_data)
        content = data.get("sourcesContent", [])
        return cls(data["version"], data["sources"], content, data["names"], deserialize_mappings(data["mappings"]))

    def to_json(self) -> str:
        """Writes one."""
        shown = {_WORDS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        return json.dumps({**shown, "mappings": serialize_mappings(self.mappings)})


class MappingsGenerator:
    """Makes mappings of segments in absolute numbers: columns start anew in each group, all else goes on."""

    def __init__(self) -> None:
        self._groups: list[list[Any]] = []
        self._column, self._rest = 0, [0, 0, 0, 0]

    def new_group(self) -> None:
        """Begins a line of the text."""
        self._groups.append([])
        self._column = 0

    def new_segment(self, *seg: int) -> None:
        """Adds a segment to the line."""
        given = seg[1:]
        steps = [new - old for new, old in zip(given, self._rest)]
        self._groups[-1].append((seg[0] - self._column, *steps))
        self._column, self._rest = seg[0], [*given, *self._rest[len(given) :]]

    def mappings(self) -> Mappings:
        """What was added."""
        return self._groups


__getattr__ = _missing("jax._src.sourcemap", __all__)
