"""Placing: how the processes of a job come to other hosts, by whatever starts processes there.

Each module here that is no plumbing holds a function ``plan(Wanted) -> Plan`` and a class `Options`, and is an engine
of `meshrt launch --engine`, named as the module (`SCRIPTS_ARE_HERE = False` where scripts are looked for elsewhere,
`HAS_AGENTS = False` where only ranks themselves can be placed). A plan is a value: the commands of this machine that
start a process on each host (`ssh`, `srun`, `mpirun`, ...), what they are handed, and how their lines tell ranks apart.
`--dry-run` prints it; `fronts.py` carries out any of them. To add an engine, add its module; nothing lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from meshrt.errors import ConfigError, did_you_mean
from meshrt.launch import engines
from meshrt.launch.settings import Settings

__all__ = ["is_placed", "module", "names", "scripts_are_here"]

_PLUMBING = {"agents", "fronts", "hold", "job", "options", "plans", "runner"}


def names() -> list[str]:
    """The engines that place processes on other hosts, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _PLUMBING and m.name[0] != "_")


def module(name: str) -> ModuleType:
    """The module of an engine: `plan` and the class `Options`. ConfigError lists the engines there are."""
    if name not in names():
        known = sorted([*names(), *engines.names()])
        near = did_you_mean(name, known)
        raise ConfigError(f"engine = {name!r}: there is no such engine; known are: {', '.join(known)}{near}")
    return importlib.import_module(f"{__name__}.{name}")


def is_placed(settings: Settings) -> bool:
    """Whether the processes of a job are started by an engine of this room, and not on this machine by the launcher.

    Raises:
      ConfigError: an engine of this machine is given hosts, options, or where agents of other machines find it.
    """
    if settings.engine not in engines.names():
        return True
    if settings.hosts is not None or settings.hostfile is not None:
        raise ConfigError(f"engine = {settings.engine!r}: its processes run on this machine; for --hosts, --engine ssh")
    if settings.options:
        raise ConfigError(f"option {', '.join(settings.options)}: the engine {settings.engine!r} has no options")
    if settings.listen is not None:
        raise ConfigError(
            f"listen = {settings.listen!r}: no agent of another machine comes to a job of the engine "
            f"{settings.engine!r}; for those, meshrt launch coordinator --listen HOST:PORT, or another --engine"
        )
    return False


def scripts_are_here(settings: Settings) -> bool:
    """Whether a script that runs elsewhere is a file of this machine too."""
    return settings.engine not in names() or bool(getattr(module(settings.engine), "SCRIPTS_ARE_HERE", True))
