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

import contextlib
import functools
import gc
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from . import errors
from .model import Mesh

__all__ = [
    "Block",
    "Func",
    "Op",
    "OtherType",
    "Program",
    "TensorType",
    "Use",
    "Value",
    "context",
    "read",
    "source",
]

DYNAMIC = -(2**63)


class TensorType:
    """A ranked tensor type. `shape` holds -1 for a dynamic dimension; `dtype` is MLIR's element text (`f32`, `i1`,
    `complex<f32>`, ...). Equal types read by this module are the same object."""

    __slots__ = ("dtype", "is_static", "shape", "size", "text")
    is_tensor = True
    _table: dict[tuple, TensorType] = {}

    def __new__(cls, shape: Sequence[int], dtype: str, text: str | None = None) -> TensorType:
        key = (tuple(shape), dtype, text)
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            self.shape = key[0]
            self.dtype = dtype
            self.is_static = all(n >= 0 for n in key[0])
            self.size = math.prod(key[0]) if self.is_static else -1
            dims = "".join(f"{'?' if n < 0 else n}x" for n in key[0])
            self.text = text or f"tensor<{dims}{dtype}>"
            self = cls._table.setdefault(key, self)
        return self

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __reduce__(self):
        return TensorType, (self.shape, self.dtype)

    def __repr__(self) -> str:
        return self.text


class OtherType:
    """A type that is not a ranked tensor (token, tuple, ...). It has no shape to shard: `shape` is empty."""

    __slots__ = ("text",)
    is_tensor = False
    is_static = False
    shape: tuple[int, ...] = ()
    rank = 0
    size = 0
    dtype = ""

    def __init__(self, text: str):
        self.text = text

    def __eq__(self, other) -> bool:
        return isinstance(other, OtherType) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


class Use(NamedTuple):
    """Operand `number` of `op`."""

    op: Op
    number: int


class Value:
    """An SSA value: result `number` of the `Op` `owner`, or argument `number` of the `Block` `owner`.

    `uses` is in the order the uses were created (MLIR's use list from its back).
    """

    __slots__ = ("index", "number", "owner", "type", "uses")

    def __init__(self, index: int, type: TensorType | OtherType, owner: Op | Block, number: int):
        self.index = index
        self.type = type
        self.owner = owner
        self.number = number
        self.uses: list[Use] = []

    @property
    def is_argument(self) -> bool:
        return isinstance(self.owner, Block)

    @property
    def op(self) -> Op | None:
        """The defining operation; None for a block argument."""
        return None if isinstance(self.owner, Block) else self.owner

    def __repr__(self) -> str:
        what = "argument" if isinstance(self.owner, Block) else f"result of {self.owner.name}"
        return f"<%{self.index} {self.type.text}, {what} {self.number}>"


class Op:
    """An operation. `attrs` maps names to `ir.Attribute`. `data` holds decoded or derived facts of passes
    (`in_shardings`, `manual_axes`, `sharding_rule`, ...), None until one is stored."""

    __slots__ = ("_attrs", "_ir", "data", "name", "operands", "parent", "regions", "results")

    def __init__(self, name, operands, regions, ir_op=None, attrs=None):
        self.name: str = name
        self.operands: list[Value] = operands
        self.results: list[Value] = []
        self.regions: list[Block] = regions
        self.parent: Block | None = None
        self.data: dict | None = None
        self._ir = ir_op
        self._attrs = attrs

    @property
    def attrs(self) -> dict[str, ir.Attribute]:
        """All attributes, inherent and discardable, by name."""
        attrs = self._attrs
        if attrs is None:
            items = self._ir.attributes
            attrs = self._attrs = {} if not len(items) else dict(_items(items))
        return attrs

    def attr(self, name: str) -> ir.Attribute | None:
        """One attribute, without fetching the others; None if there is none of this name."""
        if self._attrs is not None:
            return self._attrs.get(name)
        attributes = self._ir.attributes
        return attributes[name] if name in attributes else None  # noqa: SIM401 (no get in older bindings)

    def has_attr(self, name: str) -> bool:
        """Whether there is an attribute `name`, without fetching the others."""
        if self._attrs is not None:
            return name in self._attrs
        return self._ir is not None and name in self._ir.attributes

    @property
    def result(self) -> Value:
        if len(self.results) != 1:
            raise ValueError(f"{self!r} has {len(self.results)} results, not one")
        return self.results[0]

    @property
    def loc(self) -> ir.Location | None:
        """The MLIR location; a synthetic operation has that of the operation it was made from."""
        return None if self._ir is None else self._ir.location

    @property
    def parent_op(self) -> Op | Func | None:
        return None if self.parent is None else self.parent.owner

    def set_operand(self, number: int, value: Value) -> None:
        """Replaces one operand; the use becomes the newest of `value`."""
        old = self.operands[number]
        old.uses.remove((self, number))
        self.operands[number] = value
        value.uses.append(Use(self, number))

    def walk(self) -> list[Op]:
        """This operation, then those in its regions, in program order."""
        out = [self]
        for block in self.regions:
            _collect(block, out)
        return out

    def __repr__(self) -> str:
        ins = ", ".join(f"%{v.index}" for v in self.operands)
        outs = ", ".join(f"%{v.index}: {v.type.text}" for v in self.results)
        return f"<{self.name}({ins}) -> ({outs})>"


