"""Linear algebra: products and norms here, linear systems in `systems`, decompositions in `spectra`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.tracebacks import offer
from meshrt.dispatch import at_once
from meshrt.numpy import contractions, diagonals, reductions
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array
from meshrt.numpy.choose import choose
from meshrt.numpy.contractions import einsum, vecdot
from meshrt.numpy.creation import eye
from meshrt.numpy.logic import isnan, logical_and, logical_not
from meshrt.numpy.names import missing
from meshrt.numpy.operands import AxisError, ShapeError, canonical_axes, promote_inexact, static_int
from meshrt.numpy.powers import power
from meshrt.numpy.shapes import broadcast_to, expand_dims, matrix_transpose, moveaxis
from meshrt.numpy.spectra import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    lstsq,
    matrix_rank,
    pinv,
    qr,
    svd,
    svdvals,
)
from meshrt.numpy.systems import det, inv, slogdet, solve, tensorinv, tensorsolve
from meshrt.numpy.ufuncs import abs as absolute
from meshrt.numpy.ufuncs import not_equal, real, sqrt

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr",
    "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def matmul(x1: Any, x2: Any, /, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The matrix product over the last two dimensions, as `jnp.matmul`.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> jnp.linalg.matmul(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    """
    return contractions.matmul(x1, x2, precision=precision, preferred_element_type=preferred_element_type)


