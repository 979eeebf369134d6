"""Where cotangents go: `vjp(f, *args)[1].with_refs(*targets)` delivers each to what its target says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.marks import Mark
from meshrt.core.references import is_ref
from meshrt.core.types import aval_of
from meshrt.primitives.references import ref_addupdate
from meshrt.primitives.state import whole_read, whole_write

# `meshrt.ad` publishes the targets, `meshrt.lax` nothing.
__all__: list[str] = []


class GradValue(Mark):
    """The target of a cotangent that is to be returned, as usual."""

    __slots__ = ()


class DontWant(Mark):
    """The target of a cotangent that nobody wants; `DidntWant` is returned in its place."""

    __slots__ = ()


class GradRef(Mark):
    """Stands, in what is returned, for a cotangent that was added to a reference. A pytree without leaves."""

    __slots__ = ()


class DidntWant(Mark):
    """Stands, in what is returned, for a cotangent that nobody wanted. A pytree without leaves."""

    __slots__ = ()


for _kind in (GradRef, DidntWant):
    tree_util.register_pytree_node(_kind, lambda _: ((), None), lambda _, __, kind=_kind: kind())  # type: ignore[misc]


def targets_of(name: str, given: tuple[Any, ...], tree: Any) -> list[Any]:
    """The targets of the arguments of `name`, whose structure is `tree`. TreeError where they have another."""
    leaves, found = tree_util.tree_flatten(given)
    if found != tree:
        raise errors.TreeError(
            f"with_refs takes a target for each argument of {name}, whose structure is {tree}, but got {found}; a "
            "target is a reference, meshrt.ad.GradValue() or meshrt.ad.DontWant()"
        )
    for i, x in enumerate(leaves):
        if not is_ref(x) and not isinstance(x, GradValue | DontWant):
            raise errors.ArgumentTypeError(
                f"with_refs: target {i} of {name} is {x!r}; a target is a reference, meshrt.ad.GradValue() or "
                "meshrt.ad.DontWant()"
            )
    return leaves


def wanted(flags: Sequence[bool], targets: Sequence[Any] | None) -> list[bool]:
    """`flags` of arguments, False for those whose cotangents nobody wants."""
    if targets is None:
        return list(flags)
    return [flag and not isinstance(target, DontWant) for flag, target in zip(flags, targets)]


def state_cotangents(arguments: Sequence[Any], targets: Sequence[Any] | None) -> list[Any]:
    """For each argument type that is a reference's, the cotangent of what it holds in the end: that stands in its
    target, if that is a reference; else None, which is zero.
    """
    if targets is None:
        return [None for flag in arguments if flag]
    return [whole_read(t) if is_ref(t) else None for flag, t in zip(arguments, targets) if flag]


def deliver(values: Sequence[Any], is_state: Sequence[bool], targets: Sequence[Any]) -> list[Any]:
    """Adds cotangents (None for zero) to the references among their targets; what is returned in their places.

    The cotangent of what a reference held at first replaces, in its target, that of what it held in the end.
    """
    out: list[Any] = []
    for value, state, target in zip(values, is_state, targets):
        if isinstance(target, GradValue):
            out.append(value)
        elif isinstance(target, DontWant):
            out.append(DidntWant())
        else:
            _check(value, target)
            if state:
                whole_write(target, value)
            else:
                ref_addupdate(target, ..., value)
            out.append(GradRef())
    return out


def _check(value: Any, target: Any) -> None:
    kind, held = aval_of(value), aval_of(target)
    if kind.shape != held.shape or kind.dtype != held.dtype:
        raise errors.ArgumentValueError(
            f"with_refs: a cotangent of type {kind.short()} cannot be added to a reference of type {held.short()}"
        )
