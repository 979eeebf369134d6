"""What calls of an exported function communicate on a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from meshrt import tree_util
from meshrt.export.calling import call_exported
from meshrt.export.executables import numbers_for, shape_with
from meshrt.export.record import Record
from meshrt.export.repartition import over_mesh
from meshrt.jit import jit
from meshrt.pipeline.lowered import Lowered
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.context import use_abstract_mesh
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec

if TYPE_CHECKING:
    from collectives.plan.communication import CommunicationPlan

__all__ = ["lowered_call", "plan_of"]


def plan_of(exported: Record, mesh: Mesh | AbstractMesh, sizes: Mapping[str, int]) -> CommunicationPlan:
    """See `meshrt.export.Exported.plan`."""
    plan: CommunicationPlan = lowered_call(exported, mesh, sizes, "plan(mesh, {0}=8)").partition().plan
    return plan


def lowered_call(
    exported: Record, mesh: Mesh | AbstractMesh | None, sizes: Mapping[str, int], advice: str
) -> Lowered:  # fmt: skip
    """The program that calls the function on a mesh, or on one device without a mesh, with these numbers for symbolic
    sizes, which `advice` says how to give. Errors as `meshrt.export.Exported.plan`."""
    over = None if mesh is None else mesh.abstract_mesh
    exported = over_mesh(exported, over)
    numbers = numbers_for(exported, sizes, advice)
    shapes = [shape_with(a, numbers) for a in exported.in_avals]
    asked: Sequence[NamedSharding | None]
    if over is None:
        asked = [None] * len(shapes)
    elif exported.split_mesh is None:  # it names no mesh: all of it runs everywhere
        asked = [NamedSharding(over, PartitionSpec())] * len(shapes)
    elif exported.split_mesh.axis_sizes == over.axis_sizes:
        asked = [s or _open(over, shape) for s, shape in zip(exported.in_shardings_jax(over), shapes)]
    else:
        asked = [_open(over, shape) for shape in shapes]
    specs = [
        ShapeDtypeStruct(shape, a.dtype, sharding=s, weak_type=a.weak_type)
        for shape, a, s in zip(shapes, exported.in_avals, asked)
    ]
    args, kwargs = tree_util.tree_unflatten(exported.in_tree, specs)
    call = jit(lambda *args, **kwargs: call_exported(exported, args, kwargs))
    with nullcontext() if over is None else use_abstract_mesh(over):
        lowered: Lowered = call.lower(*args, **kwargs)
    return lowered


def _open(mesh: AbstractMesh, shape: tuple[int, ...]) -> NamedSharding:
    """What propagation decides."""
    return NamedSharding(mesh, PartitionSpec(*[UNCONSTRAINED] * len(shape)))
