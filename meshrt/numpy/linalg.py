"""Linear algebra that needs no decompositions. The rest of ``numpy.linalg`` is not here yet."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import errors
from meshrt.numpy import contractions, reductions
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.contractions import einsum, matmul, tensordot, vecdot
from meshrt.numpy.creation import eye
from meshrt.numpy.names import missing
from meshrt.numpy.operands import ShapeError, canonical_axes, promote_inexact
from meshrt.numpy.shapes import broadcast_to, matrix_transpose
from meshrt.numpy.ufuncs import abs as absolute
from meshrt.numpy.ufuncs import not_equal, power, real, sqrt

__all__ = [
    "cross", "diagonal", "matmul", "matrix_norm", "matrix_power", "matrix_transpose", "multi_dot", "norm", "outer",
    "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The elements on a diagonal of matrices, which are the last two dimensions, as a new last dimension."""
    return contractions.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum along a diagonal of matrices, which are the last two dimensions."""
    return contractions.trace(x, offset, -2, -1, dtype)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors of three elements along ``axis``."""
    for x in (x1, x2):
        shape = np.shape(x)
        if not -len(shape) <= axis < len(shape) or shape[axis] != 3:
            raise ShapeError(f"cross needs vectors of 3 elements along axis {axis}, got shape {shape}")
    return contractions.cross(x1, x2, axis=axis)


def outer(x1: Any, x2: Any, /) -> Any:
    """The outer product of two vectors."""
    if np.ndim(x1) != 1 or np.ndim(x2) != 1:
        raise ShapeError(f"outer needs two vectors, got shapes {np.shape(x1)} and {np.shape(x2)}")
    return contractions.outer(x1, x2)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of a vector or matrix along one or two dimensions; of all elements (2-norm) by default.

    Args:
      ord: for vectors any number, inf or -inf; for matrices "fro", 1, -1, inf or -inf.
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
    raise ShapeError(f"norm of order {ord!r} is over one or two dimensions, not {len(axes)}")


def _euclidean(x: Any, axis: Any, keepdims: bool) -> Any:
    squares = real(el.mul_p.bind(x, el.conj(x))) if x.dtype.kind == "c" else el.mul_p.bind(x, x)
    return sqrt(reductions.sum(squares, axis, keepdims=keepdims))


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The ``ord``-norm of vectors along ``axis`` (of all elements by default)."""
    x = asarray(promote_inexact("vector_norm", x)[0])
    if ord in (None, 2):
        return _euclidean(x, axis, keepdims)
    size = absolute(x)
    if ord == np.inf:
        return reductions.max(size, axis, keepdims=keepdims, initial=0)
    if ord == -np.inf:
        return reductions.min(size, axis, keepdims=keepdims, initial=np.inf)
    if ord == 0:
        return reductions.sum(not_equal(x, 0), axis, size.dtype, keepdims=keepdims)
    if ord == 1:
        return reductions.sum(size, axis, keepdims=keepdims)
    if isinstance(ord, str):
        raise errors.ArgumentTypeError(f"norm: order {ord!r} is not one for vectors")
    return power(reductions.sum(power(size, ord), axis, keepdims=keepdims), 1.0 / ord)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of matrices in the last two dimensions."""
    x = asarray(promote_inexact("matrix_norm", x)[0])
    return _matrix_norm(x, (x.ndim - 2, x.ndim - 1), ord, keepdims)


def _matrix_norm(x: Any, axes: tuple[int, ...], ord: Any, keepdims: bool) -> Any:
    if ord == "fro":
        return _euclidean(x, axes, keepdims)
    if ord not in (1, -1, np.inf, -np.inf):
        raise errors.UnsupportedError(
            f"matrix norm of order {ord!r} needs singular values, which are not supported yet"
        )
    row, column = axes
    over, rest = (row, column) if ord in (1, -1) else (column, row)
    sums = reductions.sum(absolute(x), over, keepdims=True)
    extreme = reductions.max if ord > 0 else reductions.min
    out = extreme(sums, rest, keepdims=True)
    return out if keepdims else reductions.sum(out, axes)


def matrix_power(a: Any, n: int) -> Any:
    """The n-th power of square matrices, n >= 0, by squaring."""
    x = asarray(promote_inexact("matrix_power", a)[0]) if n < 0 else asarray(a)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"matrix_power needs square matrices, got shape {x.shape}")
    if n < 0:
        raise errors.UnsupportedError(
            "matrix_power with a negative exponent needs an inverse, which is not supported yet"
        )
    if n == 0:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape)
    result = None
    while n:
        if n & 1:
            result = x if result is None else matmul(result, x)
        n >>= 1
        x = matmul(x, x) if n else x
    return result


def multi_dot(arrays: Any, *, precision: Any = None) -> Any:
    """The product of several matrices (the first and last may be vectors), in the order of least work."""
    xs = [asarray(a) for a in arrays]
    if len(xs) < 2:
        raise ShapeError("multi_dot needs at least two arrays")
    names = [chr(ord_) for ord_ in range(97, 97 + len(xs) + 1)]
    parts = [names[i] + names[i + 1] for i in range(len(xs))]
    if xs[0].ndim == 1:
        parts[0] = parts[0][1:]
    if xs[-1].ndim == 1:
        parts[-1] = parts[-1][:1]
    result = (names[0] if xs[0].ndim == 2 else "") + (names[-1] if xs[-1].ndim == 2 else "")
    return einsum(f"{','.join(parts)}->{result}", *xs, precision=precision)


__getattr__ = missing(__name__, __all__)
