"""Primitives that rename or replicate positions: broadcast_in_dim, reshape, transpose, squeeze; and iota, full.

PRNG key arrays are `uint32[..., 2]` buffers: lowering appends the physical dimension, which never moves.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.jaxpr import Literal
from meshrt.core.primitive import Primitive
from meshrt.core.trace import EVAL, Tracer, current_trace
from meshrt.core.types import ShapedArray, aval_of
from meshrt.transforms.tools import is_undefined

__all__ = [
    "broadcast", "broadcast_in_dim", "broadcasted_iota", "collapse", "expand_dims", "full", "full_like", "iota",
    "reshape", "squeeze", "transpose",
]  # fmt: skip


def i64_array(values: Sequence[int]) -> str:
    """The attribute `array<i64: ...>`."""
    return f"array<i64: {', '.join(map(str, values))}>" if len(values) else "array<i64>"


def canonical_shape(shape: Any, what: str = "shape") -> tuple[int, ...]:
    """`shape` as a tuple of non-negative ints; ArgumentTypeError otherwise."""
    if isinstance(shape, int | np.integer):
        shape = (shape,)
    try:
        result = tuple(operator.index(d) for d in shape)
    except TypeError:
        raise errors.ArgumentTypeError(
            f"a {what} must be a sequence of integers known while tracing, but got {shape!r}; "
            "mark arguments that determine shapes as static (jit(..., static_argnums=...))"
        ) from None
    if any(d < 0 for d in result):
        raise errors.ArgumentTypeError(f"a {what} cannot have negative sizes: {result}")
    return result


def canonical_axis(axis: Any, ndim: int) -> int:
    """A dimension number in [0, ndim); IndexError-like ArgumentTypeError if out of range."""
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise errors.AxisError(f"axis {axis} is out of bounds for an array of {ndim} dimensions")
    return axis % ndim


# ---------------------------------------------------------------------------------------------------------------------
# broadcast_in_dim


def _broadcast_infer(x, *, shape, broadcast_dimensions):
    dims = broadcast_dimensions
    bad = len(dims) != x.ndim or any(
        d >= len(shape) or x.shape[i] not in (1, shape[d]) for i, d in enumerate(dims)
    ) or list(dims) != sorted(set(dims))  # fmt: skip
    if bad:
        raise errors.ArgumentTypeError(
            f"broadcast_in_dim cannot broadcast {x.str_short()} to shape {shape} with dimensions {dims}: dimension i "
            "must be of size 1 or equal to shape[dimensions[i]], and dimensions must increase"
        )
    return ShapedArray(shape, x.dtype, x.weak_type)


def _broadcast_lower(ctx, eqn, x):
    out = eqn.outvars[0].aval
    if type(x) is Literal:
        return ctx.full(x.val, out)
    dims = list(eqn.params["broadcast_dimensions"])
    if out.is_key:
        dims.append(out.ndim)
    return ctx.op("stablehlo.broadcast_in_dim", [x], out, f"broadcast_dimensions = {i64_array(dims)}")


def _broadcast_jvp(primals, tangents, **params):
    (x,), (t,) = primals, tangents
    return broadcast_in_dim_p.bind(x, **params), None if t is None else broadcast_in_dim_p.bind(t, **params)


def _broadcast_transpose(ct, x, *, shape, broadcast_dimensions):
    from meshrt.primitives.reduce import reduce_sum_p

    aval = x.aval
    new = tuple(d for d in range(len(shape)) if d not in broadcast_dimensions)
    grown = tuple(d for i, d in enumerate(broadcast_dimensions) if aval.shape[i] == 1 and shape[d] != 1)
    axes = tuple(sorted((*new, *grown)))
    out = reduce_sum_p.bind(ct, axes=axes) if axes else ct
    return [reshape(out, aval.shape) if grown else out]


def _broadcast_batch(size, args, dims, params):
    from meshrt.transforms.batching import move_dim

    x = move_dim(args[0], dims[0], 0)
    shape = (size, *params["shape"])
    broadcast = (0, *(d + 1 for d in params["broadcast_dimensions"]))
    return broadcast_in_dim_p.bind(x, shape=shape, broadcast_dimensions=broadcast), 0


broadcast_in_dim_p = Primitive(
    "broadcast_in_dim", _broadcast_infer, lower=_broadcast_lower, jvp=_broadcast_jvp, transpose=_broadcast_transpose,
    batch=_broadcast_batch,
)  # fmt: skip
broadcast_in_dim_p.literals = True


def broadcast_in_dim(
    operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out_sharding: Any = None
) -> Any:
    """Maps dimension i of `operand` to dimension `broadcast_dimensions[i]` of a result of `shape`, replicating."""
    refuse_out_sharding(out_sharding)
    shape = canonical_shape(shape)
    dims = tuple(broadcast_dimensions)
    aval = aval_of(operand)
    if shape == aval.shape and len(dims) == len(shape) and not isinstance(operand, int | float | bool | complex):
        return operand
    return broadcast_in_dim_p.bind(operand, shape=shape, broadcast_dimensions=dims)


def refuse_out_sharding(out_sharding: Any) -> None:
    if out_sharding is not None:
        raise errors.UnsupportedError(
            "out_sharding needs explicit-mode axes, which are not implemented yet; use "
            "meshrt.lax.with_sharding_constraint on a mesh of Auto axes"
        )


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """Adds leading dimensions of the given sizes."""
    aval = aval_of(operand)
    shape = (*canonical_shape(sizes), *aval.shape)
    return broadcast_in_dim(operand, shape, range(len(sizes), len(shape)), out_sharding=out_sharding)


# ---------------------------------------------------------------------------------------------------------------------
# reshape, squeeze, expand_dims


def _reshape_infer(x, *, new_sizes):
    if math.prod(new_sizes) != x.size:
        raise errors.ArgumentTypeError(
            f"reshape cannot turn {x.str_short()} ({x.size} elements) into shape {new_sizes} ({math.prod(new_sizes)} "
            "elements)"
        )
    return ShapedArray(new_sizes, x.dtype, x.weak_type)


def _reshape_jvp(primals, tangents, *, new_sizes):
    (x,), (t,) = primals, tangents
    return reshape_p.bind(x, new_sizes=new_sizes), None if t is None else reshape_p.bind(t, new_sizes=new_sizes)


def _reshape_batch(size, args, dims, params):
    from meshrt.transforms.batching import move_dim

    return reshape_p.bind(move_dim(args[0], dims[0], 0), new_sizes=(size, *params["new_sizes"])), 0


reshape_p = Primitive(
    "reshape", _reshape_infer, jvp=_reshape_jvp, batch=_reshape_batch,
    lower=lambda ctx, eqn, x: ctx.op("stablehlo.reshape", [x], eqn.outvars[0].aval),
    transpose=lambda ct, x, *, new_sizes: [reshape_p.bind(ct, new_sizes=x.aval.shape)],
)  # fmt: skip


def reshape(
    operand: Any, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, *, out_sharding: Any = None
) -> Any:
    """`operand` with shape `new_sizes` (row-major order); `dimensions` permutes it first."""
    refuse_out_sharding(out_sharding)
    new_sizes = canonical_shape(new_sizes)
    if dimensions is not None and tuple(dimensions) != tuple(range(aval_of(operand).ndim)):
        operand = transpose(operand, dimensions)
    if aval_of(operand).shape == new_sizes and not isinstance(operand, int | float | bool | complex):
        return operand
    return reshape_p.bind(operand, new_sizes=new_sizes)


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` without the listed dimensions, which must have size 1."""
    aval = aval_of(array)
    drop = {canonical_axis(d, aval.ndim) for d in dimensions}
    for d in drop:
        if aval.shape[d] != 1:
            raise errors.ArgumentValueError(
                f"cannot squeeze dimension {d} of size {aval.shape[d]} of {aval.str_short()}"
            )
    return reshape(array, tuple(n for i, n in enumerate(aval.shape) if i not in drop))


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` with new dimensions of size 1 at the listed positions of the result."""
    aval = aval_of(array)
    ndim = aval.ndim + len(set(dimensions))
    new = {canonical_axis(d, ndim) for d in dimensions}
    kept = [i for i in range(ndim) if i not in new]
    shape = [1] * ndim
    for i, n in zip(kept, aval.shape):
        shape[i] = n
    return broadcast_in_dim(array, shape, kept)


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Merges dimensions [start, stop) into one."""
    shape = aval_of(operand).shape
    stop = len(shape) if stop_dimension is None else stop_dimension
    start, stop = (d + len(shape) if d < 0 else d for d in (start_dimension, stop))
    return reshape(operand, (*shape[:start], math.prod(shape[start:stop]), *shape[stop:]))


# ---------------------------------------------------------------------------------------------------------------------
# transpose


def _transpose_infer(x, *, permutation):
    if sorted(permutation) != list(range(x.ndim)):
        raise errors.ArgumentTypeError(
            f"transpose needs a permutation of the dimensions of {x.str_short()} but got {permutation}"
        )
    return ShapedArray(tuple(x.shape[p] for p in permutation), x.dtype, x.weak_type)


def _transpose_lower(ctx, eqn, x):
    permutation = list(eqn.params["permutation"])
    if eqn.outvars[0].aval.is_key:
        permutation.append(len(permutation))
    return ctx.op("stablehlo.transpose", [x], eqn.outvars[0].aval, f"permutation = {i64_array(permutation)}")


def _transpose_jvp(primals, tangents, *, permutation):
    (x,), (t,) = primals, tangents
    out = transpose_p.bind(x, permutation=permutation)
    return out, None if t is None else transpose_p.bind(t, permutation=permutation)


def _transpose_transpose(ct, x, *, permutation):
    inverse = [0] * len(permutation)
    for i, p in enumerate(permutation):
        inverse[p] = i
    return [transpose_p.bind(ct, permutation=tuple(inverse))]


def _transpose_batch(size, args, dims, params):
    d = dims[0]
    permutation = (d, *(p if p < d else p + 1 for p in params["permutation"]))
    return transpose_p.bind(args[0], permutation=permutation), 0


transpose_p = Primitive(
    "transpose", _transpose_infer, lower=_transpose_lower, jvp=_transpose_jvp, transpose=_transpose_transpose,
    batch=_transpose_batch,
)  # fmt: skip


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """Dimension i of the result is dimension `permutation[i]` of `operand`."""
    permutation = tuple(operator.index(p) for p in permutation)
    if permutation == tuple(range(aval_of(operand).ndim)) and not isinstance(operand, np.ndarray):
        return operand
    return transpose_p.bind(operand, permutation=permutation)


# ---------------------------------------------------------------------------------------------------------------------
# iota and constants

iota_p = Primitive(
    "iota",
    lambda *, dtype, shape, dimension: ShapedArray(shape, dtype),
    lower=lambda ctx, eqn: ctx.op(
        "stablehlo.iota", [], eqn.outvars[0].aval, f"iota_dimension = {eqn.params['dimension']} : i64"),
)  # fmt: skip


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, *, out_sharding: Any = None) -> Any:
    """The array whose element is its own position along `dimension`."""
    refuse_out_sharding(out_sharding)
    shape = canonical_shape(shape)
    dtype = dtypes.canonicalize_dtype(dtypes.dtype(dtype))
    dimension = canonical_axis(dimension, len(shape))
    if dtype == np.bool_ or isinstance(dtype, dtypes.ExtendedDType):
        raise errors.ArgumentTypeError(f"iota does not accept dtype {dtype}")
    return iota_p.bind(dtype=dtype, shape=shape, dimension=dimension)


def iota(dtype: Any, size: int) -> Any:
    """[0, 1, ..., size - 1]."""
    return broadcasted_iota(dtype, (size,), 0)


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
    """An array of `shape` filled with the scalar `fill_value`."""
    shape = canonical_shape(shape)
    aval = aval_of(fill_value)
    if aval.ndim:
        raise errors.ArgumentTypeError(f"full needs a scalar to fill with but got {aval.str_short()}")
    weak = dtype is None and aval.weak_type
    dtype = aval.dtype if dtype is None else dtypes.canonicalize_dtype(dtypes.dtype(dtype))
    if isinstance(fill_value, bool | int | float | complex | np.generic | np.ndarray):
        value = fill_value if weak else np.asarray(fill_value).astype(dtype)[()]
    else:
        from meshrt.primitives.elementwise import convert_element_type

        value = convert_element_type(fill_value, dtype, weak)
    return _filled(value, shape, sharding)


def _filled(value: Any, shape: tuple[int, ...], sharding: Any) -> Any:
    if sharding is None:
        return broadcast_in_dim_p.bind(value, shape=shape, broadcast_dimensions=())
    if current_trace() is EVAL and not isinstance(value, Tracer):
        from meshrt.runtime.transfer import device_put
        from meshrt.sharding import NamedSharding, PartitionSpec

        value = np.asarray(value, aval_of(value).dtype)[()]  # a placed array is not weakly typed
        if isinstance(sharding, NamedSharding | PartitionSpec):
            return _filler(shape, sharding)(value)  # each device makes its own part: the whole may fit on none
        return device_put(broadcast_in_dim_p.bind(value, shape=shape, broadcast_dimensions=()), sharding)
    from meshrt.primitives.sharding import with_sharding_constraint

    return with_sharding_constraint(broadcast_in_dim_p.bind(value, shape=shape, broadcast_dimensions=()), sharding)


@functools.lru_cache(maxsize=1024)
def _filler(shape: tuple[int, ...], sharding: Any) -> Any:
    from meshrt.jit import jit

    def full(value: Any) -> Any:
        return broadcast_in_dim_p.bind(value, shape=shape, broadcast_dimensions=())

    return jit(full, out_shardings=sharding)


def sharding_like(x: Any) -> Any:
    """The sharding that an array made like `x`, of the same shape, gets: that of `x` if it has been placed."""
    if isinstance(x, Tracer):
        return None
    sharding = getattr(x, "sharding", None)
    if sharding is None or not getattr(x, "committed", True) or getattr(x, "weak_type", False):
        return None
    if current_trace() is not EVAL or not sharding.is_concrete:
        return None
    return sharding


def full_like(
    x: Any, fill_value: Any, dtype: Any = None, shape: Sequence[int] | None = None, sharding: Any = None
) -> Any:
    """An array like `x` filled with `fill_value`; of the same shape, it is sharded like `x` as well."""
    aval = aval_of(x)
    if sharding is None and (shape is None or canonical_shape(shape) == aval.shape):
        sharding = sharding_like(x)
    out = full(
        aval.shape if shape is None else shape, fill_value, aval.dtype if dtype is None else dtype, sharding=sharding
    )
    if dtype is not None or not aval.weak_type:
        return out
    from meshrt.primitives.conversion import convert_element_type

    return convert_element_type(out, aval.dtype, weak_type=True)


def linear_operand(*operands: Any) -> int:
    """The position of the (single) linear operand in a transpose rule."""
    return next(i for i, x in enumerate(operands) if is_undefined(x))
