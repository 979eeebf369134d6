"""What GSPMD's annotations say, as shardings over one mesh."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from .attributes import string
from .errors import RankMismatchError, UnsupportedModuleError
from .graph import Op, OtherType, Program, TensorType
from .gspmd_mesh import Grid
from .gspmd_text import GspmdSharding, read_gspmd
from .locations import source
from .model import DimSharding, Mesh, TensorSharding

__all__ = ["ATTRIBUTE", "CONSTRAINT", "TO_FULL", "TO_SHARD", "Said", "Type", "place", "read_attribute", "target",
           "unspecified"]  # fmt: skip

ATTRIBUTE = "mhlo.sharding"
# The custom calls that are annotations.
CONSTRAINT, TO_SHARD, TO_FULL = "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"
REMEMBERED = 1000
_UNSPECIFIED = re.compile(r"unspecified_dims=\[([\d,\s]*)\]")
Type = TensorType | OtherType

_known: dict[bytes, GspmdSharding] = {}


def read_attribute(attr: ir.Attribute, where: str | None) -> GspmdSharding:
    """What an attribute `mhlo.sharding` says."""
    data = ir.StringAttr(attr).value_bytes
    found = _known.get(data)
    if found is None:
        if len(_known) > REMEMBERED:
            _known.clear()
        found = _known[data] = read_gspmd(data, where)
    return found


def place(op: Op) -> str:
    """Where an operation is, and which."""
    return f"{source(op) or '?'} ({target(op) or op.name})"


@dataclass(slots=True)
class Said:
    """What annotations say of values. `grid` is None for a program that says no number of devices: it runs on one."""

    program: Program
    grid: Grid | None

    def sharding(
        self, gspmd: GspmdSharding, kind: Type, where: str | None, free: frozenset[int] = frozenset()
    ) -> TensorSharding | None:
        """What `gspmd` says of a value of type `kind`, open in the dimensions `free`; None if it says nothing."""
        if self.grid is None or gspmd.kind in ("unknown", "manual"):
            return None
        rank = kind.rank if isinstance(kind, TensorType) else 0
        mesh = self.grid.mesh
        if gspmd.kind == "replicated":
            return TensorSharding(mesh, [DimSharding((), i in free) for i in range(rank)])
        if gspmd.kind == "maximal":
            assert gspmd.devices is not None, "the reader says which device"
            return TensorSharding(self._maximal(int(gspmd.devices[0])), ())
        if gspmd.kind != "tiled":
            raise UnsupportedModuleError(f"a value of type {kind!r} is sharded as a {gspmd.kind} one", where)
        if len(gspmd.tiles) != rank:
            raise RankMismatchError(
                f"the sharding tiles {len(gspmd.tiles)} dimensions, the value {kind!r} has {rank}; write one number "
                "for each dimension",
                where,
            )
        axes = self.grid.axes(gspmd, where)
        unreduced = [a for dim, name in zip(axes[rank:], gspmd.last) if name == "unreduced" for a in dim]
        dims = [DimSharding(dim, i in free) for i, dim in enumerate(axes[:rank])]
        return TensorSharding(mesh, dims, (), sorted(unreduced, key=mesh.sort_key))

    def manual_axes(self, gspmd: GspmdSharding, where: str | None) -> frozenset[str]:
        """The axes over which it says that devices have values of their own."""
        if self.grid is None:
            return frozenset()
        mesh = self.grid.mesh
        if gspmd.kind == "manual":
            return frozenset(mesh.axis_names)
        if gspmd.kind != "tiled":
            return frozenset()
        found = self.grid.axes(gspmd, where)[len(gspmd.tiles) :]
        axes = [a for dim, name in zip(found, gspmd.last) if name == "manual" for a in dim]
        if part := next((a for a in axes if not a.is_full(mesh)), None):
            raise UnsupportedModuleError(
                f"devices have values of their own over a part of the axis {part.name!r} of {mesh.to_text()}; "
                "name a mesh in which that is an axis",
                where,
            )
        return frozenset(a.name for a in axes)

    def open(self, kind: Type) -> TensorSharding:
        """Says nothing of a value of type `kind`."""
        assert self.grid is not None, "asked where another value is sharded"
        rank = kind.rank if isinstance(kind, TensorType) else 0
        return TensorSharding(self.grid.mesh, [DimSharding((), True)] * rank)

    def _maximal(self, device: int) -> Mesh:
        name = f"maximal_mesh_{device}"
        return self.program.meshes.setdefault(name, Mesh(name, (), (device,)))

    def attribute(self, sharding: TensorSharding) -> ir.Attribute:
        with self.program.context:
            return ir.Attribute.parse(sharding.to_text())

    def attributes(self, shardings: list[TensorSharding]) -> ir.Attribute:
        each = ", ".join(s.to_text().removeprefix("#sdy.sharding") for s in shardings)
        with self.program.context:
            return ir.Attribute.parse(f"#sdy.sharding_per_value<[{each}]>")


def target(op: Op) -> str | None:
    """What a custom call calls; None for another operation."""
    if op.name != "stablehlo.custom_call":
        return None
    name = op.attr("call_target_name")
    return None if name is None else string(name)


def unspecified(op: Op) -> frozenset[int]:
    """The dimensions of which an annotation says nothing."""
    config: Any = op.attr("backend_config")
    text = ir.StringAttr(config).value if config is not None and isinstance(config, ir.StringAttr) else ""
    found = _UNSPECIFIED.search(text)
    return frozenset(int(n) for n in found[1].split(",") if n.strip()) if found else frozenset()