def _items(attributes):
    # The newest bindings iterate over names and offer items(); older ones iterate over NamedAttributes.
    if hasattr(attributes, "items"):
        return attributes.items()
    return [(a.name, a.attr) for a in attributes]


class Block:
    """The single block of a region or function."""

    __slots__ = ("args", "ops", "owner")

    def __init__(self, owner: Op | Func | None = None):
        self.args: list[Value] = []
        self.ops: list[Op] = []
        self.owner = owner

    @property
    def terminator(self) -> Op:
        return self.ops[-1]

    def walk(self) -> list[Op]:
        """All operations, in program order, each before those in its regions."""
        out: list[Op] = []
        _collect(self, out)
        return out

    def walk_inside_out(self) -> list[Op]:
        """All operations, in program order, each behind those in its regions."""
        out: list[Op] = []
        _collect_inside_out(self, out)
        return out


def _collect(block: Block, out: list[Op]) -> None:
    for op in block.ops:
        out.append(op)
        for inner in op.regions:
            _collect(inner, out)


def _collect_inside_out(block: Block, out: list[Op]) -> None:
    for op in block.ops:
        for inner in op.regions:
            _collect_inside_out(inner, out)
        out.append(op)


class Func:
    """A `func.func`. `arg_attrs` and `result_attrs` hold one attribute dictionary per argument and result."""

    __slots__ = ("_ir", "arg_attrs", "attrs", "body", "name", "result_attrs", "result_types", "visibility")

    def __init__(self, name: str, visibility: str, body: Block, result_types):
        self.name = name
        self.visibility = visibility
        self.body = body
        self.result_types: list[TensorType | OtherType] = result_types
        self.attrs: dict[str, ir.Attribute] = {}
        self.arg_attrs: list[dict[str, ir.Attribute]] = []
        self.result_attrs: list[dict[str, ir.Attribute]] = []
        self._ir = None
        body.owner = self

    @property
    def args(self) -> list[Value]:
        return self.body.args

    @property
    def returned(self) -> list[Value]:
        """The values the function returns."""
        return self.body.terminator.operands

    @property
    def loc(self) -> ir.Location | None:
        return None if self._ir is None else self._ir.location

    def __repr__(self) -> str:
        return f"<func @{self.name}, {len(self.args)} arguments, {len(self.body.ops)} operations>"


@dataclass(slots=True, eq=False)
class Program:
    """A module. `values` lists every value by its index, `funcs` is in module order, `names` has the name of every
    operation that is or was in it (so that a pass can see that it has nothing to do)."""

    module: ir.Module
    attrs: dict[str, ir.Attribute]
    meshes: dict[str, Mesh]
    mesh_attrs: dict[str, dict[str, ir.Attribute]]
    funcs: dict[str, Func]
    values: list[Value]
    names: set[str]

    @property
    def main(self) -> Func:
        """The only function, else `@main`, else the only public one. Raises `UnsupportedModuleError`."""
        if len(self.funcs) == 1:
            return next(iter(self.funcs.values()))
        if "main" in self.funcs:
            return self.funcs["main"]
        public = [f for f in self.funcs.values() if f.visibility == "public"]
        if len(public) == 1:
            return public[0]
        raise errors.UnsupportedModuleError(
            f"the module has {len(self.funcs)} functions and none is @main; name the entry function main"
        )

    @property
    def context(self) -> ir.Context:
        return self.module.context

    def new_value(self, type: TensorType | OtherType, owner: Op | Block, number: int) -> Value:
        value = Value(len(self.values), type, owner, number)
        self.values.append(value)
        return value

    def new_op(self, name, operands, result_types, attrs=None, regions=(), like: Op | None = None) -> Op:
        """A new operation, not yet in a block. `like` lends its source location."""
        self.names.add(name)
        op = Op(name, list(operands), list(regions), like._ir if like is not None else None, dict(attrs or {}))
        for i, v in enumerate(op.operands):
            v.uses.append(Use(op, i))
        op.results = [self.new_value(t, op, i) for i, t in enumerate(result_types)]
        for block in op.regions:
            block.owner = op
        return op

    def clone(self, op: Op, mapping: dict[Value, Value]) -> Op:
        """A copy of `op` (regions included), with operands replaced through `mapping`; results are added to it."""
        operands = [mapping.get(v, v) for v in op.operands]
        new = self.new_op(op.name, operands, [v.type for v in op.results], op.attrs, (), op)
        new.data = None if op.data is None else dict(op.data)
        mapping.update(zip(op.results, new.results))
        for block in op.regions:
            new.regions.append(self.clone_block(block, mapping, new))
        return new

    def clone_block(self, block: Block, mapping: dict[Value, Value], owner: Op | Func) -> Block:
        copy = Block(owner)
        copy.args = [self.new_value(a.type, copy, i) for i, a in enumerate(block.args)]
        mapping.update(zip(block.args, copy.args))
        for op in block.ops:
            inner = self.clone(op, mapping)
            inner.parent = copy
            copy.ops.append(inner)
        return copy

    def ops(self) -> list[Op]:
        """All operations in program order, an operation before those in its regions."""
        out: list[Op] = []
        for func in self.funcs.values():
            _collect(func.body, out)
        return out

    def __repr__(self) -> str:
        count = len(self.ops())
        return f"<program of {len(self.funcs)} functions, {count} operations, meshes {', '.join(self.meshes) or '-'}>"


