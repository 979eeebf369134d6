"""What a program communicates, holds and why, before anything runs: reports made from the stages' own values.

>>> from meshrt.inspect import assert_communication, report      # doctest: +SKIP
>>> report(step.lower(state, batch))                             # doctest: +SKIP
>>> assert_communication(step, (state, batch), all_gather=0)     # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshrt.inspect.api import assert_communication, report
    from meshrt.inspect.changes import compare
    from meshrt.inspect.model import Report

__all__ = ["Report", "assert_communication", "compare", "report"]

# Start-up time: the command line needs few of these rooms.
_PLACES = {"Report": "model", "assert_communication": "api", "compare": "changes", "report": "api"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
