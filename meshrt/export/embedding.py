"""An exported module as functions of the program that calls it.

Where all sizes and the platform are known, the module is specialised for them first, so that what is embedded is as
static as the program around it; else it stays as it was exported, and the values at its boundary are converted.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from meshrt import errors
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.core.types import ShapedArray
from meshrt.export.record import Record
from meshrt.export.regions import has_regions, specialised
from meshrt.export.shardings import ShardingTexts
from meshrt.heuristics import EXPORTED_CALLS
from meshrt.lowering.context import ModuleLowering
from meshrt.lowering.legalize import operations
from meshrt.lowering.types import check_size, mlir_type
from meshrt.sharding.mesh import AbstractMesh
from meshrt.xla import jaxlib_api, jaxlib_executables
from propagation.asm import Body, Ref
from propagation.graph import attribute_of

__all__ = ["Embedded", "Embedding", "calls_of", "check_calls", "specialised_for"]

_INNER = "_exported_main"
# What the boundary of a program says, and a function inside of one does not.
_OF_BOUNDARIES = ("jax.", "tf.", "mhlo.")


@dataclass(frozen=True)
class Embedded:
    """A function of the program: its symbol and types. `index_of` are the platforms' places if it takes an index."""

    name: str
    arg_types: tuple[str, ...]
    result_types: tuple[str, ...]
    index_of: tuple[int, ...] | None


class Embedding:
    """Puts an exported function into a program; into one program once for equal types."""

    def __init__(self, lowering: ModuleLowering, exported: Record, mesh: AbstractMesh | None):
        """`mesh`: what the call is over, of the axes of the program those that are not Manual there."""
        self.lowering, self.exported, self.mesh = lowering, exported, mesh

    def symbol(self, args: Sequence[ShapedArray], outs: Sequence[ShapedArray], places: Sequence[int]) -> Embedded:
        """The function for arguments (those that the module takes) and results of these types, on the platforms that
        have these places."""
        key = (self.exported, self.mesh, tuple(args), tuple(places))
        found: Embedded | None = self.lowering.embedded.get(key)
        if found is None:
            found = self.lowering.embedded[key] = self._embed(args, outs, places)
        return found

    def _embed(self, args: Sequence[ShapedArray], outs: Sequence[ShapedArray], places: Sequence[int]) -> Embedded:
        exported = self.exported
        self.lowering.has_global_constants |= exported.uses_global_constants
        module = exported.mlir_module(serialized=False)
        has_index = len(exported.platforms) > 1
        is_known = len(places) == 1 and not any(is_symbolic_shape(a.shape) for a in (*args, *outs))
        if exported.uses_global_constants and is_known:
            module = specialised_for(exported, module, args, outs, places[0] if has_index else None)
            has_index = False
        copy = _Copy(self.lowering, module, ShardingTexts(self.lowering, exported.split_mesh, self.mesh))
        name, arg_types, result_types = copy.run(f"call_exported_{exported.fun_name}")
        return Embedded(name, arg_types, result_types, tuple(places) if has_index else None)


def specialised_for(
    exported: Record, module: ir.Module, args: Sequence[ShapedArray], outs: Sequence[ShapedArray], index: int | None
) -> ir.Module:
    """The exported module for arguments and results of these types, and the platform of this index.

    Raises:
      ArgumentValueError: the sizes do not fit the program.
      SavedProgramError: its functions call each other without end.
    """
    check_calls(calls_of(module))
    if any(op.name == "stablehlo.composite" for op in operations(module)):
        # What specialises knows calls of functions, and leaves decompositions as they are.
        module = jaxlib_api.expanded(module, "composite")

    def entry(module: ir.Module) -> str:
        with module.context, ir.Location.unknown():
            main = _function(module, "main")
            inner = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
            ir.SymbolTable(module.operation).set_symbol_name(main, _INNER)
            main.attributes["sym_visibility"] = ir.StringAttr.get("private")
            text = _caller(inner, [mlir_type(a) for a in args], [mlir_type(a) for a in outs], index)
            wrapper = ir.Module.parse(text)
            made = next(op for op in wrapper.body.operations if _name(op) == "main")
            module.body.append(made.detach_from_parent())
            return str(module.operation.get_asm(enable_debug_info=True))

    try:
        if has_regions(module):
            return specialised(str(module.operation.get_asm(enable_debug_info=True)), entry)
        return jaxlib_api.parse(jaxlib_executables.refined_shapes(entry(module)))
    except jaxlib_api.XlaError as e:
        raise errors.ArgumentValueError(
            f"the exported function {exported.fun_name} cannot be called with arguments of types "
            f"{', '.join(a.short() for a in args)}: {e}"
        ) from None


