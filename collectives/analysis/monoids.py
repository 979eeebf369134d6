"""Reductions whose body is no single known operation (add, max, ...): finding out, by evaluating the body on samples,
whether an initial value is its neutral element; and applying the body to tensors element by element (`stablehlo.map`).

logaddexp(a, b), as a scan of log-probabilities has it, has the neutral element -inf: `is_neutral(body, -inf)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from propagation.program import Block, Op, Value

from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layouts.context import Context
from .constants import scalar_constant

__all__ = ["combine", "is_neutral"]

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs, "add": np.add, "and": np.logical_and, "divide": np.divide, "exponential": np.exp,
    "exponential_minus_one": np.expm1, "is_finite": np.isfinite, "log": np.log, "log_plus_one": np.log1p,
    "maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply, "negate": np.negative,
    "not": np.logical_not, "or": np.logical_or, "select": np.where, "subtract": np.subtract,
}  # fmt: skip
_COMPARISONS = (np.equal, np.not_equal, np.greater_equal, np.greater, np.less_equal, np.less)
# Of every sign, size and kind; f32 holds all of them.
_SAMPLES = np.array([0.0, 1.0, 0.3, 0.7, 2.5, 17.0, 1e3, 6.5e4, 1e-3, 1e-7, 1e-30, 1e30, 3e38, np.inf])


def is_neutral(block: Block, number: complex | None) -> bool:
    """Whether `number` (None: not known) is the neutral element of a floating-point function f of two scalars:
    f(number, x) = f(x, number) = x, for samples x of every sign and magnitude. False for functions of other types."""
    if number is None or len(block.args) != 2 or len(block.terminator.operands) != 1:
        return False
    if any(not a.type.dtype.startswith(("f", "bf")) for a in block.args):
        return False
    others = np.unique(np.concatenate([_SAMPLES, -_SAMPLES, _around(block)]))
    same = np.full_like(others, number.real)
    with np.errstate(all="ignore"):
        sides = [_evaluate(block, *pair) for pair in ((same, others), (others, same))]
    return all(s is not None and np.array_equal(s, others) for s in sides)


def _around(block: Block) -> np.ndarray:
    """More samples: the constants in the body, where a comparison may turn, and their neighbours in f32."""
    found = [scalar_constant(r) for op in block.ops if not op.operands for r in op.results]
    known = np.array([float(n) for n in found if n is not None and not isinstance(n, complex)], np.float32)
    return np.concatenate([known, *(np.nextafter(known, np.float32(end)) for end in (-np.inf, np.inf))]).astype(float)


def _evaluate(block: Block, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """The body evaluated on arrays of numbers, in double precision; None if it has an operation that is not known."""
    values: dict[Value, np.ndarray] = dict(zip(block.args, (a, b)))
    for op in block.ops[:-1]:
        number = None if op.operands or not op.results else scalar_constant(op.results[0])
        if number is not None:
            values[op.results[0]] = np.full_like(a, number.real)
            continue
        function = _function(op)
        if function is None or len(op.results) != 1 or any(v not in values for v in op.operands):
            return None
        values[op.results[0]] = function(*[values[v] for v in op.operands])
    return values.get(block.terminator.operands[0])


def _function(op: Op) -> Callable[..., Any] | None:
    if op.name == "stablehlo.compare":
        return _COMPARISONS[("EQ", "NE", "GE", "GT", "LE", "LT").index(str(op.attrs["comparison_direction"])[-3:-1])]
    return _FUNCTIONS.get(op.name.removeprefix("stablehlo."))


def combine(ctx: Context, block: Block, a: LocalValue, b: LocalValue) -> LocalValue:
    """The body applied to each pair of elements of two tensors."""
    attrs = attributes("stablehlo.map", tuple(range(len(a.shape))))
    return ctx.emit("stablehlo.map", (a, b), a.shape, a.dtype, attrs, regions=[ctx.copy_region(block)])
