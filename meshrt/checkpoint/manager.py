"""The checkpoints of one training run: a directory with one for each of some steps."""

from __future__ import annotations

import contextlib
import operator
import re
import warnings
from pathlib import Path
from typing import Any

from meshrt import errors
from meshrt.checkpoint import folder
from meshrt.checkpoint.background import Saving
from meshrt.checkpoint.folder import committed_in, named
from meshrt.checkpoint.functions import TIMEOUT_S, Checkpoint, PathLike, describe, restore
from meshrt.checkpoint.job import current
from meshrt.checkpoint.progress import OnProgress
from meshrt.checkpoint.saving import take, write
from meshrt.core.tracebacks import boundary
from meshrt.distributed.progress import checkpoint_begun, checkpoint_committed

__all__ = ["CheckpointManager", "steps_in"]

# The class has a method `list`.
Steps = list[int]
Checkpoints = list[Checkpoint]

_STEP = re.compile(r"step_(\d{8,18})")


def steps_in(directory: Path) -> list[int]:
    """The steps of which there is a committed checkpoint, in ascending order."""
    found = (_STEP.fullmatch(p.name) for p in committed_in(directory))
    return sorted(int(m[1]) for m in found if m is not None)


def _whole(step: Any) -> int:
    """The number of a step; NumPy's integers and arrays of one are numbers too."""
    try:
        found = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        found = -1
    if not 0 <= found < 10**18:
        raise errors.ArgumentValueError(f"step={step!r}: expected a whole number from 0 on")
    return found


class CheckpointManager:
    """Saves, finds, keeps and drops the checkpoints of a run, one directory `step_00001000` for each saved step.

    Saving goes on in a thread; the next `save` waits for it, and raises what went wrong. What a killed run left
    half-written is removed when a manager is made. In a job of several processes all make the same calls.

    Args:
      directory: made unless it is there; on a file system that all processes share.
      keep_last: how many of the latest checkpoints stay; None for all.
      keep_every: those of multiples of this step stay beside them.
      asynchronous: whether files are written by a thread.
      progress: as for `save`.
      timeout: seconds after which a process that waits for another one gives up.

    Raises:
      ArgumentValueError: `keep_last` or `keep_every` is no whole number from 1 on. CheckpointWriteError: the directory
        cannot be made. ArgumentTypeError, UnsupportedError: as `save`, for `directory`.

    >>> import meshrt, tempfile
    >>> with meshrt.checkpoint.CheckpointManager(tempfile.mkdtemp(), keep_last=2) as manager:
    ...     for step in (10, 20, 30):
    ...         manager.save(step, {"w": meshrt.numpy.full(2, step)})
    >>> manager.steps(), manager.latest()
    ([20, 30], 30)
    >>> manager.restore()["w"].tolist()
    [30, 30]
    """

    def __init__(
        self, directory: PathLike, *, keep_last: int | None = None, keep_every: int | None = None,
        asynchronous: bool = True, progress: OnProgress | bool | None = None, timeout: float = TIMEOUT_S,
    ):  # fmt: skip
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
            if value is not None and (type(value) is not int or value < 1):
                raise errors.ArgumentValueError(f"{name}={value!r}: expected a whole number, at least 1, or None")
        self.directory = named(directory)
        self.keep_last, self.keep_every, self.asynchronous = keep_last, keep_every, asynchronous
        self._progress, self._timeout = progress, timeout
        self._saving: Saving | None = None
        job = current(timeout)
        if job.leads:
            with folder.telling(self.directory, "making it"):
                self.directory.mkdir(parents=True, exist_ok=True)
                folder.clean(self.directory)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be. ArgumentValueError unless it is a whole number from 0 on."""
        return self.directory / f"step_{_whole(step):08d}"

    def steps(self) -> Steps:
        """The steps of which there is a committed checkpoint, in ascending order."""
        return steps_in(self.directory)

    def latest(self) -> int | None:
        """The last of `steps`; None if there is none."""
        return max(self.steps(), default=None)

    @boundary
    def list(self) -> Checkpoints:
        """What is known of each checkpoint, in the order of steps."""
        found = []
        for step in self.steps():
            with contextlib.suppress(errors.CheckpointNotFoundError):  # another process removed it
                found.append(describe(self.path(step)))
        return found

    @boundary
    def save(self, step: int, tree: Any, *, metadata: Any = None, data_state: Any = None) -> None:
        """Saves a tree as the checkpoint of a step, and drops those that are no longer kept; see `save`, `save_async`.

        Raises:
          What the save before raised, if it went on in a thread. ArgumentValueError: `step` is no whole number from 0
            on. CheckpointExistsError: there is one of this step. What `save` raises.
        """
        path, step = self.path(step), _whole(step)
        self.wait()
        job = current(self._timeout)
        taken = take(path, tree, metadata, data_state, job, self.asynchronous)

        def work() -> None:
            if job.leads:
                checkpoint_begun(step)
            write(taken, job, self._progress, then=committed)

        def committed() -> None:
            checkpoint_committed(step)
            self._drop(step)

        if self.asynchronous:
            self._saving = Saving(path, work)
        else:
            work()

    def _drop(self, saved: int) -> None:
        """Removes what is no longer kept. The one just saved stays, also behind later ones of a run that went back."""
        steps = self.steps()
        kept = {saved, *(steps if self.keep_last is None else steps[-self.keep_last :])}
        if self.keep_every is not None:
            kept |= {s for s in steps if s % self.keep_every == 0}
        for step in steps:
            if step not in kept:
                # One that is being read goes the next time; one that is gone already was removed by somebody else.
                with contextlib.suppress(errors.CheckpointBusyError, errors.CheckpointNotFoundError):
                    self._remove(step)

    def _remove(self, step: int) -> None:
        try:
            folder.remove(self.path(step))
        except errors.CheckpointWriteError as e:  # what was to be saved is saved, and the next save tries again
            warnings.warn(f"{e}. It stays beside those that keep_last= says", RuntimeWarning, stacklevel=2)

    @boundary
    def restore(self, step: int | None = None, like: Any = None, **options: Any) -> Any:
        """The tree of a step, by default the latest as process 0 sees it, when what is being saved has been committed;
        `like` and `options` as for `restore`.

        Raises:
          What the save before raised, if it went on in a thread. CheckpointNotFoundError: there is no checkpoint (of
            that step). ArgumentValueError: `step` is no whole number from 0 on. What `restore` raises.
        """
        self.wait()
        if step is None:
            step = self._agreed_latest()
        return restore(self.path(step), like, **options)

    def _agreed_latest(self) -> int:
        job = current(self._timeout)
        if job.leads:
            latest = self.latest()
            job.tell("latest", {"step": latest})
        else:
            latest = job.ask("latest", "the latest step that process 0 sees")["step"]
        if latest is None:
            raise errors.CheckpointNotFoundError(
                f"there is no committed checkpoint in {self.directory}. Ask latest() first, which gives None then"
            )
        return latest

    @boundary
    def wait(self) -> None:
        """Returns when nothing is being saved; raises what the last save raised, once."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()

    close = wait

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except Exception as e:
            if error is None:
                raise
            error.add_note(f"and saving failed: {type(e).__name__}: {e}")
