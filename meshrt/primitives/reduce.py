"""Reductions: sum, product, max, min, and, or, xor; argmax and argmin.

Sums of 16-bit floats accumulate in f32 inside the reduction, as JAX's `numpy.sum` does at its level; here the operand's
dtype decides, so callers convert first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import has_kind
from meshrt.core.basic.reducer import reduced_shape, reducer
from meshrt.core.basic.shapes import broadcast_in_dim, keep_dims, reduce_sum_p, reshape, transpose
from meshrt.core.completion import asked
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.axis_types import unsplit
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import add_p, complex_p, div_p, eq_p, imag_p, mul_p, real_p
from meshrt.primitives.neutral import highest, lowest
from meshrt.primitives.selection import select_n_p
from meshrt.primitives.slice import slice_in_dim
from propagation.asm import i64_array

__all__ = [
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor",
]  # fmt: skip


def _all_ones(dtype: Any) -> Any:
    return (
        True if dtype == np.bool_ else (-1 if dtypes.issubdtype(dtype, np.signedinteger) else dtypes.iinfo(dtype).max)
    )


def _chooser_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """max, min: the tangents at the chosen positions, shared evenly among ties."""

    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], *, axes: tuple[int, ...], **wanted: Any
    ) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        out = get().bind(x, axes=axes, **wanted)
        if t is None:
            return out, None
        aval = aval_of(x)
        chosen = convert_element_type(eq_p.bind(x, keep_dims(out, axes, aval)), aval.dtype)
        count = reduce_sum_p.bind(chosen, axes=axes, **wanted)
        return out, div_p.bind(reduce_sum_p.bind(mul_p.bind(t, chosen), axes=axes, **wanted), count)

    return jvp


def _prod_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, axes: tuple[int, ...], **wanted: Any
) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    out = reduce_prod_p.bind(x, axes=axes, **wanted)
    if t is None or not aval_of(x).size:
        return out, None
    return out, unsplit(lambda x, t: _prod_tangent(x, t, axes), aval_of(out), x, t)


def _prod_tangent(x: Any, t: Any, axes: tuple[int, ...]) -> Any:
    """The tangent of products of pairs, of products of those, and so on: right for zeros and infinities too.

    f32[5] is halved to two of f32[3], the second filled with a 1, and multiplied to f32[3], f32[2] and f32[1].
    """
    aval = aval_of(x)
    kept = [i for i in range(aval.ndim) if i not in axes]
    order, shape = (*kept, *axes), [aval.shape[i] for i in kept]
    count, last = aval.size // math.prod(shape), len(kept)
    v, t = (reshape(transpose(a, order), (*shape, count)) for a in (x, t))
    while count > 1:
        half = (count + 1) // 2
        first, t_first = (slice_in_dim(a, 0, half, axis=last) for a in (v, t))
        second, t_second = (slice_in_dim(a, half, count, axis=last) for a in (v, t))
        if count % 2:
            one, zero = (broadcast_in_dim(np.asarray(n, aval.dtype)[()], (*shape, 1), ()) for n in (1, 0))
            second, t_second = concatenate([second, one], last), concatenate([t_second, zero], last)
        t = add_p.bind(mul_p.bind(t_first, second), mul_p.bind(first, t_second))
        v, count = mul_p.bind(first, second), half
    return reshape(t, shape)


reduce_prod_p = reducer("reduce_prod", "stablehlo.multiply", lambda d: 1, "iufc", jvp=_prod_jvp)


def _extreme_of_complex(get: Callable[[], Primitive], worst: float) -> Callable[..., Any]:
    """Complex numbers are ordered by their real parts, those of equal real parts by their imaginary ones."""

    def reduce(x: Any, axes: tuple[int, ...]) -> Any:
        re, im = real_p.bind(x), imag_p.bind(x)
        best = get().bind(re, axes=axes)
        if not all(aval_of(x).shape[a] for a in axes):  # of no numbers: an infinite real number
            return complex_p.bind(best, broadcast_in_dim(np.asarray(0, aval_of(im).dtype)[()], aval_of(best).shape, ()))
        chosen = eq_p.bind(re, keep_dims(best, axes, aval_of(re)))
        least = broadcast_in_dim(np.asarray(worst, aval_of(im).dtype)[()], aval_of(im).shape, ())
        return complex_p.bind(best, get().bind(select_n_p.bind(chosen, least, im), axes=axes))

    return reduce


reduce_max_p: Primitive = reducer(
    "reduce_max",
    "stablehlo.maximum",
    lowest,
    "iufcb",
    jvp=_chooser_jvp(lambda: reduce_max_p),
    finite=True,
    of_complex=_extreme_of_complex(lambda: reduce_max_p, -np.inf),
)
reduce_min_p: Primitive = reducer(
    "reduce_min",
    "stablehlo.minimum",
    highest,
    "iufcb",
    jvp=_chooser_jvp(lambda: reduce_min_p),
    finite=True,
    of_complex=_extreme_of_complex(lambda: reduce_min_p, np.inf),
)
reduce_and_p = reducer("reduce_and", "stablehlo.and", _all_ones, "biu")
reduce_or_p = reducer("reduce_or", "stablehlo.or", lambda d: False if d == np.bool_ else 0, "biu")
reduce_xor_p = reducer("reduce_xor", "stablehlo.xor", lambda d: False if d == np.bool_ else 0, "biu")


def _counted(name: str, axis: int, ndim: int) -> int:
    """An axis as it is given, counted from 0."""
    axis = operator.index(axis)
    if not 0 <= axis < ndim:
        raise errors.ArgumentValueError(
            f"{name}: axis {axis} is out-of-bounds. Invalid axis {axis} for operand of {ndim} dimensions. Axes of lax "
            "are counted from 0; meshrt.numpy counts negative ones from the end"
        )
    return axis


def _public(primitive: Primitive, doc: str, example: str) -> Callable[..., Any]:
    is_logical = primitive in (reduce_and_p, reduce_or_p, reduce_xor_p)

    def reduce(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Any:
        ndim = aval_of(operand).ndim
        if is_logical and not has_kind(aval_of(operand).dtype, "biu"):  # of no axes too
            raise errors.ArgumentTypeError(
                f"{primitive.name}: logical reduction requires operand dtype bool or int, got {aval_of(operand).dtype}."
            )
        axes = tuple(sorted(_counted(primitive.name, a, ndim) for a in axes))
        if len(set(axes)) < len(axes):
            raise errors.ArgumentValueError(f"duplicate value in 'axes' of reduction: {axes}; name each dimension once")
        return primitive.bind(operand, axes=axes, **asked(out_sharding, ndim - len(axes), primitive.name))

    reduce.__name__ = reduce.__qualname__ = primitive.name
    reduce.__doc__ = f"{doc} over `axes` (a sequence of dimension numbers).\n\n{example}\n"
    return reduce


reduce_sum = _public(reduce_sum_p, "The sum", ">>> print(lax.reduce_sum(jnp.array([[5, 3], [4, 1]]), (0,)))\n[9 4]")
reduce_prod = _public(
    reduce_prod_p, "The product", ">>> print(lax.reduce_prod(jnp.array([[5, 3], [4, 1]]), (0,)))\n[20  3]"
)
reduce_max = _public(reduce_max_p, "The maximum", ">>> print(lax.reduce_max(jnp.array([[5, 3], [4, 1]]), (0,)))\n[5 3]")
reduce_min = _public(reduce_min_p, "The minimum", ">>> print(lax.reduce_min(jnp.array([[5, 3], [4, 1]]), (0,)))\n[4 1]")
reduce_and = _public(
    reduce_and_p, "The conjunction", ">>> print(lax.reduce_and(jnp.array([True, False]), (0,)))\nFalse"
)
reduce_or = _public(reduce_or_p, "The disjunction", ">>> print(lax.reduce_or(jnp.array([True, False]), (0,)))\nTrue")
reduce_xor = _public(
    reduce_xor_p, "The exclusive or", ">>> print(lax.reduce_xor(jnp.array([[5, 3], [4, 1]]), (0,)))\n[1 2]"
)


# ---------------------------------------------------------------------------------------------------------------------
# argmax, argmin


def _arg_infer(x: ShapedArray, *, axes: tuple[int], index_dtype: Any) -> ShapedArray:
    (axis,) = axes
    if x.is_extended or dtypes.issubdtype(x.dtype, np.complexfloating):
        raise errors.ArgumentTypeError(f"argmax and argmin compare: gt does not accept dtype {x.dtype}, of {x.short()}")
    if not dtypes.issubdtype(index_dtype, np.integer):
        raise errors.ArgumentTypeError(f"index_dtype must be an integer type, but got {np.dtype(index_dtype)}")
    if not x.shape or x.shape[axis] == 0:
        raise errors.ArgumentValueError(
            f"argmin and argmax require non-empty reduced dimension, got {x.short()} along {axis}"
        )
    return ShapedArray(reduced_shape(x.shape, (axis,)), index_dtype)


def _arg_lower(direction: str, start: Callable[[Any], Any]) -> Callable[..., Any]:
    """A reduce over (value, index) pairs: NaN wins, then the larger (smaller) value, then the smaller index."""

    def lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
        aval, out, (axis,) = eqn.invars[0].aval, eqn.outvars[0].aval, eqn.params["axes"]
        index = ShapedArray(aval.shape, eqn.params["index_dtype"])
        iota = ctx.op("stablehlo.iota", [], index, f"iota_dimension = {axis} : i64")
        inits = [ctx.scalar(start(aval.dtype), aval.dtype), ctx.scalar(0, index.dtype)]
        value_type, index_type = inits[0].type, inits[1].type
        body = ctx.body.body([value_type, index_type, value_type, index_type])
        inner = ctx.nested(body)
        a, i, b, j = body.args
        flag = ShapedArray((), np.dtype(bool))
        is_float = dtypes.issubdtype(aval.dtype, np.floating)
        unsigned = aval.dtype == bool or dtypes.issubdtype(aval.dtype, np.unsignedinteger)
        kind = "FLOAT" if is_float else ("UNSIGNED" if unsigned else "SIGNED")

        def compare(p: Any, q: Any, how: Any, how_kind: Any) -> Any:
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
        index_kind = "UNSIGNED" if dtypes.issubdtype(index.dtype, np.unsignedinteger) else "SIGNED"
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


def _arg_batch(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        d, (axis,) = dims[0], params["axes"]
        axis = axis if axis < d else axis + 1
        return get().bind(args[0], axes=(axis,), index_dtype=params["index_dtype"]), d - (axis < d)

    return batch


argmax_p: Primitive = Primitive(
    "argmax", _arg_infer, lower=_arg_lower("GT", lowest), batch=_arg_batch(lambda: argmax_p),
    jvp=lambda primals, tangents, **params: (argmax_p.bind(*primals, **params), None),
    absent=NOT_LINEAR, finite=True,
)  # fmt: skip
argmin_p: Primitive = Primitive(
    "argmin", _arg_infer, lower=_arg_lower("LT", highest), batch=_arg_batch(lambda: argmin_p),
    jvp=lambda primals, tangents, **params: (argmin_p.bind(*primals, **params), None),
    absent=NOT_LINEAR, finite=True,
)  # fmt: skip


def argmax(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The position of the first maximum along `axis`; NaN counts as the largest.

    Args:
      operand: an array.
      axis: a dimension number.
      index_dtype: the dtype of positions.

    >>> lax.argmax(jnp.array([5, 3, 9]), 0, jnp.int32)
    Array(2, dtype=int32)
    """
    return argmax_p.bind(
        operand,
        axes=(_counted("argmax", axis, aval_of(operand).ndim),),
        index_dtype=dtypes.canonicalize_dtype(index_dtype),
    )


def argmin(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The position of the first minimum along `axis`; NaN counts as the smallest.

    Args:
      operand: an array.
      axis: a dimension number.
      index_dtype: the dtype of positions.

    >>> lax.argmin(jnp.array([5, 3, 9]), 0, jnp.int32)
    Array(1, dtype=int32)
    """
    return argmin_p.bind(
        operand,
        axes=(_counted("argmin", axis, aval_of(operand).ndim),),
        index_dtype=dtypes.canonicalize_dtype(index_dtype),
    )
