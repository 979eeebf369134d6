"""Programs that each of several replicas runs, with collectives among them, as manual computations.

A partitioner's result, the modules of `pmap` and of replicated training in other frameworks say in `mhlo.num_replicas`
how many devices run them, each with values of its own, and have collectives over the numbers of these devices. That is
a manual computation over a mesh with one axis, the body of the entry function.
"""

from __future__ import annotations

import math

from jaxlib.mlir import ir

from .attributes import integer
from .edits import replace_all_uses
from .graph import Block, Op, OtherType, Program, TensorType
from .model import DimSharding, Mesh, TensorSharding
from .ops import COMMUNICATING, SHARDING_ATTRIBUTE
from .quoting import quote

__all__ = ["AXIS", "import_replicas", "replicas_of"]

AXIS = "replica"


def import_replicas(program: Program, asked: Mesh | None = None) -> None:
    """Makes the entry function of a program for several replicas a manual computation, if they communicate. `asked` is
    the mesh whose devices the replicas are (default: one axis `replica`). Modules for several partitions, and those
    that say shardings, are left as they are: there replicas are no devices of a mesh."""
    count = _number(program, "mhlo.num_replicas")
    if count < 2 or _number(program, "mhlo.num_partitions") > 1 or program.names.isdisjoint(COMMUNICATING):
        return
    if any(mesh.axes for mesh in program.meshes.values()) or _says_shardings(program):
        return
    mesh = asked if asked is not None and math.prod(n for _, n in asked.axes) == count else None
    if mesh is None:
        mesh = Mesh(_free_name(program), ((AXIS, count),))
    program.meshes[mesh.name] = mesh
    _enclose(program, mesh)


def replicas_of(program: Program) -> int | None:
    """How many replicas run a program that was read as theirs; None for any other."""
    if _number(program, "mhlo.num_replicas") < 2:  # a mesh of its own may have an axis of that name
        return None
    first = program.main.body.ops[0]
    if first.name != "sdy.manual_computation" or len(first.operands) != len(program.main.args):
        return None
    return next((mesh.axes[0][1] for mesh in program.meshes.values() if mesh.axis_names == (AXIS,)), None)


def _number(program: Program, name: str) -> int:
    found = program.attrs.get(name)
    return 1 if found is None or not isinstance(found, ir.IntegerAttr) else integer(found)


def _says_shardings(program: Program) -> bool:
    """Whether an argument, a result or an operation of it is annotated, or it has manual computations already."""
    own = (attrs for func in program.funcs.values() for attrs in (*func.arg_attrs, *func.result_attrs))
    return (
        any("sdy.sharding" in attrs for attrs in own)
        or "sdy.manual_computation" in program.names
        or any(op.has_attr(SHARDING_ATTRIBUTE.get(op.name, "sdy.sharding")) for op in program.ops())
    )


def _free_name(program: Program) -> str:
    name, number = "replicas", 0
    while name in program.meshes or name in program.funcs:
        name, number = f"replicas_{number}", number + 1
    return name


def _enclose(program: Program, mesh: Mesh) -> None:
    """Puts the operations of the entry function into a manual computation over all of `mesh`."""
    main = program.main
    outer, body = main.body, Block()
    body.ops, end = outer.ops[:-1], outer.terminator
    for value in main.args:
        inner = program.new_value(value.type, body, value.number)
        body.args.append(inner)
        replace_all_uses(value, inner)
    body.ops.append(program.new_op("sdy.return", end.operands, (), like=end))
    for op in body.ops:
        op.parent = body
    with program.context:
        attrs = {
            "in_shardings": _per_value([_whole(mesh, v.type) for v in main.args]),
            "out_shardings": _per_value([_whole(mesh, kind) for kind in main.result_types]),
            "manual_axes": ir.Attribute.parse(f"#sdy<manual_axes{{{', '.join(map(quote, mesh.axis_names))}}}>"),
        }
    manual = program.new_op("sdy.manual_computation", main.args, main.result_types, attrs, [body])
    manual.parent = outer
    outer.ops = [manual, end]
    _return(end, manual)


def _whole(mesh: Mesh, kind: TensorType | OtherType) -> TensorSharding:
    return TensorSharding(mesh, [DimSharding()] * (kind.rank if isinstance(kind, TensorType) else 0))


def _return(end: Op, manual: Op) -> None:
    for number, result in enumerate(manual.results):
        end.set_operand(number, result)


def _per_value(shardings: list[TensorSharding]) -> ir.Attribute:
    each = ", ".join(s.to_text().removeprefix("#sdy.sharding") for s in shardings)
    return ir.Attribute.parse(f"#sdy.sharding_per_value<[{each}]>")
