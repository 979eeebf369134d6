"""Modules that other programs wrote, as exported functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from meshrt import errors, tree_util
from meshrt.core.types import ShapedArray
from meshrt.export.artifact import check_artifact, custom_calls, read_artifact, target_version
from meshrt.export.checks import (
    DisabledSafetyCheck,
    asked_checks,
    asked_platforms,
    check_custom_calls,
    default_export_platform,
    maximum_supported_calling_convention_version,
)
from meshrt.export.exported import Exported
from meshrt.lowering.legalize import operations, portable_artifact
from meshrt.lowering.types import dtype_of_element
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.sdy import spec_from_sdy_text
from meshrt.xla.jaxlib_api import PyTreeDef
from propagation.annotations import read_shardings
from propagation.errors import PropagationError, UnsupportedModuleError
from propagation.program import read as read_program
from propagation.sdy_text import read_mesh
from propagation.write import write

__all__ = ["from_stablehlo"]

# Integers of two bits in attributes: MLIR writes them into artifacts, and ends the process that reads one.
_UNREADABLE = re.compile(r":\s*u?i2\b")
# The dialects that portable artifacts hold.
_WRITTEN = frozenset(["builtin", "chlo", "func", "sdy", "shape", "stablehlo"])
_SHARDING = "sdy.sharding"
_GSPMD = "mhlo.sharding"


def from_stablehlo(
    module: str | bytes,
    in_tree: Any = None,
    out_tree: Any = None,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
) -> Exported:
    """A StableHLO module, as PyTorch, TensorFlow and others write them, as a function that programs call.

    Its shardings are those that the `sdy` dialect annotates the arguments and results of its function with, or GSPMD's
    attributes and custom calls, over the mesh that is behind them (PyTorch/XLA and TensorFlow write such). It has no
    derivatives; calls are propagated, partitioned and inspected like any other program.

    >>> import numpy as np
    >>> text = '''func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    ...   %0 = stablehlo.add %x, %x : tensor<2xf32>
    ...   return %0 : tensor<2xf32>
    ... }'''
    >>> from_stablehlo(text).call(np.ones(2, np.float32)).tolist()
    [2.0, 2.0]

    Args:
      module: text, MLIR bytecode or a portable artifact, with one public function, or one that is called `main`. It is
        read with limits, by a process of its own where it is no text.
      in_tree: the structure of the arguments, `(args, kwargs)`, as `tree_structure` gives it. By default the function
        takes each argument by its position.
      out_tree: the structure of the results. By default a function with one result gives that, others a tuple.
      platforms: where it runs; by default on that of the default backend.
      disabled_checks: `DisabledSafetyCheck.custom_call(target)` lets a custom call through.

    Raises:
      SavedProgramError: no module, or one without such a function.
      TreeError: a structure with another number of leaves, or one of arguments that is not `(args, kwargs)`.
      ArgumentTypeError: neither text nor bytes, structures, platforms or checks that are none.
      UnsupportedError: arguments or results that are no arrays of known sizes, several meshes, annotations of GSPMD
        that are over no mesh, operations that are no StableHLO.
      ArgumentValueError: custom calls that nobody promises to keep.
    """
    if not isinstance(module, str | bytes | bytearray | memoryview):
        raise errors.ArgumentTypeError(f"from_stablehlo takes text or bytes. Got {type(module).__name__}")
    read = read_artifact(module if isinstance(module, str) else bytes(module), trusted=False)
    if _GSPMD in str(read):
        read = _with_shardy(read)
    main = _as_main(read)
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    name = ir.StringAttr(main.attributes["sym_name"]).value
    in_avals, out_avals = (
        tuple(_aval(t, f"{what} {i} of @{name}") for i, t in enumerate(types))
        for what, types in (("argument", kind.inputs), ("result", kind.results))
    )
    count = len(in_avals)
    in_tree = tree_util.tree_structure(((0,) * count, {})) if in_tree is None else in_tree
    if out_tree is None:
        out_tree = tree_util.tree_structure(0 if len(out_avals) == 1 else (0,) * len(out_avals))
    for what, tree, avals in (("in_tree", in_tree, in_avals), ("out_tree", out_tree, out_avals)):
        if not isinstance(tree, PyTreeDef):
            raise errors.ArgumentTypeError(f"{what} is a structure, as tree_structure gives it. Got {tree!r}")
        if tree.num_leaves != len(avals):
            raise errors.TreeError(
                f"{what} {tree} has {tree.num_leaves} leaves, and the function @{name} has {len(avals)} of "
                f"{'arguments' if what == 'in_tree' else 'results'}; in_tree is the structure of (args, kwargs)"
            )
    if not _takes_calls(in_tree):
        raise errors.TreeError(
            f"in_tree {in_tree} is not the structure of (args, kwargs), a tuple and a dict: for one argument x give "
            "tree_structure(((x,), {}))"
        )
    disabled, where = asked_checks(disabled_checks), asked_platforms(platforms)
    check_custom_calls(custom_calls(read), disabled)
    meshes = _meshes(read)
    mesh = next((m for m in meshes.values() if m.size > 1), None)
    version = target_version("current")
    return Exported(
        fun_name=name,
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=out_tree,
        out_avals=out_avals,
        in_shardings=_shardings(main, "arg_attrs", len(in_avals), meshes),
        out_shardings=_shardings(main, "res_attrs", len(out_avals), meshes),
        nr_devices=1 if mesh is None else mesh.size,
        platforms=where or (default_export_platform(),),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=disabled,
        mlir_module_serialized=_written(read, version),
        calling_convention_version=maximum_supported_calling_convention_version,
        module_kept_var_idx=tuple(range(count)),
        uses_global_constants=False,
        stablehlo_version=version,
        mesh=mesh,
    )


def _takes_calls(tree: PyTreeDef) -> bool:
    """Whether it is the structure of positional and keyword arguments."""
    found, children = tree.node_data(), tree.children()
    kinds = [c.node_data() for c in children]
    return found is not None and found[0] is tuple and [k and k[0] for k in kinds] == [tuple, dict]


def _with_shardy(module: ir.Module) -> ir.Module:
    """The module with GSPMD's annotations as those of Shardy."""
    try:
        program = read_program(module)
        return write(program, read_shardings(program))
    except UnsupportedModuleError as e:
        raise errors.UnsupportedError(f"the shardings of the module cannot be read: {e}") from None
    except PropagationError as e:
        raise errors.SavedProgramError(f"the shardings of the module cannot be read: {e}") from None


