"""Functions that rearrange arrays: reshape, transpose, join, split, repeat, pad, roll."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p, transpose_p
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.indexing import take
from meshrt.numpy.operands import (
    PYTHON_SCALARS,
    AxisError,
    ShapeError,
    broadcast_to_shape,
    canonical_axes,
    canonical_axis,
    common_shape,
    operand,
    shape_tuple,
    unsupported_argument,
)
from meshrt.numpy.operands import broadcast_shapes as _broadcast_shapes
from meshrt.primitives.axis_types import constrained

__all__ = [
    "append", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_shapes",
    "broadcast_to", "column_stack", "concat", "concatenate", "delete", "dstack", "expand_dims", "flip",
    "fliplr", "flipud", "hstack", "matrix_transpose", "moveaxis", "ndim", "permute_dims", "ravel",
    "reshape", "roll", "rollaxis", "rot90", "shape", "size", "squeeze", "stack",
    "swapaxes", "transpose", "unstack", "vstack",
]  # fmt: skip


def _array(name: str, x: Any, position: int = 0) -> Any:
    return x if isinstance(x, ArrayOperators) else asarray(operand(name, x, position))


def shape(a: Any) -> tuple[int, ...]:
    """Sizes of the dimensions.

    >>> jnp.shape(jnp.ones((2, 3)))
    (2, 3)
    """
    return _shape("shape", a)


def _shape(name: str, a: Any) -> tuple[int, ...]:
    if hasattr(a, "shape"):
        return a.shape
    convert = getattr(a, "__jax_array__", None)
    if convert is not None:
        return convert().shape
    if not isinstance(a, PYTHON_SCALARS):
        warnings.warn(
            f"{name} requires ndarray or scalar arguments, got {type(a).__name__}; this will become an error",
            DeprecationWarning,
            stacklevel=3,
        )
    return np.shape(a)


def ndim(a: Any) -> int:
    """Number of dimensions.

    >>> jnp.ndim(jnp.ones((2, 3)))
    2
    """
    return len(_shape("ndim", a))


def size(a: Any, axis: Any = None) -> int:
    """Number of elements, or of positions along ``axis``.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.size(jnp.ones((2, 3)))
    6
    """
    dims = _shape("size", a)
    return math.prod(dims[i] for i in canonical_axes(axis, len(dims), "size"))


# ----------------------------------------------------------------------------------------------------------
# Reshape.


def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Any:
    """``a`` with another shape and the same elements; one size may be -1.

    Args:
      a: an array, or what `asarray` makes one of.
      shape: sizes of the result, of which one may be -1.
      order: "C" or "F": which dimension runs fastest.
      copy: whether the result is a copy; False is refused where one is needed.
      out_sharding: the sharding of the result over Explicit axes.

    Returns:
      An array of that shape and the dtype of `a`.

    Raises:
      TypeError: the sizes do not multiply to that of `a`.

    >>> jnp.reshape(jnp.arange(6), (2, -1))
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    """
    x = _array("reshape", a)
    sizes = _solve(x, shape)
    if order == "F":
        flipped = reshape_p.bind(transpose(x), new_sizes=sizes[::-1])
        return transpose(flipped)
    if order == "A":
        raise errors.UnsupportedError("reshape: order='A' is not supported; use 'C' or 'F'")
    if order != "C":
        raise errors.ArgumentValueError(f"order {order!r} is not permitted for reshaping; use 'C' or 'F'")
    if out_sharding is not None:
        return lax.reshape(x, sizes, out_sharding=out_sharding)
    return x if sizes == x.shape else reshape_p.bind(x, new_sizes=sizes)


def _solve(x: Any, shape: Any) -> tuple[int, ...]:
    sizes = shape_tuple(shape)
    unknown = [i for i, n in enumerate(sizes) if n < 0]
    if not unknown:
        if math.prod(sizes) != x.size:
            raise ShapeError(f"cannot reshape an array of shape {x.shape} (size {x.size}) into shape {sizes}")
        return sizes
    known = math.prod(n for n in sizes if n >= 0)
    if len(unknown) > 1 or sizes[unknown[0]] != -1 or not known or x.size % known:
        raise ShapeError(
            f"cannot reshape an array of shape {x.shape} (size {x.size}) into shape {sizes}: one size may be -1, and "
            f"the others must divide {x.size}"
        )
    return tuple(x.size // known if n == -1 else n for n in sizes)


@at_once(1, ["order"])
def ravel(a: Any, order: str = "C", *, out_sharding: Any = None) -> Any:
    """``a`` as a vector.

    Args:
      a: an array, or what `asarray` makes one of.
      order: "C" or "F": which dimension runs fastest.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.ravel(jnp.array([[1, 2], [3, 4]]))
    Array([1, 2, 3, 4], dtype=int32)
    """
    if order == "K":
        raise errors.UnsupportedError("ravel: order='K' is not supported: arrays have no memory order to keep")
    return reshape(a, -1 if size(a) else 0, order, out_sharding=out_sharding)


def squeeze(a: Any, axis: Any = None) -> Any:
    """``a`` without dimensions of size 1: all of them, or those of ``axis``.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: which dimensions of size 1 to drop; all by default.

    Raises:
      ValueError: a named dimension is not of size 1.

    >>> jnp.squeeze(jnp.ones((1, 3, 1))).shape
    (3,)
    """
    x = _array("squeeze", a)
    if axis is None:
        drop = tuple(i for i, n in enumerate(x.shape) if n == 1)
    else:
        drop = canonical_axes(axis, x.ndim, "squeeze")
        if any(x.shape[i] != 1 for i in drop):
            raise ShapeError(
                f"cannot select an axis to squeeze out which has size not equal to one, got shape={x.shape} and "
                f"dimensions={drop}"
            )
    if not drop:
        return x
    return reshape_p.bind(x, new_sizes=tuple(n for i, n in enumerate(x.shape) if i not in drop))


def expand_dims(a: Any, axis: Any) -> Any:
    """``a`` with new dimensions of size 1 at positions ``axis`` of the result.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: where the new dimensions stand in the result.

    >>> jnp.expand_dims(jnp.ones(3), 0).shape
    (1, 3)
    """
    x = _array("expand_dims", a)
    axis = axis if isinstance(axis, (tuple, list, range)) else (axis,)
    rank = x.ndim + len(axis)
    new = set(canonical_axes(tuple(axis), rank, "expand_dims"))
    kept = tuple(i for i in range(rank) if i not in new)
    sizes = iter(x.shape)
    out = tuple(1 if i in new else next(sizes) for i in range(rank))
    return broadcast_in_dim_p.bind(x, shape=out, broadcast_dimensions=kept) if new else x


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that ``shapes`` (sequences of sizes, or numbers) broadcast to. Raises ShapeError if there is none.

    >>> jnp.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    return _broadcast_shapes(*map(shape_tuple, shapes))


def broadcast_to(array: Any, shape: Any, *, out_sharding: Any = None) -> Any:
    """``array`` repeated along new dimensions and those of size 1, to ``shape``.

    Raises:
      ValueError: the shapes do not fit.

    Args:
      array: an array, or what `asarray` makes one of.
      shape: sizes of the result.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.broadcast_to(jnp.array([1, 2]), (2, 2))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    x = _array("broadcast_to", array)
    target = shape_tuple(shape)
    if len(target) < x.ndim or any(m not in (1, n) for m, n in zip(x.shape[::-1], target[::-1])):
        fewer = "Cannot broadcast to shape with fewer dimensions" if len(target) < x.ndim else None
        raise ShapeError(f"{fewer or 'Incompatible shapes for broadcasting'}: {x.shape} and requested shape {target}")
    out = broadcast_to_shape(x, target)
    return constrained(out, out_sharding, "broadcast_to")