def replace_all_uses(old: Value, new: Value, where=None) -> None:
    """Redirects uses of `old` to `new`, newest use first as MLIR does (so their order in `new` is reversed).

    `where(use)` selects the uses to move.
    """
    kept, moved = [], []
    for use in reversed(old.uses):
        (moved if where is None or where(use) else kept).append(use)
    for op, number in moved:
        op.operands[number] = new
    if old is new:
        new.uses = kept[::-1] + moved
        return
    new.uses.extend(moved)
    old.uses = kept[::-1]


def erase(op: Op) -> None:
    """Drops the uses made by `op` and its regions. The caller removes it from its block's list."""
    for inner in op.walk():
        for i, v in enumerate(inner.operands):
            v.uses.remove((inner, i))
        inner.operands = []
    op.parent = None


class Edits:
    """Insertions and removals in blocks, collected first and applied in one sweep per block."""

    def __init__(self) -> None:
        self._before: dict[Op, list[Op]] = {}
        self._after: dict[Op, list[Op]] = {}
        self._first: dict[Block, list[Op]] = {}
        self._erased: set[Op] = set()
        self._blocks: dict[Block, None] = {}

    def _touch(self, block: Block, op: Op) -> None:
        self._blocks[block] = None
        op.parent = block

    def before(self, anchor: Op, op: Op) -> None:
        """`op` right before `anchor`, behind earlier insertions there."""
        self._touch(anchor.parent, op)
        self._before.setdefault(anchor, []).append(op)

    def after(self, anchor: Op, op: Op) -> None:
        """`op` right after `anchor`, in front of earlier insertions there."""
        self._touch(anchor.parent, op)
        self._after.setdefault(anchor, []).insert(0, op)

    def first(self, block: Block, op: Op) -> None:
        """`op` at the start of `block`, in front of earlier insertions there."""
        self._touch(block, op)
        self._first.setdefault(block, []).append(op)

    def erase(self, op: Op) -> None:
        self._blocks[op.parent] = None
        self._erased.add(op)

    def apply(self) -> None:
        """Rebuilds the touched blocks and drops the uses of erased operations."""
        touched = {*self._before, *self._after, *self._erased}
        for block in self._blocks:
            ops: list[Op] = []
            for op in (*reversed(self._first.get(block, ())), *block.ops):
                if op in touched:
                    self._place(op, ops)
                else:
                    ops.append(op)
            block.ops = ops
        for op in self._erased:
            erase(op)

    def _place(self, op: Op, ops: list[Op]) -> None:
        for other in self._before.get(op, ()):
            self._place(other, ops)
        if op not in self._erased:
            ops.append(op)
        for other in self._after.get(op, ()):
            self._place(other, ops)


