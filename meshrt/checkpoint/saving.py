"""Saving: a snapshot where `save` is called, then files and the commit, which may go on in a thread.

    process 0                                   every process
    makes .NAME.saving-TOKEN, tells its name ──►
                                                writes process_K.safetensors, then process_K.json; tells "done"
    checks all process_K.json, writes           ◄──
    manifest.json, renames to NAME, tells "end" ──►

A process that fails tells so in the place of "done", and nothing is committed: what was there before stays as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshrt import errors, version
from meshrt.checkpoint import folder as folders
from meshrt.checkpoint import shards, structure
from meshrt.checkpoint.elements import name_of, pack, size_of
from meshrt.checkpoint.folder import Unfinished, telling
from meshrt.checkpoint.grid import extents
from meshrt.checkpoint.job import Job
from meshrt.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    StoredArray,
    StoredFile,
    StoredLeaf,
    StoredPiece,
    file_name,
    index_name,
    to_bytes,
)
from meshrt.checkpoint.plan import PlannedLeaf, owners, plan
from meshrt.checkpoint.progress import Meter, OnProgress
from meshrt.checkpoint.shards import OwnPiece
from meshrt.runtime.array import Array
from meshrt.sharding.mesh import AbstractMesh

__all__ = ["Snapshot", "take", "write"]


@dataclass(slots=True)
class Snapshot:
    """All that is needed to write a checkpoint. The tree may change, and its arrays be donated, without changing it."""

    path: Path
    leaves: list[PlannedLeaf]
    meshes: list[AbstractMesh]
    structure: Any
    owners: list[list[int]]
    pieces: list[OwnPiece]
    host_values: list[tuple[int, Any]]  # leaves that every process has by itself, for comparing them
    metadata: Any
    data_state: Any

    @property
    def nbytes(self) -> int:
        """Bytes that this process writes."""
        return sum(size_of(p.values.shape, p.values.dtype) for p in self.pieces)


def take(path: Path, tree: Any, metadata: Any, data_state: Any, job: Job, keep: bool) -> Snapshot:
    """The snapshot, and where it cannot be taken the other processes are told.

    Args:
      keep: the caller goes on while it is written: NumPy arrays, which may change, are copied.
    """
    try:
        return _snapshot(path, tree, metadata, data_state, job, keep)
    except BaseException as e:
        error = {"error": f"{type(e).__name__}: {e}"}
        job.tell(f"done/{job.rank}", error)
        if job.leads:
            job.tell("folder", error)
            job.tell("end", error)
        raise


def _json_value(value: Any, what: str) -> Any:
    """The value as JSON would give it back. ArgumentTypeError if it is none."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as e:
        raise errors.ArgumentTypeError(
            f"{what} is what JSON can say: dicts with texts as keys, lists, numbers, texts, None. Got a value with {e}"
        ) from None


def _snapshot(path: Path, tree: Any, metadata: Any, data_state: Any, job: Job, keep: bool) -> Snapshot:
    """What this process will write: views of arrays in host memory, copies of those in devices' memory."""
    leaves, meshes = plan(tree, job.count)
    arrays = [a for leaf in leaves for a in leaf.arrays]
    for array in arrays:  # all copies are on their way before the first is waited for
        if type(array.value) is Array:
            array.value.copy_to_host_async()
    owned = owners(arrays, job.count)
    pieces = []
    for number, (array, row) in enumerate(zip(arrays, owned)):
        read = array.reader()
        for k, (box, owner) in enumerate(zip(array.boxes, row)):
            if owner == job.rank and 0 not in extents(box):
                values = np.asarray(read(box))
                if keep and isinstance(array.value, np.ndarray):
                    values = values.copy()
                pieces.append(OwnPiece((number, k), array.name, array.shape, box, array.tile, values))
    return Snapshot(
        path, leaves, meshes, structure.to_data(tree), owned, pieces, _host_values(leaves, job.count, keep),
        _json_value(metadata, "metadata"), _state_of(data_state),
    )  # fmt: skip


def _host_values(leaves: Sequence[PlannedLeaf], processes: int, keep: bool) -> list[tuple[int, Any]]:
    if processes == 1:
        return []
    found: list[tuple[int, Any]] = []
    for i, leaf in enumerate(leaves):
        if leaf.kind == "python":
            found.append((i, json.dumps(leaf.about).encode()))
        for array in leaf.arrays:
            if array.holders is None:
                value = np.asarray(array.reader()(tuple((0, n) for n in array.shape)))
                found.append((i, value.copy() if keep and isinstance(array.value, np.ndarray) else value))
    return found


