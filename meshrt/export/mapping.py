"""`vmap` of calls of exported functions.

Nothing of a function's inside is known here, so it is called for one member of the batch after another, in a loop of
the program. Where the mapped dimension is split over mesh axes of which the function knows nothing, as one exported
for a single device, each device calls it for the members that it has; else every device gets all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.basic.shapes import move_dim
from meshrt.core.types import ShapedArray
from meshrt.export.record import Record
from meshrt.export.splits import Over
from meshrt.jit import jit
from meshrt.primitives import control
from meshrt.primitives.callback import whole_along
from meshrt.shard_map import shard_map
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.transforms.batching import MappedAxis

__all__ = ["mapped_call"]


def mapped_call(
    call: Callable[..., Any], axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> tuple[list[Any], list[int]]:
    """The batching rule of a call: `call(*args, exported=, splits=)` for every member."""
    exported: Record = params["exported"]
    stacked = [a if d is None else move_dim(a, d, 0) for a, d in zip(args, dims)]
    is_mapped = [d is not None for d in dims]

    def loop(*args: Any) -> Any:
        here = {**params, "splits": _inside(exported, params["splits"])}

        def one(members: Sequence[Any]) -> Any:
            rest = iter(members)
            return tuple(call(*[next(rest) if m else a for a, m in zip(args, is_mapped)], **here))

        return control.map(one, [a for a, m in zip(args, is_mapped) if m])

    mesh, axes = _split_over(axis)
    if exported.split_mesh is None and axes:
        over = PartitionSpec(axes)
        specs = tuple(over if m else PartitionSpec() for m in is_mapped)
        outs = jit(shard_map(loop, mesh=mesh, in_specs=specs, out_specs=over, axis_names=set(axes)))(*stacked)
    else:
        outs = loop(*[whole_along(a, 0) if m else a for a, m in zip(stacked, is_mapped)])
    return list(outs), [0] * len(outs)


def _split_over(axis: MappedAxis) -> tuple[Over, tuple[Any, ...]]:
    """The mesh axes that the mapped dimension is split over, of which mesh."""
    if axis.along is not None:
        return axis.along.mesh, axes_of(axis.along.spec.partitions[0])
    mesh = get_abstract_mesh()
    return mesh, tuple(a for a in axis.mesh_axes if a in mesh.axis_names and a not in mesh.manual_axes)


def _inside(exported: Record, splits: Sequence[Any]) -> tuple[Any, ...]:
    """The shardings of result types in the region that this is traced in."""
    mesh = get_abstract_mesh()
    types = (ShapedArray(a.shape, a.dtype, sharding=s) for a, s in zip(exported.out_avals, splits))
    return tuple(a.inside(mesh).explicit for a in types) if mesh.manual_axes else tuple(splits)
