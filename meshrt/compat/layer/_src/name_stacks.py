"""Paths of scopes and transformations, for `jax._src.source_info_util`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from meshrt.core.source import capture

__all__ = [
    "NameStack", "Scope", "Transform", "current_name_stack", "new_name_stack", "new_source_info",
]  # fmt: skip


class Scope(NamedTuple):
    """A scope that `named_scope` opens."""

    name: str


class Transform(NamedTuple):
    """A transformation, whose name stands around those of the scopes within."""

    name: str


@dataclasses.dataclass(frozen=True)
class NameStack:
    """Scopes and transformations, outermost first."""

    stack: tuple[Scope | Transform, ...] = ()

    def _with(self, *entries: Scope | Transform) -> NameStack:
        return NameStack(self.stack + entries)

    def extend(self, name: str) -> NameStack:
        """With a scope within."""
        return self._with(Scope(name))

    def transform(self, transform_name: str) -> NameStack:
        """With a transformation within."""
        return self._with(Transform(transform_name))

    def __getitem__(self, idx: Any) -> NameStack:
        found = self.stack[idx]
        return NameStack(found if isinstance(idx, slice) else (found,))

    def __len__(self) -> int:
        return len(self.stack)

    def __add__(self, other: NameStack) -> NameStack:
        return self._with(*other.stack)

    def __str__(self) -> str:
        path: list[str] = []
        for kind, name in [(type(entry), entry.name) for entry in reversed(self.stack)]:
            inside = path.pop(0) if kind is Transform and path else ""
            path.insert(0, name if kind is Scope else f"{name}({inside})")
        return "/".join(path)


def new_name_stack(name: str = "") -> NameStack:
    """A path of one scope, or of none."""
    return NameStack().extend(name) if name else NameStack()


def current_name_stack() -> NameStack:
    """The scopes that are open."""
    scope = capture().scope
    return NameStack(tuple(Scope(part) for part in scope.split("/") if part)) if scope else NameStack()


def new_source_info() -> Any:
    """The line that is running."""
    return capture()
