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
import gc
import os
import re
import threading

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from . import bytecode, errors, limits
from .attributes import cache_for, mesh_of
from .edits import Edits, erase, replace_all_uses
from .graph import Block, Func, Op, OtherType, Program, TensorType, Use, Value, attribute_items
from .locations import argument_names, location_text, source

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
    "context",
    "erase",
    "location_text",
    "note_read",
    "parse",
    "paused_collection",
    "read",
    "replace_all_uses",
    "source",
    "utf8_errors",
]

DYNAMIC = -(2**63)


# MLIR keeps every attribute that a context has seen, constants too, until the context goes. What was read into one may
# add up to this much before the next module gets a new one; programs keep the one that they were read in.
CONTEXT_BYTES, CONTEXT_MODULES = 64 << 20, 1000


class _Shared:
    """The context that modules are read into, with what was."""

    def __init__(self) -> None:
        self.context: ir.Context | None = None
        self.bytes = self.modules = 0
        self.lock = threading.Lock()


_shared = _Shared()


def context(size: int | None = None) -> ir.Context:
    """The MLIR context in which text is parsed: StableHLO, CHLO, func, sdy and what jaxlib registers. With a `size`,
    the one for a module of so many bytes more: a new one if enough was read into the last."""
    with _shared.lock:
        is_full = _shared.bytes >= CONTEXT_BYTES or _shared.modules >= CONTEXT_MODULES
        if _shared.context is None or (is_full and size is not None):
            _shared.context, _shared.bytes, _shared.modules = _new_context(), 0, 0
        if size is not None:
            _shared.bytes += size
            _shared.modules += 1
        return _shared.context


def note_read(size: int) -> None:
    """So many bytes more were read into the last context."""
    with _shared.lock:
        _shared.bytes += size


def _new_context() -> ir.Context:
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


def parse(
    module: str | bytes | ir.Module, trusted: bool = False, file: str | None = None, into: ir.Context | None = None
) -> ir.Module:
    """The `ir.Module` of text or bytecode; an `ir.Module` is returned as it is.

    Text is checked against the limits of `propagation.limits` first, bytecode is turned into text by a child process,
    because MLIR's readers end the process on some malformed input. `trusted` input goes to MLIR at once. `file` is the
    file that text was read from: MLIR reads it again, so that operations without a location have their place in it.
    `into` is the context (default: `context`).
    """
    if isinstance(module, ir.Module):
        return module
    if not isinstance(module, str | bytes):
        raise errors.ModuleParseError(f"expected text, bytes or an ir.Module, got {type(module).__name__}")
    is_bytecode = isinstance(module, bytes) and module.startswith(bytecode.MAGIC)
    if not trusted:
        if is_bytecode:
            if len(module) > limits.MAX_BYTES:
                raise errors.LimitError(f"{len(module):,} bytes of bytecode; at most {limits.MAX_BYTES:,} are read")
            module = bytecode.to_text(module)
        limits.check_text(module)
    try:
        with into if into is not None else context(len(module)):
            can_reread = not is_bytecode and file is not None and os.path.isfile(file)
            parsed = ir.Module.parseFile(file) if can_reread else ir.Module.parse(module)
            return _from_portable(parsed, module)
    except ir.MLIRError as e:
        raise _typed(e) from None
    except (ValueError, UnicodeError, MemoryError) as e:
        raise errors.ModuleParseError(f"not a module: {' '.join(str(e).split())[:300]}") from None


def _from_portable(parsed: ir.Module, data: str | bytes) -> ir.Module:
    """StableHLO from a portable artifact (VHLO, what exporters write); any other module as it is."""
    if not any(op.operation.name.startswith("vhlo.") for op in parsed.body.operations):
        return parsed
    if isinstance(data, str):
        raise errors.ModuleParseError("a portable artifact (VHLO) must be given as the bytes of its file, not as text")
    return stablehlo.deserialize_portable_artifact(parsed.context, data)


# What the verifier of the sdy dialect says, the error that it is, and what to do about it.
_VERIFIER = (
    (r"unknown axis name", errors.UnknownAxisError, "use an axis of the sharding's mesh"),
    (r"unknown mesh", errors.UnknownMeshError, "define it with sdy.mesh"),
    (r"duplicate axis", errors.AxisReuseError, "an axis may be used once"),
    (
        r"both sub-axis and full-axis|overlapping sub-axes",
        errors.OverlappingAxesError,
        "use disjoint parts of the axis",
    ),
    (r"consecutive sub-axes can be merged", errors.OverlappingAxesError, "write them as one"),
    (r"sub-axis", errors.SubAxisError, "(pre)size needs pre*size to divide the axis size, and size to be smaller"),
    (r"tensor rank|doesn't match.*rank", errors.RankMismatchError, "write one {...} per dimension"),
    (
        r"mapping rank|op_sharding_rule|factor",
        errors.BadRuleError,
        "the rule must fit the operation's operands and results",
    ),
)


def _typed(error: ir.MLIRError) -> errors.PropagationError:
    """MLIR's first message as one of our errors."""
    where, message = None, " ".join(str(error).split())[:300]
    for d in error.error_diagnostics:
        where = re.sub(r"^loc\((.*)\)$", r"\1", str(d.location)).replace('"', "")
        message = " ".join(d.message.split())[:300]
        break
    for pattern, kind, fix in _VERIFIER:
        if re.search(pattern, message):
            return kind(f"{message}; {fix}", where)
    return errors.ModuleParseError(message, where)


def read(module: str | bytes | ir.Module, file: str | None = None) -> Program:
    """Reads StableHLO text, bytecode or an `ir.Module` into a `Program`. The module itself is not changed. `file` is
    the file that a text was read from: operations without a location have their place in it rather than in "-".

    Raises `ModuleParseError` for input that is not a module, and `UnsupportedModuleError` for regions with
    several blocks or values used before they are defined.
    """
    module = parse(module, file=file)
    with paused_collection(), utf8_errors():
        return _read(module)


@contextlib.contextmanager
def utf8_errors():
    """What MLIR's bindings raise for text that is not UTF-8 as a `ModuleParseError`. Attributes are read when first
    asked for, so this is around every pass, not only around `read`."""
    try:
        yield
    except (UnicodeDecodeError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and "conversion error" not in str(e):
            raise
        raise errors.ModuleParseError("a name or text in the module is not UTF-8") from None


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
            read_mesh(program, op)
        else:
            raise errors.UnsupportedModuleError(
                f"{name} at the top of a module is not supported; only func.func and sdy.mesh are",
                location_text(op.location),
            )
    limits.check_calls(program)
    return program


def read_mesh(program: Program, op: ir.Operation) -> None:
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
        self.known: dict[ir.Value, Value] = {}
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
            made = []
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


def _attr_dicts(attr, count: int) -> list[dict[str, ir.Attribute]]:
    if attr is None:
        return [{} for _ in range(count)]
    out = []
    for d in ir.ArrayAttr(attr):
        d = ir.DictAttr(d)
        out.append({d[i].name: d[i].attr for i in range(len(d))})
    return out
