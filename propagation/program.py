"""A module as plain Python objects, read once through MLIR's bindings.

`read` walks a StableHLO module once and keeps what propagation and partitioning ask for: operations, values
with a running index (so that facts about values live in lists), uses, tensor types, blocks, functions, meshes.
Attributes stay MLIR attributes and are fetched from an operation when first asked for.

>>> p = read('''func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
...   %0 = stablehlo.add %x, %x : tensor<4xf32>
...   return %0 : tensor<4xf32> }''')
>>> add = p.main.body.ops[0]
>>> add.name, add.results[0].type.shape, [u.op.name for u in add.results[0].uses]
('stablehlo.add', (4,), ['func.return'])
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from . import errors, limits
from .attributes import cache_for, mesh_of
from .edits import Edits, erase, replace_all_uses
from .functions import check_calls
from .gc_pause import collector_paused
from .graph import Block, Func, Op, OtherType, Program, TensorType, Use, Value, attribute_items
from .gspmd import import_gspmd
from .locations import argument_names, location_text, scope, source
from .model import Mesh
from .parsing import parse, utf8_errors
from .replicas import import_replicas

__all__ = [
    "Block",
    "Edits",
    "Func",
    "Op",
    "OtherType",
    "Program",
    "TensorType",
    "Use",
    "Value",
    "argument_names",
    "erase",
    "location_text",
    "read",
    "replace_all_uses",
    "scope",
    "source",
]

DYNAMIC = -(2**63)


def read(module: str | bytes | ir.Module, file: str | None = None, gspmd_mesh: Mesh | None = None) -> Program:
    """Reads StableHLO text, bytecode or an `ir.Module` into a `Program`. The module itself is not changed. `file` is
    the file that a text was read from: operations without a location have their place in it rather than in "-".
    Annotations of GSPMD are read as those of Shardy over `gspmd_mesh` (default: the mesh that is behind them), and
    replicas that communicate as the devices of that mesh (default: of one axis `replica`).

    Raises `ModuleParseError` for input that is not a module, `UnsupportedModuleError` for regions with several blocks
    or values used before they are defined, and for annotations that do not fit the errors that `propagation.run` names.

    >>> import propagation
    >>> text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    >>> len(propagation.read(text).main.args)
    1
    """
    module = parse(module, file=file)
    with collector_paused(), utf8_errors():
        return _read(module, gspmd_mesh)


def _read(module: ir.Module, gspmd_mesh: Mesh | None) -> Program:
    cache_for(module.context)
    attrs = dict(attribute_items(module.operation.attributes))
    program = Program(module.context, lambda: module, attrs, {}, {}, {}, [], set())
    reader = _Reader(program)
    for view in module.body.operations:
        op = view.operation
        name = op.name
        if name == "func.func":
            reader.func(op)
        elif name == "sdy.mesh":
            add_mesh(program, op)
        else:
            raise errors.UnsupportedModuleError(
                f"{name} at the top of a module is not supported; only func.func and sdy.mesh are",
                location_text(op.location),
            )
    check_calls(program)
    import_gspmd(program, gspmd_mesh)
    import_replicas(program, gspmd_mesh)
    return program


def add_mesh(program: Program, op: ir.Operation) -> None:
    """Adds the mesh that an `sdy.mesh` operation defines."""
    attrs = dict(attribute_items(op.attributes))
    symbol = ir.StringAttr(attrs.pop("sym_name")).value
    program.meshes[symbol] = mesh_of(attrs.pop("mesh"), symbol)
    program.mesh_attrs[symbol] = attrs


def type_of(t: ir.Type) -> TensorType | OtherType:
    """Our type for one of MLIR's."""
    if not isinstance(t, ir.RankedTensorType):
        return OtherType(str(t))
    shape = [-1 if n == DYNAMIC else n for n in t.shape]
    if len(shape) > limits.MAX_RANK:
        raise errors.LimitError(f"a tensor has {len(shape)} dimensions; at most {limits.MAX_RANK} are read")
    return TensorType(shape, str(t.element_type), str(t) if t.encoding is not None else None)


class _Reader:
    """The walk of `read`. `known` maps MLIR values to ours, `types` MLIR types to ours, `depth` counts the regions
    around."""

    __slots__ = ("depth", "known", "program", "types")

    def __init__(self, program: Program):
        self.program = program
        self.depth = 0
        self.known: dict[Any, Value] = {}
        self.types: dict[ir.Type, TensorType | OtherType] = {}

    def type(self, t: ir.Type) -> TensorType | OtherType:
        found = self.types.get(t)
        if found is None:
            found = self.types[t] = type_of(t)
        return found

    def func(self, op: ir.Operation) -> None:
        attrs = dict(attribute_items(op.attributes))
        name = ir.StringAttr(attrs.pop("sym_name")).value
        visibility = attrs.get("sym_visibility")
        ftype = ir.FunctionType(ir.TypeAttr(attrs.pop("function_type")).value)
        blocks = list(op.regions[0].blocks)
        if len(blocks) != 1:
            raise errors.UnsupportedModuleError(
                f"function @{name} has {len(blocks)} blocks; only functions with one block are supported",
                location_text(op.location),
            )
        func = Func(
            name,
            "public" if visibility is None else ir.StringAttr(visibility).value,
            Block(),
            [self.type(t) for t in ftype.results],
        )
        func.arg_attrs = _attr_dicts(attrs.pop("arg_attrs", None), len(ftype.inputs))
        func.result_attrs = _attr_dicts(attrs.pop("res_attrs", None), len(ftype.results))
        func.attrs, func._ir = attrs, op
        self.program.funcs[name] = func
        self.block(blocks[0], func.body)

    def block(self, source: ir.Block, block: Block) -> None:
        known, program, values, types = self.known, self.program, self.program.values, self.types
        names = program.names
        for i, arg in enumerate(source.arguments):
            known[arg] = value = program.new_value(self.type(arg.type), block, i)
            block.args.append(value)
        ops = block.ops
        for view in source.operations:
            raw = view.operation
            regions = [self.region(r, raw) for r in raw.regions] if len(raw.regions) else ()
            try:
                operands = tuple([known[v] for v in raw.operands])
            except KeyError:
                raise errors.UnsupportedModuleError(
                    f"{raw.name} uses a value before its definition", location_text(raw.location)
                ) from None
            name = raw.name
            names.add(name)
            op = Op(name, operands, regions, raw)
            op.link(block)
            made: list[Value] = []
            for r in raw.results:
                t = r.type
                value = Value(len(values), types.get(t) or self.type(t), op, len(made))
                values.append(value)
                known[r] = value
                made.append(value)
            op.results = tuple(made)
            ops.append(op)

    def region(self, region: ir.Region, raw: ir.Operation) -> Block:
        blocks = list(region.blocks)
        if len(blocks) > 1:
            raise errors.UnsupportedModuleError(
                f"{raw.name} has a region with {len(blocks)} blocks; control flow between blocks is not supported",
                location_text(raw.location),
            )
        block = Block()
        if blocks:
            self.depth += 1
            if self.depth > limits.MAX_DEPTH:
                raise errors.LimitError(
                    f"regions are nested more than {limits.MAX_DEPTH} deep", location_text(raw.location)
                )
            self.block(blocks[0], block)
            self.depth -= 1
        return block


def _attr_dicts(attr: ir.Attribute | None, count: int) -> list[dict[str, ir.Attribute]]:
    if attr is None:
        return [{} for _ in range(count)]
    out = []
    for d in ir.ArrayAttr(attr):
        d = ir.DictAttr(d)
        out.append({d[i].name: d[i].attr for i in range(len(d))})
    return out
