"""Functions of other languages in programs, by XLA's foreign function interface (`jax.ffi`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from meshrt import errors
from meshrt.core.types import ShapedArray
from meshrt.interpreters.building import aval_to_ir_types, flatten_ir_types, ir_attribute
from meshrt.primitives.ffi import ffi_call
from meshrt.sharding.layout import Layout
from meshrt.xla import jaxlib_calls

__all__ = [
    "build_ffi_lowering_function", "ffi_call", "ffi_lowering", "include_dir", "pycapsule", "register_ffi_target",
    "register_ffi_target_as_batch_partitionable", "register_ffi_type", "register_ffi_type_id",
]  # fmt: skip

_TYPED = 4  # the version of the interface from which on attributes have types


def register_ffi_target(name: str, fn: Any, platform: str = "cpu", api_version: int = 1, **kwargs: Any) -> None:
    """Makes a function known to the compiler of a platform, once per process and name.

    `fn` is a PyCapsule that holds its address (`pycapsule`), or a dictionary of them by stage ("execute", ...);
    `api_version` is 1 for the typed interface, 0 for the one before. Raises CompileError where XLA refuses it, as for a
    name that is taken by another function.
    """
    jaxlib_calls.register_target(name, fn, platform, api_version, **kwargs)


def register_ffi_type(name: str, type_registration: Mapping[str, Any], platform: str = "cpu") -> None:
    """Makes a type of state known that functions keep between their stages, once per process and name.

    `type_registration` has PyCapsules: "type_id", and "type_info" if there is one. Raises CompileError where XLA
    refuses it.
    """
    jaxlib_calls.register_type(name, type_registration, platform)


def register_ffi_type_id(name: str, obj: Any, platform: str = "cpu") -> None:
    """What came before `register_ffi_type`. Raises ArgumentValueError: jaxlib has it no more."""
    raise errors.ArgumentValueError(
        f"register_ffi_type_id({name!r}) is not supported by this jaxlib; use register_ffi_type with {{'type_id': obj}}"
    )


def register_ffi_target_as_batch_partitionable(name: str) -> None:
    """Tells XLA's partitioner that calls of a function may be split along leading dimensions (`meshrt.config`'s
    `partitioner="xla"`; for meshrt's own say so with `ffi_call(sharding_rule=...)`)."""
    jaxlib_calls.register_batch_partitionable(name)


