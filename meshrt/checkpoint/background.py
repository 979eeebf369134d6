"""Saving in a thread, while the program goes on."""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from meshrt import errors

__all__ = ["Saving"]


class Saving:
    """A checkpoint that is being saved, as `meshrt.checkpoint.save_async` gives it.

    When the program ends, what was begun is finished first. An error is raised by `wait`, once. `path` is where the
    checkpoint will be.

    >>> import meshrt, tempfile
    >>> saving = meshrt.checkpoint.save_async(tempfile.mkdtemp() + "/first", {"w": meshrt.numpy.ones(4)})
    >>> saving.wait(timeout=60)
    >>> saving.done, saving.path.name
    (True, 'first')
    """

    def __init__(self, path: Path, work: Callable[[], None], before: Saving | None = None):
        self.path = path
        self._work, self._before = work, before
        self._error: BaseException | None = None
        self._told = False
        self._thread = threading.Thread(target=self._run, name=f"meshrt-save-{path.name}", daemon=True)
        _finish_at_exit()
        _running.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._before is not None:
                self._before._thread.join()
            self._work()
        except BaseException as e:  # raised where it is waited for
            self._error = e
        finally:
            self._before = None
            del self._work

    @property
    def done(self) -> bool:
        """Whether it has been committed, or has failed."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the checkpoint is committed.

        Args:
          timeout: seconds; None: as long as it takes.

        Raises:
          CheckpointError: it is not done by then. What went wrong, the first time that somebody waits.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise errors.CheckpointError(
                f"the checkpoint {self.path} was not committed within {timeout} s: it is still being written"
            )
        _running.discard(self)
        if self._error is not None and not self._told:
            self._told = True
            raise self._error

    def __repr__(self) -> str:
        state = "being saved" if not self.done else "committed" if self._error is None else f"failed: {self._error}"
        return f"<Saving {self.path}: {state}>"


# Those that nobody waited for.
_running: set[Saving] = set()


@functools.cache
def _finish_at_exit() -> None:
    """From the first save on, so that it comes before what `meshrt.distributed.initialize` registered: the commit needs
    the other processes."""
    atexit.register(_finish)


def _finish() -> None:
    for saving in list(_running):
        try:
            saving.wait()
        except Exception as e:
            print(f"meshrt.checkpoint: {saving.path} was not saved: {type(e).__name__}: {e}", file=sys.stderr)
