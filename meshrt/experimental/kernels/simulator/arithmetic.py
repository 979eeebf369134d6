"""What operations on values compute, by NumPy: an oracle that has nothing in common with XLA.

Operations without a row are run by the runtime, one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.jaxpr import Eqn
from meshrt.core.trace import EVAL, set_trace

__all__ = ["computed", "is_computed"]


def computed(eqn: Eqn, operands: Sequence[Any], skip_floats: bool = False) -> list[Any]:
    """The results of an equation whose operands are NumPy arrays.

    With `skip_floats` all floats are infinite: what gives floats alone is not computed.
    """
    if skip_floats:
        if all(_is_float(v.aval.dtype) for v in eqn.outvars):
            return [np.full(v.aval.shape, np.inf, v.aval.dtype) for v in eqn.outvars]
        operands = [np.full_like(x, np.inf) if _is_float(np.asarray(x).dtype) else x for x in operands]
    rule = _RULES.get(eqn.primitive.name)
    with np.errstate(all="ignore"):
        if rule is None:
            with set_trace(EVAL):
                out = eqn.primitive.bind(*operands, **eqn.params)
            outs = list(out) if eqn.primitive.multiple_results else [out]
        else:
            outs = [rule(*operands, **eqn.params)]
    return [_as_typed(x, v.aval) for x, v in zip(outs, eqn.outvars)]


def is_computed(eqn: Eqn) -> bool:
    """Whether NumPy computes an operation here, not the runtime."""
    return _RULES.get(eqn.primitive.name) is not None


def _is_float(dtype: Any) -> bool:
    return bool(dtypes.issubdtype(dtype, np.floating))


def _as_typed(x: Any, aval: Any) -> Any:
    return x if isinstance(aval.dtype, dtypes.ExtendedDType) else np.asarray(x).astype(aval.dtype, copy=False)


def _wide(x: Any) -> Any:
    """As a type that NumPy computes exactly enough with."""
    kind = np.asarray(x).dtype
    return np.asarray(x).astype(np.float32) if dtypes.issubdtype(kind, np.floating) and kind.itemsize < 4 else x


def _wider(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs, **_: function(*map(_wide, xs))


def _div(x: Any, y: Any) -> Any:
    if not dtypes.issubdtype(np.asarray(x).dtype, np.integer):
        return _wide(x) / _wide(y)
    safe = np.where(np.asarray(y) == 0, 1, y)
    return np.where(np.asarray(y) == 0, -1, (np.abs(x) // np.abs(safe)) * np.sign(x) * np.sign(safe))


def _broadcast(x: Any, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    placed = [1] * len(shape)
    for d, at in enumerate(broadcast_dimensions):
        placed[at] = np.shape(x)[d]
    return np.broadcast_to(np.reshape(x, placed), shape)


def _dot(x: Any, y: Any, *, dimension_numbers: Any, preferred_element_type: Any = None, **_: Any) -> Any:
    (cx, cy), (bx, by) = dimension_numbers
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in range(x.ndim)]
    right = [next(letters) for _ in range(y.ndim)]
    for i, j in (*zip(cx, cy), *zip(bx, by)):
        right[j] = left[i]
    out = [left[i] for i in bx]
    out += [left[i] for i in range(x.ndim) if i not in (*cx, *bx)]
    out += [right[j] for j in range(y.ndim) if j not in (*cy, *by)]
    wide: Any = np.float64 if dtypes.issubdtype(x.dtype, np.floating) else np.int64
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        wide = np.complex128
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", x.astype(wide), y.astype(wide))


def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any = None) -> Any:
    steps = strides or [1] * x.ndim
    return x[tuple(slice(*w) for w in zip(start_indices, limit_indices, steps))]


def _clamped(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    places = [max(0, min(int(s), n - size)) for s, n, size in zip(starts, x.shape, sizes)]
    return tuple(slice(s, s + size) for s, size in zip(places, sizes))


def _updated(x: Any, update: Any, *starts: Any) -> Any:
    out = np.array(x)
    out[_clamped(x, starts, np.shape(update))] = update
    return out


def _padded(x: Any, value: Any, *, padding_config: Any) -> Any:
    """Elements spread by the third, and `value` added (or elements taken away) by the others."""
    for d, (low, high, inner) in enumerate(padding_config):
        x = np.moveaxis(x, d, 0)
        spread = np.full((max(0, (len(x) - 1) * (inner + 1) + 1) if len(x) else 0, *x.shape[1:]), value, x.dtype)
        spread[:: inner + 1] = x
        before, after = [np.full((max(0, n), *x.shape[1:]), value, x.dtype) for n in (low, high)]
        whole = np.concatenate([before, spread, after])
        x = np.moveaxis(whole[max(0, -low) : len(whole) - max(0, -high)], 0, d)
    return x


def _remainder(x: Any, y: Any) -> Any:
    if _is_float(np.asarray(x).dtype):
        return np.fmod(_wide(x), _wide(y))
    return np.where(np.asarray(y) == 0, x, np.fmod(x, np.where(np.asarray(y) == 0, 1, y)))


def _rounded(x: Any, *, rounding_method: int) -> Any:
    wide = _wide(x)
    return np.rint(wide) if rounding_method == 1 else _away(wide)


def _away(x: Any) -> Any:
    """To nearest, ties away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)


