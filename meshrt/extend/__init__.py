"""For libraries that read and rewrite programs. Names are ``jax.extend``'s.

Every module below is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from meshrt import errors as _errors

__all__ = ["backend", "core", "linear_util", "random", "source_info_util"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.MissingFunctionError(f"meshrt.extend.{name} is not implemented; there is {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
