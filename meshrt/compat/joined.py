"""Internal modules of JAX's whose names stand in several modules of meshrt's."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from meshrt import errors
from meshrt.compat.absent import below

__all__ = ["JoinedModule"]


class JoinedModule(ModuleType):
    """Has the names of a table, each looked up where it stands when it is first asked for, and those of a module.

    Args:
      name: under which it is imported.
      homes: by name, the module and the name there, `"meshrt.primitives.call:call_p"`.
      base: the module that has what the table does not; None if there is none.

    What is assigned goes to `base` where that has the name, so that who replaces a function there is heard.
    """

    def __init__(self, name: str, homes: Mapping[str, str], base: ModuleType | None):
        super().__init__(name)
        vars(self).update(_homes=homes, _base=base)
        public = getattr(base, "__all__", [n for n in dir(base) if not n.startswith("_")]) if base is not None else []
        self.__all__ = [*dict.fromkeys([*public, *(n for n in homes if not n.startswith("_"))])]
        self.__path__: list[str] = []  # modules below it are looked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        homes, base = vars(self)["_homes"], vars(self)["_base"]
        if name in homes:
            module, _, theirs = homes[name].partition(":")
            found: Any = importlib.import_module(module)
            for part in theirs.split(".") if theirs else ():
                found = getattr(found, part)
            vars(self)[name] = found
            return found
        if below(self.__name__, name):
            return importlib.import_module(f"{self.__name__}.{name}")
        if base is not None:
            return getattr(base, name)
        raise errors.missing_name(self.__name__, name, list(homes))

    def __setattr__(self, name: str, value: Any) -> None:
        base = vars(self).get("_base")
        if base is not None and not name.startswith("__") and name not in vars(self)["_homes"] and hasattr(base, name):
            setattr(base, name, value)
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        base = vars(self)["_base"]
        return sorted({*vars(self)["_homes"], *(() if base is None else dir(base))})
