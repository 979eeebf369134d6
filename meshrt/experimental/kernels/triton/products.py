"""Products, by tensor cores: of two matrices of one type. Others are made of those, or added up term by term."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.triton import dialect as tt

from meshrt import lax
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels.mlir.algorithms import SMALLEST, converted_first, in_parts, preset_asked
from meshrt.experimental.kernels.mlir.conversions import bits_of, converted
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of, through
from meshrt.experimental.kernels.triton.arrays import reduced
from meshrt.experimental.kernels.triton.filled import counted, filled, with_rest
from meshrt.primitives import contract, elementwise
from meshrt.primitives.precision import DotAlgorithmPreset, is_in_full

__all__ = ["RULES"]

_F16, _F32, _F64, _I32 = (np.dtype(name) for name in ("float16", "float32", "float64", "int32"))
_BF16 = np.dtype(ml_dtypes.bfloat16)

# Terms of a product that are multiplied one by one and added up: so many values a program holds at once. Chosen: four
# warps keep 256 of them in the registers of each thread.
MOST_TERMS = 1 << 15


def _is_float(*avals: Any) -> bool:
    return all(kind_of(a.dtype) == "f" for a in avals)


def _on_tensor_cores(a: Any, b: Any) -> bool:
    """Whether matrices of these elements are multiplied as they are."""
    if a != b:
        return kind_of(a) == kind_of(b) == "f" and bits_of(a) == bits_of(b) == 8
    return kind_of(a) == "f" or a == np.int8


def _looped(eqn: Eqn) -> tuple[int, ...]:
    """The sizes of a product's loops: dimensions of the result, then those that are summed over."""
    (xc, _), _ = eqn.params["dimension_numbers"]
    return (*eqn.outvars[0].aval.shape, *[eqn.invars[0].aval.shape[d] for d in xc])


def _of_matrices(x: Any, y: Any, *, dimension_numbers: Any, preferred_element_type: Any = None, **how: Any) -> Any:
    """Mapped dimensions in front, then those that are kept, then those that are summed over, each joined to one."""
    (xc, yc), (xb, yb) = dimension_numbers
    x_free = [d for d in range(x.ndim) if d not in (*xc, *xb)]
    y_free = [d for d in range(y.ndim) if d not in (*yc, *yb)]
    size = lambda v, dims: math.prod(v.shape[d] for d in dims)
    mapped, rows, columns, inner = size(x, xb), size(x, x_free), size(y, y_free), size(x, xc)
    shape = [*[x.shape[d] for d in (*xb, *x_free)], *[y.shape[d] for d in y_free]]
    out = np.dtype(preferred_element_type or np.result_type(x.dtype, y.dtype))
    left = lax.reshape(lax.transpose(x, (*xb, *x_free, *xc)), (mapped, rows, inner))
    right = lax.reshape(lax.transpose(y, (*yb, *y_free, *yc)), (mapped, columns, inner))
    left, right = _of_one_type(left, right, out)
    if (
        1 in (rows, columns)
        or mapped * rows * columns * inner <= MOST_TERMS
        or not _on_tensor_cores(left.dtype, right.dtype)
    ):
        found = _added_up(left, right, out)
    else:
        found = _one_by_one(left, right, out, how)
    return lax.reshape(found, shape)


def _of_one_type(left: Any, right: Any, out: np.dtype) -> tuple[Any, Any]:
    a, b = left.dtype, right.dtype
    if _on_tensor_cores(a, b):
        return left, right
    wide = out if kind_of(out) != "f" or bits_of(out) >= max(bits_of(a), bits_of(b)) else _F32
    wide = a if kind_of(a) == "f" and bits_of(a) > bits_of(wide) else wide
    return lax.convert_element_type(left, wide), lax.convert_element_type(right, wide)


