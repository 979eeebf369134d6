"""A propagated module as XLA's own partitioner reads it rightly: edits of a copy of the program, each with its reason.

>>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",))
>>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x")))
>>> propagated = meshrt.jit(lambda x: x + 1).lower(x).propagate()
>>> from meshrt.pipeline.for_xla import annotated_for_xla
>>> annotated_for_xla(propagated.result, uneven=False) == propagated.as_text()  # here nothing has to be told otherwise
True
"""

from __future__ import annotations

import propagation
from meshrt.pipeline.for_xla.addends import tell_addends
from meshrt.pipeline.for_xla.barriers import guard_complex_sums
from meshrt.pipeline.for_xla.constraints import (
    constrain_complex_addends,
    constrain_each_result,
    reshards_to_constraints,
    tell_whole_results,
)
from meshrt.pipeline.propagated import no_uneven
from propagation.annotations import read_shardings
from propagation.gc_pause import collector_paused
from propagation.program import Program
from propagation.shardings import Shardings
from propagation.write import write

__all__ = ["annotated_for_xla"]

# Programs without these, without addends and without devices alone are read rightly as they stand.
_EDITED = frozenset({"sdy.reshard", "sdy.manual_computation"})


def annotated_for_xla(result: propagation.Propagated, uneven: bool) -> str:
    """The text of a propagated module for XLA's partitioner.

    UnsupportedError for `uneven` arguments or results, and for addends of which the partitioner cannot be told.
    """
    if uneven:
        raise no_uneven("partitioner", "XLA's one knows no arguments and results of parts that differ in size")
    if not _needs_edits(result.program, result.shardings):
        return result.as_text()
    with collector_paused():
        # The stations are values that others look at: what is edited is a copy, read from what the result writes.
        program = propagation.read(result.module)
        shardings = read_shardings(program)
        tell_addends(program, shardings)
        constrain_complex_addends(program, shardings)
        tell_whole_results(program, shardings)
        guard_complex_sums(program)
        constrain_each_result(program, shardings)
        reshards_to_constraints(program)
        return str(write(program, shardings).operation.get_asm())


def _needs_edits(program: Program, shardings: Shardings) -> bool:
    if not program.names.isdisjoint(_EDITED) or any(mesh.is_maximal for mesh in program.meshes.values()):
        return True
    said = (*shardings.table, *(s for results in shardings.results.values() for s in results))
    return any(s is not None and s.unreduced for s in said)
