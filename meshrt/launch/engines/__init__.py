"""Engines: where the processes of a job run. Each module of this package is one, named as `--engine` names it.

A module that is neither `protocol` nor begins with an underscore has a function ``make(environ) -> Engine``, which
takes the launcher's environment and starts nothing. It is imported when its engine is asked for, so that one may need
a package that others do not. To add an engine, add its module; nothing lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from meshrt.errors import ConfigError
from meshrt.launch.engines.protocol import Engine

__all__ = ["make", "names"]


def names() -> list[str]:
    """The engines there are, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "protocol" and m.name[0] != "_")


def make(name: str, environ: Mapping[str, str]) -> Engine:
    """The engine of that name. ConfigError lists the known ones, or says what the engine lacks here."""
    known = names()
    if name not in known:
        raise ConfigError(f"engine = {name!r}: there is no such engine; known are: {', '.join(known)}")
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ImportError as e:
        raise ConfigError(f"engine = {name!r}: it cannot be used here: {e}") from e
    engine: Engine = module.make(environ)
    return engine