def _added_up(left: Any, right: Any, out: np.dtype) -> Any:
    """Each term, and their sums."""
    wide = _F32 if kind_of(out) == "f" and bits_of(out) < 32 else out
    shape = (left.shape[0], left.shape[1], right.shape[1], left.shape[2])
    x = lax.broadcast_in_dim(lax.convert_element_type(left, wide), shape, (0, 1, 3))
    y = lax.broadcast_in_dim(lax.convert_element_type(right, wide), shape, (0, 2, 3))
    return lax.convert_element_type(lax.reduce_sum(lax.mul(x, y), (3,)), out)


def _one_by_one(left: Any, right: Any, out: np.dtype, how: dict[str, Any]) -> Any:
    """The product of each pair of matrices."""
    dot = lambda x, y: contract.dot_general_p.bind(
        x, y, dimension_numbers=(((1,), (1,)), ((), ())), preferred_element_type=out, **how
    )
    count, sizes = left.shape[0], (left.shape[0], left.shape[1], right.shape[1])
    if count == 1:
        return lax.reshape(dot(lax.reshape(left, left.shape[1:]), lax.reshape(right, right.shape[1:])), sizes)

    def turn(i: Any, made: Any) -> Any:
        x, y = (lax.dynamic_index_in_dim(v, i, 0, keepdims=False) for v in (left, right))
        return lax.dynamic_update_index_in_dim(made, dot(x, y), i, 0)

    return lax.fori_loop(np.int32(0), np.int32(count), turn, lax.full(sizes, 0, out))


def _dot_general(walk: Walk, eqn: Eqn, x: ir.Value, y: ir.Value) -> ir.Value:
    (xc, yc), (xb, _) = eqn.params["dimension_numbers"]
    (a, b), out = [v.aval for v in eqn.invars], eqn.outvars[0].aval
    if kind_of(a.dtype) not in ("f", "i", "u") or kind_of(b.dtype) not in ("f", "i", "u"):
        walk.refuse(f"there are no products of {a.dtype} and {b.dtype}; convert them with astype")
    preset = preset_asked(walk, eqn, "F32_F32_F32 or TF32_TF32_F32")
    program = None if preset is None else _written_as(walk, preset, a.dtype, b.dtype)
    if program is not None:
        made: ir.Value = through(program)(walk, eqn, x, y)
        return made
    if xb or len(xc) != 1 or a.ndim != 2 or b.ndim != 2 or not _on_tensor_cores(a.dtype, b.dtype):
        if math.prod(_looped(eqn)) > MOST_TERMS and not _is_float(a, b):
            walk.refuse(
                f"of whole numbers only int8 has products of matrices, not {a.dtype} and {b.dtype}: others are added "
                f"up of at most {MOST_TERMS} terms, here are {_looped(eqn)}. Convert to a float or to int8"
            )
        made = through(_of_matrices)(walk, eqn, x, y)
        return made
    x = _for_product(walk, x, a, xc[0], 1)
    y = _for_product(walk, y, b, yc[0], 0)
    wide = out.dtype if out.dtype in (_F64, _F16) else _F32 if kind_of(out.dtype) == "f" else _I32
    if preset is not None and preset.accumulation_type in (_F32, _F64):
        wide = np.dtype(preset.accumulation_type)
    sizes = [max(n, LEAST) for n in filled(out.shape)]
    precision = _input_precision(preset, eqn.params.get("precision"), a.dtype)
    made = tt.dot(x, y, walk.constant(0, sizes, wide), input_precision=precision)
    for d in range(2):
        made = _first_of_each(walk, made, sizes, d, filled(out.shape)[d], wide)
        sizes[d] = filled(out.shape)[d]
    return converted(walk, made, out.shape, wide, out.dtype)


# What tensor cores multiply has at least so many rows and columns.
LEAST = 16


