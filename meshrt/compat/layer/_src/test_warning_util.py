"""`jax._src.test_warning_util`: what becomes of warnings within a block."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

__all__ = ["ignore_warning", "raise_on_warnings", "record_warnings"]


@contextlib.contextmanager
def raise_on_warnings() -> Iterator[None]:
    """Warnings are raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def record_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Gives a list, to which warnings are added."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


@contextlib.contextmanager
def ignore_warning(*, message: str | None = None, category: type[Warning] = Warning) -> Iterator[None]:
    """Drops warnings of a category whose words begin as a regular expression says."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message or "", category=category)
        yield
