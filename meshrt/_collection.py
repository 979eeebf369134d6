"""Python's collection of garbage, while something is made that stays."""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Iterator

__all__ = ["leave_to_the_system", "paused", "seldom"]

_MANY = 200_000  # objects, of some 50 MB at most


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collections inside. What was made counts as old afterwards: the next collection does not look at it first.

    Importing meshrt makes some 80,000 objects that are tracked and stay; looking at them again and again is a sixth of
    the import's time.
    """
    if not gc.isenabled() or gc.get_freeze_count():  # the program sees to it itself
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Both together move all objects to the oldest generation, without a look at them.
        gc.freeze()
        gc.unfreeze()
        gc.enable()


@contextlib.contextmanager
def seldom() -> Iterator[None]:
    """Inside, collections are as rare as befits a process that keeps a million objects and leaves few in cycles.

    A coordinator keeps a hundred objects for each agent. While thousands join, a third of its processor time went into
    looking at those that had just come, and all stay.
    """
    before = gc.get_threshold()
    if not before[0]:  # the program sees to it itself
        yield
        return
    gc.set_threshold(max(before[0], _MANY), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def leave_to_the_system() -> None:
    """When the process ends, what is in memory is not looked through once more, object by object.

    Modules are taken apart as ever. A report of some thousand operations leaves half a million objects, and looking
    at them takes a quarter of the time of the whole command.
    """
    atexit.register(gc.freeze)