@functools.lru_cache(maxsize=1)
def context() -> ir.Context:
    """The MLIR context in which text is parsed: StableHLO, CHLO, func, sdy and what jaxlib registers."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    c = ir.Context()
    c.append_dialect_registry(registry)
    c.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(c)
    c.enable_multithreading(False)
    c.allow_unregistered_dialects = True
    return c


def parse(module: str | bytes | ir.Module) -> ir.Module:
    """The `ir.Module` of text or bytecode; an `ir.Module` is returned as it is."""
    if isinstance(module, ir.Module):
        return module
    if not isinstance(module, str | bytes):
        raise errors.ModuleParseError(f"expected text, bytes or an ir.Module, got {type(module).__name__}")
    try:
        with context():
            return ir.Module.parse(module)
    except ir.MLIRError as e:
        raise errors.ModuleParseError(_first_line(e)) from None
    except (ValueError, UnicodeError) as e:
        raise errors.ModuleParseError(f"not a module: {' '.join(str(e).split())[:300]}") from None


def _first_line(error: ir.MLIRError) -> str:
    for d in error.error_diagnostics:
        where = re.sub(r"^loc\((.*)\)$", r"\1", str(d.location)).replace('"', "")
        return f"{where}: {' '.join(d.message.split())[:300]}"
    return " ".join(str(error).split())[:300]


def read(module: str | bytes | ir.Module) -> Program:
    """Reads StableHLO text, bytecode or an `ir.Module` into a `Program`. The module itself is not changed.

    Raises `ModuleParseError` for input that is not a module, and `UnsupportedModuleError` for regions with
    several blocks or values used before they are defined.
    """
    module = parse(module)
    with paused_collection():
        return _read(module)


@contextlib.contextmanager
def paused_collection():
    """Pauses Python's cyclic garbage collector: what is made here lives on, so looking through it finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read(module: ir.Module) -> Program:
    from .attributes import mesh_of  # attributes.py reads what this module stores

    operation = module.operation
    program = Program(module, dict(_items(operation.attributes)), {}, {}, {}, [], set())
    reader = _Reader(program)
    for view in module.body.operations:
        op = view.operation
        name = op.name
        if name == "func.func":
            reader.func(op)
        elif name == "sdy.mesh":
            attrs = dict(_items(op.attributes))
            symbol = ir.StringAttr(attrs.pop("sym_name")).value
            program.meshes[symbol] = mesh_of(attrs.pop("mesh"), symbol)
            program.mesh_attrs[symbol] = attrs
        else:
            raise errors.UnsupportedModuleError(
                f"{name} at the top of a module is not supported; only func.func and sdy.mesh are",
                location_text(op.location),
            )
    return program


class _Reader:
    """The walk of `read`. `known` maps MLIR values to ours, `types` MLIR types to ours."""

    __slots__ = ("known", "program", "types")

    def __init__(self, program: Program):
        self.program = program
        self.known: dict[ir.Value, Value] = {}
        self.types: dict[ir.Type, TensorType | OtherType] = {}

    def type(self, t: ir.Type) -> TensorType | OtherType:
        found = self.types.get(t)
        if found is None:
            if isinstance(t, ir.RankedTensorType):
                shape = [-1 if n == DYNAMIC else n for n in t.shape]
                text = str(t) if t.encoding is not None else None
                found = TensorType(shape, str(t.element_type), text)
            else:
                found = OtherType(str(t))
            self.types[t] = found
        return found

    def func(self, op: ir.Operation) -> None:
        attrs = dict(_items(op.attributes))
        name = ir.StringAttr(attrs.pop("sym_name")).value
        visibility = attrs.pop("sym_visibility", None)
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
            regions = [self.region(r, raw) for r in raw.regions] if len(raw.regions) else []
            try:
                operands = [known[v] for v in raw.operands]
            except KeyError:
                raise errors.UnsupportedModuleError(
                    f"{raw.name} uses a value before its definition", location_text(raw.location)
                ) from None
            name = raw.name
            names.add(name)
            op = Op(name, operands, regions, raw)
            op.parent = block
            for region in regions:
                region.owner = op
            for i, v in enumerate(operands):
                v.uses.append(Use(op, i))
            results = raw.results
            for i in range(len(results)):
                r = results[i]
                t = r.type
                known_type = types.get(t)
                value = Value(len(values), known_type or self.type(t), op, i)
                values.append(value)
                known[r] = value
                op.results.append(value)
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
            self.block(blocks[0], block)
        return block


def _attr_dicts(attr, count: int) -> list[dict[str, ir.Attribute]]:
    if attr is None:
        return [{} for _ in range(count)]
    out = []
    for d in ir.ArrayAttr(attr):
        d = ir.DictAttr(d)
        out.append({d[i].name: d[i].attr for i in range(len(d))})
    return out


def location_text(loc: ir.Location | None) -> str | None:
    """`file:line` of a location: the innermost frame that is a file; the name if there is none, else None."""
    if loc is None:
        return None
    if isinstance(loc, ir.FileLineColLoc):
        return f"{loc.filename.value if hasattr(loc.filename, 'value') else loc.filename}:{loc.start_line}"
    if isinstance(loc, ir.CallSiteLoc):
        return location_text(loc.callee) or location_text(loc.caller)
    if isinstance(loc, ir.NameLoc):
        return location_text(loc.child_loc) or loc.name_str
    if isinstance(loc, ir.FusedLoc):
        for part in loc.locations:
            found = location_text(part)
            if found:
                return found
    return None


def source(op: Op | Func) -> str | None:
    """Where the user wrote `op`: `file:line`, or None if the module does not say."""
    return location_text(op.loc)
