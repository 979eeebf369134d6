"""The internal modules of JAX's that well-known libraries use, each with what they use of it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from meshrt import errors as _errors
from meshrt.compat import internal_names as _internal


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    own = f"{__name__}.{name}"
    stands_for_jax = getattr(sys.modules.get("jax"), "__name__", "") == "meshrt.compat.layer"
    if not stands_for_jax or f"_src.{name}" not in _internal.TABLES:  # else names of other modules belong to it
        if importlib.util.find_spec(own) is not None:
            return importlib.import_module(own)
    try:  # a module that lies elsewhere
        if stands_for_jax:
            return importlib.import_module(f"jax._src.{name}")
    except ModuleNotFoundError as e:
        if e.name != f"jax._src.{name}":
            raise
    raise _errors.MissingFunctionError(f"jax._src.{name}: meshrt has nothing under this internal name")
