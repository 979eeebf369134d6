"""Modules of jaxlib that JAX's internal ones hand on as they are: `cpu_feature_guard`, `lapack`, `utils`,
`weakref_lru_cache`, `xla_client`.

Only `meshrt.compat` asks for them, for programs written for JAX.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = frozenset({"cpu_feature_guard", "lapack", "utils", "weakref_lru_cache", "xla_client"})


def __getattr__(name: str) -> Any:  # each is imported where it is asked for
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"jaxlib.{name}")
