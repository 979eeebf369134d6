"""Reductions: sum, product, max, min, and, or, xor; argmax and argmin.

Sums of 16-bit floats accumulate in f32 inside the reduction, as JAX's `numpy.sum` does at its level; here the operand's
dtype decides, so callers convert first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of, short_dtype
from meshrt.primitives.elementwise import (
    convert_element_type,
    div_p,
    eq_p,
    mul_p,
)
from meshrt.primitives.reshape import broadcast_in_dim, canonical_axis, i64_array

__all__ = [
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor",
]  # fmt: skip


def reduced_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def keep_dims(x: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    """A reduced array broadcast back to `shape`."""
    return broadcast_in_dim(x, shape, [i for i in range(len(shape)) if i not in axes])


def lower_reduce(ctx, op: str, x, aval_in: ShapedArray, out: ShapedArray, axes: Sequence[int], init: Any):
    """`stablehlo.reduce` of one operand with a binary scalar operation."""
    start = ctx.scalar(init, aval_in.dtype)
    return ctx.op(
        "stablehlo.reduce", [x, start], out, f"dimensions = {i64_array(axes)}", [ctx.scalar_region(op, aval_in.dtype)]
    )


def _reducer(name: str, op: str, identity: Callable[[Any], Any], kinds: str) -> Primitive:
    is_bitwise = "f" not in kinds

    def infer(x, *, axes):
        if len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
            raise errors.ArgumentTypeError(f"{name} got axes {axes} for an operand {x.str_short()}")
        if isinstance(x.dtype, dtypes.ExtendedDType) or (x.dtype.kind not in kinds and x.dtype.kind != "V"):
            raise errors.ArgumentTypeError(f"{name} does not accept operands of dtype {short_dtype(x.dtype)}")
        return ShapedArray(reduced_shape(x.shape, axes), x.dtype, x.weak_type and not is_bitwise)

    def lower(ctx, eqn, x):
        aval = eqn.invars[0].aval
        return lower_reduce(ctx, op, x, aval, eqn.outvars[0].aval, eqn.params["axes"], identity(aval.dtype))

    def batch(size, args, dims, params):
        d = dims[0]
        axes = tuple(a if a < d else a + 1 for a in params["axes"])
        return primitive.bind(args[0], axes=axes), d - sum(a < d for a in axes)

    primitive = Primitive(name, infer, lower=lower, batch=batch)
    return primitive


def lowest(dtype: Any) -> Any:
    """The identity of max."""
    if dtype == np.bool_:
        return False
    return (
        -np.inf
        if dtypes.issubdtype(dtype, np.floating) and has_infinity(dtype)
        else (dtypes.finfo(dtype).min if dtypes.issubdtype(dtype, np.floating) else dtypes.iinfo(dtype).min)
    )


def highest(dtype: Any) -> Any:
    """The identity of min."""
    if dtype == np.bool_:
        return True
    return (
        np.inf
        if dtypes.issubdtype(dtype, np.floating) and has_infinity(dtype)
        else (dtypes.finfo(dtype).max if dtypes.issubdtype(dtype, np.floating) else dtypes.iinfo(dtype).max)
    )


def has_infinity(dtype: Any) -> bool:
    return bool(np.isinf(np.asarray(np.inf, np.float32).astype(dtype).astype(np.float32)))


def _all_ones(dtype: Any) -> Any:
    return (
        True if dtype == np.bool_ else (-1 if dtypes.issubdtype(dtype, np.signedinteger) else dtypes.iinfo(dtype).max)
    )


reduce_sum_p = _reducer("reduce_sum", "stablehlo.add", lambda d: 0, "iufcb")
reduce_prod_p = _reducer("reduce_prod", "stablehlo.multiply", lambda d: 1, "iufcb")
reduce_max_p = _reducer("reduce_max", "stablehlo.maximum", lowest, "iufb")
reduce_min_p = _reducer("reduce_min", "stablehlo.minimum", highest, "iufb")
reduce_and_p = _reducer("reduce_and", "stablehlo.and", _all_ones, "biu")
reduce_or_p = _reducer("reduce_or", "stablehlo.or", lambda d: False if d == np.bool_ else 0, "biu")
reduce_xor_p = _reducer("reduce_xor", "stablehlo.xor", lambda d: False if d == np.bool_ else 0, "biu")


def _sum_jvp(primals, tangents, *, axes):
    (x,), (t,) = primals, tangents
    return reduce_sum_p.bind(x, axes=axes), None if t is None else reduce_sum_p.bind(t, axes=axes)


reduce_sum_p.jvp = _sum_jvp
reduce_sum_p.transpose = lambda ct, x, *, axes: [keep_dims(ct, axes, x.aval.shape)]


def _chooser_jvp(primitive: Primitive):
    """max, min: the tangents at the chosen positions, shared evenly among ties."""

    def jvp(primals, tangents, *, axes):
        (x,), (t,) = primals, tangents
        out = primitive.bind(x, axes=axes)
        if t is None:
            return out, None
        aval = aval_of(x)
        chosen = convert_element_type(eq_p.bind(x, keep_dims(out, axes, aval.shape)), aval.dtype)
        count = reduce_sum_p.bind(chosen, axes=axes)
        return out, div_p.bind(reduce_sum_p.bind(mul_p.bind(t, chosen), axes=axes), count)

    return jvp


def _prod_jvp(primals, tangents, *, axes):
    """The product of all others at every position, by products before and after it (right for zeros too)."""
    from meshrt.primitives.cumulative import cumprod
    from meshrt.primitives.reshape import reshape, transpose
    from meshrt.primitives.slice import concatenate, slice_in_dim

    (x,), (t,) = primals, tangents
    out = reduce_prod_p.bind(x, axes=axes)
    if t is None:
        return out, None
    aval = aval_of(x)
    kept = [i for i in range(aval.ndim) if i not in axes]
    order, shape = (*kept, *axes), (*[aval.shape[i] for i in kept], -1)
    count = aval.size // max(int(np.prod(shape[:-1])), 1) if aval.size else 0
    flat = lambda a: reshape(transpose(a, order), (*shape[:-1], count))
    v, last = flat(x), len(kept)
    if count == 0:
        return out, None
    one = broadcast_in_dim(np.asarray(1, aval.dtype)[()], (*shape[:-1], 1), ())
    before = concatenate([one, slice_in_dim(cumprod(v, last), 0, count - 1, axis=last)], last)
    after = concatenate([slice_in_dim(cumprod(v, last, reverse=True), 1, count, axis=last), one], last)
    return out, reduce_sum_p.bind(mul_p.bind(flat(t), mul_p.bind(before, after)), axes=(last,))


reduce_max_p.jvp = _chooser_jvp(reduce_max_p)
reduce_min_p.jvp = _chooser_jvp(reduce_min_p)
reduce_prod_p.jvp = _prod_jvp


def _public(primitive: Primitive, doc: str):
    def reduce(operand: Any, axes: Sequence[int]) -> Any:
        ndim = aval_of(operand).ndim
        axes = tuple(sorted({canonical_axis(a, ndim) for a in axes}))
        return primitive.bind(operand, axes=axes)

    reduce.__name__ = reduce.__qualname__ = primitive.name
    reduce.__doc__ = doc + " over `axes` (a sequence of dimension numbers)."
    return reduce


reduce_sum = _public(reduce_sum_p, "The sum")
reduce_prod = _public(reduce_prod_p, "The product")
reduce_max = _public(reduce_max_p, "The maximum")
reduce_min = _public(reduce_min_p, "The minimum")
reduce_and = _public(reduce_and_p, "The conjunction")
reduce_or = _public(reduce_or_p, "The disjunction")
reduce_xor = _public(reduce_xor_p, "The exclusive or")


# ---------------------------------------------------------------------------------------------------------------------
# argmax, argmin


def _arg_infer(x, *, axis, index_dtype):
    if not x.shape or x.shape[axis] == 0:
        raise errors.ArgumentValueError(
            f"argmax and argmin need a dimension that is not empty, got {x.str_short()} along {axis}"
        )
    return ShapedArray(reduced_shape(x.shape, (axis,)), index_dtype)


def _arg_lower(direction: str, start: Callable[[Any], Any]):
    """A reduce over (value, index) pairs: NaN wins, then the larger (smaller) value, then the smaller index."""

    def lower(ctx, eqn, x):
        aval, out, axis = eqn.invars[0].aval, eqn.outvars[0].aval, eqn.params["axis"]
        index = ShapedArray(aval.shape, eqn.params["index_dtype"])
        iota = ctx.op("stablehlo.iota", [], index, f"iota_dimension = {axis} : i64")
        inits = [ctx.scalar(start(aval.dtype), aval.dtype), ctx.scalar(0, index.dtype)]
        value_type, index_type = inits[0].type, inits[1].type
        body = ctx.body.body([value_type, index_type, value_type, index_type])
        inner = ctx.nested(body)
        a, i, b, j = body.args
        flag = ShapedArray((), np.dtype(bool))
        is_float = dtypes.issubdtype(aval.dtype, np.floating)
        kind = "FLOAT" if is_float else ("UNSIGNED" if aval.dtype.kind in "bu" else "SIGNED")

        def compare(p, q, how, how_kind):
            return inner.op(
                "stablehlo.compare",
                [p, q],
                flag,
                f"comparison_direction = #stablehlo<comparison_direction {how}>, "
                f"compare_type = #stablehlo<comparison_type {how_kind}>",
            )

        better = compare(a, b, direction, kind)
        if is_float:
            better = inner.op("stablehlo.or", [better, compare(a, a, "NE", kind)], flag)
        equal = compare(a, b, "EQ", kind)
        index_kind = "UNSIGNED" if index.dtype.kind == "u" else "SIGNED"
        earlier = inner.op("stablehlo.and", [equal, compare(i, j, "LT", index_kind)], flag)
        pick_index = inner.op("stablehlo.or", [better, earlier], flag)
        body.ret(
            [
                inner.op("stablehlo.select", [better, a, b], value_type),
                inner.op("stablehlo.select", [pick_index, i, j], index_type),
            ]
        )
        values = ShapedArray(out.shape, aval.dtype)
        return ctx.ops(
            "stablehlo.reduce", [x, iota, *inits], [values, out], f"dimensions = {i64_array([axis])}", [body]
        )[1]

    return lower


def _arg_batch(get: Callable[[], Primitive]):
    def batch(size, args, dims, params):
        d, axis = dims[0], params["axis"]
        axis = axis if axis < d else axis + 1
        return get().bind(args[0], axis=axis, index_dtype=params["index_dtype"]), d - (axis < d)

    return batch


argmax_p = Primitive(
    "argmax", _arg_infer, lower=_arg_lower("GT", lowest), batch=_arg_batch(lambda: argmax_p),
    jvp=lambda primals, tangents, **params: (argmax_p.bind(*primals, **params), None),
)  # fmt: skip
argmin_p = Primitive(
    "argmin", _arg_infer, lower=_arg_lower("LT", highest), batch=_arg_batch(lambda: argmin_p),
    jvp=lambda primals, tangents, **params: (argmin_p.bind(*primals, **params), None),
)  # fmt: skip


def argmax(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The position of the first maximum along `axis`; NaN counts as the largest."""
    return argmax_p.bind(
        operand, axis=canonical_axis(axis, aval_of(operand).ndim), index_dtype=dtypes.canonicalize_dtype(index_dtype)
    )


def argmin(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The position of the first minimum along `axis`; NaN counts as the smallest."""
    return argmin_p.bind(
        operand, axis=canonical_axis(axis, aval_of(operand).ndim), index_dtype=dtypes.canonicalize_dtype(index_dtype)
    )
