"""Finds modules under JAX's names.

Python asks the finders of `sys.meta_path` for a module that is not loaded yet. Ours stands before those that look into
folders, so `import jax.numpy` is answered with the very module `meshrt.numpy`, whether JAX is installed or not, and
every other import is answered as ever. Nothing is loaded before it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import meshrt
from meshrt import errors
from meshrt.compat import attributes, internal_names, modules
from meshrt.compat.absent import AbsentModule
from meshrt.compat.joined import JoinedModule

__all__ = ["as_jax"]

LAYER = "meshrt.compat.layer"


class _Alias(Loader):
    """Gives a module that exists under a name of meshrt's."""

    def __init__(self, target: str):
        self.target = target
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.target)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the spec of the other name into the module, which has run long ago.
        module.__spec__ = self._own


class _Joined(Loader):
    """Gives an internal module whose names stand in several modules of meshrt's."""

    def __init__(self, name: str, base: str | None):
        self.name, self.base = name, base

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        base = None if self.base is None else importlib.import_module(self.base)
        return JoinedModule(spec.name, internal_names.homes(self.name), base)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Absent(Loader):
    """Gives a module that meshrt does not have: what is asked of it is refused, not its import."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class JaxFinder(MetaPathFinder):
    """Answers imports of `jax` and everything under it, and questions about the installed package."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        package, _, name = fullname.partition(".")
        if package != "jax":
            return None
        found = _target(name)
        if name in internal_names.TABLES:
            return ModuleSpec(fullname, _Joined(name, found), origin="joined", is_package=True)
        if found is not None and (not _is_value(fullname) or _exists(found)):
            return ModuleSpec(fullname, _Alias(found), origin=found, is_package=not name)
        if modules.holds_others(name) or internal_names.is_internal(name):
            return ModuleSpec(fullname, _Absent(), origin="absent", is_package=True)
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: `import jax` gives meshrt here, which follows the public modules of JAX "
            f"{modules.VERSION} and has some of its internal ones; {fullname} is none of them",
            name=fullname,
        )

    # (What `importlib.metadata` asks every finder that has it.)
    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        from meshrt.compat.distribution import JaxDistribution  # start-up time: few ask

        name = getattr(context, "name", None)
        return [JaxDistribution()] if name in (None, "jax") else []


class AbsentFinder(MetaPathFinder):
    """Answers imports of what would be a module of meshrt's, had it all of JAX's. It is asked last.

    (`from jax.experimental import sparse` asks for it by the name of the package that `jax.experimental` is.)
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        package, _, name = fullname.partition(".")
        if package != "meshrt" or not modules.is_public(name) or _is_value(fullname):
            return None
        if name in modules.ELSEWHERE:
            found = modules.ELSEWHERE[name]
            return ModuleSpec(fullname, _Alias(found), origin=found, is_package=False)
        return ModuleSpec(fullname, _Absent(), origin="absent", is_package=True)


# Which logger of JAX's says what one of ours does.
_LOGGERS = {
    "meshrt.caches": "jax._src.interpreters.partial_eval",
    "meshrt.compile": "jax._src.dispatch",
    "meshrt.compile_cache": "jax._src.compiler",
    "meshrt.debug": "jax._src.debugging",
    "meshrt.lower": "jax._src.interpreters.pxla",
    "meshrt.transfer": "jax",
}
_OWN_NAME = re.compile(r"(?<![\w./\\-])meshrt\.(?=([a-z_]\w*))")  # not in the name of a file

_ITSELF = re.compile(r"\bby meshrt\b(?![\w./\\-])")


def _as_imported(e: errors.MeshrtError) -> str:
    """The words of an error, with the names under which the program knows what JAX has too."""
    return _ITSELF.sub("by JAX", _OWN_NAME.sub(_imported_name, super(errors.MeshrtError, e).__str__()))


def _imported_name(found: re.Match[str]) -> str:
    return "jax." if modules.is_public(found[1]) or found[1] in meshrt.__all__ else found[0]


def _target(name: str) -> str | None:
    """The module of meshrt's that `jax.<name>` is, None if there is none."""
    if name in modules.ELSEWHERE:
        return modules.ELSEWHERE[name]
    layer = f"{LAYER}.{name}" if name else LAYER
    if _exists(layer):
        return layer
    return f"meshrt.{name}" if modules.is_public(name) else None


def _is_value(name: str) -> bool:
    """Whether a name is that of a function or class in a module that is loaded. Who looks up a name that may be either
    (`pydoc.locate`) asks for a module first; one that stood in for it would take its place."""
    parent, _, last = name.rpartition(".")
    found = getattr(sys.modules.get(parent), "__dict__", {}).get(last)
    return found is not None and not isinstance(found, ModuleType)


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent does not exist, or is no package
        return False


def as_jax() -> ModuleType:
    """Makes `import jax` give meshrt in this process, and returns that module.

    To be called before anything imports jax; calling it again changes nothing. Whether JAX is installed does not
    matter: it is not imported. `jax.numpy is meshrt.numpy` afterwards, and likewise for every public module;
    `jax.__version__` is the version of JAX whose interface meshrt follows.

    >>> import meshrt.compat
    >>> jax = meshrt.compat.as_jax()  # doctest: +SKIP
    >>> import jax.numpy as jnp  # doctest: +SKIP

    Raises:
      JaxImportedError: JAX itself has been imported already, so parts of the program hold its functions.
    """
    if not any(isinstance(f, JaxFinder) for f in sys.meta_path):
        loaded = sys.modules.get("jax")
        if loaded is not None:
            raise errors.JaxImportedError(
                f"jax is imported already, from {getattr(loaded, '__file__', None) or 'an unknown place'}: what holds "
                "its functions and types cannot be given others. Call meshrt.compat.as_jax() before the first import "
                "of jax and of libraries that import it, or start the program with `meshrt run --as-jax script.py`"
            )
        sys.meta_path.insert(0, JaxFinder())
        sys.meta_path.append(AbsentFinder())
        importlib.invalidate_caches()
        # All classes of errors print by this one method; programs that do not call `as_jax` keep the one of Exception.
        errors.MeshrtError.__str__ = _as_imported  # type: ignore[method-assign, assignment]
        attributes.attach()
        _join_loggers()
        _name_loaded(importlib.import_module("jax"))
    return importlib.import_module("jax")


def _join_loggers() -> None:
    """Who listens to JAX's loggers hears what meshrt says, at the level that was asked for there, and who listens to
    those of meshrt hears it too."""
    above, top = logging.getLogger("meshrt"), logging.getLogger("jax")  # a logger that is made later takes its children
    for own, theirs in _LOGGERS.items():
        logging.getLogger(own).parent = logging.getLogger(theirs)
    top.parent = above


def _name_loaded(package: ModuleType) -> None:
    """Enters the public modules that `import jax` has loaded into `sys.modules`, where libraries look for those that
    they are to know about."""
    for name in modules.public_modules():
        loaded = sys.modules.get(_target(name) or "")
        if loaded is not None and vars(package).get(name, loaded) is loaded:
            sys.modules.setdefault(f"jax.{name}", loaded)
