"""Arrays made by rule: ranges, grids of coordinates, identity and triangular matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p
from meshrt.core.dimensions.arithmetic import count_of_steps, is_surely
from meshrt.core.dimensions.expression import DimExpr, as_size, is_symbolic_dim, is_symbolic_shape, max_dim, min_dim
from meshrt.core.trace import not_concrete
from meshrt.dispatch import at_once
from meshrt.lax.filled import full as lax_full
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, held_dtype, placed
from meshrt.numpy.filled import zeros_like
from meshrt.numpy.joining import stack
from meshrt.numpy.operands import (
    PYTHON_SCALARS,
    ShapeError,
    broadcast_to_shape,
    canonical_axis,
    diagonal_number,
    is_unknown,
    operand,
    ranked_shape,
    shape_tuple,
    size_as,
    static_int,
    static_size,
)
from meshrt.numpy.powers import power
from meshrt.numpy.ufuncs import multiply, sign, strong_scalar, true_divide
from meshrt.primitives.reshape import expand_dims, iota_p

__all__ = [
    "arange", "eye", "geomspace", "identity", "indices", "linspace", "logspace", "meshgrid", "tri",
    "tril", "triu", "vander",
]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# Ranges.


class StepError(errors.ArgumentTypeError, ZeroDivisionError):
    """A step of zero reaches no end."""


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """start, start + step, ... below stop (or 0, 1, ... below ``start`` if it is alone). All must be static.

    Args:
      start: the first value.
      stop: the end.
      step: from one value to the next.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    Returns:
      A vector.

    Raises:
      ConcretizationTypeError: a bound is traced.

    >>> jnp.arange(2, 8, 2)
    Array([2, 4, 6], dtype=int32)
    >>> jnp.arange(3.0)
    Array([0., 1., 2.], dtype=float32)
    """
    named = zip(("stop" if stop is None else "start", "stop", "step"), (start, stop, step))
    given = [_static_scalar("arange", v, which) for which, v in named if v is not None]
    if start is None:
        raise errors.ArgumentTypeError("arange needs a number to start from, or alone one to stop at, got None")
    if dtype is None:
        dtype = dtypes.result_type(*[0 if isinstance(v, DimExpr) else v for v in given])
    else:
        dtype = dtypes.check_user_dtype(dtype, "arange")
    if dtype == np.bool_:
        raise errors.ArgumentTypeError("iota does not accept dtype bool: arange counts; use an integer dtype")
    values = iter(given)
    begin = next(values)
    end = None if stop is None else next(values)
    stride = None if step is None else next(values)
    if end is None:
        begin, end = 0, begin
    size = _length(begin, end, 1 if stride is None else stride)
    return placed(_ramp(begin, stride, size, dtype), device, out_sharding)


def _length(begin: Any, end: Any, stride: Any) -> Any:
    """How many numbers a range has."""
    if is_symbolic_shape((begin, end, stride)):
        return _symbolic_length(begin, end, stride)
    if stride == 0:
        raise StepError("arange: step must not be zero")
    return max(0, math.ceil((end - begin) / stride))


def _symbolic_length(begin: Any, end: Any, stride: Any) -> Any:
    given = f"jnp.arange({begin}, {end}, {stride})"
    if not all(isinstance(n, (DimExpr, int, np.integer)) for n in (begin, end, stride)):
        raise errors.ArgumentValueError(
            f"{given}: beside a symbolic size start, stop and step must be either dimension expressions or integers; "
            "write the numbers as ints and convert the result"
        )
    begin, end, stride = map(as_size, (begin, end, stride))
    if stride == 0:
        raise errors.ArgumentValueError(f"{given} has step == 0: give another step")
    if not is_surely(lambda: stride > 0) and not is_surely(lambda: stride < 0):
        raise errors.InconclusiveDimensionOperation(
            f"{given}: the step must be resolved statically if it is > 0 or < 0. A constraint decides it, such as "
            f"symbolic_shape(..., constraints=['{stride} >= 1'])"
        )
    return count_of_steps(begin, end, stride)


def _static_scalar(name: str, value: Any, argument: str = "") -> Any:
    if isinstance(value, DimExpr):
        return value
    if isinstance(value, PYTHON_SCALARS):
        scalar: Any = value
    else:
        if is_unknown(value):
            raise not_concrete(value, f"It arose in the jnp.{name} argument '{argument}'. Take it from a shape")
        concrete = np.asarray(value)
        if concrete.ndim:
            raise errors.ArgumentValueError(f"{name}: the arguments must be scalars, got shape {concrete.shape}")
        held_dtype(name, value, concrete)
        scalar = concrete[()]
    if isinstance(scalar, (complex, np.complexfloating)):
        raise errors.ArgumentValueError(
            f"Passing complex start/stop/step to jnp.{name} is no longer supported, got {scalar}"
        )
    return scalar


def _ramp(begin: Any, stride: Any, size: int, dtype: Any) -> Any:
    small = dtypes.issubdtype(dtype, np.floating) and dtype.itemsize < 4
    work = np.dtype("float32") if small and stride is not None else dtype
    out = iota_p.bind(dtype=np.dtype("int32") if work == np.bool_ else work, shape=(size,), dimension=0)
    if stride is not None:
        out = el.mul_p.bind(size_as(stride, out.dtype), out)
    if stride is not None or begin != 0:
        out = el.add_p.bind(size_as(begin, out.dtype), out)
    return el.convert_element_type(out, dtype)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
    axis: int = 0, *, device: Any = None,
) -> Any:  # fmt: skip
    """``num`` values evenly spaced from ``start`` to ``stop``, which counts if ``endpoint``.

    ``start`` and ``stop`` may be arrays that broadcast together; ``axis`` is where the new dimension goes.

    Args:
      start: the first value or an array of such.
      stop: the last value or an array of such.
      num: how many values.
      endpoint: `stop` is the last value.
      retstep: also return the distance between values.
      dtype: the dtype of the result; by default the one that follows from the operands.
      axis: where the new dimension goes.
      device: a device or a sharding to put the result on.

    Returns:
      An array of a floating dtype, and the distance if `retstep`.

    >>> jnp.linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    out = _linspace(start, stop, num, endpoint, retstep, dtype, axis)
    if device is None:
        return out
    return (placed(out[0], device, None), out[1]) if retstep else placed(out, device, None)


