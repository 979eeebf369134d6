"""`jax._src.lax_reference`: operations of `jax.lax` on NumPy's arrays, one by one and by their definitions.

Tests compare with these. Nothing here is fast, or meant to be.
"""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from meshrt import dtypes
from meshrt.numpy.names import missing as _missing

neg = np.negative
sign = np.sign
floor, ceil = np.floor, np.ceil
is_finite = np.isfinite
exp, exp2, expm1 = np.exp, np.exp2, np.expm1
log, log1p = np.log, np.log1p
sin, cos, tan = np.sin, np.cos, np.tan
sinh, cosh, tanh = np.sinh, np.cosh, np.tanh
asin, acos, atan, atan2 = np.arcsin, np.arccos, np.arctan, np.arctan2
asinh, acosh, atanh = np.arcsinh, np.arccosh, np.arctanh
sqrt, cbrt, square, reciprocal = np.sqrt, np.cbrt, np.square, np.reciprocal
abs = np.absolute
pow = np.power
bitwise_not, bitwise_and, bitwise_or, bitwise_xor = np.bitwise_not, np.bitwise_and, np.bitwise_or, np.bitwise_xor
add, sub, mul = np.add, np.subtract, np.multiply
max, min = np.maximum, np.minimum
eq, ne, ge, gt, le, lt = np.equal, np.not_equal, np.greater_equal, np.greater, np.less_equal, np.less
shift_left, shift_right_arithmetic = np.left_shift, np.right_shift
nextafter = np.nextafter
select = np.where
transpose, squeeze, sort, sum = np.transpose, np.squeeze, np.sort, np.sum
dot = np.dot
igamma, igammac = special.gammainc, special.gammaincc


# ----------------------------------------------------------------------------------------------------------------------
# Element by element


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of scipy's or ours whose result has the dtype of its first operand; narrow floats as float32."""

    def apply(*operands: Any) -> Any:
        arrays = [np.asarray(x) for x in operands]
        kind = np.result_type(*arrays)
        wide = [x.astype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "iub" else x for x in arrays]
        return np.asarray(function(*wide)).astype(kind)

    return apply


round = _kept(lambda x: np.trunc(x) + np.copysign(np.absolute(np.modf(x)[0]) >= 0.5, x))  # halves away from zero
logistic = _kept(lambda x: 1 / (1 + np.exp(-x)))
rsqrt = _kept(lambda x: 1 / np.sqrt(x))
imag = np.imag
lgamma, digamma = _kept(special.gammaln), _kept(special.digamma)
betainc = _kept(special.betainc)
erf, erfc, erf_inv = _kept(special.erf), _kept(special.erfc), _kept(special.erfinv)
bessel_i0e, bessel_i1e = _kept(special.i0e), _kept(special.i1e)


def real(x: Any) -> Any:
    """The real parts."""
    return np.real(x)


def conj(x: Any) -> Any:
    """The conjugates: complex numbers of real ones too."""
    return np.conj(x) + np.zeros((), np.complex64)


def complex(x: Any, y: Any) -> Any:
    """Complex numbers of real and imaginary parts."""
    x, y = np.asarray(x), np.asarray(y)
    found = np.empty(np.broadcast_shapes(x.shape, y.shape), np.result_type(x.dtype, np.complex64))
    found.real, found.imag = x, y
    return found


def div(lhs: Any, rhs: Any) -> Any:
    """Quotients; of integers rounded towards zero."""
    lhs, rhs = np.asarray(lhs), np.asarray(rhs)
    if not dtypes.issubdtype(np.result_type(lhs, rhs), np.integer):
        return np.divide(lhs, rhs)
    exact = np.floor_divide(np.absolute(lhs.astype(object)), np.absolute(rhs.astype(object)))
    signs = np.sign(lhs.astype(object)) * np.sign(rhs.astype(object))
    bits = np.asarray(exact * signs) % (1 << 64)  # as the quotient of the least number and -1 does not fit
    return bits.astype(np.uint64).astype(np.result_type(lhs, rhs))