def _as_main(module: ir.Module) -> Any:
    """The function that others call, renamed to `main`."""
    found = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    public = [f for f in found if "sym_visibility" not in f.attributes
              or ir.StringAttr(f.attributes["sym_visibility"]).value != "private"]  # fmt: skip
    names = [ir.StringAttr(f.attributes["sym_name"]).value for f in public]
    if "main" in names:
        return public[names.index("main")]
    if len(public) != 1:
        raise errors.SavedProgramError(
            f"the module has the public functions {names or 'none'}; call the one that is to be run `main`, or make "
            "the others private"
        )
    with module.context, ir.Location.unknown():
        ir.SymbolTable(module.operation).set_symbol_name(public[0], "main")
    return public[0]


def _aval(kind: ir.Type, which: str) -> ShapedArray:
    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        raise errors.UnsupportedError(
            f"{which} is a {kind}; functions take and give arrays of known sizes here: export the program for those, "
            "or write export.export(...) with symbolic ones"
        )
    return ShapedArray(tuple(kind.shape), dtype_of_element(str(kind.element_type)))


def _meshes(module: ir.Module) -> dict[str, AbstractMesh]:
    found = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            axes = read_mesh(str(op.operation.attributes["mesh"])).axes
            name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            found[name] = AbstractMesh(tuple(n for _, n in axes), tuple(a for a, _ in axes))
    if len({m for m in found.values() if m.size > 1}) > 1:
        raise errors.UnsupportedError(
            f"the module has several meshes, {', '.join(map(str, found.values()))}: write its shardings over one"
        )
    return found


def _shardings(main: Any, which: str, count: int, meshes: dict[str, AbstractMesh]) -> tuple[NamedSharding | None, ...]:
    if which not in main.attributes:
        return (None,) * count
    found: list[NamedSharding | None] = []
    for each in ir.ArrayAttr(main.attributes[which]):
        attributes = ir.DictAttr(each)
        if _SHARDING not in attributes:
            found.append(None)
            continue
        name, spec = spec_from_sdy_text(str(attributes[_SHARDING]))
        if name not in meshes:
            raise errors.UnsupportedError(
                f"a sharding is over {name}, which is no mesh of the module's: define it with sdy.mesh"
            )
        found.append(NamedSharding(meshes[name], spec) if meshes[name].size > 1 else None)
    return tuple(found)


def _written(module: ir.Module, version: str) -> bytes:
    try:
        found = portable_artifact(module, version)
    except errors.CompileError as e:
        other = next((op for op in operations(module) if op.name.partition(".")[0] not in _WRITTEN), None)
        if other is not None:
            raise errors.UnsupportedError(
                f"the module holds {other.name} at {other.location}, and no form is promised for operations other than "
                f"those of {', '.join(sorted(_WRITTEN))}: let who wrote it lower it to StableHLO"
            ) from None
        raise errors.SavedProgramError(f"the module cannot be written as StableHLO {version}: {e}") from None
    if _UNREADABLE.search(str(module)):
        check_artifact(found)
    return found
