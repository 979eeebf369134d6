"""The module `jax` where `import jax` gives meshrt: meshrt's names, JAX's version, and modules found by JAX's names."""

from __future__ import annotations

import importlib
from typing import Any

import meshrt as _meshrt
from meshrt.compat import modules as _modules
from meshrt.compat.layer import core, version  # noqa: F401  (JAX's modules of these names are not meshrt's)

__version__ = _modules.VERSION
__version_info__ = _modules.VERSION_INFO
__all__ = list(_meshrt.__all__)

# Looked up once, not at each use.
globals().update({name: getattr(_meshrt, name) for name in __all__ if name not in globals()})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'jax' has no attribute {name!r}")
    if name == "_src" or (_modules.is_public(name) and not hasattr(_meshrt, name)):
        return importlib.import_module(f"jax.{name}")
    return getattr(_meshrt, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
