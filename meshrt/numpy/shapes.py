"""The shape of an array and the order of its dimensions: reshape, broadcast, transpose."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, lax
from meshrt.core.basic.reshard import as_split
from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p, transpose_p
from meshrt.core.dimensions.arithmetic import is_surely
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.explicit import axes_of, refusal
from meshrt.dispatch import at_once
from meshrt.numpy.arrays import operand_array
from meshrt.numpy.operands import (
    PYTHON_SCALARS,
    AxisError,
    ShapeError,
    broadcast_to_shape,
    canonical_axes,
    canonical_axis,
    common_shape,
    refuse_broadcast,
    shape_tuple,
)
from meshrt.numpy.operands import broadcast_shapes as _broadcast_shapes
from meshrt.primitives.axis_types import constrained

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_shapes", "broadcast_to",
    "expand_dims", "matrix_transpose", "moveaxis", "ndim", "permute_dims", "ravel", "reshape",
    "rollaxis", "shape", "size", "squeeze", "swapaxes", "transpose",
]  # fmt: skip


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
    x = operand_array("reshape", a)
    sizes = _solve(x, shape)
    if order == "F":
        flipped = reshape_p.bind(transpose(x), new_sizes=sizes[::-1])
        return transpose(flipped)
    if order == "A":
        raise errors.UnsupportedError("reshape: order='A' is not supported; use 'C' or 'F'")
    if order != "C":
        raise errors.ArgumentValueError(f"Unexpected value for 'order' argument: {order}. Use 'C' or 'F'")
    if out_sharding is not None:
        return lax.reshape(x, sizes, out_sharding=out_sharding)
    return x if sizes == x.shape else reshape_p.bind(x, new_sizes=sizes)


def _solve(x: Any, shape: Any) -> tuple[int, ...]:
    sizes = shape_tuple(shape)
    unknown = [i for i, n in enumerate(sizes) if n < 0]
    if not unknown or (len(unknown) == 1 and sizes[unknown[0]] != -1):
        if unknown or math.prod(sizes) != x.size:
            raise ShapeError(
                f"cannot reshape array of shape {x.shape} (size {x.size}) into shape {sizes} (size {math.prod(sizes)})"
            )
        return sizes
    known = math.prod(n for n in sizes if n >= 0)
    if known and is_symbolic_dim(x.size % known) and x.size % -known == 0:
        # Constraints may speak of the division by the product of the sizes as they are written, with the -1.
        return tuple(-(x.size // -known) if n == -1 else n for n in sizes)
    if is_symbolic_dim(x.size % known if known else 0):
        given, wanted = (f"({', '.join(map(str, s))})" for s in (x.shape, sizes))
        raise errors.InconclusiveDimensionOperation(
            f"Cannot divide evenly the sizes of shapes {given} and {wanted}: a constraint on the sizes "
            "decides it, or write the size in place of -1"
        )
    if len(unknown) > 1 or not known or x.size % known:
        raise ShapeError(
            f"can only specify one unknown axis size with a `-1` value, got {sizes}"
            if len(unknown) > 1
            else f"cannot reshape array of shape {x.shape} (size {x.size}) into shape {sizes} because the product of "
            f"specified axis sizes ({known}) does not evenly divide {x.size}"
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
        raise errors.UnsupportedError("Ravel not implemented for order='K'. Arrays have no memory order to keep")
    return reshape(a, -1 if size(a) else 0, order, out_sharding=out_sharding)


def _is_one(size: Any, shape: Any) -> bool:
    """Whether a size is 1. ArgumentValueError if that depends on variables."""
    if not is_symbolic_dim(size):
        return bool(size == 1)
    if is_surely(lambda: size >= 2):
        return False
    raise errors.ArgumentValueError(
        f"jnp.squeeze with axis=None is not supported with shape polymorphism: whether {size} of {shape} is 1 is known "
        f"only when the program is called; give the axes, or the constraint '{size} >= 2'"
    )


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
    x = operand_array("squeeze", a)
    if axis is None:
        drop = tuple(i for i, n in enumerate(x.shape) if _is_one(n, x.shape))
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
    x = operand_array("expand_dims", a)
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
    x = operand_array("broadcast_to", array)
    target = shape_tuple(shape)
    refuse_broadcast(x.aval, target)
    out = broadcast_to_shape(x, target)
    return constrained(out, out_sharding, "broadcast_to")


def broadcast_arrays(*args: Any) -> list[Any]:
    """The arguments broadcast to their common shape. Of several shapes, each is split over the Explicit axes of all.

    Raises:
      ShardingTypeError: a dimension is split over different Explicit axes, or one of those splits two dimensions.

    >>> [x.shape for x in jnp.broadcast_arrays(jnp.ones((2, 1)), jnp.ones(3))]
    [(2, 3), (2, 3)]
    """
    xs = [operand_array("broadcast_arrays", a, i) for i, a in enumerate(args)]
    if not xs:
        return []
    target = common_shape("broadcast_arrays", *(x.shape for x in xs))
    wide = [broadcast_to_shape(x, target) for x in xs]
    if all(x.shape == target for x in xs) or all(x.aval.explicit is None for x in xs):
        return wide
    return _split_alike("broadcast_arrays", wide)


def _split_alike(name: str, xs: list[Any]) -> list[Any]:
    """Arrays of one shape, each dimension split over the Explicit axes that split it in some of them."""
    types = [x.aval for x in xs]
    split = next(a.explicit for a in types if a.explicit is not None)
    entries: list[Any] = [None] * xs[0].ndim
    for aval in types:
        for i, entry in enumerate(() if aval.explicit is None else aval.explicit.spec.partitions):
            if entry is not None and entries[i] not in (None, entry):
                raise refusal(name, types, f"dimension {i} is split over different axes.")
            entries[i] = entries[i] or entry
    axes = [a for entry in entries for a in axes_of(entry)]
    if len(set(axes)) < len(axes):
        raise refusal(name, types, "one axis cannot split two dimensions.")
    common = split.update(spec=split.spec.update(partitions=entries))
    return [as_split(x, common) for x in xs]


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
    out = [grow(operand_array("atleast_nd", a, i)) for i, a in enumerate(arys)]
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
    x = operand_array("transpose", a)
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
    if axes is None:
        raise errors.ArgumentTypeError("permute_dims needs all axes, got None; use jnp.transpose to reverse them")
    return transpose(a, axes)


def matrix_transpose(x: Any, /) -> Any:
    """``x`` with its last two dimensions exchanged.

    >>> jnp.matrix_transpose(jnp.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    if ndim(x) < 2:
        raise ShapeError(f"x must be at least two-dimensional for matrix_transpose; got ndim={len(shape(x))}")
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
    x = operand_array("swapaxes", a)
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
    x = operand_array("moveaxis", a)
    src = canonical_axes(source, x.ndim, "moveaxis")
    dst = canonical_axes(destination, x.ndim, "moveaxis")
    if len(src) != len(dst):
        raise AxisError(f"Inconsistent number of elements: {len(src)} vs {len(dst)} (of moveaxis)")
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
    x = operand_array("rollaxis", a)
    axis = canonical_axis(axis, x.ndim, "rollaxis")
    start = start + x.ndim if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)
