"""Calls of the kernels of linear algebra that ship with jaxlib, and what all primitives made of them share.

On CPUs they are LAPACK's, on CUDA devices those of cuSOLVER and its kin. Those of ROCm's libraries take the same
operands and settings, under names that begin with "hip" and not with "cu". On TPUs XLA expands the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import bring_to_front
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.xla.jaxlib_calls import lapack_kernel
from propagation.asm import i64_array

INFO = np.dtype(np.int32)
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128))


def is_gpu(ctx: LoweringContext) -> bool:
    """Whether the kernels of GPUs, which are listed as those of "cuda", are called on the platform lowered for."""
    return ctx.module.platform in ("cuda", "rocm")


def real_dtype(dtype: Any) -> np.dtype:
    """The dtype of the parts of numbers of `dtype`."""
    return np.empty((), dtype).real.dtype


class Kernel:
    """A kernel by its name, with the settings that it takes: letters, flags, and integers of a width.

    Names of CPU kernels are LAPACK's routines without the letter of the dtype ("geqrf"), all others those of the
    custom call.
    """

    __slots__ = ("name", "settings")

    def __init__(self, name: str, **settings: Any):
        self.name, self.settings = name, settings

    def target(self, platform: str, dtype: np.dtype) -> str:
        """The name of the custom call."""
        if platform == "rocm":
            return "hip" + self.name.removeprefix("cu")
        return lapack_kernel(self.name, dtype) if platform == "cpu" and not self.name.endswith("_ffi") else self.name

    def config(self) -> str:
        """The settings as a dictionary of attributes."""
        return ", ".join(f"{k} = {_setting(v)}" for k, v in sorted(self.settings.items()))


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return f"{ord(value)} : ui8" if len(value) == 1 else f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{int(value)} : {'ui8' if value.dtype == np.uint8 else 'i32'}"


def _layout(aval: ShapedArray, columns: bool) -> str:
    """Row-major order, or matrices in column-major order with batches outside."""
    order = list(range(aval.ndim - 1, -1, -1))
    if columns:
        order[0], order[1] = order[1], order[0]
    return f"dense<{order}> : tensor<{aval.ndim}xindex>" if order else "dense<> : tensor<0xindex>"


def has_kernels(ctx: LoweringContext, aval: ShapedArray) -> bool:
    """Whether matrices of this dtype have kernels on the platform that is lowered for."""
    return (ctx.module.platform == "cpu" or is_gpu(ctx)) and aval.dtype in _DTYPES


def call_kernel(
    ctx: LoweringContext,
    name: str,
    operands: Sequence[Any],
    avals: Sequence[ShapedArray],
    outs: Sequence[ShapedArray],
    kernels: Mapping[str, Kernel],
    columns: bool = True,
) -> tuple[Any, ...]:
    """Calls the one of `kernels`, by platform, for what is lowered for; `name` is that of the operation.

    Arrays of the largest rank among the operands are matrices, in column-major order if `columns`.

    Raises:
      UnsupportedError: the platform has no such kernel, or not for this dtype.
    """
    platform, dtype = ctx.module.platform, avals[0].dtype
    kernel = kernels.get("cuda" if is_gpu(ctx) else platform)
    if kernel is None:
        raise errors.UnsupportedError(
            f"{name} is not implemented for platform {platform}: its kernels are for {' and '.join(kernels)}; "
            "compute it under meshrt.default_device(meshrt.devices('cpu')[0])"
        )
    if dtype not in _DTYPES and dtypes.issubdtype(dtype, np.inexact):
        raise errors.UnsupportedError(
            f"Unsupported dtype {dtype}: {name} is computed in single and double precision; convert the operands to "
            "float32 before"
        )
    rank = max(a.ndim for a in avals)
    layouts = [", ".join(_layout(a, columns and a.ndim == rank) for a in group) for group in (avals, outs)]
    attrs = (
        f"api_version = 4 : i32, backend_config = {{{kernel.config()}}}, "
        f'call_target_name = "{kernel.target(platform, dtype)}", '
        f"operand_layouts = [{layouts[0]}], result_layouts = [{layouts[1]}]"
    )
    return ctx.ops("stablehlo.custom_call", operands, outs, attrs)


def call_tpu(
    ctx: LoweringContext, target: str, operands: Sequence[Any], outs: Sequence[ShapedArray], config: str = ""
) -> tuple[Any, ...]:
    """Calls what XLA's compiler for TPUs expands itself: it reads settings in order, and chooses all layouts."""
    attrs = f'api_version = 1 : i32, backend_config = "{config}", call_target_name = "{target}"'
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
    ok = compared(ctx, fine, info, ctx.full(0, ShapedArray(batch, INFO)), batch)
    guarded = []
    for ref, aval in zip(results, outs):
        mask = ctx.broadcast(ok, flag, ShapedArray(aval.shape, flag.dtype), range(len(batch)))
        nan = complex(np.nan, np.nan) if aval.dtype.kind == "c" else np.nan
        guarded.append(ctx.op("stablehlo.select", [mask, ref, ctx.full(nan, aval.strong())], aval))
    return guarded


def batch_leading(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The batching rule of operations on matrices: any dimensions before the last ones are a batch, which operands that
    are not mapped are repeated along."""

    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        primitive = get()
        outs = primitive.bind(*(bring_to_front(size, x, d) for x, d in zip(args, dims)), **params)
        return outs, [0] * len(outs) if primitive.multiple_results else 0

    return batch


def compared(ctx: LoweringContext, how: str, x: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """Where two arrays of signed integers compare so ("EQ", "GE", ...)."""
    attrs = (
        f"comparison_direction = #stablehlo<comparison_direction {how}>, "
        "compare_type = #stablehlo<comparison_type SIGNED>"
    )
    return ctx.op("stablehlo.compare", [x, y], ShapedArray(shape, np.dtype(bool)), attrs)


def select_by_place(ctx: LoweringContext, how: str, aval: ShapedArray, on: Any, off: Any) -> Any:
    """Elements of `on` where the row compares as `how` with the column, those of `off` elsewhere."""
    index = ShapedArray(aval.shape, INFO)
    rows, columns = (ctx.op("stablehlo.iota", [], index, f"iota_dimension = {aval.ndim - d} : i64") for d in (2, 1))
    return ctx.op("stablehlo.select", [compared(ctx, how, rows, columns, aval.shape), on, off], aval)


def write_eye(ctx: LoweringContext, aval: ShapedArray) -> Any:
    """Matrices with ones on the diagonal and zeros elsewhere."""
    return select_by_place(ctx, "EQ", aval, ctx.full(1, aval.strong()), ctx.full(0, aval.strong()))


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