def _for_product(walk: Walk, x: ir.Value, aval: ShapedArray, contracted: int, position: int) -> ir.Value:
    """A matrix with its contracted dimension at `position`, zero beyond its end there, of sizes that tensor cores take:
    each row or column is repeated; of a contracted one all copies but the first are zeros."""
    x = with_rest(walk, x, aval.shape, aval.dtype, [contracted], 0)
    sizes = list(filled(aval.shape))
    if contracted != position:
        x, sizes = tt.trans(x, [1, 0]), sizes[::-1]
    for d in range(2):
        copies = LEAST // sizes[d]
        if copies <= 1:
            continue
        apart, whole = [*sizes[: d + 1], 1, *sizes[d + 1 :]], [*sizes[: d + 1], copies, *sizes[d + 1 :]]
        x = tt.broadcast(walk.like(whole, aval.dtype), walk.reshaped(x, apart, aval.dtype))
        if d == position:
            is_first = arith.cmpi(arith.CmpIPredicate.eq, counted(walk, whole, d + 1), walk.constant(0, whole, _I32))
            x = arith.select(is_first, x, walk.constant(0, whole, aval.dtype))
        sizes[d] = LEAST
        x = tt.reshape(walk.like(sizes, aval.dtype), x)
    return x


def _first_of_each(walk: Walk, x: ir.Value, sizes: Sequence[int], d: int, count: int, dtype: Any) -> ir.Value:
    """A matrix of whose rows (or columns) each stands there several times, with `count` of them."""
    if sizes[d] == count:
        return x
    apart = [*sizes[:d], count, sizes[d] // count, *sizes[d + 1 :]]
    x = tt.reshape(walk.like(apart, dtype), x)
    return reduced(walk, [x], [dtype], d + 1, lambda a, b: [elementwise.max_p.bind(a, b)])[0]


def _written_as(walk: Walk, preset: DotAlgorithmPreset, a: Any, b: Any) -> Callable[..., Any] | None:
    """The program by which an algorithm multiplies operands that tensor cores do not take for it as they are."""
    if preset.name not in _TAKEN:  # of floats of 8 bits, any two
        if kind_of(a) == kind_of(b) == "f" and bits_of(a) == bits_of(b) == 8:
            return None
        walk.refuse(
            f"{preset} multiplies floats of 8 bits, not {a} and {b}: convert them with astype, or ask for another"
        )
    if a == b and a in _TAKEN[preset.name]:
        return None
    return in_parts if preset.name in SMALLEST else functools.partial(converted_first, to=_TAKEN[preset.name][0])


def _input_precision(preset: DotAlgorithmPreset | None, asked: Any, dtype: Any) -> Any:
    """How float32 is multiplied: as by default on GPUs, by the bits of it that tensor cores take, or by all of them."""
    if dtype != _F32:
        return None
    if preset is not None and preset.name in _BY_PARTS:
        return _BY_PARTS[preset.name]
    return tt.InputPrecision.IEEE if is_in_full(asked) else tt.InputPrecision.TF32


# The operands that an algorithm multiplies as they are; others are converted to the first of them. (Products by bits of
# float32 are, of a type with fewer bits, those of this type.)
_UP_TO_F32 = (_F32, _F16, _BF16)
_TAKEN: dict[str, tuple[np.dtype, ...]] = {
    "F16_F16_F16": (_F16,), "F16_F16_F32": (_F16,), "BF16_BF16_BF16": (_BF16,), "BF16_BF16_F32": (_BF16,),
    "BF16_BF16_F32_X3": (_BF16,), "BF16_BF16_F32_X6": (_BF16,), "BF16_BF16_F32_X9": (_BF16,),
    "TF32_TF32_F32": _UP_TO_F32, "TF32_TF32_F32_X3": _UP_TO_F32, "F32_F32_F32": _UP_TO_F32, "F64_F64_F64": (_F64,),
}  # fmt: skip
_BY_PARTS = {"TF32_TF32_F32_X3": tt.InputPrecision.TF32x3}


RULES: dict[Primitive, Rule] = {contract.dot_general_p: _dot_general}
