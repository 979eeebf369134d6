"""Values over several meshes in one program, some with Explicit axes: no operation takes two of them.

Types along Explicit axes name their mesh, and operations refuse operands of two (`meshrt.lowering.explicit`). What is
split along no Explicit axis has no mesh in its type, so here the program is followed from its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import Atom, Jaxpr, subjaxprs
from meshrt.sharding.mesh import AbstractMesh, AxisType

__all__ = ["check_apart"]


def check_apart(jaxpr: Jaxpr, meshes: Mapping[int, AbstractMesh]) -> None:
    """`meshes` are those that arguments of a program lie on, by position.

    Raises:
      ShardingTypeError: an operation takes values over two meshes, one of which has Explicit axes.
    """
    different = set(meshes.values())
    if len(different) > 1 and any(AxisType.Explicit in m.axis_types for m in different):
        _follow(jaxpr, [meshes.get(i) for i in range(len(jaxpr.invars))])


def _follow(jaxpr: Jaxpr, meshes: Sequence[AbstractMesh | None]) -> list[AbstractMesh | None]:
    """The meshes of the results of values over `meshes`; None where none is known: of constants, and of what an
    operation brings to a mesh that it names."""
    known: dict[Any, AbstractMesh | None] = dict(zip(jaxpr.invars, meshes))

    def mesh_of(atom: Atom) -> AbstractMesh | None:
        return known.get(atom)

    for eqn in jaxpr.eqns:
        operands = [mesh_of(a) for a in eqn.invars]
        inner = list(subjaxprs(eqn.params))
        if eqn.primitive.place is not None or len(inner) > 1 or (inner and len(inner[0].invars) != len(operands)):
            continue
        if inner:
            known.update(zip(eqn.outvars, _follow(inner[0], operands)))
            continue
        found = [m for m in operands if m is not None]
        other = next((m for m in found if m is not found[0]), None)
        if other is not None:
            raise errors.ShardingTypeError(
                f"Mesh for all inputs should be equal. Got one mesh: {found[0]} and another mesh: {other}. This is "
                f"{eqn.primitive.name} of {', '.join(a.aval.str_short() for a in eqn.invars)} at {eqn.source}. To go "
                "on, move one of the values to the other's mesh: meshrt.device_put(x, sharding) before the call, or "
                "meshrt.sharding.reshard(x, sharding) where its axes are Explicit"
            )
        known.update(dict.fromkeys(eqn.outvars, found[0] if found else None))
    return [mesh_of(a) for a in jaxpr.outvars]
