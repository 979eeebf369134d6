"""Value range analysis: bounds on the elements of a tensor, from the operations that computed it, to know that a factor
is finite and a divisor positive, as the distributive law needs it (`common_factors`, `contract.py`).

tanh(x) lies in [-1, 1]; rsqrt(mean(x * x) + 1e-6) is at most 1000. NaNs are not considered: they stay NaN through any
such rewriting.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from propagation.attributes import symbol
from propagation.ops import REARRANGING
from propagation.program import Op, Program, Value

from ..heuristics import ANALYSIS_STEPS
from .constants import scalar_constant

__all__ = ["is_finite", "is_positive"]

# Derived from the types: what stays below LARGEST is far from overflow in f32 (3.4e38), also after the rounding of the
# sums and products that led there; LARGEST_HALF the same for f16 (65504). SMALLEST is far above f32's subnormals.
LARGEST = 1e30
LARGEST_HALF = 3e4
SMALLEST = 1e-30
_BOUNDED = {"stablehlo.tanh": 1.0, "stablehlo.logistic": 1.0, "stablehlo.cosine": 1.0, "stablehlo.sine": 1.0}


_GROWING = frozenset(("stablehlo.add", "stablehlo.maximum", "stablehlo.multiply"))


def is_finite(program: Program, value: Value) -> bool:
    """Whether all elements are known to be finite; of complex numbers nothing is known."""
    if value.type.dtype.startswith(("f", "bf")):
        return _largest(program, value, ANALYSIS_STEPS) is not None
    return not value.type.dtype.startswith("complex")


def is_positive(program: Program, value: Value) -> bool:
    """Whether all elements are known to be positive, by more than rounding errors."""
    least = _least(program, value, ANALYSIS_STEPS)
    return least is not None and least > SMALLEST


def _number(value: Value) -> float | None:
    number = scalar_constant(value)
    return None if number is None or isinstance(number, complex) or not math.isfinite(number) else float(number)


def _returned(program: Program, call: Op, value: Value) -> Value | None:
    """The value of the callee that result `value` of a call is."""
    func = program.funcs.get(symbol(call.attrs["callee"]))
    return None if func is None else func.body.terminator.operands[call.results.index(value)]


def _least(program: Program, value: Value, depth: int) -> float | None:
    """A lower bound of the elements; None if none is known."""
    number, op = _number(value), value.op
    if number is not None or op is None or not depth:
        return number
    least = lambda v: _least(program, v, depth - 1)
    name, operands = op.name.partition(".")[2], op.operands
    if op.name == "func.call":
        inner = _returned(program, op, value)
        return None if inner is None else least(inner)
    if op.name in REARRANGING:
        return least(operands[0])
    if name in ("abs", "exponential", "logistic", "rsqrt", "sqrt", "square"):
        return 0.0
    if name == "convert":
        return least(operands[0]) if operands[0].type.dtype.startswith(("f", "bf")) else None
    if name == "add":
        a, b = map(least, operands)
        return None if a is None or b is None else a + b
    if name == "maximum":
        return max((n for n in map(least, operands) if n is not None), default=None)
    if name == "select":
        a, b = map(least, operands[1:])
        return None if a is None or b is None else min(a, b)
    if name in ("multiply", "divide"):
        if name == "multiply" and operands[0] is operands[1]:
            return 0.0
        a, b = map(least, operands)
        return 0.0 if a is not None and b is not None and min(a, b) >= 0 else None
    if name == "reduce":
        return _least_sum(op, least)
    return None


def _least_sum(op: Op, least: Callable[[Value], float | None]) -> float | None:
    """The lower bound 0 of a sum, maximum or product of non-negative elements from a non-negative start."""
    body = op.regions[0].ops
    if len(op.operands) != 2 or len(body) != 2 or body[0].name not in _GROWING:
        return None
    a, b = map(least, op.operands)
    return 0.0 if a is not None and b is not None and min(a, b) >= 0 else None


def _largest(program: Program, value: Value, depth: int) -> float | None:
    """An upper bound of the elements' magnitudes; None if none is known that is safely below overflow."""
    number, op = _number(value), value.op
    largest = abs(number) if number is not None else _largest_of(program, value, op, depth) if op and depth else None
    limit = LARGEST_HALF if value.type.dtype == "f16" else LARGEST
    return largest if largest is not None and largest < limit else None


def _largest_of(program: Program, value: Value, op: Op, depth: int) -> float | None:
    """The same of the result `value` of `op`, which is no known constant."""
    largest = lambda v: _largest(program, v, depth - 1)
    name, operands = op.name.partition(".")[2], op.operands
    if op.name == "func.call":
        inner = _returned(program, op, value)
        return None if inner is None else largest(inner)
    if op.name in REARRANGING or name in ("negate", "abs"):
        return largest(operands[0])
    if op.name in _BOUNDED:
        return _BOUNDED[op.name]
    if name == "rsqrt":
        least = _least(program, operands[0], depth - 1)
        return None if least is None or least < SMALLEST else least**-0.5
    if name == "divide":
        a, least = largest(operands[0]), _least(program, operands[1], depth - 1)
        return None if a is None or least is None or least < SMALLEST else a / least
    if name == "power":
        least, exponent = _least(program, operands[0], depth - 1), _number(operands[1])
        if least is None or least < SMALLEST or exponent is None or not -8 <= exponent <= 0:
            return None
        return float(least**exponent)
    if name in ("add", "subtract", "multiply"):
        a, b = map(largest, operands)
        if a is None or b is None:
            return None
        return a * b if name == "multiply" else a + b
    if name == "select":
        a, b = map(largest, operands[1:])
        return None if a is None or b is None else max(a, b)
    return None
