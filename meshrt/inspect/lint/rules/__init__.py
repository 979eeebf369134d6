"""The rules: one file each, which exports `RULE`; files are collected by walking this package."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Iterable

from meshrt.errors import InspectError
from meshrt.inspect.lint.rule import Rule

__all__ = ["chosen", "rule_names", "rules"]


@functools.cache
def rules() -> dict[str, Rule]:
    """Every rule by its name."""
    found = (importlib.import_module(f"{__name__}.{info.name}").RULE for info in pkgutil.iter_modules(__path__))
    return {rule.name: rule for rule in sorted(found, key=lambda rule: rule.name)}


def rule_names() -> list[str]:
    """The names of the rules, sorted."""
    return [*rules()]


def chosen(names: Iterable[str] | None) -> list[Rule]:
    """The rules of these names, all if None. InspectError for a name that none has."""
    if names is None:
        return [*rules().values()]
    picked = []
    for name in names:
        if name not in rules():
            near = difflib.get_close_matches(name, rules(), 3, 0.4)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(rule_names())}"
            raise InspectError(f"lint: there is no rule {name!r}; {hint}")
        picked.append(rules()[name])
    return picked
