"""Layouts in the order in which XLA's own run of Shardy decides them, where that order matters.

Propagation gives an axis that two dimensions want to the one that was visited first. Shardy visits broadcasts last, and
on the way into XLA those that only add dimensions of size one become reshapes, which come first: a batch split by the
data then reaches the activations before the features that are split by the weights do, and weights that are distributed
over the devices which share the batch are gathered where they are used, rather than activations moved. Where a program
has such axes (`propagation.axis_conflicts`), it is propagated once more in that order, with the same arguments and
results.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from propagation import Propagated, run
from propagation.annotation_sites import one_after_other
from propagation.axis_conflicts import depends_on_order
from propagation.model import TensorSharding
from propagation.program import Program, read
from propagation.reopening import decided, opening

from .annotations import Annotate, KnownShardings, Propagation

__all__ = ["decided_again", "in_xla_order", "is_final"]


class _Again(Propagation):
    """What another propagation decided; results of @main are as the first one left them. `module` is what it was made
    of, if that carries the shardings of an earlier one."""

    def __init__(self, propagated: Propagated, results: list[TensorSharding | None], module: ir.Module | None = None):
        super().__init__(propagated)
        self._results, self._module = results, module

    @property
    def is_repeatable(self) -> bool:
        return self._module is not None or super().is_repeatable

    def again(self, annotate: Annotate) -> Propagated | None:
        if self._module is None:
            return super().again(annotate)
        return run(
            read(self._module), annotate=one_after_other(opening, annotate), xla_order=self.propagated.options.xla_order
        )


def in_xla_order(known: KnownShardings) -> KnownShardings:
    """`known`, or what is decided in XLA's order if that might be something else."""
    first = known.propagated if isinstance(known, Propagation) else None
    if first is not None and (first.stage != "closed" or first.options.xla_order):
        return known
    meshes = {m.layout for m in known.program.meshes.values() if not m.is_empty and not m.is_maximal}
    log = None if first is None else first.log
    if len(meshes) != 1 or not depends_on_order(known.program, known.shardings, log, lambda: known.apart):
        return known
    again = _opened_again(known) if first is None else first.again(xla_order=True)
    module = known.program.module if first is None else None
    return known if again is None else _Again(again, known.results(), module)


def is_final(known: KnownShardings) -> bool:
    """Whether it is plain that no other propagation may decide (`decided_again`): nobody can make the module once more,
    or somebody set priorities."""
    if not isinstance(known, Propagation):
        return False
    return known.propagated.stage != "closed" or not known.is_repeatable or _has_priorities(known.propagated)


def decided_again(known: KnownShardings, annotate: Annotate) -> KnownShardings | None:
    """What another propagation of the same module decides, if `annotate` changes what it says first. None where that
    would be the same, where somebody set priorities, and for shardings that no propagation is known to have decided."""
    if isinstance(known, Propagation):
        if is_final(known):
            return None
        again = known.again(annotate)
    elif (reopened := _reopened(known)) is None or _has_priorities(reopened):
        return None
    else:
        again = run(read(known.program.module), annotate=one_after_other(opening, annotate))
    if again is None or decided(again.program, again.shardings) == decided(known.program, known.shardings):
        return None
    return _Again(again, known.results())


def _has_priorities(propagated: Propagated) -> bool:
    """Whether somebody set user priorities other than the first, be it only on arguments."""
    log = propagated.log
    given = [log.initial(log.slot_of(v)) for v in propagated.program.main.args if log.knows(v)]
    return any(event.round[0] for event in log.events) or any(d.priority for s in given if s for d in s.dims)


def _opened_again(known: KnownShardings) -> Propagated | None:
    """What XLA's order makes of a module that carries the shardings which propagation gave it. None if it has other
    ones."""
    found = _reopened(known)
    if found is None or not depends_on_order(found.program, found.shardings, found.log):
        return None
    return run(read(known.program.module), annotate=opening, xla_order=True)


def _reopened(known: KnownShardings) -> Propagated | None:
    """The propagation of a module that carries the shardings which propagation gave it. None if they are not what
    propagation makes of its arguments, results and constraints, but somebody's own; and for a `Program` that was
    changed since it was read."""
    again = _as_read(known.program)
    if again is None:
        return None
    found = run(again, annotate=opening)
    return found if decided(found.program, found.shardings) == decided(known.program, known.shardings) else None


def _as_read(program: Program) -> Program | None:
    """The module from which a program was made, read again; None if the program is not that any more."""
    again = read(program.module)
    said = lambda p: [(name, f.arg_attrs, f.result_attrs) for name, f in p.funcs.items()]
    ops, original = program.ops(), again.ops()
    if len(ops) != len(original) or said(program) != said(again):
        return None
    for op, other in zip(ops, original):
        if op.name != other.name or [v.index for v in op.operands] != [v.index for v in other.operands]:
            return None
        if op._attrs is not None and op._attrs != other.attrs:
            return None
    return again
