"""Reading `sdy` attributes: which shardings a module carries, and where.

>>> from .model import Mesh
>>> mesh = Mesh("m", (("a", 2), ("b", 4)))
>>> parse_sharding('#sdy.sharding<@m, [{"a", ?}, {"b":(2)2}p1], replicated={"b":(1)2}>', {"m": mesh}).dims[0].is_open
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from . import errors, sdy_text
from .cuts import is_cut
from .graph import Op, OtherType, Program, TensorType
from .locations import location_text, source
from .model import AxisRef, DimSharding, Mesh, TensorSharding
from .ops import SHARDING_ATTRIBUTE
from .sdy_text import AxisText, MeshText, ShardingText, axes_in, read_sharding
from .shardings import Place, Shardings

__all__ = [
    "ASKED",
    "WITH_IN_SHARDINGS",
    "inlined_mesh",
    "parse_sharding",
    "parse_shardings",
    "read_shardings",
    "sharding_on",
]

# The attributes of arguments and results of the entry function that say `Shardings.asked`: what was asked, and that
# nothing was.
ASKED = "propagation.asked"
DECIDED = "propagation.decided"
WITH_IN_SHARDINGS = ("sdy.manual_computation", "sdy.named_computation")


def inlined_mesh(meshes: dict[str, Mesh], axes: Iterable[tuple[str, int]], ids: Sequence[int] | None) -> Mesh:
    """The mesh written inside an attribute: one of `meshes` if one is equal, else a new one, added to them."""
    wanted = Mesh("mesh", axes, ids)
    for mesh in meshes.values():
        if mesh.layout == wanted.layout:
            return mesh
    base = "mesh"
    if wanted.is_maximal and wanted.device_ids is not None:
        base = f"maximal_mesh_{wanted.device_ids[0]}"
    elif wanted.is_empty:
        base = "empty_mesh"
    name, count = base, 0
    while name in meshes:
        name, count = f"{base}_{count}", count + 1
    meshes[name] = Mesh(name, axes, ids)
    return meshes[name]


def parse_sharding(text: str, meshes: dict[str, Mesh], where: str | None = None) -> TensorSharding:
    """`#sdy.sharding<...>` as a `TensorSharding`. Raises `UnknownMeshError`, `UnknownAxisError`, `ModuleParseError`."""
    return _on_mesh(read_sharding(text, where), meshes, where)


def parse_shardings(text: str, meshes: dict[str, Mesh], where: str | None = None) -> tuple[TensorSharding, ...]:
    """`#sdy.sharding_per_value<[...]>` or a single `#sdy.sharding<...>` as a tuple."""
    return tuple([_on_mesh(found, meshes, where) for found in sdy_text.read_shardings(text, where)])


def sharding_on(found: ShardingText, mesh: Mesh, where: str | None = None) -> TensorSharding:
    """What was read, over `mesh`, whichever mesh it names."""
    dims = [DimSharding(_axes(mesh, dim.axes), dim.is_open, dim.priority) for dim in found.dims]
    return TensorSharding(mesh, dims, _axes(mesh, found.replicated), _axes(mesh, found.unreduced), found.reduction)


def _on_mesh(found: ShardingText, meshes: dict[str, Mesh], where: str | None) -> TensorSharding:
    name = found.mesh
    if isinstance(name, MeshText):
        return sharding_on(found, inlined_mesh(meshes, *name), where)
    if name is None:
        raise errors.UnknownMeshError("the sharding names no mesh; write #sdy.sharding<@mesh, [...]>", where)
    if name not in meshes:
        known = ", ".join(f"@{m}" for m in meshes) or "none"
        raise errors.UnknownMeshError(f"mesh @{name} is not defined; the module has {known}", where)
    return sharding_on(found, meshes[name], where)


def _axes(mesh: Mesh, axes: Iterable[AxisText]) -> list[AxisRef]:
    return [mesh.axis(name) if size is None else AxisRef(mesh.axis(name).name, pre, size) for name, pre, size in axes]


class _Annotations:
    """Decodes attributes, each distinct one once."""

    def __init__(self, program: Program):
        self.meshes = program.meshes
        self.cache: dict[ir.Attribute, tuple[TensorSharding, ...]] = {}

    def decode(self, attr: ir.Attribute, where: str | None = None) -> tuple[TensorSharding, ...]:
        found = self.cache.get(attr)
        if found is None:
            found = self.cache[attr] = parse_shardings(str(attr), self.meshes, where)
        return found


def read_shardings(program: Program) -> Shardings:
    """The shardings that the module carries. Those of manual and named computations' operands go to
    `op.data["in_shardings"]`, manual axes to `op.data["manual_axes"]`, group numbers to `op.data["group"]`.

    Raises the errors of `propagation.errors` for shardings that do not fit.
    """
    shardings = Shardings(program)
    annotations = _Annotations(program)
    for func in program.funcs.values():
        where = location_text(func.loc)
        for value, attrs in zip(func.args, func.arg_attrs):
            if "sdy.sharding" in attrs:
                shardings.table[value.index] = annotations.decode(attrs["sdy.sharding"], where)[0]
            _read_asked(shardings, value, value.type, attrs, annotations, where)
        for number, (type, attrs) in enumerate(zip(func.result_types, func.result_attrs)):
            _read_asked(shardings, (func, number), type, attrs, annotations, where)
        shardings.results[func] = [
            annotations.decode(attrs["sdy.sharding"], where)[0] if "sdy.sharding" in attrs else None
            for attrs in func.result_attrs
        ]
    for op in program.ops():
        name = op.name
        if name in WITH_IN_SHARDINGS or name == "sdy.sharding_group":
            _read_special(op, annotations, shardings)
            continue
        key = SHARDING_ATTRIBUTE.get(name, "sdy.sharding")
        if not op.has_attr(key):
            continue
        values = annotations.decode(op._attrs[key] if op._attrs is not None else op._ir.attributes[key])
        for value, sharding in zip(op.results, values):
            shardings.table[value.index] = sharding
    return shardings


def _read_asked(
    shardings: Shardings, place: Place, type: TensorType | OtherType,
    attrs: Mapping[str, ir.Attribute], annotations: _Annotations, where: str | None,
) -> None:  # fmt: skip
    """What was asked for an argument or result, if what it is annotated with is what is left of that; else somebody has
    annotated it since. Of these attributes MLIR knows nothing, so that nobody has checked them."""
    if not (ASKED in attrs or DECIDED in attrs):
        return
    said = annotations.decode(attrs["sdy.sharding"], where)[0] if "sdy.sharding" in attrs else None
    if ASKED in attrs:
        asked = annotations.decode(attrs[ASKED], where)[0].check(type.rank, where)
        if said is not None and isinstance(type, TensorType) and is_cut(said, asked, type.shape):
            shardings.asked[place] = asked
    elif said is not None:
        shardings.asked[place] = TensorSharding.open_on(said.mesh, said.rank)


def _read_special(op: Op, annotations: _Annotations, shardings: Shardings) -> None:
    attrs = op.attrs
    op.data = {} if op.data is None else op.data
    if op.name == "sdy.sharding_group":
        op.data["group"] = ir.IntegerAttr(attrs["group_id"]).value
        return
    where = source(op)
    if "in_shardings" in attrs:
        op.data["in_shardings"] = list(annotations.decode(attrs["in_shardings"], where))
    else:
        op.data["in_shardings"] = [None] * len(op.operands)
    if "out_shardings" in attrs:
        for value, sharding in zip(op.results, annotations.decode(attrs["out_shardings"], where)):
            shardings.table[value.index] = sharding
    if op.name == "sdy.manual_computation":
        op.data["manual_axes"] = tuple([axis.name for axis in axes_in(str(attrs["manual_axes"]))])
    else:
        op.data["name"] = ir.StringAttr(attrs["name"]).value
