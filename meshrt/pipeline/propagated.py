"""The third station: every value of the program gets a sharding, with a log of why (the package `propagation`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import propagation
from meshrt import config, errors
from meshrt.core.explicit import has_sums
from meshrt.core.types import ShapedArray, aval_of
from meshrt.pipeline.inspections import Inspected, taken_out
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.station import Onward, UnboundStation
from meshrt.runtime import shardy
from meshrt.sharding.common import as_seen_on, is_refinement, with_parts
from meshrt.sharding.mesh import AbstractMesh, AxisType
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec, axes_of
from propagation.gc_pause import collector_paused

if TYPE_CHECKING:
    from meshrt.lowering.module import LoweredModule
    from meshrt.pipeline.ahead import TopologyCompiled
    from meshrt.pipeline.compiled import Compiled
    from meshrt.pipeline.partitioned import Partitioned
    from meshrt.pipeline.traced import LoweringRequest

__all__ = ["Propagated", "boundary_shardings", "named", "no_uneven", "propagate"]

Annotate = Callable[[Any, Any], None]


def propagate(
    module: LoweredModule, request: LoweringRequest, propagator: str, annotate: Annotate | None = None
) -> tuple[propagation.Propagated, Inspected]:
    """Decides the shardings of a module: ours, or with `propagator="shardy"` the C++ passes in jaxlib. Operations that
    their users partition become what each device runs of them. `annotate` is that of `propagation.run`.

    Beside the result stands what `debug.inspect_array_sharding` asked for. If the request is `uneven`, arguments and
    results need not divide (`NamedSharding(..., uneven=True)`).
    """
    uneven = request.uneven
    if uneven and propagator == "shardy":
        raise no_uneven("propagator", "Shardy's passes cut the axes of arguments and results to what divides them")
    with collector_paused():
        if propagator == "shardy":
            # The C++ passes decide and close everything; ours then only read what they wrote.
            given: Any = shardy.propagate(module.text)
        else:
            given = module.program()
        # What is changed below would be lacking in another propagation of the program.
        original = None if module.inspections or module.customs else module.program
        whole = request.mesh is None or all(is_refinement(request.mesh, view) for view in request.views)
        result = propagation.run(
            given, "closed", whole_axes=whole, sub_axes=not whole, xla_order=True, uneven_boundary=uneven,
            annotate=annotate, original=original,
        )  # fmt: skip
    inspected = taken_out(result, module.inspections) if module.inspections else ()
    if module.customs:
        # Start-up time: few programs have such operations.
        from meshrt.pipeline.local_bodies import write_local_bodies

        assert request.mesh is not None, "operations are partitioned over a mesh"
        write_local_bodies(result, module.customs, request.mesh, request.platform)
    return result, inspected


def no_uneven(setting: str, why: str) -> errors.UnsupportedError:
    """The error for uneven shardings under a setting that has them not."""
    return errors.UnsupportedError(
        f"a program with arguments or results of uneven shardings (uneven=True) cannot be made with the setting "
        f"{setting}={getattr(config.settings, setting)!r}: {why}. Use {setting}='meshrt', or sizes that divide"
    )


class Propagated(UnboundStation):
    """Every value has a sharding; `.result` is `propagation.Propagated`, with the decision log.

    `propagator` says who decided: "meshrt" or "shardy".

    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> propagated = meshrt.jit(lambda x: x + 1).lower(x).propagate()
    >>> propagated.result.result_shardings[0].to_text()
    '#sdy.sharding<@mesh, [{"x"}, {}]>'
    """

    __slots__ = ("lowered", "propagator", "result")

    def __init__(self, lowered: Lowered, result: propagation.Propagated, propagator: str, onward: Onward):
        self.record, self.request, self.lowered, self.result = lowered.record, lowered.request, lowered, result
        self.propagator, self._onward = propagator, onward

    @property
    def log(self) -> Any:
        """The decision log (`propagation.log.Log`)."""
        return self.result.log

    def explain(self, query: str) -> str:
        """Why a dimension is sharded as it is: the steps from it back to the user's annotations, a line each.

        `query` is VALUE:DIM: an argument (`x:0`, `state['w']:1`, `arg[0]:1`), a result (`result[0]:1`), a value by its
        name in `as_text()` (`%3:0`) or, for what is computed there, a source line (`train.py:57:0`). Without DIM it
        stands for all dimensions. InspectError if it names nothing.
        """
        # Start-up time: a program that is found on disk is never propagated.
        from meshrt.pipeline.explain import explain
        from meshrt.pipeline.names import names_of

        return "\n".join(explain(self.result, query, *names_of(self.lowered)))

    def missing(self) -> list[str]:
        """What stayed whole along a dimension though an operand or result beside it is sharded there, and what stopped
        the axes: a line each, in the program's names. `.result.missing()` has the same as objects."""
        # Start-up time: as above.
        from meshrt.pipeline.explain import missing
        from meshrt.pipeline.names import names_of

        return missing(self.result, *names_of(self.lowered))

    def as_text(self) -> str:
        """The module with the sharding of every value, in MLIR's syntax."""
        return self.result.as_text()

    def partition(self, **options: Any) -> Partitioned:
        """The per-device program with explicit collectives; the options are those of `collectives.partition`, which
        says what is raised for them."""
        return self._onward.partition(self, options)

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled | TopologyCompiled:
        """As `Lowered.compile`."""
        return self._onward.compile(self.lowered, compiler_options, None, None, None)


