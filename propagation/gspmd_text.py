"""Shardings as GSPMD writes them (the attribute `mhlo.sharding`): the one reader of that text.

    {replicated}  {manual}  {unknown}  {maximal device=3}
    {devices=[4,1,2]<=[8] last_tile_dim_replicate}      tiles 4x1, each of them on 2 devices
    {devices=[2,4]<=[4,2]T(1,0)}                        devices counted as a 4x2 grid, transposed
    {devices=[2,2]0,2,1,3}                              devices in a list
    {devices=[1,4,2]<=[8] last_tile_dims={manual, replicated}}
    {devices=[2,1]<=[2] shard_as 7}                     sharded alike with every value of group 7
    {{replicated}, {maximal device=0}}                  one for each result

Programs for many devices hold the same as a serialized `OpSharding` message, whose fields are read here as well.

>>> s = read_gspmd("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
>>> s.tiles, s.last, s.devices.reshape(2, 4).tolist()
((2, 1), ('replicated',), [[0, 2, 4, 6], [1, 3, 5, 7]])
>>> read_gspmd("{{manual}, {maximal device=3}}").elements[1].devices.tolist()
[3]
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import LimitError, ModuleParseError

__all__ = ["GspmdSharding", "read_gspmd"]

MAX_DEVICES = 1 << 22  # far above any machine; a list of so many takes 32 MiB
_KINDS = ("replicated", "maximal", "tuple", "tiled", "manual", "unknown", "unreduced")  # as `OpSharding.Type` counts


@dataclass(frozen=True, eq=False, slots=True)
class GspmdSharding:
    """One sharding.

    kind      "tiled", or another of `_KINDS`
    tiles     of a tiled one: into how many parts each dimension is cut
    last      of a tiled one: what the devices that share a tile are to each other, dimension by dimension behind
              `tiles`: "replicated", "manual" or "unreduced"
    sizes     how many devices each of `last` has
    devices   of a tiled one: the devices in the order of (*tiles, *sizes); of a maximal one: its device
    group     ("as" or "like", number) of values that are sharded alike
    elements  of a tuple: one for each result
    """

    kind: str
    tiles: tuple[int, ...] = ()
    last: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    devices: np.ndarray[Any, np.dtype[np.int64]] | None = None
    group: tuple[str, int] | None = None
    elements: tuple[GspmdSharding, ...] = ()

    def walk(self) -> Iterator[GspmdSharding]:
        """The sharding, or the elements of a tuple."""
        if self.kind != "tuple":
            yield self
        for element in self.elements:
            yield from element.walk()

    @property
    def is_manual(self) -> bool:
        """Whether devices along some axes have values of their own."""
        return self.kind == "manual" or "manual" in self.last


def read_gspmd(data: str | bytes, where: str | None = None) -> GspmdSharding:
    """What a text or a serialized message says. Raises `ModuleParseError`, which names `where`."""
    raw = data.encode() if isinstance(data, str) else data
    if raw.lstrip()[:1] != b"{":
        return _of_message(raw, where)
    return _Reader(raw.decode("utf-8", "replace"), where).whole()


_TOKEN = re.compile(r'\s*(?:(<=)|(\d+)|([A-Za-z_]\w*)|("(?:[^"\\]|\\.)*")|(\S))')


class _Reader:
    """Recursive descent over the tokens of a text."""

    def __init__(self, text: str, where: str | None):
        self.text, self.where, self.at = text, where, 0
        self.tokens: list[str] = []
        place = 0
        while match := _TOKEN.match(text, place):
            self.tokens.append(match[0].strip())
            place = match.end()
        self.tokens.append("")

    def error(self, problem: str) -> ModuleParseError:
        text = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        return ModuleParseError(f"cannot read the sharding {text!r}: {problem}", self.where)

    def peek(self) -> str:
        return self.tokens[self.at]

    def accept(self, token: str) -> bool:
        found = self.tokens[self.at] == token
        self.at += found
        return found

    def take(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}, found {self.peek() or 'its end'!r}")

    def number(self) -> int:
        token = self.peek()
        if not token.isdecimal() or len(token) > 18:
            raise self.error(f"expected a number, found {token or 'its end'!r}")
        self.at += 1
        return int(token)

    def numbers(self, begin: str, end: str) -> tuple[int, ...]:
        self.take(begin)
        found: list[int] = []
        while not self.accept(end):
            if found:
                self.take(",")
            found.append(self.number())
        return tuple(found)

    def whole(self) -> GspmdSharding:
        found = self.sharding()
        if self.peek():
            raise self.error(f"{self.peek()!r} stands behind its end")
        return found

    def sharding(self) -> GspmdSharding:
        self.take("{")
        if self.peek() in ("{", "}"):
            elements: list[GspmdSharding] = []
            while not self.accept("}"):
                if elements:
                    self.take(",")
                elements.append(self.sharding())
            return GspmdSharding("tuple", elements=tuple(elements))
        found = GspmdSharding("unknown")
        while not self.accept("}"):
            found = self.part(found)
        return found

    def part(self, found: GspmdSharding) -> GspmdSharding:
        word = self.peek()
        self.at += 1
        if word in ("replicated", "manual", "unknown", "unreduced", "maximal"):
            return replace(found, kind=word)
        if word == "device":
            self.take("=")
            return replace(found, kind="maximal", devices=np.array([self.number()], np.int64))
        if word == "devices":
            self.take("=")
            return self.tiling(found)
        if word == "last_tile_dim_replicate":
            return self.split(found, ("replicated",))
        if word == "last_tile_dims":
            self.take("=")
            return self.split(found, tuple(self.kinds()))
        if word in ("shard_as", "shard_like"):
            return replace(found, group=(word.removeprefix("shard_"), self.number()))
        if word == "metadata":
            self.take("=")
            self.skip_braces()
            return found
        raise self.error(f"{word or 'its end'!r} is not known")

    def kinds(self) -> Iterator[str]:
        self.take("{")
        while not self.accept("}"):
            if self.peek() not in ("replicated", "manual", "unreduced"):
                raise self.error(f"{self.peek()!r} is not what devices of a tile can be to each other")
            yield self.peek()
            self.at += 1
            self.accept(",")

    def skip_braces(self) -> None:
        depth = 0
        while True:
            depth += (self.peek() == "{") - (self.peek() == "}")
            if not self.peek():
                raise self.error("a brace is not closed")
            self.at += 1
            if depth <= 0:
                return

    def split(self, found: GspmdSharding, last: tuple[str, ...]) -> GspmdSharding:
        if len(last) > len(found.tiles):
            raise self.error("it has fewer tile dimensions than it describes")
        cut = len(found.tiles) - len(last)
        return replace(found, tiles=found.tiles[:cut], sizes=found.tiles[cut:], last=last)

    def tiling(self, found: GspmdSharding) -> GspmdSharding:
        tiles = self.numbers("[", "]")
        if self.accept("<="):
            shape = self.numbers("[", "]")
            order = self.numbers("(", ")") if self.accept("T") else tuple(range(len(shape)))
            devices = _iota(tiles, shape, order, self.where)
        else:
            listed = [self.number()]
            while self.accept(","):
                listed.append(self.number())
            devices = _listed(tiles, listed, self.where)
        return replace(found, kind="tiled", tiles=tiles, devices=devices)


def _iota(tiles: tuple[int, ...], shape: tuple[int, ...], order: tuple[int, ...], where: str | None) -> np.ndarray:
    count = _count(tiles, where)
    if math.prod(shape) != count or sorted(order) != list(range(len(shape))):
        raise ModuleParseError(f"devices <={list(shape)}T{order} do not make tiles {list(tiles)}", where)
    return np.arange(count, dtype=np.int64).reshape(shape).transpose(order).reshape(-1)


def _listed(tiles: tuple[int, ...], devices: list[int], where: str | None) -> np.ndarray:
    count = _count(tiles, where)
    if sorted(devices) != list(range(count)):
        raise ModuleParseError(f"tiles {list(tiles)} need each of the devices 0 to {count - 1} once", where)
    return np.array(devices, np.int64)


def _count(tiles: tuple[int, ...], where: str | None) -> int:
    count = math.prod(tiles)
    if count < 1:
        raise ModuleParseError(f"tiles {list(tiles)} are on no device", where)
    if count > MAX_DEVICES:
        raise LimitError(f"a sharding over {count:,} devices; at most {MAX_DEVICES:,} are read", where)
    return count


# The fields of an `OpSharding` message, by number.
_TYPE, _DIMS, _DEVICES, _TUPLE, _REPLICATE_LAST, _LAST, _RESHAPE, _TRANSPOSE = 1, 3, 4, 5, 6, 8, 9, 10
_IN_GROUP, _GROUP, _GROUP_KIND = 11, 12, 13


def _of_message(data: bytes, where: str | None) -> GspmdSharding:
    """A serialized `OpSharding`."""
    numbers: dict[int, list[int]] = {}
    elements: list[GspmdSharding] = []
    for key, value in _fields(data, where):
        if isinstance(value, int):
            numbers.setdefault(key, []).append(value)
        elif key == _TUPLE:
            elements.append(_of_message(value, where))
        elif key in (_DIMS, _DEVICES, _LAST, _RESHAPE, _TRANSPOSE):
            numbers.setdefault(key, []).extend(_varints(value, where))

    def first(key: int) -> int:
        return numbers.get(key, [0])[0]

    if first(_TYPE) >= len(_KINDS):
        raise ModuleParseError(f"a serialized sharding is of the unknown type {first(_TYPE)}", where)
    found = GspmdSharding(_KINDS[first(_TYPE)], elements=tuple(elements))
    if first(_IN_GROUP):
        found = replace(found, group=("like" if first(_GROUP_KIND) else "as", first(_GROUP)))
    if found.kind == "maximal":
        return replace(found, devices=np.array([first(_DEVICES)], np.int64))
    if found.kind != "tiled":
        return found
    tiles = tuple(numbers.get(_DIMS, ()))
    shape = tuple(numbers.get(_RESHAPE, ()))
    order = tuple(numbers.get(_TRANSPOSE, ())) or tuple(range(len(shape)))
    listed = numbers.get(_DEVICES, [])
    devices = _listed(tiles, listed, where) if listed else _iota(tiles, shape, order, where)
    last = tuple(_last_kind(n, where) for n in numbers.get(_LAST, ()))
    last = last or (("replicated",) if first(_REPLICATE_LAST) else ())
    cut = len(tiles) - len(last)
    return replace(found, tiles=tiles[:cut], sizes=tiles[cut:], last=last, devices=devices)


def _last_kind(number: int, where: str | None) -> str:
    kind = _KINDS[number] if number < len(_KINDS) else str(number)
    if kind not in ("replicated", "manual", "unreduced"):
        raise ModuleParseError(f"a serialized sharding has tile dimensions of kind {kind}", where)
    return kind


def _fields(data: bytes, where: str | None) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of a message: integers, and the bytes of all else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at, where)
        if key & 7 == 0:
            number, at = _varint(data, at, where)
            yield key >> 3, number
            continue
        if key & 7 != 2:
            raise ModuleParseError("a sharding is neither text in braces nor a serialized OpSharding", where)
        length, at = _varint(data, at, where)
        if at + length > len(data):
            raise ModuleParseError("a serialized sharding ends too soon", where)
        yield key >> 3, data[at : at + length]
        at += length


def _varints(data: bytes, where: str | None) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _varint(data, at, where)
        yield number


def _varint(data: bytes, at: int, where: str | None) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 128:
            return number, at
    raise ModuleParseError("a serialized sharding ends too soon", where)