def rem(lhs: Any, rhs: Any) -> Any:
    """Remainders, with the sign of the dividend."""
    return np.fmod(lhs, rhs)


def mulhi(x: Any, y: Any) -> Any:
    """The upper half of products of integers."""
    x, y = np.asarray(x), np.asarray(y)
    bits = 8 * x.dtype.itemsize
    product = np.asarray(x.astype(object) * y.astype(object))
    return np.vectorize(lambda p: int(p) >> bits, otypes=[object])(product).astype(x.dtype)


def clamp(min: Any, operand: Any, max: Any) -> Any:
    """Values held within bounds."""
    return np.minimum(np.maximum(operand, min), max).astype(np.asarray(operand).dtype)


def _by_bits(count: Callable[[int, int], int]) -> Callable[[Any], np.ndarray]:
    def apply(x: Any) -> Any:
        x = np.asarray(x)
        width = 8 * x.dtype.itemsize
        return np.vectorize(lambda v: count(int(v) % (1 << width), width), otypes=[x.dtype])(x)

    return apply


population_count = _by_bits(lambda value, width: value.bit_count())
clz = _by_bits(lambda value, width: width - value.bit_length())


def convert_element_type(operand: Any, dtype: Any) -> Any:
    """The elements in another dtype."""
    return np.asarray(operand).astype(dtype)


def bitcast_convert_type(operand: Any, dtype: Any) -> Any:
    """The bits of the elements in another dtype."""
    return np.asarray(operand).view(dtype)


# ----------------------------------------------------------------------------------------------------------------------
# Shapes


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """One array after another along a dimension."""
    return np.concatenate(operands, axis=dimension)


def broadcast(operand: Any, sizes: Sequence[int]) -> Any:
    """With dimensions of the given sizes in front."""
    return np.broadcast_to(operand, (*sizes, *np.shape(operand)))


def broadcast_in_dim(operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Any:
    """An array of `shape` whose dimensions `broadcast_dimensions` are those of the operand."""
    placed = [1] * len(shape)
    for dim, size in zip(broadcast_dimensions, np.shape(operand)):
        placed[dim] = size
    return np.broadcast_to(np.reshape(operand, placed), shape)


def reshape(operand: Any, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None) -> Any:
    """Another shape; `dimensions` are the operand's in the order in which they are read."""
    order = range(np.ndim(operand)) if dimensions is None else dimensions
    return np.reshape(np.transpose(operand, tuple(order)), new_sizes)


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """Backwards along some dimensions."""
    return np.flip(operand, tuple(dimensions))


def slice(
    operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Any:
    """The elements from starts to limits, in steps."""
    steps = strides or [1] * len(start_indices)
    return operand[tuple(map(builtins.slice, start_indices, limit_indices, steps))]


def _block(operand: Any, start_indices: Any, sizes: Sequence[int]) -> tuple[builtins.slice, ...]:
    counted = [i + n if i < 0 else i for i, n in zip(start_indices, np.shape(operand))]  # negative: from the end
    starts = [int(np.clip(i, 0, n - s)) for i, n, s in zip(counted, np.shape(operand), sizes)]
    return tuple(builtins.slice(i, i + s) for i, s in zip(starts, sizes))


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int]) -> Any:
    """A block, moved to lie inside."""
    return operand[_block(operand, start_indices, slice_sizes)]


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Any:
    """With another block, moved to lie inside."""
    found = np.copy(operand)
    found[_block(operand, start_indices, np.shape(update))] = update
    return found


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """With values before, after and between the elements; negative widths cut."""
    operand = np.asarray(operand)
    for dim, (low, high, inner) in enumerate(padding_config):
        size = operand.shape[dim]
        spread = size + inner * builtins.max(size - 1, 0)
        total = builtins.max(low + spread + high, 0)
        found = np.full((*operand.shape[:dim], total, *operand.shape[dim + 1 :]), padding_value, operand.dtype)
        places = low + np.arange(size) * (inner + 1)
        inside = np.flatnonzero((places >= 0) & (places < total))
        at: tuple[Any, ...] = (builtins.slice(None),) * dim
        found[(*at, places[inside])] = operand[(*at, inside)]
        operand = found
    return operand


