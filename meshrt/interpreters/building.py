"""Types, attributes and constants of MLIR's from those of arrays, for lowering rules that build operations.

All are made in the context that is entered where a rule runs. Names are ``jax.interpreters.mlir``'s.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from meshrt import errors
from meshrt.core.types import ShapedArray, aval_of
from meshrt.interpreters.bindings import flat_values
from meshrt.lowering.types import dense, element_type, mlir_type
from propagation import contexts

__all__ = [
    "aval_to_ir_type", "aval_to_ir_types", "dense_int_array", "dense_int_elements", "dtype_to_ir_type",
    "flatten_ir_types", "flatten_ir_values", "i32_attr", "i64_attr", "ir_attribute", "ir_constant", "ir_constants",
    "make_ir_context", "module_to_bytecode", "module_to_string", "token_type",
]  # fmt: skip


def dtype_to_ir_type(dtype: Any) -> ir.Type:
    """The element type (`f32`) of a dtype. UnsupportedError for one that StableHLO does not have."""
    return ir.Type.parse(element_type(np.dtype(dtype)))


def aval_to_ir_type(ctx: Any, aval: ShapedArray) -> ir.Type:
    """The tensor type of a type of arrays; `ctx` is not looked at."""
    return ir.Type.parse(mlir_type(aval))


def aval_to_ir_types(ctx: Any, aval: ShapedArray) -> tuple[ir.Type, ...]:
    """The types of the values that an array is: one."""
    return (aval_to_ir_type(ctx, aval),)


def token_type() -> ir.Type:
    """The type of what orders effects."""
    return stablehlo.TokenType.get()


def dense_int_elements(xs: Sequence[int]) -> ir.DenseIntElementsAttr:
    """64-bit integers as a tensor."""
    values: Any = np.asarray(xs, np.int64)
    return ir.DenseIntElementsAttr.get(values)


def dense_int_array(xs: Sequence[int]) -> ir.DenseI64ArrayAttr:
    """64-bit integers as an array (`array<i64: 1, 2>`)."""
    return ir.DenseI64ArrayAttr.get(list(xs))


def i32_attr(i: int) -> ir.IntegerAttr:
    """A 32-bit integer."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), i)


def i64_attr(i: int) -> ir.IntegerAttr:
    """A 64-bit integer."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), i)


def ir_attribute(val: Any) -> ir.Attribute:
    """A Python value as an attribute: numbers, strings, bytes, arrays, sequences and dictionaries of them.

    Raises TypeError for others.
    """
    if isinstance(val, ir.Attribute):
        return val
    if isinstance(val, str | bytes):
        return ir.StringAttr.get(val)
    if isinstance(val, bool | np.bool_):
        return ir.BoolAttr.get(bool(val))
    if isinstance(val, dict):
        return ir.DictAttr.get({name: ir_attribute(item) for name, item in val.items()})
    if isinstance(val, tuple | list):
        return ir.ArrayAttr.get([ir_attribute(item) for item in val])
    if isinstance(val, np.ndarray):
        return ir.Attribute.parse(dense(val))
    if isinstance(val, int | float | np.number):
        aval = aval_of(val)
        kind = dtype_to_ir_type(aval.dtype)
        is_float = np.issubdtype(aval.dtype, np.floating) or aval.dtype.kind == "V"
        return ir.FloatAttr.get(kind, float(val)) if is_float else ir.IntegerAttr.get(kind, int(val))
    raise errors.ArgumentTypeError(f"No attribute handler defined for type: {type(val)}")


def ir_constant(val: Any, *, const_lowering: Any = None, aval: ShapedArray | None = None) -> ir.Value:
    """A constant operation, at the place where operations are inserted.

    Args:
      val: a number or an array; Python's numbers have their default types.
      const_lowering: accepted for JAX's sake.
      aval: its type, if it is another one.
    """
    found = aval or aval_of(val)
    value = np.asarray(val, found.dtype).reshape(found.shape)
    return stablehlo.ConstantOp(ir.DenseElementsAttr(ir.Attribute.parse(dense(value)))).result


def ir_constants(val: Any, *, const_lowering: Any = None, aval: ShapedArray | None = None) -> tuple[ir.Value, ...]:
    """The constants that a value is: one."""
    return (ir_constant(val, aval=aval),)


def flatten_ir_values(xs: Iterable[Any]) -> list[ir.Value]:
    """Values and sequences of values as one list."""
    return flat_values(xs)


def flatten_ir_types(xs: Iterable[Any]) -> list[ir.Type]:
    """Types and sequences of types as one list."""
    return [found for x in xs for found in ([x] if isinstance(x, ir.Type) else x)]


def make_ir_context() -> ir.Context:
    """A new context that knows the dialects which programs are written in."""
    return contexts.new_context()


def module_to_string(module: ir.Module, enable_debug_info: bool | None = None) -> str:
    """The text of a module, with locations if `enable_debug_info`."""
    return str(module.operation.get_asm(enable_debug_info=bool(enable_debug_info)))


def module_to_bytecode(module: ir.Module) -> bytes:
    """A module in MLIR's bytecode."""
    output = io.BytesIO()
    module.operation.write_bytecode(file=output)
    return output.getvalue()