def tensordot(
    x1: Any, x2: Any, /, *, axes: Any = 2, precision: Any = None, preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """The sum over products along ``axes``, as `jnp.tensordot`.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array.
      axes: how many dimensions are contracted, or a pair of lists of them.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.linalg.tensordot(jnp.ones((2, 3)), jnp.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    return contractions.tensordot(
        x1, x2, axes, precision=precision, preferred_element_type=preferred_element_type, out_sharding=out_sharding
    )


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The elements on a diagonal of matrices, which are the last two dimensions, as a new last dimension.

    Args:
      x: an array, or what `asarray` makes one of.
      offset: the number of the diagonal; 0 is the main one.

    >>> jnp.linalg.diagonal(jnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    return diagonals.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum along a diagonal of matrices, which are the last two dimensions.

    Args:
      x: an array, or what `asarray` makes one of.
      offset: the number of the diagonal; 0 is the main one.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.linalg.trace(jnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    return diagonals.trace(x, offset, -2, -1, dtype)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors of three elements along ``axis``.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.
      axis: one dimension for all three.

    >>> jnp.linalg.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    first, second = np.shape(x1), np.shape(x2)
    if any(not -len(shape) <= axis < len(shape) for shape in (first, second)):
        raise AxisError(f"cross: axis {axis} is out of bounds for arrays of shapes {first} and {second}")
    if first[axis] != 3 or second[axis] != 3:
        raise ShapeError(
            "Both input arrays must be (arrays of) 3-dimensional vectors, but they have "
            f"x1.shape[axis]={first[axis]} and x2.shape[axis]={second[axis]}"
        )
    return contractions.cross(x1, x2, axis=axis)


def outer(x1: Any, x2: Any, /) -> Any:
    """The outer product of two vectors.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.linalg.outer(jnp.array([1, 2]), jnp.array([3, 4]))
    Array([[3, 4],
           [6, 8]], dtype=int32)
    """
    if np.ndim(x1) != 1 or np.ndim(x2) != 1:
        raise ShapeError(
            f"outer: Input arrays must be one-dimensional, but they are x1.ndim={np.ndim(x1)} x2.ndim={np.ndim(x2)}"
        )
    return contractions.outer(x1, x2)


@at_once(1, ["ord"])
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of a vector or matrix along one or two dimensions; of all elements (2-norm) by default.

    Args:
      ord: for vectors any number, inf or -inf; for matrices "fro", 1, -1, inf or -inf.

    >>> jnp.linalg.norm(jnp.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    x = asarray(promote_inexact("norm", x)[0])
    if axis is None:
        if ord is None:
            return _euclidean(x, None, keepdims)
        axes = tuple(range(x.ndim))
    else:
        axes = canonical_axes(axis, x.ndim, "norm")
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) == 2:
        return _matrix_norm(x, axes, "fro" if ord is None else ord, keepdims)
    raise ShapeError(
        f"Improper number of axes for norm: axis={axes}. Pass one axis to compute a vector-norm, or two axes to "
        "compute a matrix-norm."
    )


def _euclidean(x: Any, axis: Any, keepdims: bool) -> Any:
    squares = real(el.mul_p.bind(x, el.conj(x))) if x.dtype.kind == "c" else el.mul_p.bind(x, x)
    return sqrt(reductions.sum(squares, axis, keepdims=keepdims))


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The ``ord``-norm of vectors along ``axis`` (of all elements by default).

    Args:
      x: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      keepdims: keep reduced dimensions, with size 1.
      ord: which norm: None, a number, "fro" or "nuc".

    >>> jnp.linalg.vector_norm(jnp.array([[3.0, 4.0], [6.0, 8.0]]), axis=1)
    Array([ 5., 10.], dtype=float32)
    """
    x = operand_array("vector_norm", x)
    if ord in (None, 2):
        # Of integers as wide as their sum.
        wide = x if dtypes.issubdtype(x.dtype, np.inexact) else x.astype(dtypes.default_float_dtype())
        return _euclidean(wide, axis, keepdims)
    size = absolute(x)
    if ord == np.inf:
        return reductions.max(size, axis, keepdims=keepdims, initial=0)
    if ord == -np.inf:
        return reductions.min(size, axis, keepdims=keepdims)
    if ord == 1:
        return reductions.sum(size, axis, keepdims=keepdims)
    (size,) = promote_inexact("vector_norm", size)
    if ord == 0:
        return reductions.sum(not_equal(x, 0), axis, size.dtype, keepdims=keepdims)
    if isinstance(ord, str):
        raise errors.ArgumentValueError(f"Invalid order {ord!r} for vector norm.")
    return power(reductions.sum(power(size, ord), axis, keepdims=keepdims), 1.0 / ord)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of matrices in the last two dimensions.

    Args:
      x: an array, or what `asarray` makes one of.
      keepdims: keep reduced dimensions, with size 1.
      ord: which norm: None, a number, "fro" or "nuc".

    >>> jnp.linalg.matrix_norm(jnp.array([[3.0, 0.0], [0.0, 4.0]]))
    Array(5., dtype=float32)
    """
    x = asarray(promote_inexact("matrix_norm", x)[0])
    return _matrix_norm(x, (x.ndim - 2, x.ndim - 1), ord, keepdims)


def _matrix_norm(x: Any, axes: tuple[int, ...], ord: Any, keepdims: bool) -> Any:
    if ord in ("f", "fro"):
        return _euclidean(x, axes, keepdims)
    if ord in ("nuc", 2, -2):
        return _spectral_norm(x, axes, ord, keepdims)
    if ord not in (1, -1, np.inf, -np.inf):
        raise errors.ArgumentValueError(
            f"Invalid order '{ord}' for matrix norm. Those are 'fro', 'nuc', 1, -1, 2, -2, inf and -inf"
        )
    row, column = axes
    over, rest = (row, column) if ord in (1, -1) else (column, row)
    sums = reductions.sum(absolute(x), over, keepdims=True)
    if ord > 0:
        out = reductions.max(sums, rest, keepdims=True, initial=0)
    else:
        out = reductions.min(sums, rest, keepdims=True)
    return out if keepdims else reductions.sum(out, axes)


def _spectral_norm(x: Any, axes: tuple[int, ...], ord: Any, keepdims: bool) -> Any:
    """A norm that singular values make: the largest, the smallest, or their sum."""
    s = svdvals(moveaxis(x, axes, (-2, -1)))
    if ord == "nuc":
        out = reductions.sum(s, -1)
    else:
        out = reductions.max(s, -1, initial=0) if ord == 2 else reductions.min(s, -1)
    return expand_dims(out, axes) if keepdims else out


def cond(x: Any, p: Any = None) -> Any:
    """The condition numbers of matrices: the norm of order ``p`` times that of the inverse; infinite for singular ones.

    Orders None, 2 and -2 are quotients of singular values, for which matrices need not be square.

    Args:
      x: an array, or what `asarray` makes one of.
      p: which norm: None, 1, -1, 2, -2, inf, -inf or "fro".

    >>> jnp.linalg.cond(jnp.array([[2.0, 0.0], [0.0, 1.0]]))
    Array(2., dtype=float32)
    """
    x = operand_array("cond", x)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        what = "at least 2D" if x.ndim < 2 else "not empty along its last two dimensions"
        raise ShapeError(f"jnp.linalg.cond: input array must be {what}; got arr.shape={x.shape}")
    if p in (None, 2, -2):
        s = svdvals(x)
        if p != -2:
            return s[..., 0] / s[..., -1]
        out = s[..., -1] / s[..., 0]
    else:
        if x.shape[-1] != x.shape[-2]:
            raise ShapeError(f"jnp.linalg.cond: for {p=}, array must be square; got arr.shape={x.shape}")
        out = norm(x, p, (-2, -1)) * norm(inv(x), p, (-2, -1))
    unknown = logical_and(isnan(out), logical_not(reductions.any(isnan(x), (-2, -1))))
    return choose(unknown, np.inf, out)


def matrix_power(a: Any, n: int) -> Any:
    """The n-th power of square matrices by squaring; a negative one is a power of the inverse.

    Args:
      a: square matrices.
      n: an int; negative powers need an inverse.

    >>> jnp.linalg.matrix_power(jnp.array([[1, 1], [0, 1]]), 3)
    Array([[1, 3],
           [0, 1]], dtype=int32)
    """
    x = operand_array("matrix_power", a)
    if x.ndim < 2:
        raise errors.ArgumentTypeError(
            f"matrix_power: {x.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    if x.shape[-1] != x.shape[-2]:
        raise errors.ArgumentTypeError(
            f"matrix_power: Last 2 dimensions of the array must be square, got shape {x.shape}"
        )
    n = static_int(n, "matrix_power: exponent")
    if n == 0:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape)
    if n < 0:
        x, n = inv(x), -n
    result = None
    while n:
        if n & 1:
            result = x if result is None else contractions.matmul(result, x)
        n >>= 1
        x = contractions.matmul(x, x) if n else x
    return result


def multi_dot(arrays: Any, *, precision: Any = None) -> Any:
    """The product of several matrices (the first and last may be vectors), in the order of least work.

    Args:
      arrays: arrays.
      precision: a `lax.Precision`, its name, or one for each operand.

    >>> jnp.linalg.multi_dot([jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.ones(4)])
    Array([12., 12.], dtype=float32)
    """
    xs = [operand_array("multi_dot", a, i) for i, a in enumerate(arrays)]
    shapes = [x.shape for x in xs]
    if len(xs) < 2:
        raise ShapeError(f"multi_dot requires at least two arrays; got len(arrays)={len(xs)}")
    if any(x.ndim not in (1, 2) for x in (xs[0], xs[-1])) or any(x.ndim != 2 for x in xs[1:-1]):
        raise ShapeError(
            "multi_dot: input arrays must all be two-dimensional, except for the first and last array which may be 1 "
            f"or 2 dimensional. Got array shapes {shapes}"
        )
    if any(a[-1] != b[0] for a, b in pairwise(shapes)):
        raise ShapeError(
            "multi_dot: last dimension of each array must match first dimension of following array. Got array shapes "
            f"{shapes}"
        )
    names = [chr(ord_) for ord_ in range(97, 97 + len(xs) + 1)]
    parts = [names[i] + names[i + 1] for i in range(len(xs))]
    if xs[0].ndim == 1:
        parts[0] = parts[0][1:]
    if xs[-1].ndim == 1:
        parts[-1] = parts[-1][:1]
    result = (names[0] if xs[0].ndim == 2 else "") + (names[-1] if xs[-1].ndim == 2 else "")
    return einsum(f"{','.join(parts)}->{result}", *xs, precision=precision)


offer(globals(), __all__)
__getattr__ = missing(__name__, __all__)