# ----------------------------------------------------------------------------------------------------------------------
# Contractions


def _einsum(lhs: Any, left: list[int], rhs: Any, right: list[int], out: list[int]) -> Any:
    """`np.einsum`, of types that it does not know as float32."""
    kind = np.result_type(lhs, rhs)
    wide = [np.asarray(x).astype(kind if kind.kind in "biufc" else np.float32) for x in (lhs, rhs)]
    return np.asarray(np.einsum(wide[0], left, wide[1], right, out)).astype(kind)


def dot_general(lhs: Any, rhs: Any, dimension_numbers: Any) -> Any:
    """Products of `lhs` and `rhs`, summed over the contracting dimensions, for each index of the batch dimensions."""
    (lc, rc), (lb, rb) = dimension_numbers
    names = itertools.count()
    left, right = [-1] * np.ndim(lhs), [-1] * np.ndim(rhs)
    batch = []
    for i, j in zip(lb, rb):
        left[i] = right[j] = next(names)
        batch.append(left[i])
    for i, j in zip(lc, rc):
        left[i] = right[j] = next(names)
    contracted = [left[i] for i in lc]
    left = [next(names) if n < 0 else n for n in left]
    right = [next(names) if n < 0 else n for n in right]
    free = [n for n in (*left, *right) if n not in batch and n not in contracted]
    return _einsum(lhs, left, rhs, right, batch + free)


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    """Products of groups of rows with a matrix for each group; zeros for rows of no group."""
    found = np.zeros((lhs.shape[0], rhs.shape[2]), np.result_type(lhs, rhs))
    start = 0
    for size, matrix in zip(group_sizes, rhs):
        found[start : start + size] = lhs[start : start + size] @ matrix
        start += size
    return found


def padtype_to_pads(
    in_shape: Sequence[int], filter_shape: Sequence[int], window_strides: Sequence[int], padding: str
) -> list[tuple[int, int]]:
    """The widths that a word for padding stands for."""
    word = padding.upper()
    if word == "VALID":
        return [(0, 0)] * len(in_shape)
    if word not in ("SAME", "SAME_LOWER"):
        raise TypeError(f"Unknown padding type: {padding}")
    totals = [builtins.max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(in_shape, filter_shape, window_strides)]
    halves = [t // 2 if word == "SAME" else t - t // 2 for t in totals]
    return [(h, t - h) for h, t in zip(halves, totals)]


def _windows(x: np.ndarray, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """[*positions, *sizes] of the trailing dimensions of x."""
    first = x.ndim - len(sizes)
    for d, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations)):
        count = builtins.max((x.shape[first + d] - ((size - 1) * dilation + 1)) // stride + 1, 0)
        places = np.arange(count)[:, None] * stride + np.arange(size)[None] * dilation
        x = np.moveaxis(np.take(x, places, axis=first + d), first + d + 1, -1)
    return x


def conv_general_dilated(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any, lhs_dilation: Any, rhs_dilation: Any,
    dimension_numbers: Any,
) -> Any:  # fmt: skip
    """A convolution; `dimension_numbers` as `lax.conv_dimension_numbers` gives them, or words ("NCHW", ...)."""
    if isinstance(dimension_numbers, tuple) and isinstance(dimension_numbers[0], str):
        l, r, o = dimension_numbers
        space = [c for c in l if c not in "NC"]
        lp = [l.index("N"), l.index("C"), *(l.index(c) for c in space)]
        rp = [r.index("O"), r.index("I"), *(r.index(c) for c in space)]
        op = [o.index("N"), o.index("C"), *(o.index(c) for c in space)]
    else:
        lp, rp, op = dimension_numbers
    x, w = np.transpose(lhs, lp), np.transpose(rhs, rp)
    n = x.ndim - 2
    inner, outer = lhs_dilation or [1] * n, rhs_dilation or [1] * n
    spread = [(w.shape[2 + d] - 1) * outer[d] + 1 for d in range(n)]
    if isinstance(padding, str):
        padding = padtype_to_pads(x.shape[2:], spread, window_strides, padding)
    x = pad(x, 0, [(0, 0, 0), (0, 0, 0), *((a, b, i - 1) for (a, b), i in zip(padding, inner))])
    parts = _windows(x, w.shape[2:], window_strides, outer)
    space, taps = list(range(3, 3 + n)), list(range(3 + n, 3 + 2 * n))
    found = _einsum(parts, [0, 1, *space, *taps], w, [2, 1, *taps], [0, 2, *space])
    return np.transpose(found, np.argsort(op))


def conv(lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any) -> Any:
    """A convolution of (batch, channels, ...) with (outputs, channels, ...)."""
    return conv_with_general_padding(lhs, rhs, window_strides, padding, None, None)


def conv_with_general_padding(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any, lhs_dilation: Any, rhs_dilation: Any
) -> Any:
    """As `conv`, of dilated operands."""
    same = (tuple(range(np.ndim(lhs))),) * 3
    return conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, same)


