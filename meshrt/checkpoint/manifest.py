"""The manifest: what a checkpoint holds and where, as values and as JSON. It is written last, so where it is, all is.

A manifest is read as if a stranger had written it: every number is checked against the others before it is used, and
it names files only by the one pattern that checkpoints have.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.checkpoint import grid as grids
from meshrt.checkpoint.elements import bits_of, dtype_named, name_of, size_of
from meshrt.checkpoint.grid import Grid
from meshrt.sharding.as_data import mesh_from_data, mesh_to_data
from meshrt.sharding.mesh import AbstractMesh

__all__ = [
    "KINDS", "MANIFEST", "MAX_MANIFEST", "Manifest", "StoredArray", "StoredFile", "StoredLeaf", "StoredPiece",
    "file_name", "from_bytes", "index_name", "to_bytes",
]  # fmt: skip

MANIFEST = "manifest.json"
VERSION = 1
MAX_MANIFEST = 1 << 30
MAX_TILE_BYTES = 1 << 30
_MAX_SIZE, _MAX_DIMENSIONS = 1 << 48, 64
_FILE = re.compile(r"process_\d{5,9}\.safetensors")
KINDS = ("array", "key", "numpy", "numpy scalar", "python", "high")
_LONGEST_HEAD = 200
# What a leaf of a kind consists of: how many arrays, None for any number.
_ARRAYS = {"array": 1, "key": 1, "numpy": 1, "numpy scalar": 1, "python": 0, "high": None}


def file_name(process: int) -> str:
    """The file of one process's tiles."""
    return f"process_{process:05d}.safetensors"


