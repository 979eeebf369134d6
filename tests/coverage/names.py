"""Every public name of JAX, and what meshrt has under it.

`compare()` walks JAX's public modules. A name is

    equal       it is here, and takes every argument that JAX's takes
    different   it is here and takes fewer arguments, or `REASONS` says what else differs
    missing     it is not here (yet)
    not planned `REASONS` says why it is not meant to be here
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.coverage.reasons import MODULES, REASONS

__all__ = ["Row", "compare"]

KINDS = ("equal", "different", "missing", "not planned")


class Row(NamedTuple):
    """One name: in which module, what it is, and why."""

    module: str
    name: str
    kind: str
    why: str


def compare() -> list[Row]:
    """All rows, in the order of modules, then of names."""
    return [row for module in MODULES for row in _rows(module)]


def _rows(module: str) -> Iterator[Row]:
    theirs = importlib.import_module(module)
    try:
        ours: Any = importlib.import_module("meshrt" + module.removeprefix("jax"))
    except ModuleNotFoundError:
        ours = None
    for name in _public(theirs):
        whole = f"{module}.{name}"
        given = REASONS.get(whole)
        here = ours is not None and _has(ours, name)
        if given is not None:
            kind, why = given
            yield Row(module, name, kind, why)
        elif not here:
            yield Row(module, name, "missing", "")
        else:
            lacking = _lacking(getattr(theirs, name), getattr(ours, name))
            yield Row(module, name, "different" if lacking else "equal", lacking)


def _public(module: types.ModuleType) -> list[str]:
    """The names that a module offers: no private ones, no modules (those have rows of their own) and no names that it
    imported for itself."""
    found = []
    for name in sorted(dir(module)):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if (
            isinstance(value, types.ModuleType)
            or name == "annotations"
            or getattr(value, "__module__", "") in ("typing", "collections.abc", "functools")
        ):
            continue
        found.append(name)
    return found


def _has(module: Any, name: str) -> bool:
    try:
        getattr(module, name)
    except AttributeError:
        return False
    return True


def _lacking(theirs: Any, ours: Any) -> str:
    """The arguments that JAX's function takes and ours does not."""
    if isinstance(theirs, type | types.ModuleType) or not callable(theirs):
        return ""
    try:
        wanted, got = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return ""
    takes_all = any(p.kind is p.VAR_KEYWORD for p in got.values())
    keywords = [n for n, p in wanted.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    lacking = [n for n in keywords if n not in got and not takes_all]
    return f"takes no {', '.join(f'`{n}`' for n in lacking)}" if lacking else ""