def _state_of(data_state: Any) -> Any:
    """The position of a data iterator: what its `get_state()` gives, or a JSON value or bytes as they are."""
    if callable(getattr(data_state, "get_state", None)):
        data_state = data_state.get_state()
    if isinstance(data_state, bytes):
        return {"bytes": data_state.hex()}
    return {"json": _json_value(data_state, "data_state (or what its get_state() gives)")}


# ----------------------------------------------------------------------------------------------------------------------
# Writing


def write(
    taken: Snapshot, job: Job, progress: OnProgress | bool | None, then: Callable[[], None] = lambda: None
) -> None:  # fmt: skip
    """Writes and commits. All processes of the job return, or all raise.

    Args:
      then: called in process 0 when it is committed, before any process returns.
    """
    unfinished = _begin(taken, job) if job.leads else None
    try:
        try:
            folder = unfinished.folder if unfinished is not None else _told_folder(taken, job)
            index = _write_own(taken, folder, job, progress)
            job.tell(f"done/{job.rank}", index)
        except BaseException as e:
            job.tell(f"done/{job.rank}", {"error": f"{type(e).__name__}: {e}"})
            raise
        if unfinished is not None:
            _finish(taken, unfinished, index, job)
        else:
            _await_end(taken, job)
    except BaseException as e:
        if unfinished is not None:
            job.tell("end", {"error": f"{type(e).__name__}: {e}"})
            unfinished.abandon()
        raise
    if unfinished is not None:
        try:
            then()
        finally:
            job.tell("end", {})


def _begin(taken: Snapshot, job: Job) -> Unfinished:
    try:
        made = Unfinished.begin(taken.path)
    except BaseException as e:
        job.tell("folder", {"error": f"{type(e).__name__}: {e}"})
        raise
    job.tell("folder", {"name": made.folder.name, "of": taken.path.name})
    return made


def _told_folder(taken: Snapshot, job: Job) -> Path:
    told = job.ask("folder", "the directory of process 0")
    if "error" in told:
        raise errors.CheckpointError(f"the checkpoint {taken.path} was not begun by process 0: {told['error']}")
    if told["of"] != taken.path.name:  # its parent may be mounted elsewhere
        raise errors.ProcessesDisagreeError(
            f"process {job.rank} saves the checkpoint {taken.path}, and process 0 one of the name {told['of']}: give "
            "all processes one path (and a manager one step), under which each writes what it holds"
        )
    folder = taken.path.parent / str(told["name"])
    with contextlib.suppress(OSError):  # a file system over a network may remember that it was not there
        os.listdir(folder.parent)
    if not folder.is_dir():
        raise errors.CheckpointWriteError(
            f"process {job.rank} does not see {folder}, which process 0 has made: the directory of a checkpoint must "
            "be on a file system that all hosts share"
        )
    return folder


def _write_own(taken: Snapshot, folder: Path, job: Job, progress: OnProgress | bool | None) -> dict[str, Any]:
    """Writes this process's tiles and its index; returns the message that tells of the index."""
    with telling(taken.path, f"writing {taken.nbytes} bytes"):
        meter = Meter(progress, "save", str(taken.path), taken.nbytes)
        meter.start()
        _check_room(taken, folder)
        files = []
        if taken.pieces:
            made = shards.write(folder / file_name(job.rank), taken.pieces, meter)
            files.append([made.name, made.size, made.header, made.checksum])
        rows = [[*p.number, p.offset, "".join(f"{c:08x}" for c in p.checksums)] for p in taken.pieces]
        index = {
            "files": files, "pieces": rows, "tree": _digest_of_tree(taken), "data_state": taken.data_state,
            "host_values": [[i, zlib.crc32(v if isinstance(v, bytes) else pack(v).data)] for i, v in taken.host_values],
        }  # fmt: skip
        data = json.dumps(index).encode()
        if job.count == 1:
            return index
        folders.write_file(folder / index_name(job.rank), data)
    return {"sha256": hashlib.sha256(data).hexdigest()}


def _check_room(taken: Snapshot, folder: Path) -> None:
    """Says that a disk is full before hours of writing rather than after them."""
    need, free = taken.nbytes, shutil.disk_usage(folder).free
    if need > free:
        raise errors.CheckpointWriteError(
            f"the checkpoint {taken.path}: this process writes {need} bytes, and its disk has {free} bytes free. "
            "Make room (keep_last= removes old checkpoints), or save elsewhere; what was saved before is untouched"
        )


