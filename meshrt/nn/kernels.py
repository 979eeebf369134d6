"""The kernels that ship, for functions that use one on request."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["shipped"]


def shipped() -> Any:
    """The module of the kernels, `meshrt.experimental.pallas.ops`.

    It stands above this room, and most programs need none of it, so that it is imported when it is asked for.
    """
    return importlib.import_module("meshrt.experimental.pallas.ops")
