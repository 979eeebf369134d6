"""Dynamic forms of operations, whose sizes or positions are operands, in programs of static shapes: these operands are
constants, and the operation is partitioned as its static form (dynamic_pad as pad). Likewise legacy forms: broadcast as
broadcast_in_dim, get_dimension_size as a constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from propagation.attributes import integer, integers
from propagation.graph import TextAttribute
from propagation.ops import PLAIN
from propagation.program import Op, Value, source

from ..errors import UnsupportedOpError
from ..layouts.context import Context

__all__: list[str] = []

# By operation the attributes of its plain form that it takes as operands, which are its last ones.
_SIZES: dict[str, tuple[str, ...]] = {
    "stablehlo.dynamic_broadcast_in_dim": ("",),
    "stablehlo.dynamic_gather": ("slice_sizes",),
    "stablehlo.dynamic_iota": ("",),
    "stablehlo.dynamic_pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
    "stablehlo.dynamic_reshape": ("",),
    "stablehlo.real_dynamic_slice": ("start_indices", "limit_indices", "strides"),
}
_FORGOTTEN = ("known_expanding_dimensions", "known_nonexpanding_dimensions", "padding")


def _static(plain: str, names: Sequence[str]) -> Callable[[Context, Op], None]:
    """A rule that partitions the operation `plain` instead, with the operands `names` (the last ones) as attributes. An
    operand named "" only repeats the result's shape."""

    def rule(ctx: Context, op: Op) -> None:
        kept = len(op.operands) - len(names)
        attrs = {name: attr for name, attr in op.attrs.items() if name not in _FORGOTTEN}
        for name, value in zip(names, op.operands[kept:]):
            if name:
                attrs[name] = ir.DenseI64ArrayAttr.get(_numbers(op, value), ctx.program.context)
        _check_static(op)
        _instead(ctx, op, plain, op.operands[:kept], attrs)

    return rule


def convolution(ctx: Context, op: Op) -> None:
    """`dynamic_conv`, whose padding is an operand."""
    numbers = _numbers(op, op.operands[2])
    rows = len(numbers) // 2
    values = [numbers[2 * i : 2 * i + 2] for i in range(rows)] if rows else ""
    text = f"dense<{values}> : tensor<{rows}x2xi64>"
    attrs = {**op.attrs, "padding": ir.Attribute.parse(text, ctx.program.context)}
    _check_static(op)
    _instead(ctx, op, PLAIN[op.name], op.operands[:2], attrs)


def broadcast(ctx: Context, op: Op) -> None:
    """`broadcast` adds dimensions in front of all others."""
    more, rank = len(integers(op.attrs["broadcast_sizes"])), len(op.operands[0].type.shape)
    places = ir.DenseI64ArrayAttr.get(list(range(more, more + rank)), ctx.program.context)
    _instead(ctx, op, PLAIN[op.name], op.operands, {"broadcast_dimensions": places})


def dimension_size(ctx: Context, op: Op) -> None:
    """The size of a dimension of the whole tensor: a constant."""
    size = op.operands[0].type.shape[integer(op.attrs["dimension"])]
    value = ir.Attribute.parse(f"dense<{size}> : tensor<i32>", ctx.program.context)
    _instead(ctx, op, "stablehlo.constant", (), {"value": value})


def _instead(ctx: Context, op: Op, name: str, operands: Sequence[Value], attrs: dict[str, Any]) -> None:
    """Partitions another operation with the results of `op`."""
    inner = Op(name, tuple(operands), [], op._ir, attrs)
    inner.results, inner.parent = op.results, op.parent
    ctx.op = inner
    ctx.families[inner.name](ctx, inner)
    ctx.op = op


def _check_static(op: Op) -> None:
    if not all(r.type.is_static for r in op.results):
        raise UnsupportedOpError(
            f"{op.name} with a result of type {op.results[0].type.text}, whose size is only known at run time; refine "
            "the program's shapes first",
            source(op),
        )


def _numbers(op: Op, value: Value) -> list[int]:
    """The numbers in a constant operand, in order."""
    found = _constant(value)
    if found is None:
        raise UnsupportedOpError(
            f"{op.name} with sizes or positions that are computed at run time; make operand "
            f"{list(op.operands).index(value)} a constant, or write the operation that has them as attributes",
            source(op),
        )
    return found


def _constant(value: Value) -> list[int] | None:
    """The numbers of a constant, or of a concatenation of constants; None for other values."""
    op = value.op
    if op is None or not value.type.is_static:
        return None
    if op.name in ("stablehlo.constant", "sdy.constant"):
        attr = op.attrs["value"]
        if isinstance(attr, TextAttribute) or not isinstance(attr, ir.DenseIntElementsAttr):
            return None
        return [int(n) for n in np.array(attr).reshape(-1)]
    if op.name in ("stablehlo.convert", "stablehlo.reshape"):
        return _constant(op.operands[0]) if value.type.dtype.lstrip("u") in ("i32", "i64") else None
    if op.name == "stablehlo.get_dimension_size":
        return [op.operands[0].type.shape[integer(op.attrs["dimension"])]]
    if op.name == "stablehlo.concatenate" and len(value.type.shape) == 1:
        parts = [_constant(v) for v in op.operands]
        return None if any(p is None for p in parts) else [n for p in parts for n in p or ()]
    return None


PARTITION = {
    **{name: _static(PLAIN[name], sizes) for name, sizes in _SIZES.items()},
    "stablehlo.broadcast": broadcast,
    "stablehlo.dynamic_conv": convolution,
    "stablehlo.get_dimension_size": dimension_size,
}
