"""Which positions of a value somebody uses, and outside of which positions it is zero: boxes, a range per dimension.

A spectral layer keeps 12 of the 33 columns of a spectrum, and puts what it made of them into zeros before it transforms
back. Columns that nobody reads, and columns of zeros, need not travel between the transforms along either dimension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from propagation.attributes import PADDING, integer, integers, symbol
from propagation.graph import TextAttribute
from propagation.ops import POINTWISE
from propagation.program import Func, Op, Program, Use, Value

from ..heuristics import ANALYSIS_STEPS
from .constants import scalar_constant
from .progressions import written

__all__ = ["Box", "Ranges", "whole"]

Box: TypeAlias = tuple[tuple[int, int], ...]  # per dimension [low, high); None stands for a box without any position

_SAME = frozenset((
    "stablehlo.convert", "stablehlo.negate", "stablehlo.real", "stablehlo.imag", "stablehlo.reduce_precision",
    "sdy.sharding_constraint",
))  # fmt: skip
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract", "stablehlo.complex"))


def whole(value: Value) -> Box:
    """All positions."""
    return tuple([(0, n) for n in value.type.shape])


def _hull(boxes: Iterable[Box | None]) -> Box | None:
    """The smallest box around all of them."""
    found: Box | None = None
    for box in boxes:
        if box is not None:
            found = box if found is None else tuple([(min(a, c), max(b, d)) for (a, b), (c, d) in zip(found, box)])
    return found


class Ranges:
    """Of the values of one program."""

    def __init__(self, program: Program):
        self.program = program
        self._calls: dict[str, list[Op]] = {}
        self._funcs = {func.body: func for func in program.funcs.values()}
        for op in program.ops():
            if op.name == "func.call":
                self._calls.setdefault(symbol(op.attrs["callee"]), []).append(op)

    # -- who uses what ----------------------------------------------------------------------------------------

    def used(self, value: Value, depth: int = ANALYSIS_STEPS) -> Box | None:
        """The positions that somebody reads; None if nobody reads any."""
        if not depth:
            return whole(value)
        return _hull(self._used_by(use, value, depth - 1) for use in value.uses)

    def _used_by(self, use: Use, value: Value, depth: int) -> Box | None:
        op, name = use.op, use.op.name
        if name == "func.return":
            func = self._funcs.get(op.block)
            calls = [] if func is None or func is self.program.main else self._calls.get(func.name, [])
            return _hull(self.used(call.results[use.number], depth) for call in calls) if calls else whole(value)
        if name == "func.call":
            callee = self._callee(op)
            return whole(value) if callee is None else self.used(callee.args[use.number], depth)
        if name == "stablehlo.slice":
            return self._sliced(op, self.used(op.results[0], depth))
        if name == "stablehlo.transpose":
            box, order = self.used(op.results[0], depth), integers(op.attrs["permutation"])
            return None if box is None else tuple([box[order.index(d)] for d in range(len(order))])
        if name == "stablehlo.fft":
            box, kept = self.used(op.results[0], depth), _untransformed(op)
            return None if box is None else (*box[:kept], *whole(value)[kept:])
        if (name in POINTWISE or name in _SAME) and len(op.results) == 1:
            result = op.results[0]
            return self.used(result, depth) if result.type.shape == value.type.shape else whole(value)
        return whole(value)

    @staticmethod
    def _sliced(op: Op, box: Box | None) -> Box | None:
        """The positions of a slice's operand, by those of its result."""
        if box is None or any(low >= high for low, high in box):
            return None
        starts, strides = integers(op.attrs["start_indices"]), integers(op.attrs["strides"])
        return tuple([(s + a * k, s + (b - 1) * k + 1) for (a, b), s, k in zip(box, starts, strides)])

    # -- what is zero -----------------------------------------------------------------------------------------

    def nonzero(self, value: Value, depth: int = ANALYSIS_STEPS) -> Box | None:
        """The positions outside of which all elements are known to be zero; None if all are."""
        op = value.op
        if not depth:
            return whole(value)
        if op is None:
            func = value.argument_of
            calls = self._calls.get(func.name, []) if isinstance(func, Func) and func is not self.program.main else []
            found = _hull(self.nonzero(call.operands[value.number], depth - 1) for call in calls)
            return found if calls else whole(value)
        if _is_zero(value):
            return None
        if op.name == "func.call":
            callee = self._callee(op)
            return whole(value) if callee is None else self.nonzero(callee.returned[value.number], depth - 1)
        if op.name == "stablehlo.pad" and _is_zero(op.operands[1]):
            return self._padded(op, self.nonzero(op.operands[0], depth - 1))
        if op.name == "stablehlo.concatenate":
            return self._joined(op, depth - 1)
        if op.name == "stablehlo.scatter" and len(op.results) == 1:
            return self._scattered(op, value, depth - 1)
        if op.name == "stablehlo.dynamic_update_slice":
            return self._updated(op, value, depth - 1)
        if op.name == "stablehlo.transpose":
            box = self.nonzero(op.operands[0], depth - 1)
            return None if box is None else tuple([box[d] for d in integers(op.attrs["permutation"])])
        if op.name == "stablehlo.fft":
            box, kept = self.nonzero(op.operands[0], depth - 1), _untransformed(op)
            return None if box is None else (*box[:kept], *whole(value)[kept:])
        if (op.name in _SAME or op.name in _SUMS) and all(v.type.shape == value.type.shape for v in op.operands):
            return _hull(self.nonzero(v, depth - 1) for v in op.operands)
        return whole(value)

    @staticmethod
    def _padded(op: Op, box: Box | None) -> Box | None:
        low, high, inner = (integers(op.attrs[n]) for n in PADDING)
        if box is None:
            return None
        if any(inner) or min((*low, *high), default=0) < 0:
            return whole(op.results[0])
        return tuple([(a + k, b + k) for (a, b), k in zip(box, low)])

    def _joined(self, op: Op, depth: int) -> Box | None:
        d, at, boxes = integer(op.attrs["dimension"]), 0, []
        for v in op.operands:
            box = self.nonzero(v, depth)
            if box is not None:
                boxes.append((*box[:d], (box[d][0] + at, box[d][1] + at), *box[d + 1 :]))
            at += v.type.shape[d]
        return _hull(boxes)

    def _scattered(self, op: Op, value: Value, depth: int) -> Box | None:
        """Positions that are not written keep what the target has."""
        stretches = written(op)
        if stretches is None:
            return whole(value)
        box = tuple([(s.first, max(s.start, s.last) + 1) for s in stretches])
        return _hull((box, self.nonzero(op.operands[0], depth)))

    def _updated(self, op: Op, value: Value, depth: int) -> Box | None:
        box = []
        for start, n, size in zip(op.operands[2:], op.operands[1].type.shape, value.type.shape):
            at = scalar_constant(start)
            if not isinstance(at, int):
                return whole(value)
            at = min(max(0, at), size - n)
            box.append((at, at + n))
        return _hull((tuple(box), self.nonzero(op.operands[0], depth)))

    def _callee(self, op: Op) -> Func | None:
        return self.program.funcs.get(symbol(op.attrs["callee"]))


def _untransformed(op: Op) -> int:
    """How many leading dimensions a Fourier transform leaves as they are."""
    return op.results[0].type.rank - len(integers(op.attrs["fft_length"]))


def _is_zero(value: Value) -> bool:
    """Whether all elements are a constant zero; complex ones too."""
    op = value.op
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        op = op.operands[0].op
    if op is None or op.name not in ("stablehlo.constant", "sdy.constant"):
        return False
    attr = op.attrs["value"]
    if isinstance(attr, TextAttribute):  # dense<(0.000000e+00,0.000000e+00)> : tensor<complex<f32>>
        literal = attr.text.partition("<")[2].partition(">")[0]
        return literal.startswith("(") and not set(literal) - set("(0.e+-,)")
    return scalar_constant(op.results[0]) == 0
