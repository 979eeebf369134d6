"""The internal modules of JAX's that well-known libraries use, each with what they use of it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from meshrt import errors as _errors


def __getattr__(name: str) -> Any:
    if not name.startswith("__") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"jax._src.{name}")
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.MissingFunctionError(f"jax._src.{name}: meshrt has nothing under this internal name of JAX's")
