"""What `jax._src.export.shape_poly` has beside `jax.export`: bounds of sizes, and the variables of shapes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from meshrt.core.dimensions.expression import DimExpr

__all__ = ["BoundsPrecision", "Comparator", "_bounds_decision", "all_dim_vars", "shape_and_dtype_jax_array"]


class Comparator(enum.Enum):
    """What a constraint says of two sizes."""

    EQ = 1
    GEQ = 2


class BoundsPrecision(enum.Enum):
    """How tight bounds have to be; here they are always as tight as they get."""

    FOR_GEQ0_OR_LEQ0 = 0
    FOR_GEQ0_OR_LT0 = 1
    BEST = 2


def _bounds_decision(e: Any, prec: BoundsPrecision = BoundsPrecision.BEST) -> tuple[float, float]:
    """The least and the greatest value that a size may have."""
    return e.scope.bounds(e) if isinstance(e, DimExpr) else (int(e), int(e))


def all_dim_vars(args_avals: Sequence[Any]) -> Sequence[str]:
    """The variables of the shapes of arguments, in order."""
    found = {v for aval in args_avals for d in aval.shape if isinstance(d, DimExpr) for v in d.variables()}
    return sorted(found)


def shape_and_dtype_jax_array(a: Any) -> tuple[Sequence[Any], Any]:
    """The shape, with None for what is not a number, and the dtype of an array."""
    return tuple(None if isinstance(d, DimExpr) else d for d in a.shape), a.dtype
