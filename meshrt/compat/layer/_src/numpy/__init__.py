"""`jax._src.numpy`: files of functions that `jax.numpy` publishes, and `util`."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"jax._src.numpy.{name}")
    except ModuleNotFoundError as e:
        raise AttributeError(f"module 'jax._src.numpy' has no attribute {name!r}") from e
