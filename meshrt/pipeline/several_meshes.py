"""Values over several meshes in one program, some with Explicit axes: no operation takes two of them, or one that is
not over the mesh in context.

Types along Explicit axes name their mesh, and operations refuse operands of two (`meshrt.lowering.explicit`). What is
split along no Explicit axis has no mesh in its type, so here the program is followed from its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, subjaxprs
from meshrt.pipeline.origins import Origin, said
from meshrt.sharding.mesh import AbstractMesh, AxisType

__all__ = ["check_apart"]


def check_apart(
    jaxpr: Jaxpr,
    meshes: Mapping[int, AbstractMesh],
    context: AbstractMesh | None,
    origins: Mapping[AbstractMesh, Origin],
) -> None:
    """`meshes` are those that arguments of a program lie on, by position; `context` is the mesh that it is traced
    under, if any, which operations that name no mesh are over; `origins` say where meshes come from, for errors.

    Raises:
      ShardingTypeError: an operation takes values over two meshes, one of which has Explicit axes.
      MeshMismatchError: likewise over another mesh than `context`.
    """
    different = {*meshes.values(), *(() if context is None else (context,))}
    if len(different) > 1 and any(AxisType.Explicit in m.axis_types for m in different):
        _follow(jaxpr, [meshes.get(i) for i in range(len(jaxpr.invars))], context, origins)


def _follow(
    jaxpr: Jaxpr,
    meshes: Sequence[AbstractMesh | None],
    context: AbstractMesh | None,
    origins: Mapping[AbstractMesh, Origin],
) -> list[AbstractMesh | None]:
    """The meshes of the results of values over `meshes`; None where none is known: of constants, and of what an
    operation brings to a mesh that it names."""
    known: dict[Any, AbstractMesh | None] = dict(zip(jaxpr.invars, meshes))

    def mesh_of(atom: Atom) -> AbstractMesh | None:
        return known.get(atom)

    for eqn in jaxpr.eqns:
        operands = [mesh_of(a) for a in eqn.invars]
        if eqn.primitive.place is not None:
            continue
        inner = _inside(eqn)
        if inner is None:
            continue
        if inner:
            found = [_follow(j, [operands[i] for i in places], context, origins) for j, places in inner]
            results = zip(*[f for f in found if len(f) == len(eqn.outvars)])
            known.update(zip(eqn.outvars, (next((m for m in of if m is not None), None) for of in results)))
            continue
        _check(eqn, operands, context, origins)
        known.update(dict.fromkeys(eqn.outvars, next((m for m in operands if m is not None), None)))
    return [mesh_of(a) for a in jaxpr.outvars]


def _inside(eqn: Eqn) -> Sequence[tuple[Jaxpr, Sequence[int]]] | None:
    """The programs inside of an operation, each with the places of the operands that it takes; None if those are not
    known."""
    if eqn.primitive.applies is not None:
        applied: Sequence[tuple[Jaxpr, Sequence[int]]] = eqn.primitive.applies(eqn.params)
        return applied
    inner = list(subjaxprs(eqn.params))
    if len(inner) > 1 or (inner and len(inner[0].invars) != len(eqn.invars)):
        return None
    return [(j, range(len(eqn.invars))) for j in inner]


def _check(
    eqn: Eqn,
    operands: Sequence[AbstractMesh | None],
    context: AbstractMesh | None,
    origins: Mapping[AbstractMesh, Origin],
) -> None:
    found = [(m, a) for m, a in zip(operands, eqn.invars) if m is not None]
    if not found:
        return
    expected = found[0][0] if context is None else context
    other = next(((m, a) for m, a in found if m is not expected), None)
    if other is None:
        return
    mesh, shape = other[0], other[1].aval.short()
    start = (
        f"Mesh for all inputs should be equal. Got one mesh: {expected} and another mesh: {mesh}"
        if context is None
        else f"For primitive {eqn.primitive.name}, context mesh {context} should match the aval mesh {mesh} for shape "
        f"{shape}"
    )
    from_where = " and ".join(said(origins[m]) for m in (expected, mesh) if m in origins)
    kind = errors.ShardingTypeError if context is None else errors.MeshMismatchError
    raise kind(
        f"{start}. This is {eqn.primitive.name} of {', '.join(a.aval.short() for a in eqn.invars)} at "
        f"{eqn.source}; the meshes are those of {from_where}. To go on, move one of the values to the other's mesh: "
        "meshrt.device_put(x, sharding) before the call, or meshrt.sharding.reshard(x, sharding) where its axes are "
        "Explicit"
    )