def broadcast_arrays(*args: Any) -> list[Any]:
    """The arguments broadcast to their common shape.

    >>> [x.shape for x in jnp.broadcast_arrays(jnp.ones((2, 1)), jnp.ones(3))]
    [(2, 3), (2, 3)]
    """
    xs = [_array("broadcast_arrays", a, i) for i, a in enumerate(args)]
    if not xs:
        return []
    target = common_shape("broadcast_arrays", *(x.shape for x in xs))
    return [broadcast_to_shape(x, target) for x in xs]


def atleast_1d(*arys: Any) -> Any:
    """Arguments as arrays of at least one dimension.

    >>> jnp.atleast_1d(1.0)
    Array([1.], dtype=float32, weak_type=True)
    """
    return _atleast(arys, lambda x: x if x.ndim else reshape(x, (1,)))


def atleast_2d(*arys: Any) -> Any:
    """Arguments as arrays of at least two dimensions; new ones come first.

    >>> jnp.atleast_2d(jnp.array([1, 2])).shape
    (1, 2)
    """
    return _atleast(arys, lambda x: x if x.ndim >= 2 else reshape(x, (1,) * (2 - x.ndim) + x.shape))


def atleast_3d(*arys: Any) -> Any:
    """Arguments as arrays of at least three dimensions: (n,) becomes (1, n, 1), (m, n) becomes (m, n, 1).

    >>> jnp.atleast_3d(jnp.ones((2, 3))).shape
    (2, 3, 1)
    """

    def three(x: Any) -> Any:
        if x.ndim >= 3:
            return x
        shapes = {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}
        return reshape(x, shapes[x.ndim])

    return _atleast(arys, three)


