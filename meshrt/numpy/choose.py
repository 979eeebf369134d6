"""The choice between two arrays by a third: ``where`` with three arguments, on which the rooms above build."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.basic.shapes import broadcast_in_dim_p
from meshrt.core.operators import ArrayOperators
from meshrt.core.trace import EVAL, current_trace
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.operands import (
    ADAPTING,
    beside,
    broadcast_to_shape,
    common_shape,
    operand,
    same_dtype,
    scalar_like,
)
from meshrt.runtime.array import Array

__all__: list[str] = []


def choose(condition: Any, x: Any, y: Any, /) -> Any:
    """``x`` where ``condition`` is true (nonzero), else ``y``; all three broadcast together."""
    if current_trace() is EVAL:
        if type(x) is Array:
            if type(y) in ADAPTING:
                y = beside(y, x)
        elif type(y) is Array and type(x) in ADAPTING:
            x = beside(x, y)
    return _chosen(condition, x, y)


@at_once(3)
def _chosen(condition: Any, x: Any, y: Any) -> Any:
    condition = _as_condition(operand("where", condition))
    x, y = _cases(x, y)
    sc, sx, sy = aval_of(condition).shape, aval_of(x).shape, aval_of(y).shape
    shape = common_shape("where", sc, sx, sy)
    if sc and sc != shape:
        condition = broadcast_to_shape(condition, shape)
    return el.select_n_p.bind(condition, _spread(y, sy, shape), _spread(x, sx, shape))


def _cases(x: Any, y: Any) -> tuple[Any, Any]:
    """The values to choose from with one dtype; keys are chosen among keys."""
    kinds = [getattr(v, "dtype", None) for v in (x, y)]
    if kinds[0] == kinds[1] and isinstance(kinds[0], dtypes.ExtendedDType):
        return x, y
    return same_dtype("where", x, y)


def _spread(x: Any, own: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    if own == shape:
        return x
    if not own:
        return broadcast_in_dim_p.bind(x, shape=shape, broadcast_dimensions=())
    return broadcast_to_shape(x, shape)


def _as_condition(condition: Any) -> Any:
    aval = aval_of(condition)
    if aval.dtype == np.bool_:
        return condition
    if not isinstance(condition, ArrayOperators):
        return np.not_equal(condition, 0)
    return el.ne_p.bind(condition, scalar_like(condition, 0))
