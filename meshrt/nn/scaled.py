"""Products of what is quantised on the way: elements of few bits, whose scales neighbours share."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.custom_derivatives import custom_vjp
from meshrt.nn.functions import scaled_matmul, with_scales
from meshrt.nn.kernels import shipped
from meshrt.numpy.arrays import asarray
from meshrt.numpy.reductions import amax
from meshrt.numpy.selection import clip, where
from meshrt.numpy.shapes import reshape, transpose
from meshrt.numpy.ufuncs import absolute
from meshrt.transforms.vmap import vmap

__all__ = ["get_scaled_dot_general_config", "scaled_dot_general"]


@dataclass
class BlockScaleConfig:
    """How an operand is quantised: `block_size` neighbours along the summed dimension share a scale.

    global_scale  float32 (1,), divides all of it first, or None
    infer_only    kept for JAX's sake
    """

    mode: str
    block_size: int
    data_type: Any
    scale_type: Any
    global_scale: Any
    infer_only: bool


def get_scaled_dot_general_config(mode: Literal["nvfp4", "mxfp8"], global_scale: Any = None) -> BlockScaleConfig:
    """How `scaled_dot_general` is to quantise an operand.

    Args:
      mode: "mxfp8", 8-bit elements with a power of two for 32 of them; "nvfp4", 4-bit ones with an 8-bit scale for 16.
      global_scale: float32 (1,), for "nvfp4": divides the operand first; 1 by default.

    >>> get_scaled_dot_general_config("mxfp8").block_size
    32

    Raises:
      ArgumentValueError: another mode.
    """
    if mode == "nvfp4":
        whole = np.ones(1, np.float32) if global_scale is None else global_scale
        return BlockScaleConfig(mode, 16, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, asarray(whole), False)
    if mode == "mxfp8":
        return BlockScaleConfig(mode, 32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, None, False)
    raise errors.ArgumentValueError(f"Unsupported mode: {mode}. Use 'mxfp8' or 'nvfp4'")


def scaled_dot_general(
    lhs: Any, rhs: Any, dimension_numbers: Any, preferred_element_type: Any = np.float32,
    configs: Sequence[BlockScaleConfig] | None = None, implementation: str | None = None,
) -> Any:  # fmt: skip
    """`lax.dot_general` of operands that are quantised first, by blocks along the summed dimensions.

    The derivative multiplies with quantised operands again ("mxfp8"), or with the operands themselves ("nvfp4"), where
    it is zero for elements that were cut off.

    Args:
      lhs, rhs: floating-point arrays. dimension_numbers: ((lhs summed, rhs summed), (lhs batch, rhs batch)).
      preferred_element_type: float32, bfloat16 or float16: that of the result. Sums are float32.
      configs: how lhs, rhs and the cotangent are quantised (`get_scaled_dot_general_config`); None: not at all.
      implementation: "pallas": the products, those of derivatives too, are by the kernel
        `meshrt.experimental.pallas.ops.matmul`. None: they are operations of the program. Any other is accepted for
        JAX's sake, and ignored.

    >>> import meshrt.numpy as jnp
    >>> configs = [get_scaled_dot_general_config("mxfp8")] * 3
    >>> scaled_dot_general(jnp.ones((2, 32)), jnp.ones((3, 32)), (((1,), (1,)), ((), ())), configs=configs)
    Array([[32., 32., 32.],
           [32., 32., 32.]], dtype=float32)

    Raises:
      ArgumentTypeError: another preferred dtype.
      ArgumentValueError: blocks do not divide the summed elements.
    """
    by_kernel = implementation == "pallas"
    if implementation is not None and not by_kernel:
        warnings.warn(
            f"implementation={implementation!r} is ignored: give 'pallas' for a kernel, or None", DeprecationWarning,
            stacklevel=2,
        )  # fmt: skip
    if configs is None and not by_kernel:
        return lax.dot_general(lhs, rhs, dimension_numbers, preferred_element_type=preferred_element_type)
    preferred = dtypes.check_user_dtype(preferred_element_type, "scaled_dot_general")
    if preferred not in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        raise errors.ArgumentTypeError(
            f"scaled_dot_general: Only support preferred_element_type in (f32, bf16, f16), but got {preferred}"
        )
    x, y = asarray(lhs), asarray(rhs)
    (xc, yc), (xb, yb) = dimension_numbers
    x_dims, y_dims = _dims(x, xb, xc), _dims(y, yb, yc)
    left, right = _matrices(x, x_dims), _matrices(y, y_dims)
    if configs is None:
        wide = dtypes.promote_types(x.dtype, y.dtype)
        out = _by_kernel(left.astype(wide), transpose(right, (0, 2, 1)).astype(wide)).astype(preferred)
    else:
        forms = tuple(map(_form, configs))
        scales = tuple(c.global_scale for c in configs[:2])
        out = _product(left, right, scales, forms, preferred, by_kernel)
    shape = [x.shape[d] for d in (*x_dims[0], *x_dims[1])] + [y.shape[d] for d in y_dims[1]]
    return reshape(out, shape)


class _Form(NamedTuple):
    """What of a config is known before values are."""

    mode: str
    block: int
    data: Any
    scale: Any

    @property
    def most(self) -> float:
        return float(dtypes.finfo(self.data).max)


def _form(config: BlockScaleConfig) -> _Form:
    return _Form(config.mode, config.block_size, np.dtype(config.data_type), np.dtype(config.scale_type))


Dims = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _dims(x: Any, batch: Any, summed: Any) -> Dims:
    """(batch, kept, summed) dimensions."""
    kept = tuple(d for d in range(x.ndim) if d not in batch and d not in summed)
    return tuple(batch), kept, tuple(summed)


def _matrices(x: Any, dims: Dims) -> Any:
    """(batch, rows, summed elements)."""
    sizes = [math.prod(x.shape[d] for d in part) for part in dims]
    return reshape(transpose(x, [d for part in dims for d in part]), sizes)


def _by_kernel(x: Any, y: Any) -> Any:
    """The products of two batches of matrices (b, m, k) and (b, k, n), by the kernel for them."""
    if 0 in (*x.shape, *y.shape):  # a kernel has blocks, and no block is empty
        return lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,))))
    kernels = shipped()
    return vmap(kernels.matmul)(x, y)


def _scaled(x: Any, y: Any, x_scales: Any, y_scales: Any, preferred: Any, by_kernel: bool) -> Any:
    """x @ yᵀ of batches of matrices whose elements share scales."""
    if not by_kernel:
        return scaled_matmul(x, y, x_scales, y_scales, preferred)
    wide = [with_scales(v, s) for v, s in ((x, x_scales), (y, y_scales))]
    return _by_kernel(wide[0], transpose(wide[1], (0, 2, 1))).astype(preferred)


@functools.partial(custom_vjp, nondiff_argnums=(3, 4, 5))
def _product(x: Any, y: Any, scales: Any, forms: tuple[_Form, ...], preferred: Any, by_kernel: bool) -> Any:
    """x @ yᵀ of batches of matrices, both quantised."""
    of_x, of_y = scales
    narrow = forms[0].mode == "nvfp4"
    (xq, x_scales), (yq, y_scales) = (_quantized(v, s, f) for v, s, f in zip((x, y), scales, forms))
    out = _scaled(xq, yq, x_scales, y_scales, np.float32 if narrow else preferred, by_kernel)
    if narrow:
        out = (out * (of_x * of_y)).astype(preferred)
    return out


def _product_forward(
    x: Any, y: Any, scales: Any, forms: tuple[_Form, ...], preferred: Any, by_kernel: bool
) -> Any:  # fmt: skip
    return _product(x, y, scales, forms, preferred, by_kernel), (x, y, scales)


def _product_backward(forms: tuple[_Form, ...], preferred: Any, by_kernel: bool, kept: Any, cotangent: Any) -> Any:
    x, y, scales = kept
    turned = transpose(cotangent, (0, 2, 1))
    dx = _pulled_back(cotangent, y, (forms[2], forms[1]), preferred, by_kernel)
    dy = _pulled_back(turned, x, (forms[2], forms[0]), preferred, by_kernel)
    if forms[2].mode == "nvfp4":
        dx, dy = (
            where(absolute(v) <= s * (f.most * float(dtypes.finfo(f.scale).max)), d, 0)
            for v, s, f, d in zip((x, y), scales, forms, (dx, dy))
        )
    return dx.astype(x.dtype), dy.astype(y.dtype), None


_product.defvjp(_product_forward, _product_backward)


def _pulled_back(g: Any, y: Any, forms: tuple[_Form, _Form], preferred: Any, by_kernel: bool) -> Any:
    """g @ y of batches of matrices; both quantised along the dimension that is summed now, unless elements are too
    narrow for a derivative."""
    if forms[0].mode == "nvfp4":
        dims = (((2,), (1,)), ((0,), (0,)))
        wide = dtypes.promote_types(g.dtype, y.dtype)
        if by_kernel:
            return _by_kernel(g.astype(wide), y.astype(wide)).astype(preferred)
        return lax.dot_general(g.astype(wide), y.astype(wide), dims, preferred_element_type=preferred)
    (gq, g_scales), (yq, y_scales) = (_quantized(v, None, f) for v, f in zip((g, transpose(y, (0, 2, 1))), forms))
    return _scaled(gq, yq, g_scales, y_scales, preferred, by_kernel)


def matrices(x: Any, batch: Sequence[int], summed: Sequence[int]) -> Any:
    """`x` as (batch, kept elements, summed elements)."""
    return _matrices(x, _dims(x, batch, summed))


def quantized(x: Any, config: BlockScaleConfig) -> tuple[Any, Any]:
    """(elements, scales) of a batch of matrices, whose last dimension has the blocks."""
    return _quantized(x, config.global_scale, _form(config))


def _quantized(x: Any, global_scale: Any, form: _Form) -> tuple[Any, Any]:
    """(elements, scales) of a batch of matrices, whose last dimension has the blocks."""
    width = x.shape[-1]
    if not width or width % form.block:
        raise errors.ArgumentValueError(
            f"scaled_dot_general: {form.mode} shares a scale among {form.block} elements, which do not divide the "
            f"{width} that are summed; pad the operands with zeros"
        )
    blocks = reshape(x, (*x.shape[:-1], width // form.block, form.block))
    if form.mode == "nvfp4":
        blocks = blocks / global_scale
    needed = amax(absolute(blocks), axis=-1, keepdims=True) / np.asarray(form.most, x.dtype)[()]
    if form.mode == "nvfp4":
        scales = clip(needed, 0, np.asarray(dtypes.finfo(form.scale).max, x.dtype)[()])
        scales = lax.optimization_barrier(scales.astype(form.scale))
        divisor = scales.astype(np.float32)
    else:
        exponents = _power_of_two_above(needed)
        divisor = _value_of(exponents).astype(x.dtype)
        scales = lax.bitcast_convert_type(exponents, form.scale)
    scaled = blocks / where(divisor == 0, 1, divisor)  # a block of zeros has the scale 0, and stays what it is
    elements = clip(scaled, -form.most, form.most).astype(form.data)
    return reshape(elements, x.shape), scales[..., 0]


def _power_of_two_above(x: Any) -> Any:
    """The exponent, biased by 127, of the least power of two that is not below x: uint8."""
    bits = lax.bitcast_convert_type(x.astype(np.float32), np.uint32)
    exponent, fraction = bits >> np.uint32(23), bits & np.uint32(0x7FFFFF)
    tiny = (exponent == 0) & (fraction <= 0x400000)  # 2^-127 is not below it
    up = (fraction > 0) & (exponent != 0xFE) & ~tiny
    return where(up, exponent + np.uint32(1), exponent).astype(np.uint8)


def _value_of(exponents: Any) -> Any:
    """Two to the power of exponents biased by 127: float32."""
    value = lax.bitcast_convert_type(exponents.astype(np.uint32) << np.uint32(23), np.float32)
    return where(exponents == 0, np.float32(2.0**-127), value)