# ----------------------------------------------------------------------------------------------------------------------
# Reductions


def _folded(computation: Callable[..., Any], init_value: Any, parts: np.ndarray) -> Any:
    """`computation` over the first dimension, from `init_value`."""
    found = np.full(parts.shape[1:], init_value, parts.dtype)
    for part in parts:
        found = np.asarray(computation(found, part)).astype(parts.dtype)
    return found


def reduce(operand: Any, init_value: Any, computation: Callable[..., Any], dimensions: Sequence[int]) -> Any:
    """The elements along dimensions combined."""
    operand = np.asarray(operand)
    kept = [d for d in range(operand.ndim) if d not in dimensions]
    ordered = np.transpose(operand, (*dimensions, *kept))
    size = math.prod(operand.shape[d] for d in dimensions)
    return _folded(computation, init_value, ordered.reshape(size, *(operand.shape[d] for d in kept)))


def reduce_window(
    operand: Any, init_value: Any, computation: Callable[..., Any], window_dimensions: Sequence[int],
    window_strides: Sequence[int], padding: Any, base_dilation: Any,
) -> Any:  # fmt: skip
    """The elements of each window combined."""
    operand = np.asarray(operand)
    between = base_dilation or [1] * operand.ndim
    operand = pad(operand, init_value, [(0, 0, b - 1) for b in between])
    if isinstance(padding, str):
        padding = padtype_to_pads(operand.shape, window_dimensions, window_strides, padding)
    operand = pad(operand, init_value, [(a, b, 0) for a, b in padding])
    parts = _windows(operand, window_dimensions, window_strides, [1] * operand.ndim)
    flat = parts.reshape(*parts.shape[: operand.ndim], -1)
    return _folded(computation, init_value, np.moveaxis(flat, -1, 0))


def sort_key_val(keys: Any, values: Any, dimension: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Keys in order, and values with them."""
    order = np.argsort(keys, axis=dimension, kind="stable")
    return np.take_along_axis(keys, order, dimension), np.take_along_axis(values, order, dimension)


def top_k(operand: Any, k: int, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """The greatest along a dimension, and where they are; NaN is the greatest, equal ones in their order."""
    operand = np.moveaxis(np.asarray(operand), axis, -1)
    keys = operand.astype(np.float32) if operand.dtype.kind not in "iubfc" else operand
    backwards = np.argsort(keys[..., ::-1], axis=-1, kind="stable")
    order = (operand.shape[-1] - 1 - backwards)[..., ::-1][..., :k]
    found = np.take_along_axis(operand, order, -1)
    return np.moveaxis(found, -1, axis), np.moveaxis(order.astype(np.int32), -1, axis)


__getattr__ = _missing("jax._src.lax_reference", [name for name in globals() if not name.startswith("_")])
