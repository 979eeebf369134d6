"""How arguments and results of an exported function are split where axes of its caller's mesh are Explicit.

Types say there how values are split, before anything is propagated. Those of results have the shardings that the
function was exported with: axes go by their places. Of results of which nothing was said, as where the function was
exported over Auto axes or for one device, the type is what propagation makes of the function alone. (The program that
calls it moves arguments to where the function wants them.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import config
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.core.explicit import NO_AXES, unreduced_of
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of, present
from meshrt.export.record import Record
from meshrt.jit import jit
from meshrt.pipeline.keys import keep_latest
from meshrt.primitives.reshard import reshard
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.common import parts_over
from meshrt.sharding.context import get_abstract_mesh, use_abstract_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of
from meshrt.sharding.typed import mesh_of, sharding_of, type_sharding, without_sums

__all__ = ["Over", "Splits", "added_up", "around", "declared", "explicit_mesh", "result_splits", "typed_as"]

Over = Mesh | AbstractMesh
Split = NamedSharding | None
Splits = tuple[Split, ...]  # of the types of arguments or results; None where no Explicit axis splits one


def explicit_mesh(values: Sequence[Any]) -> Over | None:
    """The mesh that a call with these values is over: with devices, that of arrays among them, else that of their types
    or of the context. None if no axis of it is Explicit."""
    for x in values:
        sharding = None if isinstance(x, Tracer) else getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types:
            return sharding.mesh
    found: Any = mesh_of(map(aval_of, values)) or get_abstract_mesh()
    return found if AxisType.Explicit in found.axis_types else None


def added_up(values: Sequence[Any], wanted: Splits, mesh: Over) -> list[Any]:
    """The values, of which those are no partial sums that are not `wanted` as such."""
    found = []
    for x, split in zip(values, wanted):
        aval = aval_of(x)
        sums = frozenset() if split is None else split.spec.unreduced
        if unreduced_of(aval) not in (sums, NO_AXES):
            aval = aval.update(sharding=present(without_sums(aval.explicit)))
        found.append(typed_as(x, aval, mesh))
    return found


def typed_as(x: Any, aval: ShapedArray, mesh: Over) -> Any:
    """`x`, split as the type `aval` is over `mesh`."""
    if aval_of(x).explicit is aval.explicit:
        return x
    wanted = sharding_of(aval, mesh)
    return reshard(x, wanted if isinstance(x, Tracer) else wanted.update(mesh=mesh))


def result_splits(
    exported: Record, values: Sequence[Any], mesh: Over, call: Callable[..., Any]
) -> Splits:  # fmt: skip
    """Of the types of the results of `call`, the exported function over flat arguments, for `values`."""
    own = declared(exported, exported.out_shardings, exported.out_avals, mesh)
    avals = [aval_of(x) for x in values]
    unsaid = [s is None or exported.split_mesh is None for s in exported.out_shardings]
    if not any(unsaid) or any(is_symbolic_shape(a.shape) for a in avals):
        return own
    if all(a.explicit is None for a in avals) and exported.split_mesh is None:
        return own  # nothing is split
    key = mesh.abstract_mesh, tuple(avals), config.trace_key(), config.compile_key()
    found = exported.result_splits.get(key)
    if found is None:
        found = exported.result_splits[key] = _propagated(avals, mesh, call)
        keep_latest(exported.result_splits, config.settings.cached_traces)
    return tuple(p if is_unsaid else o for p, o, is_unsaid in zip(found, own, unsaid))


def declared(
    exported: Record, shardings: Sequence[Split], avals: Sequence[ShapedArray], mesh: Over
) -> Splits:  # fmt: skip
    """What `shardings` of the exported function are in types over `mesh`. Axes that are no whole ones there split
    nothing."""
    if exported.split_mesh is None:
        return (None,) * len(shardings)
    here = around(mesh)
    return tuple(None if s is None else _over(s, a.ndim, here, mesh) for s, a in zip(shardings, avals))


def around(mesh: Over) -> AbstractMesh:
    """The axes that a call is over, as an exported function sees them: each member along the Manual ones calls it."""
    kept = [(n, k) for n, k in mesh.shape_tuple if n not in mesh.manual_axes]
    return AbstractMesh(tuple(k for _, k in kept), tuple(n for n, _ in kept))


def _over(sharding: NamedSharding, ndim: int, here: AbstractMesh, mesh: Over) -> Split:
    sizes = here.shape

    def whole(entry: Any) -> tuple[Any, ...]:
        parts = parts_over(() if entry is UNCONSTRAINED else axes_of(entry), sharding.mesh, here)
        return tuple(n for n, _, k in parts) if all(k == sizes[n] for n, _, k in parts) else ()

    spec = sharding.spec
    entries = [whole(e) or None for e in spec.padded(ndim)]
    return type_sharding(mesh, entries, whole(tuple(spec.unreduced)), whole(tuple(spec.reduced)))


def _propagated(avals: Sequence[ShapedArray], mesh: Over, call: Callable[..., Any]) -> Splits:
    """The types that propagation gives to the results of `call`, for arguments of these types."""
    # Start-up time: only calls over Explicit axes of functions that were exported without need it.
    from meshrt.pipeline.propagated import boundary_shardings

    here = around(mesh)
    specs = [
        ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type, sharding=NamedSharding(here, _spec(a)))
        for a in avals
    ]  # fmt: skip
    with use_abstract_mesh(here):
        lowered = jit(call).lower(*specs)
        _, outs = boundary_shardings(lowered.propagate().result, lowered)
    found = []
    for s, aval in zip(outs, lowered.record.closed.out_avals, strict=True):
        entries = [
            e if s.mesh is here and _divides(e, n, here) else None for e, n in zip(s.spec.padded(aval.ndim), aval.shape)
        ]
        found.append(type_sharding(mesh, entries))
    return tuple(found)


def _spec(aval: ShapedArray) -> PartitionSpec:
    return PartitionSpec() if aval.explicit is None else PartitionSpec(*aval.explicit.spec.partitions)


def _divides(entry: Any, size: int, mesh: AbstractMesh) -> bool:
    sizes, parts = mesh.shape, 1
    for axis in axes_of(entry):
        parts *= sizes[axis]
    return size % parts == 0