def _caller(inner: ir.FunctionType, args: Sequence[str], outs: Sequence[str], index: int | None) -> str:
    """A `@main` of known types that calls the exported one."""
    ins, results = [str(t) for t in inner.inputs], [str(t) for t in inner.results]
    lines, names = [], []
    if index is not None:
        lines.append(f"%index = stablehlo.constant dense<{index}> : {ins[0]}")
        names.append("%index")
    for k, (given, wanted) in enumerate(zip(args, ins[len(names) :], strict=True)):
        name = f"%arg{k}"
        if given != wanted:
            lines.append(f"%in{k} = stablehlo.convert {name} : ({given}) -> {wanted}")
            name = f"%in{k}"
        names.append(name)
    head = f"%out:{len(results)} = " if results else ""
    lines.append(f"{head}func.call @{_INNER}({', '.join(names)}) : ({', '.join(ins)}) -> ({', '.join(results)})")
    returned = []
    for k, (made, wanted) in enumerate(zip(results, outs, strict=True)):
        name = f"%out#{k}"
        if made != wanted:
            lines.append(f"%res{k} = stablehlo.convert {name} : ({made}) -> {wanted}")
            name = f"%res{k}"
        returned.append(name)
    lines.append(f"func.return {', '.join(returned)}{' : ' if outs else ''}{', '.join(outs)}")
    declared = ", ".join(f"%arg{k}: {t}" for k, t in enumerate(args))
    private = f"func.func private @{_INNER}({', '.join(ins)}) -> ({', '.join(results)})"
    body = "\n".join(lines)
    return f"module {{\n{private}\nfunc.func public @main({declared}) -> ({', '.join(outs)}) {{\n{body}\n}}\n}}"


def _named(attributes: Any) -> list[Any]:
    """The named attributes of an operation: asked for by position, because some cannot be asked for by name."""
    return [attributes[i] for i in range(len(attributes))]


def _name(op: Any) -> str | None:
    attributes = op.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else None


def _function(module: ir.Module, name: str) -> Any:
    return next(op.operation for op in module.body.operations if _name(op) == name)


def calls_of(module: ir.Module) -> dict[str, set[str]]:
    """Which functions each function names."""
    found: dict[str, set[str]] = {}
    for function in module.body.operations:
        named = found.setdefault(str(_name(function)), set())
        todo = [function.operation]
        while todo:
            op = todo.pop()
            named.update(
                m[1] or m[2] for a in _named(op.attributes) if a.name in _CALLS for m in _SYMBOL.finditer(str(a.attr))
            )
            todo.extend(inner.operation for region in op.regions for block in region for inner in block)
    return found


def check_calls(calls: Mapping[str, Collection[str]]) -> None:
    """Refuses functions that call themselves, also through others: XLA inlines calls until its stack overflows.

    Raises:
      SavedProgramError: it names such a function.
    """
    done: set[str] = set()
    for start in calls:
        path = {start: iter(calls[start])}  # each function on the way, with what it has still to call
        while path:
            if len(path) > EXPORTED_CALLS:
                raise errors.SavedProgramError(
                    f"the exported program nests more than {EXPORTED_CALLS} calls, from @{start}, which no compiler "
                    "takes; inline some of them"
                )
            name = next(reversed(path))
            callee = next((c for c in path[name] if c in calls and c not in done), None)
            if callee is None:
                done.add(name)
                del path[name]
            elif callee in path:
                raise errors.SavedProgramError(
                    f"function @{callee} of the exported program calls itself; compilers take no recursion"
                )
            else:
                path[callee] = iter(calls[callee])


def _known_integer(value: Any) -> int | None:
    """A scalar, where a constant of the module is that."""
    owner = getattr(value.owner, "operation", None)  # arguments of functions belong to blocks
    if owner is None or owner.name != "stablehlo.constant":
        return None
    return int(ir.DenseIntElementsAttr(owner.attributes["value"])[0])


def _known_branch(op: Any) -> Any:
    """The block that a `case` over a constant always takes, None for other operations."""
    place = _known_integer(op.operands[0]) if op.name == "stablehlo.case" else None
    if place is None:
        return None
    # StableHLO takes the last branch for every index that has none.
    return op.regions[place if 0 <= place < len(op.regions) else -1].blocks[0]


def _keeps_size(op: Any) -> bool:
    """Whether an operation gives a dimension the size that it has, as TensorFlow writes behind what it slices."""
    if op.name != "stablehlo.set_dimension_size":
        return False
    size = _known_integer(op.operands[1])
    given, kind = ir.RankedTensorType(op.operands[0].type), ir.RankedTensorType(op.results[0].type)
    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    return given == kind and kind.has_static_shape and size == kind.shape[dim]


# Operations that others write in a dialect without promises, by the ones that they are.
_STABLE_NAMES = {"mhlo.erf": "chlo.erf"}

# ---------------------------------------------------------------------------------------------------------------------
# From MLIR's operations to recorded ones

_SYMBOL = re.compile(r'@(?:"((?:[^"\\]|\\.)*)"|([\w.$-]+))')
_CALLS = frozenset(["callee", "decomposition", "called_computations", "body", "cond"])