def named(sharding: Any, mesh: AbstractMesh) -> NamedSharding:
    """A propagation TensorSharding (None: replicated) as a NamedSharding over `mesh`; over a finer mesh if it is over
    parts of axes."""
    if sharding is None:
        return NamedSharding(mesh, PartitionSpec())
    entries = []
    for dim in sharding.dims:
        if any(axis.size != mesh.shape[axis.name] for axis in dim.axes):
            return with_parts(mesh, [[(a.name, a.pre, a.size) for a in d.axes] for d in sharding.dims])
        entries.append(tuple(a.name for a in dim.axes) or None)
    return NamedSharding(mesh, PartitionSpec(*_without_trailing(entries)))


def _without_trailing(entries: list[Any]) -> list[Any]:
    """Entries of a spec up to the last one that splits a dimension."""
    while entries and entries[-1] is None:
        entries.pop()
    return entries


def boundary_shardings(result: Any, lowered: Lowered) -> tuple[tuple[NamedSharding, ...], tuple[NamedSharding, ...]]:
    """Those of a module's arguments (captured arrays first) and results, over its mesh.

    `result` is what propagation or partitioning gave: anything with `arg_shardings` and `result_shardings`.
    """
    mesh = lowered.mesh
    assert mesh is not None, "a program of several devices has a mesh"
    args = tuple(_shown(named(s, mesh), lowered) for s in result.arg_shardings)
    consts = map(aval_of, lowered.module.consts)
    args = (*(_with_sums(s, a) for s, a in zip(args, consts)), *args[len(lowered.module.consts) :])
    outs = tuple(_shown(named(s, mesh), lowered) for s in result.result_shardings)
    if AxisType.Explicit in mesh.axis_types or any(a.explicit is not None for a in lowered.record.closed.out_avals):
        outs = tuple(map(_as_typed, outs, lowered.record.closed.out_avals))
    if not lowered.request.uneven:
        return args, outs
    record, module = lowered.record, lowered.module
    avals = [*map(aval_of, module.consts), *(record.closed.in_avals[i] for i in module.kept)]
    return tuple(map(_uneven_where_needed, args, avals)), tuple(
        map(_uneven_where_needed, outs, record.closed.out_avals)
    )


def _shown(sharding: NamedSharding, lowered: Lowered) -> NamedSharding:
    """A sharding over parts of the axes of a joint mesh, over a mesh that the user named if that can be."""
    if sharding.mesh is lowered.mesh:
        return sharding
    return next((seen for view in lowered.request.views if (seen := as_seen_on(sharding, view))), sharding)


def _with_sums(sharding: NamedSharding, aval: ShapedArray) -> NamedSharding:
    """That of a captured array, with the axes that it is unreduced or reduced over by its type."""
    if aval.explicit is None or not has_sums(aval):
        return sharding
    return NamedSharding(aval.explicit.mesh, aval.explicit.spec)


def _as_typed(sharding: NamedSharding, aval: ShapedArray) -> NamedSharding:
    """The same layout as the type has it: over the mesh with the types of its axes, one entry for each dimension, with
    the Explicit axes of size 1 too, which split nothing, unless Auto axes split it as well, of which types say nothing;
    and the axes that it is unreduced or reduced over.
    """
    mesh: Any = sharding.mesh if aval.explicit is None else aval.explicit.mesh
    if mesh.explicit_axes and mesh is not sharding.mesh:
        seen = as_seen_on(sharding, mesh) if mesh.shape_tuple != sharding.mesh.shape_tuple else None
        if seen is not None or mesh.shape_tuple == sharding.mesh.shape_tuple:
            sharding = (seen or sharding).update(mesh=mesh)
        elif aval.explicit is not None:
            return sharding  # jit was told to split it by the axes of another mesh
    mesh, spec = sharding.mesh, sharding.spec
    if AxisType.Explicit not in mesh.axis_types:
        return sharding
    as_propagated = any(mesh._types[a] is AxisType.Auto for a in spec.axes)
    if not as_propagated:
        sharding = sharding.update(spec=spec.update(partitions=spec.padded(aval.ndim)))
    if aval.explicit is None:
        return sharding
    entries = []
    for own, found in zip(aval.explicit.spec.partitions, spec.padded(aval.ndim)):
        known = tuple(a for a in axes_of(own) if mesh._sizes[a] > 1 or not as_propagated)
        axes = (*known, *(a for a in axes_of(found) if a not in known))
        entries.append(axes or None)
    if as_propagated:
        entries = _without_trailing(entries)
    found, named_axes = sharding, [a for entry in entries for a in entry or ()]
    if len(named_axes) == len(set(named_axes)):  # else jit was told to split other dimensions by the type's axes
        typed = sharding.update(spec=spec.update(partitions=entries))
        found = typed if typed.is_equivalent_to(sharding, aval.ndim) else sharding
    own = aval.explicit.spec
    if not own.unreduced and not own.reduced:
        return found
    return found.update(spec=found.spec.update(unreduced=own.unreduced, reduced=own.reduced))


def _uneven_where_needed(sharding: NamedSharding, aval: ShapedArray) -> NamedSharding:
    return sharding if sharding.splits_evenly(aval.shape) else sharding.update(uneven=True)