@at_once(2, ["num", "endpoint", "retstep"], numbers=True)
def _linspace(start: Any, stop: Any, num: int, endpoint: bool, retstep: bool, dtype: Any, axis: int) -> Any:
    num = static_size(num, "linspace: num")
    if num < 0:
        raise ShapeError(f"Number of samples, {num}, must be non-negative.")
    start, stop = asarray(operand("linspace", start)), asarray(operand("linspace", stop, 1))
    if dtype is None:
        dtype = dtypes.to_inexact_dtype(dtypes.result_type(start, stop))
    else:
        dtype = dtypes.check_user_dtype(dtype, "linspace")
    work = dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(dtype))
    start, stop = el.convert_element_type(start, work), el.convert_element_type(stop, work)
    shape = ranked_shape("linspace", start.shape, stop.shape)
    axis = canonical_axis(axis, len(shape) + 1, "linspace")
    out, delta = _interpolated(start, stop, num, endpoint, work, shape, axis)
    if dtypes.issubdtype(dtype, np.integer):
        out = el.floor_p.bind(out)
    out = el.convert_element_type(out, dtype)
    return (out, delta) if retstep else out


def _interpolated(
    start: Any, stop: Any, num: int, endpoint: bool, work: np.dtype, shape: tuple[int, ...], axis: int
) -> tuple[Any, Any]:
    bounds = (*shape[:axis], 1, *shape[axis:])
    first = reshape_p.bind(broadcast_to_shape(start, shape), new_sizes=bounds)
    last = reshape_p.bind(broadcast_to_shape(stop, shape), new_sizes=bounds)
    if num == 0:
        return lax_full((*shape[:axis], 0, *shape[axis:]), 0, work), lax_full((), math.nan, work)
    if num == 1:
        return first, asarray(math.nan, work) if endpoint else el.convert_element_type(stop - start, work)
    gaps = num - 1 if endpoint else num
    whole = el.sub_p.bind(broadcast_to_shape(stop, shape), broadcast_to_shape(start, shape))
    delta = el.div(whole, size_as(gaps, work))
    real = dtypes.finfo(work).dtype
    along = (*(1,) * axis, gaps, *(1,) * (len(shape) - axis))
    t = el.div(iota_p.bind(dtype=np.dtype(real), shape=along, dimension=axis), size_as(gaps, real))
    t = el.convert_element_type(t, work)
    wide = (*shape[:axis], gaps, *shape[axis:])
    t = broadcast_to_shape(t, wide)
    left = el.mul_p.bind(broadcast_to_shape(first, wide), el.sub(1, t))
    out = el.add_p.bind(left, el.mul_p.bind(broadcast_to_shape(last, wide), t))
    if is_symbolic_dim(num):  # it may be 1
        last = _end(num, first, last)
        delta = _end(num, lax_full((), math.nan, work) if endpoint else el.sub_p.bind(stop, start), delta)
    return (lax.concatenate([out, last], axis) if endpoint else out), delta


