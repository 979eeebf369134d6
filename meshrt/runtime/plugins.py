"""PJRT plugins: compilers and devices in shared objects that others publish.

A plugin is known because a program registered it, because the environment names it (`PJRT_NAMES_AND_LIBRARY_PATHS`, as
`name:path,name:path`), or because an installed package publishes it: by an entry point of the group `jax_plugins`, or
as a package in the namespace `jax_plugins`. Nothing of a plugin is loaded before its platform is asked for.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrt import errors
from meshrt.xla import jaxlib_plugins

__all__ = ["Plugin", "found", "names"]

_ENTRY_POINTS = _NAMESPACE = "jax_plugins"
_ENVIRONMENT = "PJRT_NAMES_AND_LIBRARY_PATHS"
# How plugins call their shared objects.
_LIBRARIES = ("*pjrt*.so", "*_plugin*.so", "*pjrt*.dylib")


@dataclass(frozen=True)
class Plugin:
    """A plugin, not loaded yet.

    name      the platform, as in `meshrt.devices(name)`
    library   the path of its shared object; None where `client` makes the client
    options   what its client is made with
    client    makes the client from the options, in place of a shared object
    priority  which of the registered ones is the default platform: the highest
    """

    name: str
    library: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    client: Callable[[Mapping[str, Any]], Any] | None = None
    priority: int = 400

    def __post_init__(self) -> None:
        if (self.library is None) == (self.client is None):
            raise errors.ArgumentValueError(
                f"the plugin {self.name!r} needs the path of its shared object or a function that makes its client, "
                "one of them"
            )

    def start(self, distributed: Any = None) -> Any:
        """A client. BackendError if the shared object is not there; XlaError as it says."""
        if self.client is not None:
            made = self.client(self.options)
            if not hasattr(made, "devices"):
                raise errors.BackendError(
                    f"the function that makes the client of the platform {self.name!r} gave {made!r}, which has no "
                    "devices; let it return a client of jaxlib's"
                )
            return made
        library = self.library or ""
        if not os.path.isfile(library):
            raise errors.BackendError(
                f"the plugin of the platform {self.name!r} is not at {library!r}; give register_plugin the path of its "
                "shared object"
            )
        return jaxlib_plugins.plugin_client(self.name, library, dict(self.options), distributed)


def found(name: str) -> Plugin | None:
    """The plugin of a platform that the environment names or a package publishes."""
    return _named().get(name) or _published().get(name)


def names() -> list[str]:
    """The names of the plugins that the environment names or packages publish."""
    return sorted({*_named(), *_published()})


def _named() -> dict[str, Plugin]:
    named = {}
    for item in filter(None, os.environ.get(_ENVIRONMENT, "").split(",")):
        name, separator, path = item.strip().partition(":")
        if not separator or not name or not path:
            raise errors.BackendError(f"{_ENVIRONMENT}: {item!r} is not of the form name:path")
        named[name] = Plugin(name, path)
    return named


def _published() -> dict[str, Plugin]:
    import importlib.metadata  # start-up time: 10 ms, and few ask for plugins

    modules = {e.name: e.module for e in importlib.metadata.entry_points(group=_ENTRY_POINTS)}
    spec = importlib.util.find_spec(_NAMESPACE)
    for module in pkgutil.iter_modules((spec.submodule_search_locations or ()) if spec is not None else ()):
        modules.setdefault(module.name, f"{_NAMESPACE}.{module.name}")
    libraries = {name: _library(module) for name, module in modules.items()}
    return {name: Plugin(name, library) for name, library in libraries.items() if library is not None}


def _library(module: str) -> str | None:
    """The shared object of the package that publishes a plugin; the package is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # an entry point of a package that is broken
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    places = spec.submodule_search_locations
    libraries = [p for root in places for pattern in _LIBRARIES for p in Path(root).rglob(pattern)]
    return str(libraries[0]) if libraries else None
