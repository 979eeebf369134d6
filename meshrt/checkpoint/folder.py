"""Directories of checkpoints: how one comes to be in a single step, is read while others work beside it, and goes.

    .NAME.saving-TOKEN/    being written: its maker holds a lock (`flock`) on the file `lock` in it
    NAME/                  committed: complete, never changed again; readers hold a shared lock on its manifest
    .NAME.removed-TOKEN/   being removed: it was renamed first, so no half of a checkpoint has a checkpoint's name

Locks end with the process that holds them, so what a killed process left is found and removed by the next one. Whatever
is removed gets the third name first: a process that is killed while it removes leaves something that may go too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from meshrt import errors
from meshrt.checkpoint.manifest import MANIFEST, MAX_MANIFEST, Manifest, from_bytes

__all__ = [
    "Opened", "Unfinished", "clean", "committed_in", "fsync_directory", "is_committed", "named", "remove", "telling",
    "write_file",
]  # fmt: skip

_LOCK = "lock"
_LEFT = re.compile(r"\..+\.(saving|removed)-[0-9a-f]{16}", re.DOTALL)
_LONGEST_NAME = 200  # bytes of a name that are taken into those with a dot: file systems know 255
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What opening a file of a checkpoint may end in without anything being wrong with the file.
_NOT_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
_FIXES = {
    errno.EFBIG: "Raise the limit for the size of a file (ulimit -f), or save elsewhere",
    errno.EMFILE: "Raise the limit for open files (ulimit -n), or close some",
    errno.ENFILE: "The machine has as many files open as it can have: close some",
    errno.ENAMETOOLONG: "Give it a shorter name: file systems take 255 bytes",
}


def named(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a checkpoint or of a directory of them. ArgumentTypeError if it is no path,
    ArgumentValueError if it has zero bytes, UnsupportedError if it is an address of no file
    system."""
    if not isinstance(path, str | os.PathLike):
        raise errors.ArgumentTypeError(f"the path of a checkpoint is a string or a Path. Got {path!r}")
    text = os.fspath(path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if "\0" in text:
        raise errors.ArgumentValueError(f"the path of a checkpoint has no zero bytes. Got {text!r}")
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise errors.UnsupportedError(
            f"checkpoints are directories of a file system, and {text!r} is an address of {scheme[0]}. Mount it, or "
            "save to a disk and copy the directory when it has been committed"
        )
    return Path(os.path.abspath(os.path.expanduser(text)))


@contextlib.contextmanager
def telling(path: Path, doing: str) -> Iterator[None]:
    """Turns what the operating system says into CheckpointWriteError."""
    try:
        yield
    except OSError as e:
        if isinstance(e, errors.MeshrtError):
            raise
        raise _refused(path, doing, e) from e


def _refused(path: Path, doing: str, e: OSError) -> errors.CheckpointWriteError:
    fix = _fix(e)
    if e.errno in _FULL:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free
            doing += f" with {free} bytes free"
        fix = "Make room (keep_last= removes old checkpoints), or save elsewhere; what was saved before is untouched"
    made = errors.CheckpointWriteError(f"the checkpoint {path}: {doing} failed: {e.strerror or e}. {fix}")
    made.errno = e.errno
    return made


def _fix(e: OSError) -> str:
    return _FIXES.get(e.errno or 0, "Check the path and its permissions")


def _beside(path: Path, doing: str) -> Path:
    """A new name with a dot in the directory of `path`, which tells what is being done."""
    short = os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])
    return path.parent / f".{short}.{doing}-{secrets.token_hex(8)}"


def _discard(folder: Path, path: Path) -> None:
    """Removes a directory that holds no checkpoint, as far as that is possible; whoever cleans takes what stays."""
    doomed = folder
    if ".removed-" not in folder.name:
        doomed = _beside(path, "removed")
        try:
            os.rename(folder, doomed)
        except OSError:
            doomed = folder
    shutil.rmtree(doomed, ignore_errors=True)


