"""Answers `debug.inspect_array_sharding` from what propagation decided, and takes its marks out of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import propagation
from meshrt.pipeline.traced import LoweringRequest
from meshrt.primitives.inspect_sharding import TARGET, Inspection
from meshrt.sharding.common import as_seen_on
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding, SingleDeviceSharding
from meshrt.sharding.spec import PartitionSpec
from propagation.model import TensorSharding

__all__ = ["Inspected", "answer", "answer_on_one_device", "taken_out"]

Inspected = Sequence[tuple[Inspection, TensorSharding | None]]


def taken_out(result: propagation.Propagated, inspections: Sequence[Inspection]) -> Inspected:
    """Removes the marks from the program; for each the sharding of its value."""
    # Start-up time: few programs are inspected.
    from propagation.attributes import string
    from propagation.edits import Edits

    found: list[tuple[Inspection, TensorSharding | None]] = []
    edits = Edits()
    for op in result.program.ops():
        if op.name == "stablehlo.custom_call" and string(op.attrs["call_target_name"]) == TARGET:
            inspection = inspections[int(string(op.attrs["backend_config"]))]
            found.append((inspection, result.shardings.get(op.operands[0])))
            edits.erase(op)
    edits.apply()
    return found


def answer(inspected: Inspected, request: LoweringRequest, devices: tuple[Any, ...] | None) -> None:
    """Calls back with NamedShardings: over a Mesh of the devices, over the AbstractMesh where they are not known."""
    for inspection, sharding in inspected:
        found = _named(sharding, inspection, request)
        if devices is not None:
            mesh = found.mesh
            found = NamedSharding(
                Mesh(np.array(devices).reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types),
                found.spec,
            )
        inspection.callback(found)


def answer_on_one_device(inspections: Sequence[Inspection], device: Any) -> None:
    """The same for a program without a mesh."""
    for inspection in inspections:
        inspection.callback(SingleDeviceSharding(device))


def _named(sharding: TensorSharding | None, inspection: Inspection, request: LoweringRequest) -> NamedSharding:
    """Over the mesh of the program; in a manual region over the one inside, whose manual axes are Manual.

    Where parts of axes split the value, over a mesh that has these parts as axes: of "x"=4, "x:(1)2" and "x:(2)2".
    """
    mesh = request.mesh
    assert mesh is not None, "marks stand in programs over a mesh"
    if inspection.manual is not None and inspection.manual.axis_sizes == mesh.axis_sizes:
        mesh = inspection.manual
    if sharding is None:
        return NamedSharding(mesh, PartitionSpec())
    mesh, names = _refined(mesh, [a for d in sharding.dims for a in d.axes])
    entries = [tuple(n for a in d.axes for n in names[a]) or None for d in sharding.dims]
    while entries and entries[-1] is None:
        entries.pop()
    found = NamedSharding(mesh, PartitionSpec(*entries))
    for view in request.views:
        seen = as_seen_on(found, view) if mesh is request.mesh else None
        if seen is not None:
            return seen
    return found


def _refined(mesh: AbstractMesh, axes: Sequence[Any]) -> tuple[AbstractMesh, dict[Any, tuple[Any, ...]]]:
    """The mesh with axes cut where `axes` (whole axes and parts of them) begin and end, and what each is called."""
    cuts: dict[Any, set[int]] = {}
    for a in axes:
        cuts.setdefault(a.name, {1, mesh.shape[a.name]}).update((a.pre, a.end))
    if all(len(c) <= 2 for c in cuts.values()):
        return mesh, {a: (a.name,) for a in axes}
    sizes: list[int] = []
    names: list[Any] = []
    types: list[AxisType] = []
    parts: dict[Any, list[tuple[int, int, Any]]] = {}
    for name, size, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types):
        at = sorted(cuts.get(name, {1, size}))
        for pre, end in pairwise(at) if len(at) > 1 else ((1, 1),):
            called = name if len(at) <= 2 else f"{name}:({pre}){end // pre}"
            parts.setdefault(name, []).append((pre, end, called))
            sizes.append(end // pre)
            names.append(called)
            types.append(kind)
    inside: Callable[[Any], tuple[Any, ...]] = lambda a: tuple(
        n for pre, end, n in parts[a.name] if a.pre <= pre and end <= a.end
    )
    return AbstractMesh(tuple(sizes), tuple(names), axis_types=tuple(types)), {a: inside(a) for a in axes}