def _end(num: Any, only: Any, last: Any) -> Any:
    """The last of `num` values: `only` where there is one, `last` where there are several."""
    if num == 1 or is_surely(lambda: num > 1):
        return only if num == 1 else last
    several = el.gt_p.bind(size_as(num, np.int32), np.int32(1))
    return lax.select_n(several, broadcast_to_shape(only, last.shape), last)


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """``base`` to the power of values evenly spaced from ``start`` to ``stop``.

    Args:
      start: the first value.
      stop: the end.
      num: how many values.
      endpoint: `stop` is the last value.
      base: the base of the powers.
      dtype: the dtype of the result; by default the one that follows from the operands.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.logspace(0, 2, 3)
    Array([  1.,  10., 100.], dtype=float32)
    """
    exponents = linspace(start, stop, num, endpoint, axis=axis)
    dtype = exponents.dtype if dtype is None else dtypes.check_user_dtype(dtype, "logspace")
    return el.convert_element_type(power(base, exponents), dtype)


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """``num`` values from ``start`` to ``stop`` with the same quotient of neighbours; both lie on one side of zero.

    Args:
      start: the first value.
      stop: the end.
      num: how many values.
      endpoint: `stop` is the last value.
      dtype: the dtype of the result; by default the one that follows from the operands.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.geomspace(1, 8, 4)
    Array([1.       , 2.       , 4.0000005, 8.       ], dtype=float32)
    """
    start, stop = asarray(operand("geomspace", start)), asarray(operand("geomspace", stop, 1))
    if dtype is None:
        dtype = dtypes.to_inexact_dtype(dtypes.result_type(start, stop))
    else:
        dtype = dtypes.check_user_dtype(dtype, "geomspace")
    work = dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(dtype))
    start, stop = el.convert_element_type(start, work), el.convert_element_type(stop, work)
    side = sign(start)
    axis = canonical_axis(axis, max(start.ndim, stop.ndim) + 1, "geomspace")
    scale = strong_scalar(start, 1 / np.log(10))
    first, last = (el.mul_p.bind(el.log_p.bind(true_divide(x, side)), scale) for x in (start, stop))
    out = multiply(side, logspace(first, last, num, endpoint, dtype=work))
    if endpoint and (is_symbolic_dim(num) or num > 1):  # exactly, which the logarithm has not been
        found, last = out[-1:], expand_dims(broadcast_to_shape(stop, out.shape[1:]), (0,))
        last = lax.select(found != found, found, last)  # ends on different sides of zero have nothing between them
        out = lax.concatenate([out[:-1], _end(num, out[:1], last)], 0)
    order = (*range(1, axis + 1), 0, *range(axis + 1, out.ndim))
    return el.convert_element_type(lax.transpose(out, order), dtype)


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """Coordinate arrays of the grid spanned by vectors; see ``numpy.meshgrid``.

    Args:
      xi: vectors.
      copy: must be True.
      sparse: leave sizes at 1 where the values do not change.
      indexing: "xy" or "ij": which dimension comes first.

    >>> [x.shape for x in jnp.meshgrid(jnp.arange(2), jnp.arange(3))]
    [(3, 2), (3, 2)]
    """
    if indexing not in ("xy", "ij"):
        raise errors.ArgumentValueError(f"Valid values for indexing are 'xy' and 'ij', got {indexing}")
    if not copy:
        raise errors.ArgumentValueError("jax.numpy.meshgrid only supports copy=True")
    args = [asarray(operand("meshgrid", x, i)) for i, x in enumerate(xi)]
    if any(a.ndim != 1 for a in args):
        raise ShapeError(f"Arguments to jax.numpy.meshgrid must be 1D, got shapes {[a.shape for a in args]}")
    order = list(range(len(args)))
    if indexing == "xy" and len(args) >= 2:
        order[:2] = 1, 0
    whole = tuple(args[k].size for k in order)
    out: list[Any] = [None] * len(args)
    for position, k in enumerate(order):
        a = args[k]
        shape = tuple(a.size if d == position else 1 for d in range(len(args))) if sparse else whole
        out[k] = broadcast_in_dim_p.bind(a, shape=shape, broadcast_dimensions=(position,))
    return out


