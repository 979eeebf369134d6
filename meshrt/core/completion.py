"""Complete types: what a result's type says beside shape and dtype follows from the operands' types in one place.

A primitive's type rule (`infer`) knows shapes and dtypes. Varying axes and shardings obey the same two rules for every
primitive that does not say otherwise (its trait `typed`):

    a result varies over the Manual axes over which any operand does
    a result is sharded over Explicit axes as the factor rule of the operation says

The second one needs to lower operations, so it is handed in from above: `Completion.shardings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from meshrt.core.types import ShapedArray

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = ["Completion", "complete"]

Shardings = Callable[["Primitive", Sequence[ShapedArray], dict[str, Any], Sequence[ShapedArray]], Sequence[Any]]


class Completion:
    """`shardings(primitive, operand types, params, bare result types)`: the sharding of each result's type, or None.

    Set by the layer that can lower operations (`meshrt.lowering`).
    """

    shardings: ClassVar[Shardings]


def complete(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any], types: Sequence[ShapedArray]
) -> tuple[ShapedArray, ...]:
    """The types of the results of `primitive`, of which `types` are the bare ones."""
    vma = frozenset[str]().union(*[a.vma for a in avals])
    if any(a.sharding is not None for a in avals):
        shardings = Completion.shardings(primitive, avals, params, types)
    else:
        shardings = (None,) * len(types)
    return tuple(t if t.is_high else t.update(sharding=s, vma=vma) for t, s in zip(types, shardings))
