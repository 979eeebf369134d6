"""Symbolic shapes from text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.dimensions.grammar import parse_shape
from meshrt.core.dimensions.scope import SymbolicScope

__all__ = ["symbolic_shape"]


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Any, ...]:
    """The shape that a text describes, of ints and symbolic sizes.

    >>> symbolic_shape("a, 2*b + 1, floordiv(a, 2)")
    (a, 2*b + 1, floordiv(a, 2))
    >>> symbolic_shape("a, ...", like=(None, 3))
    (a, 3)

    Args:
      shape_spec: sizes separated by commas: numbers, variables (names), and what ``+ - * ^``, ``floordiv(x, y)``,
        ``mod(x, y)``, ``max(x, y)`` and ``min(x, y)`` make of them. ``_`` takes one size of `like`, ``...`` and None
        all that are left.
      constraints: what is known of the variables, see `SymbolicScope`; makes a new scope.
      scope: of the variables; a new one by default.
      like: sizes for the placeholders. Where the text has a number they have to agree.

    Raises:
      ArgumentValueError: a text that is no shape or does not agree with `like`; `scope` and `constraints` together.
      ArgumentTypeError: a `scope` that is none.
    """
    if shape_spec is not None and not isinstance(shape_spec, str):
        raise errors.ArgumentValueError(
            f"polymorphic shape spec should be None or a string. Found {shape_spec!r}; write it as text: '(a, 2*b)'"
        )
    if scope is not None and not isinstance(scope, SymbolicScope):
        raise errors.ArgumentTypeError(f"scope is a SymbolicScope, as SymbolicScope([...]) makes one. Got {scope!r}")
    if scope is None:
        scope = SymbolicScope(constraints)
    elif constraints:
        raise errors.ArgumentValueError(
            "Cannot specify both a `scope` and `constraints`; give the constraints to SymbolicScope(...)"
        )
    return parse_shape("..." if shape_spec is None else shape_spec, repr(shape_spec), scope, like)