def indices(dimensions: Any, dtype: Any = None, sparse: bool = False) -> Any:
    """The coordinates of every element of an array of shape ``dimensions``.

    Args:
      dimensions: sizes of the grid.
      dtype: the dtype of the result; by default the one that follows from the operands.
      sparse: leave sizes at 1 where the values do not change.

    >>> jnp.indices((2, 2))[0]
    Array([[0, 0],
           [1, 1]], dtype=int32)
    """
    if not np.iterable(dimensions):
        raise errors.ArgumentTypeError(f"indices: dimensions must be a sequence of sizes, got {dimensions!r}")
    dims = shape_tuple(dimensions)
    dtype = dtypes.check_user_dtype(int if dtype is None else dtype, "indices")
    shapes = [tuple(n if i == j else 1 for j in range(len(dims))) if sparse else dims for i, n in enumerate(dims)]
    out = [iota_p.bind(dtype=dtype, shape=s, dimension=i) for i, s in enumerate(shapes)]
    if sparse:
        return tuple(out)
    return stack(out, 0) if out else lax_full((0,), 0, dtype)


# ----------------------------------------------------------------------------------------------------------
# Matrices.


def _diagonal_mask(n: int, m: int, k: Any, compare: Any) -> Any:
    """bool[n, m]: ``compare(row + k, column)``."""
    row = iota_p.bind(dtype=np.dtype("int32"), shape=(n, m), dimension=0)
    column = iota_p.bind(dtype=np.dtype("int32"), shape=(n, m), dimension=1)
    if not isinstance(k, int) or k != 0:
        row = el.add_p.bind(row, el.convert_element_type(asarray(k), np.dtype("int32")))
    return compare.bind(row, column)


