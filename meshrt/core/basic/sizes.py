"""dim_as_value: the size of a dimension as a scalar, where a symbolic size meets arrays."""

from __future__ import annotations

from typing import NoReturn

from meshrt import errors
from meshrt.core.dimensions.expression import DimExpr, set_value_of
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of

__all__ = ["dim_as_value_p"]


def _evaluate(*, dim: DimExpr) -> NoReturn:
    raise errors.UnsupportedError(
        f"Evaluation rule for 'dim_as_value' is not implemented: the symbolic dimension '{dim}' has no value where it "
        "is used as an array outside of a traced function. Symbolic shapes are for export.export(jit(f))(...), in "
        "which the function is traced for them"
    )


dim_as_value_p: Primitive = Primitive(
    "dim_as_value",
    lambda *, dim: aval_of(dim),
    lower=lambda ctx, eqn: ctx.size(eqn.params["dim"], eqn.outvars[0].aval.dtype),
    impl=_evaluate,
    absent=dict.fromkeys(("jvp", "transpose", "batch"), "it has no operands"),
)

set_value_of(lambda size: dim_as_value_p.bind(dim=size))