def fsync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes) -> None:
    """A new file with these bytes, on the disk when this returns."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# ----------------------------------------------------------------------------------------------------------------------
# Being written


class Unfinished:
    """The directory of a checkpoint that is being written, as its maker has it."""

    def __init__(self, path: Path, folder: Path, lock: int):
        self.path, self.folder, self._lock = path, folder, lock

    @staticmethod
    def begin(path: Path) -> Unfinished:
        """Makes it beside `path`. CheckpointExistsError if there is something at `path` already."""
        if os.path.lexists(path):
            raise _exists(path)
        with telling(path, "making its directory"):
            path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                folder = _beside(path, "saving")
                folder.mkdir()
                # Until it is locked, who cleans may take it for a dead process's.
                try:
                    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                except FileNotFoundError:
                    continue
                _lock(lock)
                if _is_at(lock, folder / _LOCK):
                    return Unfinished(path, folder, lock)
                os.close(lock)

    def commit(self) -> None:
        """Gives the directory its name. From here on there is a checkpoint, whatever happens."""
        with telling(self.path, "committing it"):
            fsync_directory(self.folder)
            try:
                os.rename(self.folder, self.path)
            except OSError as e:
                if e.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise _exists(self.path) from None
                raise
        # It is committed: what fails now is no failure of the save.
        try:
            fsync_directory(self.path.parent)
            with contextlib.suppress(FileNotFoundError):  # somebody has removed the checkpoint already
                os.unlink(self.path / _LOCK)
        except OSError as e:
            warnings.warn(
                f"the checkpoint {self.path} is complete, but its directory could not be written through: {e}. After a "
                "power loss it may be missing",
                RuntimeWarning,
                stacklevel=2,
            )
        os.close(self._lock)

    def abandon(self) -> None:
        """Removes what was written."""
        _discard(self.folder, self.path)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> None:
    """Takes the lock of a directory, where the file system has locks; elsewhere nothing is ever taken for left."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise


def _exists(path: Path) -> errors.CheckpointExistsError:
    what = "a checkpoint" if is_committed(path) else "something else"
    return errors.CheckpointExistsError(
        f"there is {what} at {path} already, and checkpoints are not overwritten: a kill would lose both. Save "
        "under another name, or remove it first (meshrt.checkpoint.remove, `meshrt checkpoint rm`)"
    )


def clean(root: Path) -> list[Path]:
    """Removes what killed processes left in a directory of checkpoints; returns it."""
    gone = []
    for entry in _inside(root):
        if _LEFT.fullmatch(entry.name) and _is_dead(entry):
            if entry.is_symlink():
                with contextlib.suppress(OSError):
                    entry.unlink()
            else:
                _discard(entry, root / entry.name[1:].rpartition(".")[0])
            gone.append(entry)
    return gone


def _is_dead(folder: Path) -> bool:
    if ".removed-" in folder.name:
        return True
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _is_without_maker(folder)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(folder / _LOCK)  # if its maker was about to take it, it sees that it has gone
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def _is_without_maker(folder: Path) -> bool:
    """Of a directory whose lock was not there: whether its maker was killed, rather than about to make the lock."""
    with contextlib.suppress(OSError):
        folder.rmdir()  # if its maker lives, it notices that the directory has gone
    try:
        return _LOCK not in os.listdir(folder)
    except OSError:
        return False


# ----------------------------------------------------------------------------------------------------------------------
# Committed


def is_committed(path: Path) -> bool:
    """Whether there is a committed checkpoint: the manifest comes last, and the name after it."""
    return os.path.isfile(path / MANIFEST)


def committed_in(root: Path) -> list[Path]:
    """The committed checkpoints in a directory, by name."""
    return [p for p in _inside(root) if not _LEFT.fullmatch(p.name) and is_committed(p)]


def _inside(root: Path) -> list[Path]:
    """What is in a directory, by name; nothing if it is none, or has just been removed."""
    try:
        return sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


