"""Reading parts of stored arrays: the tiles that touch them, each once, each compared with its checksum."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.checkpoint import grid as grids
from meshrt.checkpoint.elements import bits_of, size_of, unpack
from meshrt.checkpoint.folder import Opened
from meshrt.checkpoint.grid import Box
from meshrt.checkpoint.manifest import StoredArray, StoredFile
from meshrt.checkpoint.progress import Meter
from meshrt.xla.host_memory import aligned_empty

__all__ = [
    "PartsBeingRead",
    "StoredTile",
    "all_tiles",
    "bytes_for",
    "read_header",
    "read_parts",
    "read_tile",
    "start_reading",
]

# Bytes, and tiles, that a thread reads one after the other.
_TOGETHER, _MOST_TOGETHER = 1 << 20, 64


@dataclass(frozen=True, slots=True)
class StoredTile:
    """One tile: where it lies in its array and in its file, and its checksum."""

    box: Box
    file: int
    offset: int
    size: int
    checksum: int


def _tiles_of(array: StoredArray, number: int, piece: Box) -> Iterator[StoredTile]:
    stored = array.pieces[number]
    at = stored.offset
    for box, checksum in zip(grids.tiles(piece, array.tile), stored.checksums):
        size = size_of(grids.extents(box), array.dtype)
        yield StoredTile(box, stored.file, at, size, checksum)
        at += size


def all_tiles(array: StoredArray) -> Iterator[StoredTile]:
    for number, piece in enumerate(grids.pieces(array.grid, array.shape)):
        yield from _tiles_of(array, number, piece)


def _needed(array: StoredArray, parts: Sequence[Box]) -> dict[tuple[int, int], tuple[StoredTile, list[int]]]:
    """The tiles that touch some part, by their place, and the parts that each touches."""
    found: dict[tuple[int, int], tuple[StoredTile, list[int]]] = {}
    for k, part in enumerate(parts):
        for number, piece in grids.touching(array.grid, array.shape, part):
            for tile in _tiles_of(array, number, piece):
                if grids.meet(tile.box, part) is not None:
                    found.setdefault((tile.file, tile.offset), (tile, []))[1].append(k)
    return found


def bytes_for(array: StoredArray, parts: Sequence[Box]) -> int:
    """Bytes that `read_parts` reads."""
    return sum(tile.size for tile, _ in _needed(array, parts).values())


def read_tile(opened: Opened, path: str, array: StoredArray, tile: StoredTile, into: memoryview | None = None) -> Any:
    """The bytes of a tile, in `into` if it is given; `path` is the leaf's, for messages.

    Raises:
      DamagedCheckpointError: they are not those that were written.
    """
    file = opened.manifest.files[tile.file]
    handle = opened.file(file.name, file.size)
    data = into if into is not None else memoryview(bytearray(tile.size))
    done = 0
    while done < tile.size:
        try:
            count = os.preadv(handle, [data[done:]], tile.offset + done)
        except OSError as e:
            raise errors.DamagedCheckpointError(
                f"{opened.path / file.name}: the bytes {tile.offset} to {tile.offset + tile.size}, of the leaf {path}, "
                f"cannot be read: {e}. Restore an earlier checkpoint"
            ) from e
        if not count:
            break
        done += count
    if done < tile.size or zlib.crc32(data) != tile.checksum:
        found = f"only {done} bytes are there" if done < tile.size else f"their CRC-32 is {zlib.crc32(data):08x}"
        raise errors.DamagedCheckpointError(
            f"{opened.path / file.name} is damaged: the bytes {tile.offset} to {tile.offset + tile.size}, which are "
            f"{list(tile.box)} of the leaf {path} ({array.dtype}{list(array.shape)}), should have the CRC-32 "
            f"{tile.checksum:08x}, and {found}. Restore an earlier checkpoint, or copy this one again"
        )
    return data


def read_header(opened: Opened, file: StoredFile) -> bytes:
    """What other readers of safetensors need; ours goes by the manifest. DamagedCheckpointError if it is damaged."""
    data = os.pread(opened.file(file.name, file.size), file.header, 0)
    if zlib.crc32(data) != file.checksum:
        raise errors.DamagedCheckpointError(
            f"{opened.path / file.name} is damaged: its header of {file.header} bytes should have the CRC-32 "
            f"{file.checksum:08x}, and has {zlib.crc32(data):08x}. Its arrays can be restored all the same"
        )
    return data


class PartsBeingRead:
    """Parts of one array on their way."""

    def __init__(self, parts: list[np.ndarray], work: list[Future[None]]):
        self._parts, self._work = parts, work

    def result(self) -> list[np.ndarray]:
        """The parts; raises what reading raised."""
        for future in self._work:
            future.result()
        return self._parts


def start_reading(
    opened: Opened, path: str, array: StoredArray, parts: Sequence[Box], pool: ThreadPoolExecutor, meter: Meter
) -> PartsBeingRead:
    """Begins to read the parts of an array (equal ones are one object)."""
    out = [aligned_empty(grids.extents(part), array.dtype) for part in parts]

    def fetch(rows: Sequence[tuple[StoredTile, list[int]]]) -> None:
        for tile, touched in rows:
            fetch_tile(tile, touched)

    def fetch_tile(tile: StoredTile, touched: Sequence[int]) -> None:
        place = _direct(tile, [parts[k] for k in touched], [out[k] for k in touched], array)
        data = read_tile(opened, path, array, tile, place)
        if place is None:
            value = unpack(data, grids.extents(tile.box), array.dtype)
            for k in touched:
                both = grids.meet(tile.box, parts[k])
                assert both is not None  # it touches
                out[k][grids.relative(both, parts[k])] = value[grids.relative(both, tile.box)]
        meter.add(tile.size)

    return PartsBeingRead(out, [pool.submit(fetch, rows) for rows in _batches(_needed(array, parts).values())])


def _batches(rows: Iterable[tuple[StoredTile, list[int]]]) -> Iterator[list[tuple[StoredTile, list[int]]]]:
    """Small tiles together: handing one to a thread costs as much as reading it."""
    batch: list[tuple[StoredTile, list[int]]] = []
    for row in rows:
        batch.append(row)
        if sum(tile.size for tile, _ in batch) >= _TOGETHER or len(batch) >= _MOST_TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


def _direct(tile: StoredTile, parts: list[Box], out: list[np.ndarray], array: StoredArray) -> memoryview | None:
    """Where a tile can be read to without a copy: rows that lie together in the only part that needs them."""
    whole_bytes = bits_of(array.dtype) == 8 * array.dtype.itemsize
    if len(parts) != 1 or not grids.inside(tile.box, parts[0]) or not whole_bytes or sys.byteorder != "little":
        return None
    index: Any = (*grids.relative(tile.box, parts[0]), ...)  # which gives an array, also of no dimensions
    place: np.ndarray = out[0][index]
    if not place.flags.c_contiguous:
        return None
    return place.reshape(-1).view(np.uint8).data


def read_parts(
    opened: Opened, path: str, array: StoredArray, parts: Sequence[Box], pool: ThreadPoolExecutor, meter: Meter
) -> list[np.ndarray]:
    """The parts of an array; they are this caller's alone."""
    return start_reading(opened, path, array, parts, pool, meter).result()