def pycapsule(funcptr: Any) -> Any:
    """A PyCapsule around the address of a function that was loaded with ctypes."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.cast(funcptr, ctypes.c_void_p), None, ctypes.c_void_p(0))


def include_dir() -> str:
    """The folder with the headers that functions are compiled with.

    >>> meshrt.ffi.include_dir().endswith("include")
    True
    """
    return jaxlib_calls.include_dir()


def ffi_lowering(call_target_name: str, **options: Any) -> Callable[..., Sequence[ir.Value]]:
    """The lowering rule of a primitive that is one call of a function of another language, for
    `interpreters.mlir.register_lowering`. Takes what `build_ffi_lowering_function` takes.

    >>> from meshrt.extend.core import Primitive
    >>> from meshrt.interpreters import mlir
    >>> twice_p = Primitive("twice")
    >>> _ = twice_p.def_abstract_eval(lambda x: x)
    >>> _ = mlir.register_lowering(twice_p, ffi_lowering("twice", operand_layouts=[(0, 1)], result_layouts=[(0, 1)]))
    """
    build = build_ffi_lowering_function(call_target_name, **options)
    return lambda ctx, *operands, **params: list(build(ctx, *operands, **params).results)


def build_ffi_lowering_function(
    call_target_name: str,
    *,
    operand_layouts: Sequence[Any] | None = None,
    result_layouts: Sequence[Any] | None = None,
    backend_config: Any = None,
    skip_ffi_layout_processing: bool = False,
    **lowering_args: Any,
) -> Callable[..., Any]:
    """As `ffi_lowering`, for rules that go on with the operation of the call.

    Args:
      operand_layouts, result_layouts: of each array the order of its dimensions, from the minor to the major one, or a
        Layout; None for rows one after the other.
      backend_config: attributes of the call, as a dictionary; those of the equation are added to them. A string before
        version 4 of the interface.
      skip_ffi_layout_processing: whether layouts stay unsaid.
      lowering_args: "api_version", "result_types", "has_side_effect", "operand_output_aliases", "called_computations".

    Raises:
      ArgumentValueError: in lowering, for attributes and versions that do not go together, or a layout with tiles.
    """

    def build(ctx: Any, *operands: ir.Value, **params: Any) -> Any:
        options = dict(lowering_args)
        version = options.pop("api_version", _TYPED)
        config = _attributes(call_target_name, version, backend_config, params)
        types = options.pop("result_types", None)
        if types is None:
            types = flatten_ir_types([aval_to_ir_types(ctx.module_context, a) for a in ctx.avals_out])
        if not skip_ffi_layout_processing:
            options["operand_layouts"] = _layouts(ctx.avals_in, operand_layouts)
            options["result_layouts"] = _layouts(ctx.avals_out, result_layouts)
        return _custom_call(call_target_name, types, operands, version, config, **options)

    return build


def _attributes(name: str, version: int, config: Any, params: dict[str, Any]) -> ir.Attribute:
    if version < _TYPED:
        if params:
            raise errors.ArgumentValueError(
                f"The use of ffi_call attributes requires a custom call API version of at least {_TYPED}; got "
                f"api_version={version} for {name} with {sorted(params)}"
            )
        return ir.StringAttr.get(config or "")
    if config is not None and not isinstance(config, Mapping):
        raise errors.ArgumentValueError(
            f"When api_version > 4, backend_config must be a dictionary; {name} has {config!r}"
        )
    given = {k: v if isinstance(v, ir.Attribute) else ir_attribute(v) for k, v in (config or {}).items()}
    return ir.DictAttr.get(given | {k: ir_attribute(v) for k, v in params.items()})


def _layouts(avals: Sequence[ShapedArray], layouts: Sequence[Any] | None) -> ir.Attribute:
    chosen = [None] * len(avals) if layouts is None else layouts
    return ir.ArrayAttr.get([_layout(a, chosen[i]) for i, a in enumerate(avals)])


def _layout(aval: ShapedArray, layout: Any) -> ir.Attribute:
    if layout is None:
        order: Sequence[int] = range(aval.ndim)[::-1]
    elif isinstance(layout, Layout):
        if layout.tiling is not None:
            raise errors.ArgumentValueError("The FFI does not support layouts with tiling")
        order = layout.major_to_minor[::-1]
    else:
        order = layout
    indices: Any = np.asarray(order, np.int64)
    return ir.DenseIntElementsAttr.get(indices, type=ir.IndexType.get(), shape=[len(order)])


def _custom_call(
    name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], version: int, config: ir.Attribute, *,
    has_side_effect: bool = False, operand_output_aliases: Mapping[int, int] | None = None,
    called_computations: Sequence[str] = (), operand_layouts: ir.Attribute | None = None,
    result_layouts: ir.Attribute | None = None,
) -> Any:  # fmt: skip
    several = len(types) > 1
    aliases = [
        stablehlo.OutputOperandAlias.get([result] if several else [], operand, [])
        for operand, result in (operand_output_aliases or {}).items()
    ]
    return stablehlo.CustomCallOp(
        list(types), list(operands), call_target_name=ir.StringAttr.get(name),
        has_side_effect=ir.BoolAttr.get(has_side_effect), backend_config=config,
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), version),
        called_computations=ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(c) for c in called_computations]),
        output_operand_aliases=ir.ArrayAttr.get(aliases), operand_layouts=operand_layouts,
        result_layouts=result_layouts,
    )  # fmt: skip