def eye(N: Any, M: Any = None, k: Any = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """An N by M matrix with ones on diagonal ``k`` and zeros elsewhere.

    Args:
      N: number of rows.
      M: number of columns; by default as many as rows.
      k: the number of the diagonal; 0 is the main one.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.

    >>> jnp.eye(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    dtype = dtypes.check_user_dtype(float if dtype is None else dtype, "eye")
    n, m = shape_tuple((N, N if M is None else M), "eye")
    k = diagonal_number(int(k) if isinstance(k, bool) else k, "eye")
    if isinstance(k, int):  # beyond the edges all diagonals are alike
        k = max_dim(-n, min_dim(k, m))
    return placed(el.convert_element_type(_diagonal_mask(n, m, k, el.eq_p), dtype), device, None)


def identity(n: Any, dtype: Any = None) -> Any:
    """The identity matrix of size n.

    Args:
      n: the number of rows.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.identity(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return eye(n, dtype=dtype)


def tri(N: Any, M: Any = None, k: Any = 0, dtype: Any = None) -> Any:
    """An N by M matrix with ones on and below diagonal ``k``.

    Args:
      N: number of rows.
      M: number of columns; by default as many as rows.
      k: the number of the diagonal; 0 is the main one.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.tri(2, dtype=jnp.int32)
    Array([[1, 0],
           [1, 1]], dtype=int32)
    """
    dtype = np.dtype("float32") if dtype is None else dtypes.check_user_dtype(dtype, "tri")
    n, m = shape_tuple((N, N if M is None else M), "tri")
    k = diagonal_number(k, "tri")
    if isinstance(k, int):  # one that no integer of ours can hold is refused; beyond the edges all diagonals are alike
        asarray(k)
        k = max_dim(-n, min_dim(k, m))
    return el.convert_element_type(_diagonal_mask(n, m, k, el.ge_p), dtype)


def _triangle(name: str, m: Any, k: int, lower: bool) -> Any:
    m, k = asarray(operand(name, m)), diagonal_number(k, name)
    if m.ndim < 2:
        raise ShapeError(f"Argument to jax.numpy.{name} must be at least 2D, got shape {m.shape}")
    rows, columns = m.shape[-2:]
    mask = _diagonal_mask(rows, columns, k if lower else k - 1, el.ge_p)
    mask = broadcast_to_shape(mask, m.shape)
    zero = zeros_like(m)
    return el.select_n_p.bind(mask, zero, m) if lower else el.select_n_p.bind(mask, m, zero)


@at_once(1, ["k"])
def tril(m: Any, k: int = 0) -> Any:
    """``m`` with zeros above diagonal ``k`` (of the last two dimensions).

    Args:
      m: an array, or what `asarray` makes one of.
      k: the number of the diagonal; 0 is the main one.

    >>> jnp.tril(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 0],
           [3, 4]], dtype=int32)
    """
    return _triangle("tril", m, k, True)


@at_once(1, ["k"])
def triu(m: Any, k: int = 0) -> Any:
    """``m`` with zeros below diagonal ``k`` (of the last two dimensions).

    Args:
      m: an array, or what `asarray` makes one of.
      k: the number of the diagonal; 0 is the main one.

    >>> jnp.triu(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 2],
           [0, 4]], dtype=int32)
    """
    return _triangle("triu", m, int(k) if isinstance(k, bool | np.bool_) else k, False)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The matrix of powers of a vector.

    Args:
      x: an array, or what `asarray` makes one of.
      N: the number of columns.
      increasing: powers ascend from left to right.

    >>> jnp.vander(jnp.array([1, 2, 3]), 3)
    Array([[1, 1, 1],
           [4, 2, 1],
           [9, 3, 1]], dtype=int32)
    """
    x = asarray(operand("vander", x))
    if x.ndim != 1:
        raise ShapeError(f"vander: x must be a one-dimensional array, got shape {x.shape}")
    if x.dtype == np.bool_:
        raise errors.ArgumentTypeError("vander does not accept dtype bool; convert with astype(int)")
    n = x.size if N is None else static_int(N, "vander: N")
    dtype = x.dtype if dtypes.issubdtype(x.dtype, np.integer) else np.dtype("int32")
    exponents = iota_p.bind(dtype=dtype, shape=(n,), dimension=0)
    exponents = exponents if increasing else el.sub(n - 1, exponents)
    return power(expand_dims(x, (1,)), expand_dims(exponents, (0,)))
