"""The file that one process writes: its tiles, in the format of safetensors.

    u64       length of the header, little-endian
    header    JSON: for each tile its element type, shape, and where its bytes are; filled with blanks to 64 bytes
    tiles     one after the other, without gaps

So any reader of safetensors reads these files: an array of one tile has its own name, a tile of a larger one has its
bounds behind the name, `params/w[0:1024,0:512]`.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from meshrt.checkpoint import grid as grids
from meshrt.checkpoint.elements import pack, size_of, stored_as
from meshrt.checkpoint.grid import Box
from meshrt.checkpoint.manifest import StoredFile
from meshrt.checkpoint.progress import Meter
from meshrt.heuristics import CHECKPOINT_THREADS

__all__ = ["OwnPiece", "threads", "tile_name", "write"]

Item = TypeVar("Item")
Made = TypeVar("Made")

_ALIGNMENT = 64
# Bytes of small tiles that one thread writes together.
_TOGETHER = 1 << 20


@dataclass(slots=True)
class OwnPiece:
    """A piece that this process writes: the values, where they lie in the array, and the array's name and shape.

    `offset` and `checksums` are set by writing.
    """

    number: tuple[int, int]  # of the array among all, and of the piece in it
    name: str
    shape: tuple[int, ...]
    box: Box
    tile: tuple[int, ...]
    values: np.ndarray
    offset: int = 0
    checksums: tuple[int, ...] = ()


def tile_name(name: str, box: Box, shape: Sequence[int]) -> str:
    """The name of a tile in the header: that of the array, if it is all of it."""
    if grids.extents(box) == tuple(shape):
        return name
    return f"{name}[{','.join(f'{start}:{end}' for start, end in box)}]"


def _thread_count() -> int:
    return min(max(os.cpu_count() or 1, 2), CHECKPOINT_THREADS)


def threads() -> ThreadPoolExecutor:
    """Threads for one restore."""
    return ThreadPoolExecutor(_thread_count(), thread_name_prefix="meshrt-checkpoint")


def spread(work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """`work` of each item, by several threads; raises what the first one raised, and begins no other then.

    Unlike an executor it also works when the interpreter is about to end, which waits for what is being saved.
    """
    made: dict[int, Made] = {}
    raised: list[BaseException] = []
    rest = iter(enumerate(items))
    taking = threading.Lock()

    def run() -> None:
        while not raised:
            with taking:
                number, item = next(rest, (-1, None))
            if number < 0:
                return
            try:
                made[number] = work(item)  # type: ignore[arg-type]  # an item, as there is a number
            except BaseException as e:  # raised below
                raised.append(e)

    others = [threading.Thread(target=run, daemon=True) for _ in range(min(_thread_count(), len(items)) - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if raised:
        raise raised[0]
    return [made[number] for number in range(len(items))]


def write(path: Path, pieces: Sequence[OwnPiece], meter: Meter) -> StoredFile:
    """Writes the file, which must not be there, and sees it on the disk. Notes where pieces are.

    Raises:
      OSError: as the operating system says.
    """
    # Wide elements first, so that all lie at multiples of their size.
    ordered = sorted(pieces, key=lambda p: -p.values.dtype.itemsize)
    rows = [(piece, box) for piece in ordered for box in grids.tiles(piece.box, piece.tile)]
    header, at = _header(rows)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        _write_all(handle, memoryview(header), 0)
        todo: list[tuple[OwnPiece, Box, int]] = []
        for piece, box in rows:
            todo.append((piece, box, at))
            at += size_of(grids.extents(box), piece.values.dtype)
        found = spread(lambda batch: _write_tiles(handle, batch, meter), list(_batches(todo)))
        checksums = [c for batch in found for c in batch]
        os.fsync(handle)
    finally:
        os.close(handle)
    _note(todo, checksums)
    return StoredFile(path.name, at, len(header), zlib.crc32(header))


def _header(rows: Sequence[tuple[OwnPiece, Box]]) -> tuple[bytes, int]:
    """The file's beginning, and its length."""
    table: dict[str, Any] = {"__metadata__": {"format": "meshrt"}}
    at = 0
    for piece, box in rows:
        extents, dtype = grids.extents(box), piece.values.dtype
        kind, shape = stored_as(extents, dtype)
        end = at + size_of(extents, dtype)
        table[tile_name(piece.name, box, piece.shape)] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, 8 + len(text)


def _batches(todo: Sequence[tuple[OwnPiece, Box, int]]) -> Iterator[list[tuple[OwnPiece, Box, int]]]:
    batch: list[tuple[OwnPiece, Box, int]] = []
    size = 0
    for row in todo:
        batch.append(row)
        size += size_of(grids.extents(row[1]), row[0].values.dtype)
        if size >= _TOGETHER:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_tiles(handle: int, batch: list[tuple[OwnPiece, Box, int]], meter: Meter) -> list[int]:
    """Writes neighbouring tiles; returns their checksums."""
    data = [pack(p.values[grids.relative(box, p.box)]).data for p, box, _ in batch]
    checksums = [zlib.crc32(d) for d in data]
    joined = data[0] if len(data) == 1 else memoryview(b"".join(data))
    _write_all(handle, joined, batch[0][2])
    meter.add(len(joined))
    return checksums


def _write_all(handle: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(handle, data, at)
        data, at = data[written:], at + written


def _note(todo: Sequence[tuple[OwnPiece, Box, int]], checksums: Sequence[int]) -> None:
    first: dict[int, int] = {}
    sums: dict[int, list[int]] = {}
    for (piece, _, at), checksum in zip(todo, checksums):
        first.setdefault(id(piece), at)
        sums.setdefault(id(piece), []).append(checksum)
    for piece in {id(row[0]): row[0] for row in todo}.values():
        piece.offset, piece.checksums = first[id(piece)], tuple(sums[id(piece)])
