"""Values that every device computes for itself in any layout, without communication: constants, iota, device
numbers."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from propagation.attributes import integer
from propagation.graph import TextAttribute
from propagation.program import Op, Value

from ..emit import LocalValue
from ..layout import Dims, replicated
from .context import Context

__all__ = ["scalar_constant"]


def constant(ctx: Context, op: Op) -> None:
    """A splat constant is written in the local shape; of other constants each device slices out its piece."""
    result = op.results[0]
    shape, dtype = result.type.shape, result.type.dtype
    attr = op.attrs["value"]
    text = ctx.text_of(attr)

    def make(dims: Dims) -> LocalValue:
        local = ctx.piece_shape(result, dims)
        if local == shape:
            return ctx.region.entry("stablehlo.constant", (), shape, dtype, f"value = {text}")
        if _is_splat(attr):
            literal = text[text.index("<") + 1 : text.rindex("> :")]
            return ctx.region.entry(
                "stablehlo.constant", (), local, dtype, f"value = dense<{literal}> : {_type(local, dtype)}"
            )
        full = ctx.region.entry("stablehlo.constant", (), shape, dtype, f"value = {text}")
        return ctx.reshard(shape, full, replicated(len(shape)), dims)

    ctx.bind_lazy(result, make)


def _type(shape: Sequence[int], dtype: str) -> str:
    return "tensor<" + "".join(f"{n}x" for n in shape) + f"{dtype}>"


def _is_splat(attr: ir.Attribute | TextAttribute) -> bool:
    if isinstance(attr, TextAttribute):  # complex elements: dense<(1.0,2.0)> is a splat, dense<[(1.0,2.0), ...]> is not
        return attr.text.startswith("dense<(")
    return isinstance(attr, ir.DenseElementsAttr) and ir.DenseElementsAttr(attr).is_splat


def scalar_constant(value: Value) -> float | int | bool | None:
    """The number that all elements of a value are, if it is a splat constant, broadcast, reshaped or converted; else
    None."""
    op = value.op
    types: list[str] = []  # element types that it is converted to, the last one first
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape"):
        if op.name == "stablehlo.convert":
            types.append(op.results[0].type.dtype)
        op = op.operands[0].op
    if op is None or op.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    number = _number(op)
    for dtype in reversed(types):
        number = None if number is None else _converted(number, dtype)
    return number


_FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def _converted(number: float | int | bool, dtype: str) -> float | int | bool | None:
    """A number converted to another element type; None where the result is unknown or differs between platforms."""
    if isinstance(number, complex):
        return None
    if dtype in _FLOATS:
        with np.errstate(all="ignore"):
            return float(np.asarray(number, _FLOATS[dtype]))
    if dtype == "i1":
        return bool(number)
    width = dtype.removeprefix("u").removeprefix("i")
    if dtype.startswith(("f", "complex")) or not width.isdigit() or not np.isfinite(number):
        return None
    low, bits = (0, int(width)) if dtype.startswith("u") else (-(1 << (int(width) - 1)), int(width) - 1)
    whole = int(number)
    return whole if low <= whole < 1 << bits else None


def _number(op: Op) -> float | int | bool | None:
    """The element of a splat constant; None for other constants."""
    attr = op.attrs["value"]
    if isinstance(attr, TextAttribute) or not _is_splat(attr):
        return None
    try:
        # One element is stored, whatever the shape: a copy of the array would be as large as the tensor.
        elements = np.asarray(ir.DenseElementsAttr(attr))
        return elements.flat[0].item() if elements.size else None
    except (AttributeError, TypeError, ValueError, BufferError):  # element types NumPy cannot hold: read the text
        text = str(attr)
        literal = text[text.index("<") + 1 : text.rindex("> :")]
        try:
            return float(literal)
        except ValueError:
            return _from_bits(literal, op.results[0].type.dtype)


def _from_bits(literal: str, dtype: str) -> float | None:
    """The special values that MLIR prints as bits."""
    known = {"bf16": {"0xFF80": -np.inf, "0x7F80": np.inf}, "f16": {"0xFC00": -np.inf, "0x7C00": np.inf}}
    return known.get(dtype, {}).get(literal)


def iota(ctx: Context, op: Op) -> None:
    """Indices along a dimension: if it is split, the local iota plus the index at which this device's piece starts."""
    result = op.results[0]
    d = integer(op.attrs["iota_dimension"])
    dtype = result.type.dtype

    def make(dims: Dims) -> LocalValue:
        local = ctx.piece_shape(result, dims)
        if not dims[d]:
            return ctx.region.shared("stablehlo.iota", (), local, dtype, f"iota_dimension = {d} : i64", ctx.loc)
        where = ctx.realiser.positions(ctx.region, local, d, dims[d], local[d])
        return where if dtype == "i32" else ctx.region.shared("stablehlo.convert", (where,), local, dtype)

    ctx.bind_lazy(result, make)


def device_number(ctx: Context, op: Op) -> None:
    """`partition_id` of a program written for N partitions is `replica_id` of one written for N replicas."""
    ctx.bind(op.results[0], (), ctx.region.entry("stablehlo.replica_id", (), (), "ui32"))


PARTITION = {
    "stablehlo.constant": constant,
    "sdy.constant": constant,
    "stablehlo.iota": iota,
    "stablehlo.partition_id": device_number,
    "stablehlo.replica_id": device_number,
}