class Opened:
    """A committed checkpoint that is being read. While it is open nobody removes it; its files are opened once each."""

    def __init__(self, path: Path):
        self.path = path
        self._handles: list[int] = []
        self._files: dict[str, int] = {}
        self._opening = threading.Lock()
        try:
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            raise _not_found(path) from None
        except OSError as e:
            raise errors.CheckpointError(f"the checkpoint {path} cannot be opened: {e}. {_fix(e)}") from e
        self._handles.append(self._folder)
        try:
            self.manifest = self._read_manifest()
        except BaseException:
            self.close()
            raise

    def _read_manifest(self) -> Manifest:
        handle = self._open(MANIFEST)
        if handle is None:
            raise _not_found(self.path)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # it is being removed
            raise _not_found(self.path) from None
        except OSError:
            pass  # a file system without locks: who reads what is being removed finds files missing
        size = os.fstat(handle).st_size
        if size > MAX_MANIFEST:
            raise errors.DamagedCheckpointError(
                f"{self.path / MANIFEST} has {size} bytes, and manifests have {MAX_MANIFEST} at most. Is it one?"
            )
        data = bytearray()
        while chunk := os.pread(handle, 1 << 24, len(data)):
            data += chunk
        return from_bytes(bytes(data), str(self.path / MANIFEST))

    def _open(self, name: str) -> int | None:
        # Neither a link nor a pipe in the place of a file is followed or waited for.
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno in _NOT_THE_FILE:
                raise errors.CheckpointError(f"{self.path / name} cannot be opened: {e}. {_fix(e)}") from e
            raise errors.DamagedCheckpointError(
                f"{self.path / name} cannot be opened: {e}. A checkpoint consists of plain files that you can read"
            ) from e
        self._handles.append(handle)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise errors.DamagedCheckpointError(f"{self.path / name} is no file, but something else of that name")
        return handle

    def file(self, name: str, size: int) -> int:
        """The handle of one of its files. DamagedCheckpointError if it is missing or not of this size."""
        with self._opening:
            handle = self._files.get(name)
            if handle is None:
                handle = self._files[name] = self._checked(name, size)
        return handle

    def _checked(self, name: str, size: int) -> int:
        handle = self._open(name)
        if handle is None:
            raise errors.DamagedCheckpointError(
                f"{self.path / name} is missing. Copy the whole directory, or restore an earlier checkpoint"
            )
        found = os.fstat(handle).st_size
        if found != size:
            raise errors.DamagedCheckpointError(
                f"{self.path / name} has {found} bytes, and {size} were committed: it was cut off or written to. Copy "
                "it again, or restore an earlier checkpoint"
            )
        return handle

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.pop())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _not_found(path: Path) -> errors.CheckpointNotFoundError:
    hint = "Check the path"
    if path.is_dir():
        inside = [p.name for p in committed_in(path)]
        hint = f"In this directory are the checkpoints {', '.join(inside[-3:])}" if inside else "It has no manifest"
    return errors.CheckpointNotFoundError(
        f"there is no committed checkpoint at {path}. {hint}; `meshrt checkpoint ls {path.parent}` lists others"
    )


def remove(path: Path) -> None:
    """Removes a committed checkpoint: its name at once, then its files. Of a symbolic link to one, the link.

    Raises:
      CheckpointNotFoundError: `path` is none. CheckpointBusyError: it is being read.
    """
    try:
        handle = os.open(path / MANIFEST, os.O_RDWR | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(path) from None
    except OSError as e:
        raise _refused(path, "removing it", e) from e
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.CheckpointBusyError(
                f"the checkpoint {path} is being read, so it was not removed. Try again when it has been restored"
            ) from None
        except OSError as e:
            if e.errno not in _NO_LOCKS:
                raise
        if not _is_at(handle, path / MANIFEST):  # somebody else removed it since it was opened
            raise _not_found(path)
        doomed = _beside(path, "removed")
        with telling(path, "removing it"):
            if path.is_symlink():
                path.unlink()
            else:
                os.rename(path, doomed)
            fsync_directory(path.parent)
    finally:
        os.close(handle)
    shutil.rmtree(doomed, ignore_errors=True)
