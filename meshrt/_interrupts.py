"""Ctrl-C while libraries are loaded waits until they are: their C code takes the KeyboardInterrupt for an error of its
own. NumPy then says that it is broken, and jaxlib aborts the process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["deferred"]


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Raises the KeyboardInterrupt behind the block. Where somebody else handles the signal, and in other threads than
    the main one, which never gets it, nothing is done."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True

    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # an interpreter within another one, to which no signal comes
        yield
        return
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # else a library has a handler of its own now
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
