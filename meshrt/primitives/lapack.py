"""Calls of the LAPACK kernels that ship with jaxlib, on CPU, and what all primitives made of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import i64_array, move_dim
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.runtime.jaxlib_api import lapack_kernel

INFO = np.dtype(np.int32)


def real_dtype(dtype: Any) -> np.dtype:
    """The dtype of the parts of numbers of `dtype`."""
    return np.empty((), dtype).real.dtype


def _layout(aval: ShapedArray, matrices: bool) -> str:
    """Matrices in column-major order, batches outside."""
    order = list(range(aval.ndim - 1, -1, -1))
    if matrices:
        order[0], order[1] = order[1], order[0]
    return f"dense<{order}> : tensor<{aval.ndim}xindex>" if order else "dense<> : tensor<0xindex>"


def call_kernel(
    ctx: LoweringContext,
    name: str,
    operands: Sequence[Any],
    avals: Sequence[ShapedArray],
    outs: Sequence[ShapedArray],
    **config: str,
) -> tuple[Any, ...]:
    """Calls a kernel; arrays with more dimensions than the batch has by two are matrices."""
    if ctx.module.platform != "cpu":
        raise errors.UnsupportedError(
            f"{name} is computed by LAPACK, on CPU only, not on {ctx.module.platform}; compute it under "
            "meshrt.default_device(meshrt.devices('cpu')[0])"
        )
    rank = avals[0].ndim
    layouts = [", ".join(_layout(a, a.ndim == rank) for a in group) for group in (avals, outs)]
    settings = ", ".join(f"{k} = {ord(v)} : ui8" for k, v in config.items())
    attrs = (
        f"api_version = 4 : i32, backend_config = {{{settings}}}, "
        f'call_target_name = "{lapack_kernel(name, avals[0].dtype)}", '
        f"operand_layouts = [{layouts[0]}], result_layouts = [{layouts[1]}]"
    )
    return ctx.ops("stablehlo.custom_call", operands, outs, attrs)


def nan_unless_ok(
    ctx: LoweringContext,
    info: Any,
    batch: tuple[int, ...],
    results: Sequence[Any],
    outs: Sequence[ShapedArray],
    fine: str = "EQ",
) -> list[Any]:
    """NaN in the elements of the batch for which the kernel's `info` does not compare as `fine` with 0."""
    flag = ShapedArray(batch, np.dtype(bool))
    attrs = (
        f"comparison_direction = #stablehlo<comparison_direction {fine}>, "
        "compare_type = #stablehlo<comparison_type SIGNED>"
    )
    ok = ctx.op("stablehlo.compare", [info, ctx.full(0, ShapedArray(batch, INFO))], flag, attrs)
    guarded = []
    for ref, aval in zip(results, outs):
        mask = ctx.broadcast(ok, flag, ShapedArray(aval.shape, flag.dtype), range(len(batch)))
        nan = complex(np.nan, np.nan) if aval.dtype.kind == "c" else np.nan
        guarded.append(ctx.op("stablehlo.select", [mask, ref, ctx.full(nan, aval.strong())], aval))
    return guarded


def check_matrix(name: str, x: ShapedArray) -> None:
    """Raises unless `x` is a batch of matrices of a dtype that LAPACK knows."""
    if x.is_key or x.ndim < 2 or not dtypes.issubdtype(x.dtype, np.inexact) or real_dtype(x.dtype).itemsize < 4:
        raise errors.ArgumentTypeError(
            f"{name} needs matrices of single or double precision in the last two dimensions, but got {x.str_short()}"
        )


def batch_leading(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The batching rule of a decomposition: any dimensions before the last two are a batch."""

    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        outs = get().bind(move_dim(args[0], dims[0], 0), **params)
        return outs, [0] * len(outs)

    return batch


def write_eye(ctx: LoweringContext, aval: ShapedArray) -> Any:
    """Matrices with ones on the diagonal and zeros elsewhere."""
    index, flag = ShapedArray(aval.shape, INFO), ShapedArray(aval.shape, np.dtype(bool))
    rows, columns = (ctx.op("stablehlo.iota", [], index, f"iota_dimension = {aval.ndim - d} : i64") for d in (2, 1))
    attrs = (
        "comparison_direction = #stablehlo<comparison_direction EQ>, compare_type = #stablehlo<comparison_type SIGNED>"
    )
    on = ctx.op("stablehlo.compare", [rows, columns], flag, attrs)
    return ctx.op("stablehlo.select", [on, ctx.full(1, aval.strong()), ctx.full(0, aval.strong())], aval)


def slice_matrix(ctx: LoweringContext, ref: Any, aval: ShapedArray, rows: int, columns: int) -> Any:
    """The upper left part of matrices."""
    if aval.shape[-2:] == (rows, columns):
        return ref
    out = ShapedArray((*aval.shape[:-2], rows, columns), aval.dtype)
    attrs = (
        f"start_indices = {i64_array([0] * aval.ndim)}, limit_indices = {i64_array(out.shape)}, "
        f"strides = {i64_array([1] * aval.ndim)}"
    )
    return ctx.op("stablehlo.slice", [ref], out, attrs)
