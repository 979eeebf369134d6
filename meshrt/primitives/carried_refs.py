"""Boxes among what loops carry, and in bodies of kernels references: each turn gets, and returns, the same ones.

Elsewhere a loop that returns a reference is refused, as two names of one would hide who writes to it. A kernel has all
of its references from outside, so that there a carried one is only another way to name what the body could have
captured, as a carried box is anywhere: it is set apart before the loop, and joined with what the loop carries in the
body and behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.high import has_high_types, is_mutable
from meshrt.core.references import is_ref

__all__: list[str] = []

_allowed: ContextVar[bool] = ContextVar("meshrt_carried_references", default=False)


@contextmanager
def carrying_references() -> Iterator[None]:
    """A block in which loops may carry references."""
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def _is_apart(x: Any) -> bool:
    return is_ref(x) or is_mutable(x)


class Apart:
    """A carry whose references and boxes were set apart: `rest` is a list of its other leaves."""

    def __init__(self, what: str, leaves: list[Any], tree: Any):
        self.what, self.tree = what, tree
        self.refs = [x if _is_apart(x) else None for x in leaves]
        self.rest = [x for x in leaves if not _is_apart(x)]

    def join(self, rest: list[Any]) -> Any:
        """The carry with these leaves in place of the rest."""
        left = iter(rest)
        return tree_util.tree_unflatten(self.tree, [next(left) if r is None else r for r in self.refs])

    def rest_of(self, carry: Any) -> list[Any]:
        """The rest of what a turn of the loop returned.

        Raises:
          ArgumentTypeError: it has another structure. ArgumentValueError: another reference or box stands in a place.
        """
        leaves, tree = tree_util.tree_flatten(carry)
        if tree != self.tree:
            raise errors.ArgumentTypeError(
                f"{self.what} body function carry input and carry output must have the same pytree structure, but they "
                f"differ: {self.tree} and {tree}"
            )
        for i, (ref, leaf) in enumerate(zip(self.refs, leaves)):
            if ref is not leaf and (ref is not None or _is_apart(leaf)):
                path = tree_util.keystr(tree_util.tree_leaves_with_path(carry)[i][0])
                raise errors.ArgumentValueError(
                    f"{self.what}: the body returns {leaf} at carry{path}, where it was given "
                    f"{ref if ref is not None else 'an array'}. Of references and boxes each turn returns the one that "
                    "it was given; choose between several by lax.cond"
                )
        return [x for r, x in zip(self.refs, leaves) if r is None]


def set_apart(what: str, carry: Any) -> Apart | None:
    """A carry without its boxes, and without its references where loops may carry them; None if there are none."""
    chosen = _is_apart if _allowed.get() else is_mutable if has_high_types() else None
    if chosen is None:  # there are no such values in the process
        return None
    leaves, tree = tree_util.tree_flatten(carry)
    return Apart(what, leaves, tree) if any(map(chosen, leaves)) else None