def _integer_power(x: Any, *, y: int, **_: Any) -> Any:
    return np.power(_wide(x), float(y)) if y < 0 else np.power(x, y)


def _bits(x: Any, *, new_dtype: Any) -> Any:
    """The bytes of `x` as elements of another type: of another width with a dimension more, or the last one gone."""
    x, new = np.ascontiguousarray(x).reshape(np.shape(x)), np.dtype(new_dtype)
    if new.itemsize == x.dtype.itemsize:
        return x.view(new)
    return x[..., None].view(new) if new.itemsize < x.dtype.itemsize else x.view(new)[..., 0]


def _select(which: Any, *cases: Any) -> Any:
    return np.choose(np.broadcast_to(np.asarray(which).astype(np.int32), np.shape(cases[0])), cases)


def _iota(*_: Any, dtype: Any, shape: Any, dimension: int, **__: Any) -> Any:
    placed = [1] * len(shape)
    placed[dimension] = shape[dimension]
    return np.broadcast_to(np.arange(shape[dimension]).astype(dtype).reshape(placed), shape)


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *, axes, **_: function(_wide(x), axis=tuple(axes))


def _cumulative(function: Any) -> Callable[..., Any]:
    def run(x: Any, *, axis: int, reverse: bool) -> Any:
        x = np.flip(_wide(x), axis) if reverse else _wide(x)
        out = function(x, axis)
        return np.flip(out, axis) if reverse else out

    return run


def _least(x: Any, y: Any) -> Any:
    return np.logical_and(x, y) if np.asarray(x).dtype == bool else np.minimum(x, y)


def _unsigned(x: Any) -> Any:
    return np.asarray(x).view(f"uint{np.asarray(x).dtype.itemsize * 8}")


def _shift_right_logical(x: Any, by: Any) -> Any:
    return np.right_shift(_unsigned(x), _unsigned(by)).view(np.asarray(x).dtype)


def _converted(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    x = np.asarray(x)
    if dtypes.issubdtype(new_dtype, np.integer) and dtypes.issubdtype(x.dtype, np.floating):
        info = dtypes.iinfo(new_dtype)
        wide = np.nan_to_num(x.astype(np.float64), nan=0.0)
        return np.clip(np.trunc(wide), float(info.min), float(info.max)).astype(new_dtype)
    return x.astype(new_dtype)


_erf = np.vectorize(math.erf, otypes=[np.float64])

_RULES: dict[str, Callable[..., Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract,
    "mul": np.multiply, "div": _div, "neg": np.negative, "abs": np.abs,
    "max": np.maximum, "min": _least, "sign": _wider(np.sign), "square": np.square,
    "rem": _remainder,
    "pow": _wider(np.power), "integer_pow": _integer_power,
    "exp": _wider(np.exp), "exp2": _wider(np.exp2), "log": _wider(np.log), "log1p": _wider(np.log1p),
    "expm1": _wider(np.expm1), "sqrt": _wider(np.sqrt), "rsqrt": _wider(lambda x: 1 / np.sqrt(x)),
    "cbrt": _wider(np.cbrt), "tanh": _wider(np.tanh), "sin": _wider(np.sin), "cos": _wider(np.cos),
    "tan": _wider(np.tan), "logistic": _wider(lambda x: 1 / (1 + np.exp(-x))), "erf": _wider(_erf),
    "floor": _wider(np.floor), "ceil": _wider(np.ceil), "is_finite": _wider(np.isfinite),
    "round": _rounded,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shift_left": np.left_shift, "shift_right_arithmetic": np.right_shift, "shift_right_logical": _shift_right_logical,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high), "select_n": _select,
    "convert_element_type": _converted, "bitcast_convert_type": _bits,
    "copy": lambda x: x, "stop_gradient": lambda x: x, "multiple_of": lambda x, *, values: x,
    "max_contiguous": lambda x, *, values: x, "pvary": lambda x, **_: x,
    "broadcast_in_dim": _broadcast, "reshape": lambda x, *, new_sizes, **_: np.reshape(x, new_sizes),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
    "rev": lambda x, *, dimensions: np.flip(x, dimensions), "iota": _iota,
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "slice": _slice, "dynamic_slice": lambda x, *starts, slice_sizes: x[_clamped(x, starts, slice_sizes)],
    "dynamic_update_slice": _updated, "pad": _padded, "dot_general": _dot,
    "reduce_sum": _reduce(np.sum), "reduce_max": _reduce(np.max), "reduce_min": _reduce(np.min),
    "reduce_prod": _reduce(np.prod), "reduce_and": _reduce(np.bitwise_and.reduce),
    "reduce_or": _reduce(np.bitwise_or.reduce),
    "argmax": lambda x, *, axes, index_dtype: np.argmax(_wide(x), axes[0]),
    "argmin": lambda x, *, axes, index_dtype: np.argmin(_wide(x), axes[0]),
    "cumsum": _cumulative(np.cumsum), "cumprod": _cumulative(np.cumprod),
    "cummax": _cumulative(np.maximum.accumulate), "cummin": _cumulative(np.minimum.accumulate),
}  # fmt: skip
