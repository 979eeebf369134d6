"""What is known about the numbers that a tensor holds, from how it was made: whether a factor can be infinite.

NaN is left out everywhere: it is NaN before and after any rewriting.
"""

from __future__ import annotations

import math

from propagation.attributes import symbol
from propagation.program import Op, Program, Value

from .constant import scalar_constant

__all__ = ["is_finite", "is_positive"]

DEPTH = 16
LARGEST = 1e30  # rounded products and sums of what stays below are finite in f32
LARGEST_HALF = 3e4  # and in f16
SMALLEST = 1e-30
_SAME = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "dynamic_slice", "gather", "reshape", "reverse", "slice", "transpose")
)
_BOUNDED = {"stablehlo.tanh": 1.0, "stablehlo.logistic": 1.0, "stablehlo.cosine": 1.0, "stablehlo.sine": 1.0}


_GROWING = frozenset(("stablehlo.add", "stablehlo.maximum", "stablehlo.multiply"))


def is_finite(program: Program, value: Value) -> bool:
    """Whether all elements are known to be finite; of complex numbers nothing is known."""
    if value.type.dtype.startswith(("f", "bf")):
        return _largest(program, value, DEPTH) is not None
    return not value.type.dtype.startswith("complex")


def is_positive(program: Program, value: Value) -> bool:
    """Whether all elements are above zero, by more than rounding takes away."""
    least = _least(program, value, DEPTH)
    return least is not None and least > SMALLEST


def _number(value: Value) -> float | None:
    number = scalar_constant(value)
    return None if number is None or isinstance(number, complex) or not math.isfinite(number) else float(number)


def _returned(program: Program, value: Value) -> Value | None:
    """The value that a call's result is in its function."""
    func = program.funcs.get(symbol(value.op.attrs["callee"]))
    return None if func is None else func.body.terminator.operands[value.op.results.index(value)]


def _least(program: Program, value: Value, depth: int) -> float | None:
    """A number that no element is below; None if none is known."""
    number, op = _number(value), value.op
    if number is not None or op is None or not depth:
        return number
    least = lambda v: _least(program, v, depth - 1)
    name, operands = op.name.partition(".")[2], op.operands
    if op.name == "func.call":
        inner = _returned(program, value)
        return None if inner is None else least(inner)
    if op.name in _SAME:
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


def _least_sum(op: Op, least) -> float | None:
    """Sums of what is not negative are not; nor are maxima below what they start with."""
    body = op.regions[0].ops
    if len(op.operands) != 2 or len(body) != 2 or body[0].name not in _GROWING:
        return None
    a, b = map(least, op.operands)
    return 0.0 if a is not None and b is not None and min(a, b) >= 0 else None


def _largest(program: Program, value: Value, depth: int) -> float | None:
    """A number that no element's size is above; None if none is known, or one that may be rounded to infinity."""
    number, op = _number(value), value.op
    largest = abs(number) if number is not None else _largest_of(program, value, depth) if op and depth else None
    limit = LARGEST_HALF if value.type.dtype == "f16" else LARGEST
    return largest if largest is not None and largest < limit else None


def _largest_of(program: Program, value: Value, depth: int) -> float | None:
    op = value.op
    largest = lambda v: _largest(program, v, depth - 1)
    name, operands = op.name.partition(".")[2], op.operands
    if op.name == "func.call":
        inner = _returned(program, value)
        return None if inner is None else largest(inner)
    if op.name in _SAME or name in ("negate", "abs"):
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
        small = least is None or least < SMALLEST or exponent is None or not -8 <= exponent <= 0
        return None if small else least**exponent
    if name in ("add", "subtract", "multiply"):
        a, b = map(largest, operands)
        if a is None or b is None:
            return None
        return a * b if name == "multiply" else a + b
    if name == "select":
        a, b = map(largest, operands[1:])
        return None if a is None or b is None else max(a, b)
    return None
