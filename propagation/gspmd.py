"""GSPMD's annotations made Shardy's: older JAX, PyTorch/XLA and TensorFlow write them.

An attribute `mhlo.sharding` on an argument, a result or an operation becomes `sdy.sharding` over the mesh that is
behind all of them (`gspmd_mesh.py`); a custom call `Sharding` becomes a constraint, open in its `unspecified_dims`;
values that are sharded alike become a group; what stands between `SPMDFullToShardShape` and `SPMDShardToFullShape`
becomes a manual computation (`gspmd_manual.py`). What cannot be said so is an error that names the operation and its
line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from .edits import Edits, replace_all_uses
from .errors import UnsupportedModuleError
from .graph import Func, Op, OtherType, Program
from .gspmd_manual import make_manual
from .gspmd_mesh import Grid, mesh_behind
from .gspmd_shardings import ATTRIBUTE, CONSTRAINT, Said, Type, place, read_attribute, target, unspecified
from .gspmd_text import GspmdSharding
from .locations import location_text
from .model import Mesh
from .ops import SHARDING_ATTRIBUTE

__all__ = ["import_gspmd"]


def import_gspmd(program: Program, asked: Mesh | None = None) -> None:
    """Turns the GSPMD annotations of `program`, if it has any, into those of the sdy dialect. `asked` is the mesh over
    which they shall be said. Raises `ModuleParseError`, `UnsupportedModuleError` or `RankMismatchError`."""
    found = list(_annotations(program))
    if not found:
        return
    tilings = [(s, where) for whole, where in found for s in whole.walk() if s.kind == "tiled"]
    count = program.attrs.get("mhlo.num_partitions")
    devices = None if count is None else ir.IntegerAttr(count).value
    grid = _named(program, mesh_behind(tilings, program.meshes.values(), asked, devices))
    said = Said(program, grid)
    make_manual(program, said)
    _Import(program, said).run()


def _annotations(program: Program) -> Iterator[tuple[GspmdSharding, str | None]]:
    """Every annotation, with its place."""
    for func in program.funcs.values():
        for attrs in (*func.arg_attrs, *func.result_attrs):
            if ATTRIBUTE in attrs:
                where = location_text(func.loc)
                yield read_attribute(attrs[ATTRIBUTE], where), where
    for op in program.ops():
        if op.has_attr(ATTRIBUTE):
            where = place(op)
            yield read_attribute(op.attrs[ATTRIBUTE], where), where


def _named(program: Program, grid: Grid | None) -> Grid | None:
    """The grid, its mesh under a name that is free in the program, to which it is added."""
    if grid is None or any(mesh is grid.mesh for mesh in program.meshes.values()):
        return grid
    base, taken, count = grid.mesh.name, {*program.meshes, *program.funcs}, 0
    name = base
    while name in taken:
        name, count = f"{base}_{count}", count + 1
    mesh = program.meshes[name] = Mesh(name, grid.mesh.axes, grid.mesh.device_ids)
    return Grid(mesh, grid.places)


@dataclass(slots=True)
class _Import:
    """Annotations one by one, once manual computations are made."""

    program: Program
    said: Said
    edits: Edits = field(default_factory=Edits)

    def run(self) -> None:
        for func in self.program.funcs.values():
            self._boundary(func)
        for op in self.program.ops():
            if op.has_attr(ATTRIBUTE):
                self._operation(op)
        self.edits.apply()

    def _boundary(self, func: Func) -> None:
        where = location_text(func.loc)
        returned: list[Type] = list(func.result_types)
        arguments: list[Type] = [a.type for a in func.args]
        for types, dicts in ((arguments, func.arg_attrs), (returned, func.result_attrs)):
            for kind, attrs in zip(types, dicts):
                if ATTRIBUTE in attrs:
                    sharding = self.said.sharding(read_attribute(attrs.pop(ATTRIBUTE), where), kind, where)
                    if sharding is not None:
                        attrs["sdy.sharding"] = self.said.attribute(sharding)

    def _operation(self, op: Op) -> None:
        where = place(op)
        attr = op.attrs.pop(ATTRIBUTE)
        gspmd = read_attribute(attr, where)
        if target(op) == CONSTRAINT:
            self._constraint(op, gspmd, where)
            return
        each = gspmd.elements if gspmd.kind == "tuple" else (gspmd,) * max(len(op.results), 1)
        if len(each) != max(len(op.results), gspmd.kind != "tuple"):
            raise UnsupportedModuleError(f"{len(each)} shardings for {len(op.results)} results", where)
        types: list[Type] = [r.type for r in op.results] or [OtherType("none")] * len(each)
        found = [self.said.sharding(s, t, where) for s, t in zip(each, types)]
        if any(s is not None for s in found):
            whole = [s or self.said.open(t) for s, t in zip(found, types)]
            op.attrs[SHARDING_ATTRIBUTE.get(op.name, "sdy.sharding")] = self.said.attributes(whole)

    def _constraint(self, op: Op, gspmd: GspmdSharding, where: str) -> None:
        sharding = self.said.sharding(gspmd, op.result.type, where, unspecified(op))
        if gspmd.group is not None:
            self._group(op, gspmd.group[1])
        if sharding is None or not (sharding.dims or sharding.mesh.is_maximal):
            replace_all_uses(op.result, op.operands[0])
            self.edits.erase(op)
            return
        op.name, op._attrs = "sdy.sharding_constraint", {"sharding": self.said.attribute(sharding)}
        self.program.names.add(op.name)

    def _group(self, op: Op, number: int) -> None:
        with self.program.context:
            group = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        made = self.program.new_op("sdy.sharding_group", (op.operands[0],), (), {"group_id": group}, like=op)
        self.edits.before(op, made)
