"""What XLA's importer of Shardy's dialect asks to be said by constraints."""

from __future__ import annotations

from propagation.edits import Edits, replace_all_uses
from propagation.graph import OtherType, TensorType
from propagation.model import TensorSharding
from propagation.program import Program
from propagation.shardings import Shardings

__all__ = ["constrain_complex_addends", "constrain_each_result", "reshards_to_constraints", "tell_whole_results"]


def reshards_to_constraints(program: Program) -> None:
    """The importer knows constraints but not reshards; for closed shardings they mean the same."""
    for op in program.ops():
        if op.name == "sdy.reshard":
            op.name = "sdy.sharding_constraint"


def constrain_each_result(program: Program, shardings: Shardings) -> None:
    """A constraint on each result of manual computations that have several.

    The importer gives the second result of one the sharding of the first where an operation that uses it has a
    sharding of its own; it refuses them then, if their ranks differ.
    """
    edits = Edits()
    for op in program.ops():
        if op.name != "sdy.manual_computation" or len(op.results) == 1:
            continue
        for value in reversed(op.results):
            constraint = program.new_op("sdy.sharding_constraint", (), [value.type], like=op)
            shardings.set(constraint.result, shardings.get(value))
            replace_all_uses(value, constraint.result)
            constraint.add_operand(value)
            edits.after(op, constraint)
    edits.apply()


def constrain_complex_addends(program: Program, shardings: Shardings) -> None:
    """A constraint on each complex value that an operation leaves unreduced: without one XLA's compiler ends the
    process over a contraction of complex numbers whose own result is said to be unreduced."""
    edits = Edits()
    for op in program.ops():
        if op.name in ("sdy.manual_computation", "sdy.sharding_constraint"):
            continue
        for value in op.results:
            said, kind = shardings.get(value), value.type
            if said is None or not said.unreduced or not isinstance(kind, TensorType) or kind.dtype[:7] != "complex":
                continue
            constraint = program.new_op("sdy.sharding_constraint", (), [kind], like=op)
            shardings.set(constraint.result, said)
            replace_all_uses(value, constraint.result)
            constraint.add_operand(value)
            edits.after(op, constraint)
    edits.apply()


def tell_whole_results(program: Program, shardings: Shardings) -> None:
    """Results of which no sharding is said, said to be replicated where something stands on one device alone: XLA
    would leave its results there, and zeros on the others."""
    meshes = program.meshes.values()
    mesh = next((m for m in meshes if m.axis_names), None)
    if mesh is None or not any(m.is_maximal for m in meshes):
        return
    results = shardings.results[program.main]
    for i, kind in enumerate(program.main.result_types):
        if results[i] is None and not isinstance(kind, OtherType):
            results[i] = TensorSharding.replicated_on(mesh, kind.rank)
