"""SciPy's functions over arrays of ours. Names, signatures and dtype rules are those of ``jax.scipy``.

Every module below is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from meshrt import errors as _errors

__all__ = [
    "cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "spatial",
    "special", "stats",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.MissingFunctionError(f"meshrt.scipy.{name} is not implemented; meshrt.scipy has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
