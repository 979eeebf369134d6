"""`jax._src.test_warning_util`: what becomes of warnings within a block.

`warnings.catch_warnings` changes what all threads see. Where tests run in several, every warning comes to `_shown`,
which asks what this thread has said of warnings, the innermost block first.
"""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["ignore_warning", "install_threadsafe_warning_handlers", "raise_on_warnings", "record_warnings"]

# Takes a warning, or leaves it to the block around (False).
_Taker = Callable[[warnings.WarningMessage], bool]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.takers: list[_Taker] = []


_here = _OfThread()


def _shown(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
    said = warnings.WarningMessage(message, category, *where, **more)
    if not any(taker(said) for taker in reversed(_here.takers)):
        raise category(message)


def install_threadsafe_warning_handlers() -> None:
    """Has each thread decide by itself about warnings, from now on; those that nobody takes are raised."""
    warnings.simplefilter("always")
    warnings.showwarning = _shown


@contextlib.contextmanager
def _within(taker: _Taker, alone: Callable[[], Any], record: bool = False) -> Iterator[Any]:
    """`taker` decides where threads do so by themselves, else the filter that `alone` sets."""
    if warnings.showwarning is _shown:
        _here.takers.append(taker)
        try:
            yield None
        finally:
            _here.takers.remove(taker)
    else:
        with warnings.catch_warnings(record=record) as found:
            alone()
            yield found


def _raised(said: warnings.WarningMessage) -> bool:
    raise said.category(said.message)


def raise_on_warnings() -> contextlib.AbstractContextManager[None]:
    """Warnings are raised."""
    return _within(_raised, lambda: warnings.simplefilter("error"))


@contextlib.contextmanager
def record_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Gives a list, to which warnings are added."""
    own: list[warnings.WarningMessage] = []

    def kept(said: warnings.WarningMessage) -> bool:
        own.append(said)
        return True

    with _within(kept, lambda: warnings.simplefilter("always"), record=True) as found:
        yield own if found is None else found


def ignore_warning(
    *, message: str | None = None, category: type[Warning] = Warning
) -> contextlib.AbstractContextManager[None]:
    """Drops warnings of a category whose words begin as a regular expression says."""

    def dropped(said: warnings.WarningMessage) -> bool:
        return issubclass(said.category, category) and re.match(message or "", str(said.message), re.I) is not None

    return _within(dropped, lambda: warnings.filterwarnings("ignore", message=message or "", category=category))
