"""Sums of complex numbers over devices, of which XLA's simplifier may end the process."""

from __future__ import annotations

from propagation.edits import Edits
from propagation.graph import TensorType
from propagation.program import Program

__all__ = ["guard_complex_sums"]

_SUMS = frozenset({"stablehlo.all_reduce", "stablehlo.reduce_scatter"})


def guard_complex_sums(program: Program) -> None:
    """Puts the addends of complex sums over devices behind barriers, as our partitioner does: the simplifier would end
    the process where it finds one to be a constant (`collectives.passes.compilers.complex_sums`)."""
    if _SUMS.isdisjoint(program.names):
        return
    edits = Edits()
    for op in program.ops():
        kinds = [v.type for v in op.operands]
        if op.name not in _SUMS or not any(isinstance(k, TensorType) and k.dtype.startswith("complex") for k in kinds):
            continue
        for i, value in enumerate([*op.operands]):
            barrier = program.new_op("stablehlo.optimization_barrier", (value,), [value.type], like=op)
            op.set_operand(i, barrier.result)
            edits.before(op, barrier)
    edits.apply()