def index_name(process: int) -> str:
    """What one process tells of its file; gone once the manifest is written."""
    return f"process_{process:05d}.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One process's file: its name, its bytes, and how many of them its header takes, with their CRC-32."""

    name: str
    size: int
    header: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Where a piece lies: which of the manifest's files, from which byte, and a CRC-32 for each of its tiles."""

    file: int
    offset: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array. `sharding` is how it was split, as data; of keys, shape and dtype are those of their words."""

    dtype: np.dtype
    shape: tuple[int, ...]
    weak_type: bool
    sharding: dict[str, Any] | None
    grid: Grid
    tile: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]

    @property
    def nbytes(self) -> int:
        return size_of(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """One leaf of the tree. `about` is a Python value as data, the generator of keys, or the type of a high value."""

    path: str
    kind: str
    arrays: tuple[StoredArray, ...]
    about: Any = None

    @property
    def name(self) -> str:
        """What people call it: its path, and as files do where it is the whole tree."""
        return self.path or "value"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything but the elements of arrays."""

    leaves: tuple[StoredLeaf, ...]
    structure: Any
    meshes: tuple[AbstractMesh, ...]
    files: tuple[StoredFile, ...]
    metadata: Any
    data_states: tuple[Any, ...]
    written: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays as they are stored."""
        return sum(a.nbytes for leaf in self.leaves for a in leaf.arrays)


# ----------------------------------------------------------------------------------------------------------------------
# Writing


def _array_to_data(array: StoredArray) -> dict[str, Any]:
    pieces = [[p.file, p.offset, "".join(f"{c:08x}" for c in p.checksums)] for p in array.pieces]
    return {
        "dtype": name_of(array.dtype), "shape": array.shape, "weak": array.weak_type, "sharding": array.sharding,
        "grid": array.grid, "tile": array.tile, "pieces": pieces,
    }  # fmt: skip


def _leaf_to_data(leaf: StoredLeaf) -> dict[str, Any]:
    arrays = [_array_to_data(a) for a in leaf.arrays]
    return {"path": leaf.path, "kind": leaf.kind, "about": leaf.about, "arrays": arrays}


def to_bytes(manifest: Manifest) -> bytes:
    """JSON whose first line has the checksum of all that follows it."""
    body = json.dumps(
        {
            "written": manifest.written,
            "structure": manifest.structure,
            "meshes": [mesh_to_data(m) for m in manifest.meshes],
            "files": [[f.name, f.size, f.header, f.checksum] for f in manifest.files],
            "metadata": manifest.metadata,
            "data_states": list(manifest.data_states),
            "leaves": list(map(_leaf_to_data, manifest.leaves)),
        }
    ).encode()[1:]  # fmt: skip
    head = {"meshrt_checkpoint": VERSION, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(head)[:-1].encode() + b",\n" + body


# ----------------------------------------------------------------------------------------------------------------------
# Reading


def from_bytes(data: bytes, where: str) -> Manifest:
    """The manifest in a file's bytes; `where` names the file in messages.

    Raises:
      DamagedCheckpointError: it is none, of another version, damaged, or says what cannot be.
    """
    head, _, body = data.partition(b"\n")
    try:
        if len(head) > _LONGEST_HEAD:
            raise ValueError
        about = json.loads(head.rstrip(b",") + b"}")
        version, digest = about["meshrt_checkpoint"], about["sha256"]
    except (ValueError, KeyError, TypeError):
        raise _damaged(where, "does not begin as the manifest of a checkpoint does") from None
    if version != VERSION:
        raise _damaged(where, f"is of version {version!r} of the format, and this meshrt reads version {VERSION}")
    if hashlib.sha256(body).hexdigest() != digest:
        raise _damaged(where, "has another checksum than its first line says")
    try:
        return _manifest(json.loads(b"{" + body))
    except RecursionError:
        raise _damaged(where, "is nested too deeply") from None
    except KeyError as e:
        raise _damaged(where, f"has no {e}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, errors.MeshrtError) as e:
        raise _damaged(where, f"makes no sense: {e}") from None


def _damaged(where: str, how: str) -> errors.DamagedCheckpointError:
    return errors.DamagedCheckpointError(f"{where} {how}. Restore an earlier checkpoint, or copy this one again")


def _manifest(data: dict[str, Any]) -> Manifest:
    files = tuple(_stored_file(*row) for row in data["files"])
    if len({f.name for f in files}) != len(files):
        raise ValueError("it names a file twice")
    leaves = tuple(_leaf(row, files) for row in data["leaves"])
    if len({leaf.path for leaf in leaves}) != len(leaves):
        raise ValueError("it has two leaves of one path")
    meshes = tuple(map(mesh_from_data, data["meshes"]))
    if not isinstance(data["data_states"], list) or not isinstance(data["written"], dict):
        raise ValueError("data_states is no list, or written no object")
    return Manifest(
        leaves, data["structure"], meshes, files, data["metadata"], tuple(data["data_states"]), data["written"]
    )


def _stored_file(name: Any, size: Any, header: Any, checksum: Any) -> StoredFile:
    if not isinstance(name, str) or not _FILE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a file of checkpoints")
    if _number(header, "the length of a header") > min(_number(size, "the size of a file"), MAX_MANIFEST):
        raise ValueError(f"the header of {name} is longer than it")
    return StoredFile(name, size, header, _number(checksum, "a checksum"))


def _leaf(row: dict[str, Any], files: Sequence[StoredFile]) -> StoredLeaf:
    path, kind = row["path"], row["kind"]
    if not isinstance(path, str) or kind not in KINDS:
        raise ValueError(f"a leaf of path {path!r} and kind {kind!r}")
    if not isinstance(row["arrays"], list) or _ARRAYS[kind] not in (None, len(row["arrays"])):
        raise ValueError(f"the leaf {path!r}, which is of kind {kind}, has not the arrays that it should")
    try:
        arrays = tuple(_array(a, files) for a in row["arrays"])
    except (ValueError, TypeError) as e:
        raise ValueError(f"leaf {path!r}: {e}") from None
    return StoredLeaf(path, kind, arrays, row["about"])


def _array(row: dict[str, Any], files: Sequence[StoredFile]) -> StoredArray:
    dtype = dtype_named(row["dtype"])
    shape = _numbers(row["shape"], "a size", 0)
    if len(shape) > _MAX_DIMENSIONS or math.prod(shape) >= _MAX_SIZE:
        raise ValueError(f"the shape {list(shape)} is too large")
    grid = tuple(_lines(lines, n) for lines, n in _together(row["grid"], shape, "grid"))
    tile = _numbers(row["tile"], "a size of tiles", 1)
    _together(tile, shape, "tile")
    if math.prod(tile) * bits_of(dtype) > 8 * MAX_TILE_BYTES:
        raise ValueError(f"tiles of {list(tile)} elements of {dtype} take more than {MAX_TILE_BYTES} bytes")
    if not isinstance(row["pieces"], list) or len(row["pieces"]) != grids.count_pieces(grid):
        raise ValueError(f"its grid has {grids.count_pieces(grid)} pieces, and other ones are stored")
    boxes = grids.pieces(grid, shape)
    pieces = tuple(_piece(p, box, tile, dtype, files) for p, box in zip(row["pieces"], boxes))
    sharding = row["sharding"]
    if not isinstance(sharding, dict | None) or not isinstance(row["weak"], bool):
        raise ValueError("sharding is no object, or weak no truth value")
    return StoredArray(dtype, shape, row["weak"], sharding, grid, tile, pieces)


def _piece(
    row: Any, box: grids.Box, tile: tuple[int, ...], dtype: np.dtype, files: Sequence[StoredFile]
) -> StoredPiece:  # fmt: skip
    file, offset, checksums = row
    extents = grids.extents(box)
    count = math.prod(-(-n // t) for n, t in zip(extents, tile))
    if not isinstance(checksums, str) or len(checksums) != 8 * count:
        raise ValueError(f"the piece {box} has not one checksum for each of its {count} tiles")
    if not count:
        return StoredPiece(0, 0, ())
    if _number(file, "the number of a file") >= len(files):
        raise ValueError(f"the piece {box} is in file {file} of {len(files)}")
    if dtype.itemsize * 8 != bits_of(dtype):
        size = sum(size_of(grids.extents(t), dtype) for t in grids.tiles(box, tile))  # each tile begins a byte
    else:
        size = size_of(extents, dtype)
    if _number(offset, "an offset") + size > files[file].size:
        raise ValueError(
            f"the piece {box} should be the bytes {offset} to {offset + size} of {files[file].name}, which has "
            f"{files[file].size}"
        )
    return StoredPiece(file, offset, tuple(int(checksums[i : i + 8], 16) for i in range(0, len(checksums), 8)))


def _lines(lines: Any, size: int) -> tuple[int, ...]:
    found = _numbers(lines, "a line of the grid", 0)
    ascending = all(a < b for a, b in itertools.pairwise(found))
    if not found or found[0] or not ascending or found[-1] >= max(size, 1):
        raise ValueError(f"{lines!r} does not divide a dimension of {size}")
    return found


def _together(rows: Any, shape: tuple[int, ...], what: str) -> list[tuple[Any, int]]:
    if not isinstance(rows, list | tuple) or len(rows) != len(shape):
        raise ValueError(f"{what} is not for {len(shape)} dimensions")
    return list(zip(rows, shape))


def _numbers(rows: Any, what: str, least: int) -> tuple[int, ...]:
    if not isinstance(rows, list):
        raise ValueError(f"{rows!r} stands where numbers belong")
    return tuple(_number(n, what, least) for n in rows)


def _number(value: Any, what: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 62:
        raise ValueError(f"{value!r} is not {what}")
    return value