def _digest_of_tree(taken: Snapshot) -> str:
    """Equal where processes save the same tree, whatever its values are."""
    rows = [
        [leaf.path, leaf.kind, [[name_of(a.dtype), a.shape, a.weak_type, a.sharding, a.grid] for a in leaf.arrays]]
        for leaf in taken.leaves
    ]
    return hashlib.sha256(json.dumps([rows, taken.structure, taken.metadata]).encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------------------------
# The commit


def _finish(taken: Snapshot, unfinished: Unfinished, own: dict[str, Any], job: Job) -> None:
    indexes = _indexes(taken, unfinished.folder, own, job)
    _check_agreement(taken, indexes)
    manifest = _manifest(taken, indexes)
    with telling(taken.path, "writing its manifest"):
        if job.count > 1:
            for process in range(job.count):
                (unfinished.folder / index_name(process)).unlink()
        folders.write_file(unfinished.folder / MANIFEST, to_bytes(manifest))
    unfinished.commit()


def _indexes(taken: Snapshot, folder: Path, own: dict[str, Any], job: Job) -> list[dict[str, Any]]:
    if job.count == 1:
        return [own]
    told = [job.ask(f"done/{process}", f"process {process}") for process in range(job.count)]
    job.forget("folder", *[f"done/{process}" for process in range(job.count)])
    if failed := {i: t["error"] for i, t in enumerate(told) if "error" in t}:
        first = min(failed)
        raise errors.CheckpointError(
            f"the checkpoint {taken.path} was not committed, as process {first} failed: {failed[first]}"
        )
    found = []
    for process, message in enumerate(told):
        data = b""
        with contextlib.suppress(FileNotFoundError):
            data = (folder / index_name(process)).read_bytes()
        if hashlib.sha256(data).hexdigest() != message["sha256"]:
            raise errors.CheckpointWriteError(
                f"the checkpoint {taken.path}: process 0 does not see what process {process} wrote: its directory must "
                "be on a file system that all hosts share"
            )
        found.append(json.loads(data))
    return found


def _check_agreement(taken: Snapshot, indexes: Sequence[dict[str, Any]]) -> None:
    """All processes saved one tree, and what each has by itself is equal."""
    for process, index in enumerate(indexes):
        if index["tree"] != indexes[0]["tree"]:
            raise errors.ProcessesDisagreeError(
                f"the checkpoint {taken.path} was not committed: process {process} saves another tree than process 0 "
                "(paths, shapes, dtypes, shardings or metadata differ). Save the same tree in all processes"
            )
        for (leaf, ours), (_, theirs) in zip(indexes[0]["host_values"], index["host_values"]):
            if ours != theirs:
                raise errors.ProcessesDisagreeError(
                    f"the checkpoint {taken.path} was not committed: the leaf {taken.leaves[leaf].path} has another "
                    f"value in process {process} than in process 0, and is no array over both. Make it the same "
                    "everywhere, or save what is each process's own as data_state="
                )


def _manifest(taken: Snapshot, indexes: Sequence[dict[str, Any]]) -> Manifest:
    files: list[StoredFile] = []
    numbers: dict[int, int] = {}
    for process, index in enumerate(indexes):
        for row in index["files"]:
            numbers[process] = len(files)
            files.append(StoredFile(*row))
    found: dict[tuple[int, int], StoredPiece] = {}
    for process, index in enumerate(indexes):
        for array, piece, offset, checksums in index["pieces"]:
            sums = tuple(int(checksums[i : i + 8], 16) for i in range(0, len(checksums), 8))
            found[array, piece] = StoredPiece(numbers[process], offset, sums)
    leaves, number = [], 0
    for leaf in taken.leaves:
        arrays = []
        for a in leaf.arrays:
            pieces = tuple(
                found[number, k] if 0 not in extents(box) else StoredPiece(0, 0, ()) for k, box in enumerate(a.boxes)
            )
            arrays.append(StoredArray(a.dtype, a.shape, a.weak_type, a.sharding, a.grid, a.tile, pieces))
            number += 1
        leaves.append(StoredLeaf(leaf.path, leaf.kind, tuple(arrays), leaf.about))
    written = {"time": time.time(), "meshrt": version.__version__, "processes": len(indexes)}
    states = tuple(index["data_state"] for index in indexes)
    return Manifest(
        tuple(leaves), taken.structure, tuple(taken.meshes), tuple(files), taken.metadata, states, written
    )  # fmt: skip


def _await_end(taken: Snapshot, job: Job) -> None:
    told = job.ask("end", "process 0 to commit")
    if "error" in told:
        raise errors.CheckpointError(f"the checkpoint {taken.path} was not committed by process 0: {told['error']}")