def _atleast(arys: Sequence[Any], grow: Callable[[Any], Any]) -> Any:
    out = [grow(_array("atleast_nd", a, i)) for i, a in enumerate(arys)]
    return out[0] if len(out) == 1 else out


# ----------------------------------------------------------------------------------------------------------
# Order of dimensions and elements.


def transpose(a: Any, axes: Any = None) -> Any:
    """Dimension i of the result is dimension ``axes[i]`` of ``a``; all reversed by default.

    Args:
      a: an array, or what `asarray` makes one of.
      axes: the dimensions of `a` in the order of the result; reversed by default.

    Returns:
      An array with its dimensions in another order.

    >>> jnp.transpose(jnp.ones((2, 3, 4)), (1, 0, 2)).shape
    (3, 2, 4)
    """
    x = _array("transpose", a)
    if axes is None:
        order = tuple(range(x.ndim))[::-1]
    else:
        order = tuple(canonical_axis(a, x.ndim, "transpose") for a in axes)
        if sorted(order) != list(range(x.ndim)):
            raise ShapeError(
                f"transpose permutation isn't a permutation of operand dimensions, got permutation {tuple(axes)} for "
                f"operand shape {x.shape}"
            )
    return x if order == tuple(range(x.ndim)) else transpose_p.bind(x, permutation=order)


