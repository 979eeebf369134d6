"""Specialising exported modules in which devices run programs of their own.

What specialises modules for known sizes (jaxlib's refinement) follows sizes through calls of functions, which it
inlines, and not into the regions of `sdy.manual_computation`. So a module with regions is specialised in steps:

1. with functions in place of the regions, each operand and result of which passes a custom call that has the sizes of
   its result as an operand. What comes of it is only asked for the types at these calls, and for the integers that are
   the same constant wherever a region is called, which the sizes that it computes with are;
2. with an opaque custom call of known types in place of each region, and each region as a program by itself;
3. put together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from meshrt import errors
from meshrt.xla import jaxlib_api, jaxlib_executables
from propagation.sdy_text import axes_in, read_mesh, read_shardings, texts_per_value

__all__ = ["has_regions", "specialised"]

_REGION, _PART, _WHOLE, _SCALAR = "sdy.manual_computation", "meshrt.part", "meshrt.whole", "meshrt.scalar"
_SHARDINGS = ("in_shardings", "out_shardings", "manual_axes")


@dataclass
class _Region:
    """A region as it is in a program of known sizes."""

    # Types of operands inside and of results outside, as text; what each call passes for a scalar: an integer that is a
    # constant, or None.
    parts: dict[int, str] = field(default_factory=dict)
    wholes: dict[int, str] = field(default_factory=dict)
    passed: dict[int, set[str | None]] = field(default_factory=dict)

    @property
    def constants(self) -> dict[int, str]:
        """Scalars that are the same constant in every call: these may be sizes, which must be known inside."""
        return {i: v for i, given in self.passed.items() if len(given) == 1 for v in given if v is not None}

    def note(self, kind: str, place: int, op: Any) -> None:
        if kind == _SCALAR:
            self.passed.setdefault(place, set()).add(_integer(op.operands[0]))
            self.parts[place] = str(op.operands[0].type)
            return
        known, text = self.parts if kind == _PART else self.wholes, str(op.results[0].type)
        if known.setdefault(place, text) != text:
            raise errors.UnsupportedError(
                f"the exported program runs one shard_map for values of types {known[place]} and {text}; export it "
                "with sizes that are the same, or call it once for each"
            )


def _integer(value: Any) -> str | None:
    """The integer that a scalar is where that is known, as text."""
    owner = getattr(value.owner, "operation", None)
    if owner is None or owner.name != "stablehlo.constant":
        return None
    is_integer = isinstance(ir.RankedTensorType(value.type).element_type, ir.IntegerType)
    return str(owner.attributes["value"]) if is_integer else None


def has_regions(module: ir.Module) -> bool:
    """Whether devices run programs of their own in a module."""
    return any(op.name == _REGION for op in _inner_first(module.operation))


def specialised(text: str, entry: Callable[[ir.Module], str]) -> ir.Module:
    """The module `text` for the types of the `@main` that `entry` puts into it. XlaError as `refined_shapes` raises.

    `entry` returns the text of the module with its `@main`.
    """
    first = jaxlib_api.parse(text)
    regions = {name: _Region() for name in _as_calls(first)}
    known = jaxlib_api.parse(jaxlib_executables.refined_shapes(entry(first)))
    for op in _inner_first(known.operation):
        kind = _target(op)
        if kind in (_PART, _WHOLE, _SCALAR):
            name, _, place = ir.StringAttr(op.attributes["backend_config"]).value.rpartition(" ")
            regions[name].note(kind, int(place), op)
    second = jaxlib_api.parse(text)
    said = _as_custom_calls(second, regions)
    whole = str(second.operation.get_asm(enable_debug_info=True))
    made = jaxlib_api.parse(jaxlib_executables.refined_shapes(entry(_only(jaxlib_api.parse(whole), "main"))))
    while True:
        op = next((o for o in _inner_first(made.operation) if _target(o) in regions), None)
        if op is None:
            return made
        _put_back(made, op, whole, regions[str(_target(op))], said[str(_target(op))])


# ---------------------------------------------------------------------------------------------------------------------
# 1. Functions with marks at their edges


def _as_calls(module: ir.Module) -> list[str]:
    """Makes functions of the regions, in place; their symbols."""
    meshes = {
        _name(op): dict(read_mesh(str(op.attributes["mesh"])).axes)
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }
    names = []
    for op, name in _named_regions(module):
        names.append(name)
        ins, outs = (read_shardings(str(op.attributes[k])) for k in _SHARDINGS[:2])
        split = {axis.name for axis in axes_in(str(op.attributes["manual_axes"]))}

        def counts(sharding: Any, split: set[str] = split) -> list[int]:
            sizes = meshes[sharding.mesh]
            return [math.prod(sizes[a.name] for a in d.axes if a.name in split) for d in sharding.dims]

        block = op.regions[0].blocks[0]
        types = [a.type for a in block.arguments]
        with module.context, ir.InsertionPoint(op), op.location:
            given = []
            for i, (v, t, s) in enumerate(zip(op.operands, types, ins, strict=True)):
                if s.dims:
                    v = _marked(_PART, f"{name} {i}", v, t, counts(s))
                else:
                    _custom_call(_SCALAR, f"{name} {i}", [v], [])
                given.append(v)
            made = _op("func.call", [v.type for v in _last(block).operands], given, callee=f"@{name}").results
            for i, (result, value, s) in enumerate(zip(op.results, made, outs, strict=True)):
                result.replace_all_uses_with(_marked(_WHOLE, f"{name} {i}", value, result.type, counts(s)))
        _as_function(module, op, name)
    return names


def _marked(kind: str, config: str, value: Any, wanted: Any, counts: Sequence[int]) -> Any:
    """A value of the type `wanted`, of which every dimension is divided or multiplied by one of `counts`."""
    tensor = ir.RankedTensorType(wanted)
    if tensor.has_static_shape:
        return _custom_call(kind, config, [value], [wanted]).result
    sizes, scalar, one = [], ir.Type.parse("tensor<i32>"), ir.Type.parse("tensor<1xi32>")
    for dim, count in enumerate(counts):
        if not tensor.is_dynamic_dim(dim):
            sizes.append(
                _op("stablehlo.constant", [one], (), value=f"dense<{tensor.get_dim_size(dim)}> : {one}").result
            )
            continue
        size = _op("stablehlo.get_dimension_size", [scalar], [value], dimension=f"{dim} : i64").result
        times = _op("stablehlo.constant", [scalar], (), value=f"dense<{count}> : {scalar}").result
        size = _op("stablehlo.divide" if kind == _PART else "stablehlo.multiply", [scalar], [size, times]).result
        sizes.append(_op("stablehlo.reshape", [one], [size]).result)
    shape = ir.Type.parse(f"tensor<{len(sizes)}xi32>")
    vector = _op("stablehlo.concatenate", [shape], sizes, dimension="0 : i64").result
    operands = {"indices_of_shape_operands": "dense<1> : tensor<1xi64>"}
    return _custom_call(kind, config, [value, vector], [wanted], **operands).result


# ---------------------------------------------------------------------------------------------------------------------
# 2. Opaque calls of known types


def _as_custom_calls(module: ir.Module, regions: Mapping[str, _Region]) -> dict[str, dict[str, str]]:
    """Makes functions of the regions, called by custom calls of their names; what else the operations said."""
    said = {}
    for op, name in _named_regions(module):
        said[name] = {k: str(op.attributes[k]) for k in _SHARDINGS}
        with module.context, ir.InsertionPoint(op), op.location:
            types = [ir.Type.parse(regions[name].wholes.get(i, str(v.type))) for i, v in enumerate(op.results)]
            made = _custom_call(name, "", list(op.operands), types)
            for result, value in zip(op.results, made.results, strict=True):
                if value.type != result.type:
                    value = _op("stablehlo.convert", [result.type], [value]).result
                result.replace_all_uses_with(value)
        _as_function(module, op, name)
    return said


def _only(module: ir.Module, name: str) -> ir.Module:
    """The module without the functions that `name` does not call."""
    functions = {_name(op): op.operation for op in module.body.operations if op.operation.name == "func.func"}
    kept, todo = set(), [name]
    while todo:
        at = todo.pop()
        if at in functions and at not in kept:
            kept.add(at)
            todo += [s for op in _inner_first(functions[at]) for s in _symbols(op)]
    for own, function in functions.items():
        if own not in kept:
            function.erase()
    return module


def _symbols(op: Any) -> Iterator[str]:
    for i in range(len(op.attributes)):
        named = op.attributes[i]
        if named.name in ("callee", "decomposition"):
            yield ir.FlatSymbolRefAttr(named.attr).value
        elif named.name == "called_computations":
            yield from (ir.FlatSymbolRefAttr(a).value for a in ir.ArrayAttr(named.attr))


# ---------------------------------------------------------------------------------------------------------------------
# 3. Together


def _put_back(module: ir.Module, call: Any, whole: str, region: _Region, said: Mapping[str, str]) -> None:
    """Makes a region of a custom call, from the function of its name in `whole`."""
    name = str(_target(call))
    program = _only(jaxlib_api.parse(whole), name)
    function = next(op.operation for op in program.body.operations if _name(op) == name)
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    entry = _entry(name, [str(t) for t in types.inputs], [str(t) for t in types.results], region)
    with program.context:
        wrapper = ir.Module.parse(entry)
        program.body.append(wrapper.body.operations[1].detach_from_parent())
    text = str(program.operation.get_asm(enable_debug_info=True))
    refined = jaxlib_api.parse(_refined(text, region))
    body = str(refined.operation.get_asm(enable_debug_info=True))
    with module.context, ir.InsertionPoint(call), call.location:
        parsed = ir.Module.parse(body)
        main = next(op.operation for op in parsed.body.operations if _name(op) == "main")
        block = main.regions[0].blocks[0]
        kept = [i for i in range(len(call.operands)) if i not in region.constants]
        ins = texts_per_value(said["in_shardings"])
        attributes = {**said, "in_shardings": f"#sdy.sharding_per_value<[{', '.join(ins[i] for i in kept)}]>"}
        operands = [call.operands[i] for i in kept]
        results = [v.type for v in call.results]
        made = _op(_REGION, results, operands, regions=1, **attributes)
        _move(block, made, "sdy.return")
        for old, new in zip(call.results, made.results, strict=True):
            old.replace_all_uses_with(new)
    call.operation.erase()


def _refined(text: str, region: _Region) -> bytes:
    """As `refined_shapes`; UnsupportedError where the calls of the region pass several sizes."""
    try:
        return jaxlib_executables.refined_shapes(text)
    except jaxlib_api.XlaError as e:
        several = [given for given in region.passed.values() if len(given) > 1]
        if not several:
            raise
        values = " and ".join(sorted({v or "a computed one" for given in several for v in given}))
        raise errors.UnsupportedError(
            f"the exported program runs one shard_map with numbers that differ, {values}, and its types inside depend "
            "on them; export it with sizes that are the same, or call it once for each. The compiler said: "
            f"{str(e).splitlines()[0]}"
        ) from e


def _entry(name: str, ins: Sequence[str], outs: Sequence[str], region: _Region) -> str:
    """A module with a `@main` of a region's known types, which calls it."""
    lines, names, declared = [], [], []
    for i, wanted in enumerate(ins):
        if i in region.constants:
            lines.append(f"%c{i} = stablehlo.constant {region.constants[i]}")
            names.append(f"%c{i}")
            continue
        given = region.parts.get(i, wanted)
        declared.append(f"%arg{i}: {given}")
        lines.append(f"%in{i} = stablehlo.convert %arg{i} : ({given}) -> {wanted}")
        names.append(f"%in{i}")
    head = f"%out:{len(outs)} = " if outs else ""
    kinds, results = ", ".join(ins), ", ".join(outs)
    lines.append(f"{head}func.call @{name}({', '.join(names)}) : ({kinds}) -> ({results})")
    returned = ", ".join(f"%out#{k}" for k in range(len(outs)))
    lines.append(f"func.return {returned}{' : ' if outs else ''}{results}")
    body = "\n".join(lines)
    return (
        f"module {{\nfunc.func private @{name}({kinds}) -> ({results})\n"
        f"func.func public @main({', '.join(declared)}) -> ({results}) {{\n{body}\n}}\n}}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Operations


def _named_regions(module: ir.Module) -> list[tuple[Any, str]]:
    """The regions, inner ones first, and a symbol for each."""
    taken = {_name(op) for op in module.body.operations}
    names = (n for n in map("meshrt.region.{}".format, itertools.count()) if n not in taken)
    return [(op, next(names)) for op in list(_inner_first(module.operation)) if op.name == _REGION]


def _as_function(module: ir.Module, op: Any, name: str) -> None:
    """Moves a region into a function, and erases its operation."""
    block = op.regions[0].blocks[0]
    ins, outs = [a.type for a in block.arguments], [v.type for v in _last(block).operands]
    with module.context, ir.InsertionPoint(module.body), op.location:
        kind = ir.TypeAttr.get(ir.FunctionType.get(ins, outs))
        made = _op("func.func", (), (), regions=1, sym_name=f'"{name}"', sym_visibility='"private"', function_type=kind)
        _move(block, made, "func.return")
    op.erase()


def _custom_call(target: str, config: str, operands: Sequence[Any], results: Sequence[Any], **attributes: Any) -> Any:
    """One with effects, so that it is neither dropped nor made one with another."""
    return _op(
        "stablehlo.custom_call", results, operands, call_target_name=f'"{target}"', backend_config=f'"{config}"',
        has_side_effect="true", api_version="2 : i32", **attributes,
    )  # fmt: skip


def _op(name: str, results: Sequence[Any], operands: Sequence[Any], regions: int = 0, **attributes: Any) -> Any:
    parsed = {k: ir.Attribute.parse(a) if isinstance(a, str) else a for k, a in attributes.items()}
    return ir.Operation.create(name, list(results), list(operands), parsed, regions=regions)


def _move(block: Any, to: Any, ending: str) -> None:
    """Makes a block the only one of an operation, which ends it by `ending`."""
    block.append_to(to.regions[0])
    last = _last(block)
    with ir.InsertionPoint(last), last.location:
        _op(ending, (), list(last.operands))
    last.erase()


def _last(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation


def _target(op: Any) -> str | None:
    if op.name != "stablehlo.custom_call":
        return None
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)


def _name(op: Any) -> str | None:
    return ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else None


def _inner_first(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region:
            for inner in block:
                yield from _inner_first(inner.operation)
                yield inner.operation
