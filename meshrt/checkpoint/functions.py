"""What users call: save, restore, and what can be asked of a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshrt import errors
from meshrt.checkpoint import folder, structure
from meshrt.checkpoint.background import Saving
from meshrt.checkpoint.folder import Opened, named
from meshrt.checkpoint.job import Job, current
from meshrt.checkpoint.manifest import StoredArray, StoredFile, StoredLeaf
from meshrt.checkpoint.progress import Meter, OnProgress
from meshrt.checkpoint.reading import StoredTile, all_tiles, read_header, read_tile
from meshrt.checkpoint.restoring import described, restored
from meshrt.checkpoint.saving import take, write
from meshrt.checkpoint.shards import threads
from meshrt.checkpoint.targets import Options
from meshrt.core.tracebacks import offer
from meshrt.sharding.mesh import Mesh

__all__ = ["Checkpoint", "describe", "remove", "restore", "save", "save_async", "verify"]

PathLike = str | os.PathLike[str]
TIMEOUT_S = 1800.0


# ----------------------------------------------------------------------------------------------------------------------
# Saving


def save(
    path: PathLike, tree: Any, *, metadata: Any = None, data_state: Any = None,
    progress: OnProgress | bool | None = None, timeout: float = TIMEOUT_S,
) -> None:  # fmt: skip
    """Saves a tree as a checkpoint: a directory that is there when this returns, whole and on the disk, or not at all.

    In a job of several processes all call it with the same tree, and the path is on a file system that they share. Each
    writes what it holds: of a value that several processes hold, one of them. NumPy arrays and Python values must be
    equal in all.

    Args:
      path: where the checkpoint will be; nothing may be there. Its parents are made.
      tree: any pytree of arrays (of any dtype, sharding and memory; keys), NumPy arrays and scalars, numbers, strings,
        bytes and high values.
      metadata: what JSON can say; `describe(path).metadata` gives it back.
      data_state: the position of this process's data iterator: a JSON value, bytes, or an object with `get_state()`.
      progress: a function of a `Progress`, or True for a bar.
      timeout: seconds after which a process that waits for another one gives up.

    Raises:
      CheckpointExistsError: there is something at `path`. CheckpointWriteError: the file system refused; the message
        says how much was to be written and how much room there is. CheckpointError: a leaf cannot be saved, or another
        process failed. ProcessesDisagreeError: processes save different trees or values. ArgumentTypeError: `metadata`
        or `data_state` is nothing that JSON can say, `progress` no function, `timeout` no number above 0, or `path` no
        path. ArgumentValueError: `path` has zero bytes. UnsupportedError:
        `path` is an address of something else than a file system (`gs://...`). PeerLost: a process is lost meanwhile.
        Whatever is raised, checkpoints that were there stay as they were.

    >>> import meshrt, tempfile
    >>> import meshrt.numpy as jnp
    >>> path = tempfile.mkdtemp() + "/first"
    >>> meshrt.checkpoint.save(path, {"w": jnp.ones((2, 3)), "step": 7})
    >>> meshrt.checkpoint.restore(path)["step"]
    7
    """
    job = current(timeout)
    write(take(named(path), tree, metadata, data_state, job, False), job, progress)


def save_async(
    path: PathLike, tree: Any, *, metadata: Any = None, data_state: Any = None,
    progress: OnProgress | bool | None = None, timeout: float = TIMEOUT_S, after: Saving | None = None,
) -> Saving:  # fmt: skip
    """As `save`, and returns as soon as the values are safe: the step may go on, and donate what is being saved.

    Values of devices with a memory of their own are copied to the host before this returns. CPU devices' memory is not
    copied: a program to which it is donated meanwhile takes other memory. Files are written by a thread.

    Args:
      after: an earlier one that is finished first.
      path, tree, metadata, data_state, progress, timeout: as for `save`.

    Returns:
      A `Saving`, whose `wait()` returns when the checkpoint is committed.

    Raises:
      What concerns the tree, here; what concerns the file system, when somebody waits for the result. In a job of
      several processes that must be all of them, or all use `after` or a `CheckpointManager`.

    >>> import meshrt, tempfile
    >>> saving = meshrt.checkpoint.save_async(tempfile.mkdtemp() + "/first", {"w": meshrt.numpy.ones(4)})
    >>> saving.wait()
    """
    if after is not None and not isinstance(after, Saving):
        raise errors.ArgumentTypeError(f"save_async: after is what an earlier save_async returned. Got {after!r}")
    job = current(timeout)
    taken = take(named(path), tree, metadata, data_state, job, True)
    return Saving(taken.path, lambda: write(taken, job, progress), after)


# ----------------------------------------------------------------------------------------------------------------------
# Restoring


def restore(
    path: PathLike, like: Any = None, *, shardings: Any = None, mesh: Mesh | None = None, as_numpy: bool = False,
    partial: bool = False, cast: bool = False, data_state: Any = None, progress: OnProgress | bool | None = None,
) -> Any:  # fmt: skip
    """The tree of a checkpoint. Every process reads what its devices need, whoever wrote it, and compares checksums.

    Args:
      path: that of `save`.
      like: a tree of what is wanted: arrays or ShapeDtypeStructs (shapes, dtypes and, where they have one, shardings),
        NumPy arrays, Python values, high values. It must have the paths of the tree that was saved; its containers may
        be of other classes. Without it the structure is the saved one, in which nodes of classes that files do not hold
        (see docs/checkpoint.md) are dicts.
      shardings: where arrays are to be: one Sharding or PartitionSpec for all, a tree of them that is a prefix of the
        tree (None: as if not given), or a function (path, ShapeDtypeStruct) -> sharding or None. Comes before what
        `like` says, which comes before how arrays were saved.
      mesh: the mesh of PartitionSpecs and of saved shardings; by default the one in the context, or else one like that
        which was saved, over as many devices. It may have another shape, if its axes have the names.
      as_numpy: arrays become NumPy arrays, keys their words; no device is used.
      partial: `like` may lack leaves.
      cast: elements are converted to the dtypes of `like`.
      data_state: an object whose `set_state(state)` gets what this process saved as `data_state`.
      progress: as for `save`.

    Raises:
      CheckpointNotFoundError: there is no checkpoint at `path`. CheckpointMismatchError: it holds other paths, shapes
        or dtypes, an array cannot lie as asked (all such leaves are named), it has the `data_state` of another
        number of processes, or none. DamagedCheckpointError: its files are not those that were written; which file,
        which leaf. CheckpointError: it cannot be opened. ArgumentTypeError: `data_state` has no `set_state`, `mesh` is
        no Mesh, or as `save`. TreeError: `shardings` is no prefix of the tree. UnsupportedError: as `save`.

    >>> import meshrt, tempfile
    >>> from meshrt.sharding import PartitionSpec as P
    >>> path = tempfile.mkdtemp() + "/first"
    >>> meshrt.checkpoint.save(path, {"w": meshrt.numpy.ones((4, 2)), "names": ["a", None]})
    >>> mesh = meshrt.make_mesh((1,), ("x",))
    >>> tree = meshrt.checkpoint.restore(path, mesh=mesh, shardings=lambda path, struct: P("x"))
    >>> tree["w"].sharding.spec, tree["names"]
    (P('x',), ['a', None])
    """
    if data_state is not None and not callable(getattr(data_state, "set_state", None)):
        raise errors.ArgumentTypeError(
            f"restore: data_state must have a method set_state(state), which gets what was saved. Got {data_state!r}; "
            "the saved state itself is in meshrt.checkpoint.describe(path).data_states"
        )
    if mesh is not None and not isinstance(mesh, Mesh):
        raise errors.ArgumentTypeError(f"restore: mesh is a Mesh of devices, as meshrt.make_mesh gives. Got {mesh!r}")
    with Opened(named(path)) as opened:
        state = None if data_state is None else _own_state(_described(opened), current(TIMEOUT_S))
        tree = restored(opened, like, shardings, Options(mesh, as_numpy, cast), partial, progress)
        if data_state is not None:
            data_state.set_state(state)
    return tree


def _own_state(found: Checkpoint, job: Job) -> Any:
    if len(found.data_states) != job.count:
        raise errors.CheckpointMismatchError(
            f"the checkpoint {found.path} has the data_state of {len(found.data_states)} processes, and this job has "
            f"{job.count}: which has to go on where is yours to say, from meshrt.checkpoint.describe(path).data_states"
        )
    state = found.data_states[job.rank]
    if state is None:
        of = "" if job.count == 1 else f" of process {job.rank}"
        raise errors.CheckpointMismatchError(
            f"the checkpoint {found.path} was saved without the data_state{of} that is to be restored (nothing was "
            "given to save, or get_state() gave None). Leave out data_state= and begin the data where they are to begin"
        )
    return state


# ----------------------------------------------------------------------------------------------------------------------
# What is in a checkpoint


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known of a checkpoint without its arrays.

    Attributes:
      path: its directory.
      leaves: by path the type of each leaf: a ShapeDtypeStruct, a Python value, for a high value a tuple of types.
      metadata: what was given to `save`.
      data_states: what each process gave as `data_state`.
      nbytes: bytes of its arrays.
      time: when it was written, in seconds since the epoch, by the clock of process 0.
      processes: how many wrote it.
      files: names and sizes in bytes.

    >>> import meshrt, tempfile
    >>> path = tempfile.mkdtemp() + "/first"
    >>> meshrt.checkpoint.save(path, {"w": meshrt.numpy.ones((4, 2))})
    >>> meshrt.checkpoint.describe(path).tree
    {'w': ShapeDtypeStruct(shape=(4, 2), dtype=float32)}
    """

    path: Path
    leaves: dict[str, Any]
    metadata: Any
    data_states: tuple[Any, ...]
    nbytes: int
    time: float
    processes: int
    files: tuple[tuple[str, int], ...]
    _structure: Any

    @property
    def tree(self) -> Any:
        """The types in the structure in which `restore` without `like` gives values; itself a `like`."""
        return structure.rebuilt(self._structure, list(self.leaves.values()))


