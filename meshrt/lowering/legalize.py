"""The boundary to a compiler: what crosses is looked through first, and holds only what the compiler takes.

Every module is walked. The walk over text is a search for what stands in it, at the speed of memory; only where that
finds something that the compiler may not take is the module parsed, and its operations asked one by one. CHLO and
shape operations are then written as StableHLO ones, operations that the compiler does badly on narrow elements are done
on wider ones, and what is still there that the compiler does not take is an error with the operation, its line and the
reason, before the compiler runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from meshrt import errors
from meshrt.lowering.capabilities import BackendCapabilities, is_older
from meshrt.xla import jaxlib_api, jaxlib_executables

__all__ = ["legalize", "operations", "portable_artifact"]

Module = str | bytes | ir.Module

# Where an operation stands in MLIR's generic syntax, in which programs are written here: `"stablehlo.add"(`.
_GENERIC = re.compile(r'"(\w+\.[\w.-]+)"\(')
_GENERIC_TARGET = re.compile(r'call_target_name = "([^"]*)"')
# Where one may stand in its other syntax: names with a dot that are no attribute's, type's or symbol's.
_PRETTY = re.compile(r'(?<![\w#!@"%.])([a-z_]\w*+\.[a-z][\w.-]*+)(?! =)')
_PRETTY_TARGET = re.compile(r'custom_call @(?:"([^"]*)"|([\w.$-]+))')
# What the writer of artifacts says of an operation that a version has no form of, before the whole module.
_UNWRITABLE = re.compile(r"(?P<line>[^\s\"]*)\"?: error: failed to legalize operation '\w+\.(?P<name>\w+?)(?:_v\d+)?'")
# The names in locations, which follow the operations.
_LOCATIONS = "\n#loc"
# Element types, and the wider ones that hold their values; the other narrow floats, f8E4M3 for one, are held by f32.
_HOLDERS = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8", "bf16": "f32", "f16": "f32"}
_NARROW_FLOAT = re.compile(r"f[468]E\w+")
# What is done on wider elements where the compiler's row says so, and is exact there: what moves elements, and the
# greatest and least of them. The latter show in a text as scalars.
_MOVES = ("stablehlo.concatenate",)
_REDUCTIONS = ("stablehlo.reduce", "stablehlo.reduce_window")
_EXACT = ("stablehlo.maximum", "stablehlo.minimum")
_SCALAR_EXACT = re.compile(r"stablehlo\.(?:maximum|minimum)\b[^\n]*tensor<([a-z]\w*)>")
# Custom calls that meshrt replaces before a program is compiled.
_OWN = "meshrt."


def legalize(module: Module, takes: BackendCapabilities) -> Module:
    """The module as a compiler takes it: the same object wherever it takes all of it as it is.

    Raises:
      UnsupportedByBackendError: an operation, custom call or element type that the compiler does not take.
      CompileError: it is no module.
    """
    if isinstance(module, str) and not takes.stable_only and not _suspects(module, takes):
        return module
    parsed = module if isinstance(module, ir.Module) else jaxlib_api.parse(module)
    if takes.wider and any(_is_narrow(op, takes) for op in operations(parsed)):
        if parsed is module:  # the caller's
            parsed = jaxlib_api.parse(jaxlib_api.bytecode(module))
        _widen(parsed, takes)
        module = parsed if isinstance(module, ir.Module) else jaxlib_api.bytecode(parsed)
    has_sugar = any(
        _dialect(op) in ("chlo", "shape") and not takes.takes_dialect(_dialect(op)) for op in operations(parsed)
    )
    if not has_sugar and not takes.stable_only:
        _verify(parsed, takes)
        return module
    _verify(parsed, takes, sugar=True)  # while operations are still those that have the user's lines
    artifact = _artifact(parsed, takes)
    if takes.stable_only:
        return artifact
    from propagation.parsing import parse  # start-up time: few compilers need it

    plain = parse(artifact, trusted=True)
    _verify(plain, takes)
    return plain if isinstance(module, ir.Module) else jaxlib_api.bytecode(plain)


def operations(module: ir.Module) -> Iterator[Any]:
    """All operations of a module in their order, those in regions behind the one that has them."""
    todo: list[Any] = [module.operation]
    while todo:
        op = todo.pop()
        yield op
        todo.extend([inner.operation for region in op.regions for block in region for inner in block][::-1])


def portable_artifact(module: ir.Module, version: str) -> bytes:
    """A module for consumers of a version of StableHLO.

    Artifacts hold CHLO's operations as composites; for versions older than these all of them are written out.

    Raises:
      CompileError: the version has no form of one of its operations or types.
    """
    if is_older(version, "stablehlo.composite"):
        module = jaxlib_api.expanded(module, "chlo", "shape", "composite")
    try:
        return jaxlib_executables.portable_artifact(module, version)
    except jaxlib_api.XlaError as e:
        refused = _UNWRITABLE.search(str(e))
        why = str(e) if refused is None else f"it has no form of stablehlo.{refused['name']} as at {refused['line']}"
        raise errors.CompileError(
            f"the program cannot be written for StableHLO {version}: {why}. Choose a newer version; 'current' has all "
            "operations and types"
        ) from None


def _suspects(text: str, takes: BackendCapabilities) -> bool:
    """Whether there may be something in the text that the compiler does not take."""
    end = text.find(_LOCATIONS)
    body = text if end < 0 else text[:end]
    is_generic = '"func.func"(' in body
    names = set(_GENERIC.findall(body))
    if not is_generic:  # some operations have no other syntax than the generic one
        names.update(_PRETTY.findall(body))
    if any(not takes.takes_dialect(name.partition(".")[0]) for name in names):
        return True
    for dtypes in map(takes.refused_of, names if takes.not_operations else ()):
        if dtypes is not None and (not dtypes or any(f"x{d}" in body or f"<{d}" in body for d in dtypes)):
            return True
    if any(_suspects_narrow(body, name, dtypes) for name in names if (dtypes := takes.wider_of(name))):
        return True
    if "stablehlo.custom_call" in names:
        targets = set(_GENERIC_TARGET.findall(body))
        if not is_generic:
            targets.update(a or b for a, b in _PRETTY_TARGET.findall(body))
        if any(not _is_known(target, takes) for target in targets):
            return True
    return any(dtype in body for dtype in takes.not_dtypes)


def _suspects_narrow(body: str, name: str, dtypes: tuple[str, ...]) -> bool:
    """Whether an operation that the text has may be one that is done on wider elements."""
    if name in _REDUCTIONS:
        return not set(dtypes).isdisjoint(_SCALAR_EXACT.findall(body))
    return any(f"x{d}" in body for d in dtypes)


def _is_known(target: str, takes: BackendCapabilities) -> bool:
    return not target.startswith(_OWN) and takes.takes_custom_call(target)


def _dialect(op: Any) -> str:
    return str(op.name).partition(".")[0]


def _artifact(module: ir.Module, takes: BackendCapabilities) -> bytes:
    try:
        return portable_artifact(module, takes.newest_version)
    except errors.CompileError as e:
        raise errors.UnsupportedByBackendError(
            f"the program cannot be written in StableHLO {takes.newest_version}, the newest version that the compiler "
            f"for {takes.name} reads: {e}"
        ) from None


def _verify(module: ir.Module, takes: BackendCapabilities, *, sugar: bool = False) -> None:
    """Raises for the first operation that the compiler does not take; with `sugar` not for those that become others."""
    for op in operations(module):
        why = _refusal(op, takes, sugar)
        if why is not None:
            # Start-up time: what the propagator knows of locations is for programs that are refused.
            from propagation.locations import location_text

            where = location_text(op.location)
            raise errors.UnsupportedByBackendError(
                f"{op.name}{'' if where is None else f' at {where}'} cannot be handed to the compiler for "
                f"{takes.name}: {why}. What it takes is shown by `meshrt backends`, and may be put right in "
                f"configs/backends/{takes.name}.toml"
            )


def _is_narrow(op: Any, takes: BackendCapabilities) -> bool:
    """Whether an operation is to be done on wider elements."""
    name = str(op.name)
    dtypes = takes.wider_of(name)
    if not dtypes or name not in (*_MOVES, *_REDUCTIONS) or len(op.results) != 1:
        return False
    dtype = str(ir.ShapedType(op.results[0].type).element_type)
    if dtype not in dtypes or _holder(dtype) is None:
        return False
    if name in _MOVES:
        return True
    block = op.regions[0].blocks[0]
    first, *others = [inner.operation for inner in block]
    if str(first.name) not in _EXACT or len(others) != 1:
        return False
    return list(first.operands) == list(block.arguments) and list(others[0].operands) == list(first.results)


def _holder(dtype: str) -> str | None:
    return "f32" if _NARROW_FLOAT.fullmatch(dtype) else _HOLDERS.get(dtype)


def _widen(module: ir.Module, takes: BackendCapabilities) -> None:
    """Has the elements of what each narrow operation takes converted, and those of its result back."""
    for op in [op for op in operations(module) if _is_narrow(op, takes)]:
        with op.location, ir.InsertionPoint(op):
            narrow = ir.ShapedType(op.results[0].type).element_type
            holder = ir.Type.parse(str(_holder(str(narrow))))
            named = [op.attributes[i] for i in range(len(op.attributes))]
            done = ir.Operation.create(
                str(op.name), [_of_elements(holder, op.results[0].type)],
                [_converted(value, holder) for value in op.operands], {n.name: n.attr for n in named},
                regions=len(op.regions),
            )  # fmt: skip
            for region, body in zip(done.regions, op.regions, strict=True):
                _reduce_by(str(next(iter(body.blocks[0])).operation.name), region, _of_elements(holder, None))
            op.results[0].replace_all_uses_with(_converted(done.result, narrow))
        op.erase()


def _reduce_by(name: str, region: Any, kind: Any) -> None:
    """The body of a reduction by one operation."""
    block = region.blocks.append(kind, kind)
    with ir.InsertionPoint(block):
        found = ir.Operation.create(name, [kind], list(block.arguments)).result
        ir.Operation.create("stablehlo.return", [], [found])


def _converted(value: Any, element: Any) -> Any:
    return ir.Operation.create("stablehlo.convert", [_of_elements(element, value.type)], [value]).result


def _of_elements(element: Any, kind: Any) -> Any:
    """The type of arrays of the shape of another type, and of its bounds where that is dynamic; None for scalars."""
    if kind is None:
        return ir.RankedTensorType.get([], element)
    shaped = ir.RankedTensorType(kind)
    return ir.RankedTensorType.get(shaped.shape, element, shaped.encoding)


def _refusal(op: Any, takes: BackendCapabilities, sugar: bool) -> str | None:
    name, dialect = str(op.name), _dialect(op)
    if not takes.takes_dialect(dialect) and not (sugar and dialect in ("chlo", "shape")):
        return f"it does not take operations of the dialect {dialect}"
    refused = takes.refused_of(name)
    if refused == ():
        return "it does not take this operation"
    for dtype in refused or ():
        if any(_has_dtype(str(v.type), dtype) for v in (*op.operands, *op.results)):
            return f"it does not take this operation of the element type {dtype}"
    if name == "stablehlo.custom_call":
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        if target.startswith(_OWN):
            return f"the custom call {target!r} is meshrt's own and has no meaning for a compiler"
        if not takes.takes_custom_call(target):
            return f"it does not know the custom call {target!r}"
    for dtype in takes.not_dtypes:
        if any(_has_dtype(str(v.type), dtype) for v in (*op.operands, *op.results)):
            return f"it does not take values of the element type {dtype}"
    return None


def _has_dtype(kind: str, dtype: str) -> bool:
    """Whether a type as text, `tensor<4x8xf32>`, is of an element type."""
    return re.search(rf"[x<]{re.escape(dtype)}[,>]", kind) is not None
