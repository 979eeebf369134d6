"""`meshrt.checkpoint.save` and `restore`: sharded trees in files; docs/checkpoint.md.

The module is also a function, JAX's `checkpoint`: `meshrt.checkpoint(f)` is `meshrt.remat(f)`, which computes again in
the backward pass what `f` would have saved. The two have nothing in common but the name.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from meshrt.transforms.checkpoint import checkpoint as _remat

if TYPE_CHECKING:
    from meshrt.checkpoint.background import Saving
    from meshrt.checkpoint.functions import Checkpoint, describe, remove, restore, save, save_async, verify
    from meshrt.checkpoint.manager import CheckpointManager
    from meshrt.checkpoint.progress import Progress

__all__ = [
    "Checkpoint", "CheckpointManager", "Progress", "Saving", "describe", "remove", "restore", "save", "save_async",
    "verify",
]  # fmt: skip

_HOMES = {"CheckpointManager": "manager", "Progress": "progress", "Saving": "background"}


class _Module(types.ModuleType):
    """The module, callable, whose functions are imported when they are asked for."""

    # A function that is called as if it were no method.
    __call__ = staticmethod(_remat)

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{self.__name__}.{_HOMES.get(name, 'functions')}"), name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


__signature__ = inspect.signature(_remat)  # of a module that is called, as `inspect` shows it
sys.modules[__name__].__class__ = _Module