def describe(path: PathLike) -> Checkpoint:
    """What a checkpoint holds. Only its manifest is read.

    Raises:
      CheckpointNotFoundError, DamagedCheckpointError, CheckpointError: as `restore`.

    >>> import meshrt, tempfile
    >>> path = tempfile.mkdtemp() + "/first"
    >>> meshrt.checkpoint.save(path, {"w": meshrt.numpy.ones((4, 2))}, metadata={"loss": 0.5})
    >>> found = meshrt.checkpoint.describe(path)
    >>> found.leaves["['w']"].shape, found.metadata, found.nbytes
    ((4, 2), {'loss': 0.5}, 32)
    """
    with Opened(named(path)) as opened:
        return _described(opened)


def _described(opened: Opened) -> Checkpoint:
    manifest = opened.manifest
    try:
        leaves = {leaf.path: described(leaf) for leaf in manifest.leaves}
        states = tuple(map(_state, manifest.data_states))
        written, processes = float(manifest.written["time"]), int(manifest.written["processes"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise errors.DamagedCheckpointError(f"the manifest of {opened.path} makes no sense: {e}") from None
    files = tuple((f.name, f.size) for f in manifest.files)
    return Checkpoint(
        opened.path, leaves, manifest.metadata, states, manifest.nbytes, written, processes, files, manifest.structure
    )  # fmt: skip


def _state(data: Any) -> Any:
    return bytes.fromhex(data["bytes"]) if "bytes" in data else data["json"]


def verify(path: PathLike, *, progress: OnProgress | bool | None = None) -> list[str]:
    """Reads all of a checkpoint and compares every checksum; returns what is wrong, one line for each damaged tile or
    file.

    Raises:
      CheckpointNotFoundError: there is no checkpoint at `path`. CheckpointError: it cannot be opened.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/first"
    >>> saved = meshrt.checkpoint.save(path, {"w": meshrt.numpy.ones(2)})
    >>> meshrt.checkpoint.verify(path)
    []
    """
    try:
        opened = Opened(named(path))
    except errors.DamagedCheckpointError as e:
        return [str(e)]
    with opened, threads() as pool:
        headers = [_problem_of_header(opened, file) for file in opened.manifest.files]
        work = [(leaf, a, tile) for leaf in opened.manifest.leaves for a in leaf.arrays for tile in all_tiles(a)]
        meter = Meter(progress, "verify", str(opened.path), sum(tile.size for _, _, tile in work))
        meter.start()
        problems = pool.map(lambda row: _problem(opened, meter, *row), work)
        return list(dict.fromkeys(p for p in (*headers, *problems) if p is not None))


def _problem_of_header(opened: Opened, file: StoredFile) -> str | None:
    try:
        read_header(opened, file)
        return None
    except errors.DamagedCheckpointError as e:
        return str(e)


def _problem(opened: Opened, meter: Meter, leaf: StoredLeaf, array: StoredArray, tile: StoredTile) -> str | None:
    try:
        read_tile(opened, leaf.name, array, tile)
        return None
    except errors.DamagedCheckpointError as e:
        return str(e)
    finally:
        meter.add(tile.size)


def remove(path: PathLike) -> None:
    """Removes a checkpoint. It is gone at once: whoever is killed meanwhile leaves no half of it under its name.

    Raises:
      CheckpointNotFoundError: `path` is no checkpoint, so nothing was removed. CheckpointBusyError: it is being read.
      CheckpointWriteError: the file system refused.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/first"
    >>> saved = meshrt.checkpoint.save(path, {"w": meshrt.numpy.ones(2)})
    >>> meshrt.checkpoint.remove(path)
    """
    folder.remove(named(path))


offer(globals(), __all__)