def permute_dims(a: Any, /, axes: Any) -> Any:
    """As :func:`transpose`, all axes given.

    Args:
      a: an array, or what `asarray` makes one of.
      axes: the dimensions of `a` in the order of the result.

    >>> jnp.permute_dims(jnp.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return transpose(a, axes)


def matrix_transpose(x: Any, /) -> Any:
    """``x`` with its last two dimensions exchanged.

    >>> jnp.matrix_transpose(jnp.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    if ndim(x) < 2:
        raise ShapeError(f"matrix_transpose needs at least two dimensions, got shape {shape(x)}")
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """``a`` with two dimensions exchanged.

    Args:
      a: an array, or what `asarray` makes one of.
      axis1: the first of the two dimensions.
      axis2: the second of the two dimensions.

    >>> jnp.swapaxes(jnp.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = _array("swapaxes", a)
    i, j = canonical_axis(axis1, x.ndim, "swapaxes"), canonical_axis(axis2, x.ndim, "swapaxes")
    order = list(range(x.ndim))
    order[i], order[j] = order[j], order[i]
    return x if i == j else transpose_p.bind(x, permutation=tuple(order))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """``a`` with dimensions ``source`` moved to positions ``destination``; the others keep their order.

    Args:
      a: an array, or what `asarray` makes one of.
      source: dimensions of `a`.
      destination: where they go.

    >>> jnp.moveaxis(jnp.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = _array("moveaxis", a)
    src = canonical_axes(source, x.ndim, "moveaxis")
    dst = canonical_axes(destination, x.ndim, "moveaxis")
    if len(src) != len(dst):
        raise AxisError(f"moveaxis: {len(src)} source axes but {len(dst)} destinations")
    order = [i for i in range(x.ndim) if i not in src]
    for d, s in sorted(zip(dst, src)):
        order.insert(d, s)
    return transpose(x, order)


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """``a`` with dimension ``axis`` moved back until it stands before ``start``.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      start: the first value.

    >>> jnp.rollaxis(jnp.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    x = _array("rollaxis", a)
    axis = canonical_axis(axis, x.ndim, "rollaxis")
    start = start + x.ndim if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


@at_once(1)
def flip(m: Any, axis: Any = None) -> Any:
    """``m`` with the order of elements reversed along ``axis`` (all by default).

    Args:
      m: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reverse; all by default.

    >>> jnp.flip(jnp.array([1, 2, 3]))
    Array([3, 2, 1], dtype=int32)
    """
    x = _array("flip", m)
    return lax.rev(x, canonical_axes(axis, x.ndim, "flip"))


@at_once(1)
def flipud(m: Any) -> Any:
    """``m`` reversed along the first dimension.

    >>> jnp.flipud(jnp.array([[1, 2], [3, 4]]))
    Array([[3, 4],
           [1, 2]], dtype=int32)
    """
    return flip(m, 0)


@at_once(1)
def fliplr(m: Any) -> Any:
    """``m`` reversed along the second dimension.

    >>> jnp.fliplr(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    return flip(m, 1)


@at_once(1, ["k"])
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """``m`` turned by ``k`` quarters in the plane of ``axes``, from the first towards the second.

    Args:
      m: an array, or what `asarray` makes one of.
      k: how often, by a quarter turn.
      axes: the plane, from the first dimension towards the second.

    >>> jnp.rot90(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 4],
           [1, 3]], dtype=int32)
    """
    x = _array("rot90", m)
    if x.ndim < 2:
        raise ShapeError(
            f"rot90 requires its first argument to have ndim at least two, but got first argument of shape {x.shape}"
        )
    a, b = canonical_axes(tuple(axes), x.ndim, "rot90")
    k %= 4
    if k == 0:
        return x
    if k == 2:
        return flip(x, (a, b))
    return swapaxes(flip(x, b), a, b) if k == 1 else flip(swapaxes(x, a, b), b)


@at_once(1, ["shift"])
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """``a`` with elements moved on by ``shift`` along ``axis``, those past the end coming in at the start.

    Args:
      a: an array, or what `asarray` makes one of.
      shift: by how many places; one for each axis.
      axis: the dimension or dimensions; by default the flattened array is rolled.

    >>> jnp.roll(jnp.array([1, 2, 3]), 1)
    Array([3, 1, 2], dtype=int32)
    """
    x = _array("roll", a)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    axes = canonical_axis_list(axis, x.ndim, "roll")
    if isinstance(shift, tuple | list) and any(isinstance(s, ArrayOperators) for s in shift):
        shift = asarray(shift)
    shape = np.shape(shift)
    count = max(len(axes), math.prod(shape))
    if len(shape) > 1 or any(n not in (1, count) for n in (*shape, len(axes))):
        raise ShapeError(f"roll: shifts of shape {shape} do not match {len(axes)} axes; give one shift per axis")
    axes = np.broadcast_to(axes, count).tolist()
    if isinstance(shift, ArrayOperators):
        return _roll_dynamic(x, broadcast_to(shift, (count,)), axes)
    for ax, by in zip(axes, np.broadcast_to(np.asarray(shift), count)):
        n = x.shape[ax]
        at = 0 if n == 0 else -int(by) % n
        if at != 0:
            parts = [lax.slice_in_dim(x, at, n, axis=int(ax)), lax.slice_in_dim(x, 0, at, axis=int(ax))]
            x = lax.concatenate(parts, int(ax))
    return x


def canonical_axis_list(axis: Any, rank: int, name: str) -> list[int]:
    """Axes counted from the start; the same one may come twice."""
    axis = axis if isinstance(axis, (tuple, list, np.ndarray)) else (axis,)
    return [canonical_axis(a, rank, name) for a in axis]


def _roll_dynamic(x: Any, shift: Any, axes: list[int]) -> Any:
    """A window of the doubled array, for shifts known only at run time."""
    for k, ax in enumerate(axes):
        n = x.shape[ax]
        by = el.convert_element_type(shift[k], np.int32) % max(n, 1)
        x = lax.dynamic_slice_in_dim(lax.concatenate([x, x], ax), n - by, n, ax)
    return x


# ----------------------------------------------------------------------------------------------------------
# Join and leave out.


def _same_dtype(name: str, arrays: Sequence[Any], dtype: Any) -> list[Any]:
    xs = [_array(name, a, i) for i, a in enumerate(arrays)]
    if dtype is not None:
        return [asarray(x, dtype) for x in xs]
    first = xs[0].dtype
    if all(x.dtype == first for x in xs):
        return xs
    target, weak = dtypes.promote_dtypes(*((x.dtype, aval_of(x).weak_type) for x in xs))
    return [el.convert_element_type(x, target, weak) for x in xs]


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Arrays joined along an existing dimension; ``axis=None`` flattens them first.

    Args:
      arrays: a sequence of arrays that agree in all other dimensions.
      axis: the dimension to join along; None for all elements in one row.
      dtype: the dtype of the result; by default the one that follows from the operands.

    Returns:
      An array of the promoted dtype.

    Raises:
      TypeError, ValueError: the shapes do not fit, or there is nothing to join.

    >>> jnp.concatenate([jnp.ones((1, 2)), jnp.zeros((1, 2))], axis=0)
    Array([[1., 1.],
           [0., 0.]], dtype=float32)
    """
    if isinstance(arrays, (ArrayOperators, np.ndarray)):
        arrays = unstack(arrays)
    if not len(arrays):
        raise ShapeError("Need at least one array to concatenate.")
    xs = _same_dtype("concatenate", arrays, dtype)
    if axis is None:
        return concatenate([ravel(x) for x in xs], 0)
    if xs[0].ndim == 0:
        raise ShapeError("concatenate: arrays of zero dimensions cannot be joined; use stack")
    axis = canonical_axis(axis, xs[0].ndim, "concatenate")
    for x in xs:
        if x.ndim != xs[0].ndim or any(i != axis and m != n for i, (m, n) in enumerate(zip(x.shape, xs[0].shape))):
            raise ShapeError(
                f"concatenate: shapes must agree except along axis {axis}, got {', '.join(str(y.shape) for y in xs)}"
            )
    return xs[0] if len(xs) == 1 else lax.concatenate(xs, axis)


def concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    """As :func:`concatenate`.

    Args:
      arrays: arrays.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.concat([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    return concatenate(arrays, axis)


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Any:
    """Arrays of one shape joined along a new dimension at position ``axis`` of the result.

    Args:
      arrays: a sequence of arrays of one shape.
      axis: where the new dimension goes.
      out: must be None: arrays are not written to.
      dtype: the dtype of the result; by default the one that follows from the operands.

    Returns:
      An array with one dimension more.

    Raises:
      ValueError: the shapes differ, or there is nothing to stack.

    >>> jnp.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    unsupported_argument("stack", "out", out)
    if not len(arrays):
        raise ShapeError("Need at least one array to stack.")
    if isinstance(arrays, (ArrayOperators, np.ndarray)):
        return moveaxis(asarray(arrays, dtype), 0, axis)
    xs = _same_dtype("stack", arrays, dtype)
    if any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(f"stack: all arrays must have one shape, got {', '.join(str(x.shape) for x in xs)}")
    axis = canonical_axis(axis, xs[0].ndim + 1, "stack")
    return lax.concatenate([expand_dims(x, axis) for x in xs], axis)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The slices of ``x`` along ``axis``.

    Args:
      x: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.unstack(jnp.array([[1, 2], [3, 4]]))
    (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
    """
    x = _array("unstack", x)
    if x.ndim == 0:
        raise ShapeError("Unstack requires arrays with at least one dimension, got a scalar")
    axis = canonical_axis(axis, x.ndim, "unstack")
    return tuple(lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis]))


def vstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the first of at least two dimensions.

    Args:
      tup: a sequence of arrays, or one array whose first dimension is taken apart.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.vstack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return concatenate([atleast_2d(a) for a in _items(tup)], 0, dtype)


def hstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the second dimension, vectors along the first.

    Args:
      tup: a sequence of arrays, or one array whose first dimension is taken apart.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.hstack([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    xs = [atleast_1d(a) for a in _items(tup)]
    return concatenate(xs, 0 if xs[0].ndim == 1 else 1, dtype)


def dstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the third of at least three dimensions.

    Args:
      tup: a sequence of arrays, or one array whose first dimension is taken apart.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.dstack([jnp.array([1, 2]), jnp.array([3, 4])]).shape
    (1, 2, 2)
    """
    return concatenate([atleast_3d(a) for a in _items(tup)], 2, dtype)


def column_stack(tup: Any) -> Any:
    """Vectors as columns, and matrices, joined along the second dimension.

    >>> jnp.column_stack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    xs = [_array("column_stack", a, i) for i, a in enumerate(_items(tup))]
    return concatenate([x if x.ndim > 1 else transpose(atleast_2d(x)) for x in xs], 1)


def _items(tup: Any) -> Sequence[Any]:
    items = unstack(tup) if isinstance(tup, (ArrayOperators, np.ndarray)) else list(tup)
    if not items:
        raise ShapeError("at least one array is needed")
    return items


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """``values`` joined to the end of ``arr``.

    Args:
      arr: an array, or what `asarray` makes one of.
      values: what is put behind it.
      axis: the dimension to join along; by default both are flattened.

    >>> jnp.append(jnp.array([1, 2]), jnp.array([3]))
    Array([1, 2, 3], dtype=int32)
    """
    return concatenate([arr, values], axis)


def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Any:
    """``arr`` without the positions ``obj`` (a number, a slice, an array) along ``axis``.

    An array that is traced needs ``assume_unique_indices``: how many elements are left is else not known.

    >>> jnp.delete(jnp.array([1, 2, 3]), 1)
    Array([1, 3], dtype=int32)
    """
    x = ravel(arr) if axis is None else _array("delete", arr)
    axis = 0 if axis is None else canonical_axis(axis, x.ndim, "delete")
    n = x.shape[axis]
    if isinstance(obj, ArrayOperators) and (assume_unique_indices or obj.ndim == 0):
        return _delete_distinct(x, ravel(obj), axis)
    if not isinstance(obj, slice):
        obj = np.asarray(operand("delete", obj, 1))
        if obj.dtype.kind not in "biu":
            raise errors.ArgumentValueError(f"delete: positions must be integers or booleans, got dtype {obj.dtype}")
        outside = obj[(obj < -n) | (obj >= n)] if obj.dtype != bool else obj[:0]
        if outside.size:
            raise AxisError(f"delete: index {outside.flat[0]} is out of bounds for axis {axis} with size {n}")
        obj = obj if obj.dtype == bool else obj.astype(int)
    return take_static(x, np.delete(np.arange(n), obj), axis)


def _delete_distinct(x: Any, positions: Any, axis: int) -> Any:
    """Without distinct positions: what is left stands where as many positions as are deleted before it are skipped."""
    n, count = x.shape[axis], positions.shape[0]
    positions = choose(el.lt_p.bind(positions, 0), positions + n, positions)
    moved = lax.sort(lax.clamp(np.asarray(0, positions.dtype), positions, np.asarray(n, positions.dtype))) - lax.iota(
        positions.dtype, count
    )
    left = lax.iota(positions.dtype, max(n - count, 0))
    skipped = lax.reduce_sum(el.convert_element_type(el.ge_p.bind(*_pairwise(left, moved)), positions.dtype), (0,))
    return take(x, left + skipped, axis=axis, mode="clip")


def _pairwise(a: Any, b: Any) -> list[Any]:
    """The vectors as rows of one matrix and as columns of another, of equal shapes."""
    shape = (b.shape[0], a.shape[0])
    return [lax.broadcast_in_dim(v, shape, (d,)) for v, d in ((a, 1), (b, 0))]


def take_static(x: Any, positions: np.ndarray, axis: int) -> Any:
    """Static positions along one dimension."""
    return take(x, positions.astype(np.int32), axis=axis, mode="clip")
