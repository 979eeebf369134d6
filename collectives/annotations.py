"""The shardings of a module that carries them already: closed `sdy` text, whoever wrote it."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from propagation.attributes import symbol
from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding
from propagation.program import Op, Program, Value

from .module import used_axes

__all__ = ["Annotations"]


class Annotations:
    """Reads shardings off the attributes of a program's operations, arguments and results."""

    def __init__(self, program: Program):
        self.program = program
        self._decoded: dict = {}
        self._of: dict[Value, TensorSharding] = {}
        for func in program.funcs.values():
            for arg, attrs in zip(func.args, func.arg_attrs):
                if "sdy.sharding" in attrs:
                    self._of[arg] = self.decode(attrs["sdy.sharding"])
        for op in program.ops():
            self._read(op)

    def _read(self, op: Op) -> None:
        attrs = op.attrs
        for name in ("sdy.sharding", "out_shardings", "sharding", "out_sharding"):
            if name in attrs:
                found = self.decode_all(attrs[name], len(op.results))
                self._of.update(zip(op.results, found))
                break
        if op.name == "stablehlo.while":
            for block in op.regions:
                for arg, result in zip(block.args, op.results):
                    if result in self._of:
                        self._of[arg] = self._of[result]

    def decode_all(self, attr: ir.Attribute, count: int) -> list[TensorSharding]:
        if sdy.TensorShardingPerValueAttr.isinstance(attr):
            return [self.decode(a) for a in sdy.TensorShardingPerValueAttr(attr).shardings]
        return [self.decode(attr)] * count

    def decode(self, attr: ir.Attribute) -> TensorSharding:
        found = self._decoded.get(attr)
        if found is None:
            a = sdy.TensorShardingAttr(attr)
            mesh = self.program.meshes[symbol(a.mesh_or_ref)]
            dims = [
                DimSharding([_axis(mesh, x) for x in sdy.DimensionShardingAttr(d).axes]) for d in a.dimension_shardings
            ]
            unreduced = [_axis(mesh, x) for x in a.unreduced_axes]
            found = self._decoded[attr] = TensorSharding(mesh, dims, (), unreduced)
        return found

    def sharding(self, value: Value) -> TensorSharding | None:
        return self._of.get(value)

    def results(self) -> list[TensorSharding | None]:
        main = self.program.main
        out = []
        for v, attrs in zip(main.returned, main.result_attrs):
            out.append(self.decode(attrs["sdy.sharding"]) if "sdy.sharding" in attrs else self._of.get(v))
        return out

    def manual(self, op: Op):
        """(in_shardings, out_shardings) of a manual computation."""
        ins = self.decode_all(op.attrs["in_shardings"], len(op.operands))
        return ins, self.decode_all(op.attrs["out_shardings"], len(op.results))

    def manual_axes(self, op: Op) -> list[str]:
        return [ir.StringAttr(a).value for a in sdy.ManualAxesAttr(op.attrs["manual_axes"])]

    def used_axes(self) -> set[AxisRef]:
        return used_axes(self._decoded.values())


def _axis(mesh: Mesh, attr) -> AxisRef:
    a = sdy.AxisRefAttr(attr)
    info = a.sub_axis_info
    if info is None:
        return mesh.axis(a.name)
    info = sdy.SubAxisInfoAttr(info)
    return AxisRef(a.name, info.pre_size, info.size)
