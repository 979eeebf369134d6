"""The internal modules of JAX's that well-known libraries use, each with what they use of it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from meshrt import errors as _errors


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if importlib.util.find_spec(own := f"{__name__}.{name}") is not None:
        return importlib.import_module(own)
    try:  # a module that lies elsewhere
        return importlib.import_module(f"jax._src.{name}")
    except ModuleNotFoundError as e:
        if e.name != f"jax._src.{name}":
            raise
        raise _errors.MissingFunctionError(f"jax._src.{name}: meshrt has nothing under this internal name") from None
