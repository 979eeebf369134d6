"""What an equation takes: variables and literals."""

from __future__ import annotations

from typing import Any, final

from meshrt.core.types import ShapedArray

__all__ = ["Atom", "Literal", "Var"]


@final  # so that `type(a) is Literal` tells the checker what the other case is
class Var:
    """A variable, equal only to itself."""

    __slots__ = ("aval",)

    aval: ShapedArray

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self)}):{self.aval.str_short()}"


@final
class Literal:
    """A scalar constant written in place of a variable."""

    __slots__ = ("aval", "val")

    aval: ShapedArray
    val: Any

    def __init__(self, val: Any, aval: ShapedArray):
        self.val, self.aval = val, aval

    def __repr__(self) -> str:
        return f"Literal({self.val})"


Atom = Var | Literal