class _Copy:
    """Copies the functions of a module into a program that is being written."""

    def __init__(self, lowering: ModuleLowering, module: ir.Module, shardings: ShardingTexts):
        self.lowering, self.module, self.shardings = lowering, module, shardings
        self.names: dict[str, str] = {}
        self.calls: dict[str, set[str]] = {}

    def run(self, name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """The symbol and the types of the function that `@main` becomes."""
        functions = [op.operation for op in self.module.body.operations if op.operation.name == "func.func"]
        for op in functions:
            own = str(_name(op))
            self.names[own] = self.lowering.unique_name(name if own == "main" else own)
        self.shardings.declare(op.operation for op in self.module.body.operations if op.operation.name == "sdy.mesh")
        for op in functions:
            self.calling = self.calls.setdefault(str(_name(op)), set())
            self.function(op)
        check_calls(self.calls)
        kind = ir.FunctionType(ir.TypeAttr(_function(self.module, "main").attributes["function_type"]).value)
        return self.names["main"], tuple(map(str, kind.inputs)), tuple(map(str, kind.results))

    def function(self, op: Any) -> None:
        kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        writer = self.lowering.writer.function(self.names[str(_name(op))], [str(t) for t in kind.inputs])
        writer.arg_attrs = self.boundary(op, "arg_attrs", len(kind.inputs))
        writer.result_attrs = self.boundary(op, "res_attrs", len(kind.results))
        values: dict[Any, Ref] = {}
        block = op.regions[0].blocks[0]
        values.update(zip(block.arguments, writer.args))
        self.block(writer, block.operations, values)
        writer.result_types = [str(t) for t in kind.results]

    def boundary(self, op: Any, which: str, count: int) -> list[str]:
        if which not in op.attributes:
            return [""] * count
        texts = []
        for each in ir.ArrayAttr(op.attributes[which]):
            found = ir.DictAttr(each)
            named = [found[i] for i in range(len(found))]
            kept = [n for n in named if not n.name.startswith(_OF_BOUNDARIES)]
            texts.append(", ".join(filter(None, (self.attribute(n.name, n.attr) for n in kept))))
        return texts

    def block(self, body: Body, operations: Iterable[Any], values: dict[Any, Ref]) -> None:
        for each in operations:
            op = each.operation
            operands = [values[v] for v in op.operands]
            if op.name in ("sdy.sharding_constraint",) and not self.shardings.apply:
                values[op.results[0]] = operands[0]
                continue
            taken = _known_branch(op)
            if taken is not None:
                # The branches for other platforms may call what this platform's compiler does not know.
                values.update(zip(op.results, self.inlined(body, taken, values)))
                continue
            if _keeps_size(op):
                values[op.results[0]] = operands[0]
                continue
            regions = [self.region(body, r, values) for r in op.regions]
            inherent, others = self.attributes(op)
            kinds = [str(_countable(r.type)) for r in op.results]
            results = body.ops(
                _STABLE_NAMES.get(op.name, op.name), operands, kinds, inherent, regions, self.location(op), others
            )
            values.update(zip(op.results, results))

    def inlined(self, body: Body, block: Any, values: dict[Any, Ref]) -> list[Ref]:
        """Copies what stands in a block to the end of another; what the block returns."""
        *rest, last = block.operations
        self.block(body, rest, values)
        return [values[v] for v in last.operation.operands]

    def region(self, body: Body, region: Any, values: dict[Any, Ref]) -> Body:
        block = region.blocks[0]
        inner = body.body([str(a.type) for a in block.arguments])
        values.update(zip(block.arguments, inner.args))
        self.block(inner, block.operations, values)
        return inner

    def attributes(self, op: Any) -> tuple[str, str]:
        """Inherent and other attributes, as text. What the dialects define has no dialect's name before it."""
        view: Any = type(op.opview)
        inherent: list[str] = []
        others: list[str] = []
        for named in _named(op.attributes):
            name, text = named.name, self.attribute(named.name, attribute_of(op.attributes, named))
            if text:
                (others if "." in name or _is_discardable(view, name) else inherent).append(text)
        return ", ".join(inherent), ", ".join(others)

    def attribute(self, name: str, attr: Any) -> str:
        if isinstance(attr, ir.UnitAttr):
            return name
        text = str(attr)
        if "sdy" in text:
            text = self.shardings.translated(name, text)
            if not text:
                return ""
        if name in _CALLS:
            self.calling.update(m[1] or m[2] for m in _SYMBOL.finditer(text))
            text = _SYMBOL.sub(lambda m: f"@{self.names.get(m[1] or m[2], m[1] or m[2])}", text)
        return f"{name} = {text}"

    def location(self, op: Any) -> str:
        text = str(op.location)
        if not text.startswith("loc(") or "unknown" in text:
            return ""
        return self.lowering.writer.location(text[4:-1])


@functools.lru_cache(1024)
def _is_discardable(view: type, name: str) -> bool:
    """Whether an attribute without a dialect's name before it is none of the operation's own, by the class of its view:
    XLA's importers leave such on operations of any kind."""
    return view is not ir.OpView and not hasattr(view, name) and not hasattr(view, name + "_")


def _countable(kind: Any) -> Any:
    """The type of a result, which has no more elements than can be counted."""
    if isinstance(kind, ir.RankedTensorType):
        bits = getattr(kind.element_type, "width", 128)  # of complex numbers at most
        check_size([kind.get_dim_size(i) for i in range(kind.rank) if not kind.is_dynamic_dim(i)], max(bits // 8, 1))
    return kind
