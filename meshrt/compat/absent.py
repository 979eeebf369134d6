"""Modules of JAX's that meshrt does not have."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from meshrt import errors
from meshrt.compat import internal_names, modules

__all__ = ["AbsentModule", "MissingModuleError", "below"]


def below(package: str, name: str) -> bool:
    """Whether a package of JAX's internal ones has a module of a name that is here."""
    known = f"{package}.{name}".removeprefix("jax.")
    return known in modules.ELSEWHERE or known in internal_names.TABLES


class MissingModuleError(errors.MeshrtError, ImportError):
    """All names of a module are asked for that JAX has and meshrt has not."""


class AbsentModule(ModuleType):
    """Can be imported, and says at every name that is asked of it that it is not there.

    Libraries import modules that few of their functions need; those that need none of this one run.
    """

    __path__: list[str] = []  # so that modules below it are looked for, and found absent
    __all__ = ("*",)  # so that who imports all of its names hears that it has none

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "*":
            raise MissingModuleError(
                f"`from {self.__name__} import *` gives nothing: the module is not implemented", name=self.__name__
            )
        if below(self.__name__, name):
            return importlib.import_module(f"{self.__name__}.{name}")
        raise errors.MissingFunctionError(
            f"module {self.__name__!r} has no attribute {name!r}: the module is not implemented"
        )

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, which meshrt does not have>"
