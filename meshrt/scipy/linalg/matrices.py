"""Matrices of a special form."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.core.basic.shapes import not_negative
from meshrt.core.dimensions.expression import is_symbolic_dim, is_symbolic_shape, max_dim, min_dim
from meshrt.jit import jit
from meshrt.numpy.operands import operand
from meshrt.scipy.linalg import sized
from meshrt.scipy.operands import inexact

__all__ = [
    "block_diag", "circulant", "companion", "convolution_matrix", "dft", "fiedler", "fiedler_companion", "hadamard",
    "hankel", "helmert", "hilbert", "invhilbert", "invpascal", "leslie", "pascal", "toeplitz",
]  # fmt: skip


def _vector(name: str, x: Any, position: int = 0) -> Any:
    return jnp.atleast_1d(jnp.asarray(operand(name, x, position)))


def block_diag(*arrs: Any) -> Any:
    """The matrices side by side along the diagonal, zeros elsewhere; vectors are rows.

    Raises:
      ArgumentValueError: an argument of more than two dimensions.

    >>> meshrt.scipy.linalg.block_diag(jnp.ones((1, 2)), jnp.array([[5.0]]))
    Array([[1., 1., 0.],
           [0., 0., 5.]], dtype=float32)
    """
    if not arrs:
        return jnp.zeros((1, 0))
    blocks = [jnp.asarray(operand("block_diag", a, i)) for i, a in enumerate(arrs)]
    for i, b in enumerate(blocks):
        if b.ndim > 2:
            raise errors.ArgumentValueError(
                f"Arguments to jax.scipy.linalg.block_diag must have at most 2 dimensions, got {b.ndim} at argument "
                f"{i}."
            )
    dtype = jnp.result_type(*blocks)
    blocks = [jnp.atleast_2d(b).astype(dtype) for b in blocks]
    width, before, rows = sum(b.shape[1] for b in blocks), 0, []
    for b in blocks:
        rows.append(jnp.pad(b, ((0, 0), (before, width - before - b.shape[1]))))
        before += b.shape[1]
    return jnp.concatenate(rows)


def _numbers(*bounds: Any) -> Any:
    """As `numpy.arange`; in the program where it depends on symbolic sizes."""
    return jnp.arange(*bounds) if is_symbolic_shape(bounds) else np.arange(*bounds)


@jit
def toeplitz(c: Any, r: Any = None) -> Any:
    """The matrices [..., m, n] with constant diagonals, of a first column [..., m] and first row [..., n] (whose first
    element does not count); the row is the column's conjugate where it is not given.

    Args:
      c: the first column.
      r: the first row.

    >>> meshrt.scipy.linalg.toeplitz(jnp.array([1, 2, 3]))
    Array([[1, 2, 3],
           [2, 1, 2],
           [3, 2, 1]], dtype=int32)
    """
    column = _vector("toeplitz", c)
    row = jnp.conj(column) if r is None else _vector("toeplitz", r, 1)
    dtype = jnp.result_type(column, row)
    batch = jnp.broadcast_shapes(column.shape[:-1], row.shape[:-1])
    m, n = column.shape[-1], row.shape[-1]
    if not m or not n:
        return jnp.zeros((*batch, m, n), dtype)
    parts = (jnp.flip(column, -1), row[..., 1:])
    line = jnp.concatenate([jnp.broadcast_to(p, (*batch, p.shape[-1])).astype(dtype) for p in parts], axis=-1)
    return line[..., (m - 1 - _numbers(m))[:, None] + _numbers(n)]


@jit
def hankel(c: Any, r: Any = None) -> Any:
    """The matrices [..., m, n] with constant antidiagonals, of a first column [..., m] and last row [..., n] (whose
    first element does not count), zeros where it is not given.

    Raises:
      ArgumentValueError: a scalar.

    Args:
      c: the first column.
      r: the first row.

    >>> meshrt.scipy.linalg.hankel(jnp.array([1, 2, 3]))
    Array([[1, 2, 3],
           [2, 3, 0],
           [3, 0, 0]], dtype=int32)
    """
    column = jnp.asarray(operand("hankel", c))
    row = jnp.zeros_like(column) if r is None else jnp.asarray(operand("hankel", r, 1))
    for name, x in (("c", column), ("r", row)):
        if not x.ndim:
            raise errors.ArgumentValueError(f"hankel: {name} must be at least 1-dimensional, got a scalar.")
    dtype = jnp.result_type(column, row)
    batch = jnp.broadcast_shapes(column.shape[:-1], row.shape[:-1])
    m, n = column.shape[-1], row.shape[-1]
    if not m or not n:
        return jnp.zeros((*batch, m, n), dtype)
    parts = (column, row[..., 1:])
    line = jnp.concatenate([jnp.broadcast_to(p, (*batch, p.shape[-1])).astype(dtype) for p in parts], axis=-1)
    return line[..., _numbers(m)[:, None] + _numbers(n)]


@jit
def circulant(c: Any) -> Any:
    """The matrices [..., n, n] whose columns are `c` [..., n] turned by one more element each.

    >>> meshrt.scipy.linalg.circulant(jnp.array([1, 2, 3]))
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int32)
    """
    c = _vector("circulant", c)
    n = c.shape[-1]
    return c[..., (_numbers(n)[:, None] - _numbers(n)) % max_dim(n, 1)]


@jit
def leslie(f: Any, s: Any) -> Any:
    """Leslie's matrices [..., n, n]: fecundities [..., n] in the first row, survivals [..., n - 1] below the diagonal.

    Raises:
      ArgumentValueError: lengths do not fit.

    >>> meshrt.scipy.linalg.leslie(jnp.array([1.0, 2.0]), jnp.array([0.5]))
    Array([[1. , 2. ],
           [0.5, 0. ]], dtype=float32)
    """
    f, s = _vector("leslie", f), _vector("leslie", s, 1)
    n = f.shape[-1]
    if n < 2:
        raise errors.ArgumentValueError(f"The length of f along the last axis must be at least 2; got shape {f.shape}.")
    if s.shape[-1] != n - 1:
        raise errors.ArgumentValueError(
            "Incorrect lengths for f and s. The length of s along the last axis must be one less than the length of f; "
            f"got f shape {f.shape} and s shape {s.shape}."
        )
    dtype = jnp.result_type(f, s)
    batch = jnp.broadcast_shapes(f.shape[:-1], s.shape[:-1])
    out = jnp.zeros((*batch, n, n), dtype).at[..., 0, :].set(f.astype(dtype))
    return out.at[..., _numbers(1, n), _numbers(n - 1)].set(s.astype(dtype))


@jit
def companion(a: Any) -> Any:
    """The companion matrices [..., n - 1, n - 1] of polynomials with coefficients [..., n], highest first.

    Raises:
      ArgumentValueError: fewer than two coefficients.

    >>> meshrt.scipy.linalg.companion(jnp.array([1.0, 2.0, 3.0]))
    Array([[-2., -3.],
           [ 1.,  0.]], dtype=float32)
    """
    (a,) = inexact("companion", a)
    a = jnp.atleast_1d(a)
    n = a.shape[-1] - 1
    if n < 1:
        raise errors.ArgumentValueError(
            f"The length of `a` along the last axis must be at least 2; got shape {a.shape}."
        )
    below = jnp.broadcast_to(jnp.eye(n - 1, n, dtype=a.dtype), (*a.shape[:-1], n - 1, n))
    return jnp.concatenate([(-a[..., 1:] / a[..., :1])[..., None, :], below], axis=-2)


@jit
def fiedler(a: Any) -> Any:
    """|a_i - a_j|, [..., n, n].

    >>> meshrt.scipy.linalg.fiedler(jnp.array([1, 4]))
    Array([[0, 3],
           [3, 0]], dtype=int32)
    """
    a = _vector("fiedler", a)
    return jnp.abs(a[..., None] - a[..., None, :])


@jit
def fiedler_companion(a: Any) -> Any:
    """Fiedler's companion matrices [..., n - 1, n - 1] of polynomials with coefficients [..., n], highest first: with
    five diagonals.

    Raises:
      ArgumentValueError: no coefficient.

    >>> meshrt.scipy.linalg.fiedler_companion(jnp.array([1.0, 2.0, 3.0]))
    Array([[-2., -3.],
           [ 1.,  0.]], dtype=float32)
    """
    (a,) = inexact("fiedler_companion", a)
    a = jnp.atleast_1d(a)
    if not a.shape[-1]:
        raise errors.ArgumentValueError(
            f"fiedler_companion requires the last axis of 'a' to have nonzero length, but got shape {a.shape}."
        )
    n = a.shape[-1] - 1
    if n < 1:
        return jnp.zeros((*a.shape[:-1], 0, 0), a.dtype)
    c = a / a[..., :1]
    if n == 1:
        return -c[..., 1:, None]
    out = jnp.zeros((*a.shape[:-1], n, n), a.dtype)
    # As SciPy places them: pairs of coefficients above and below the diagonal, ones in between.
    out = out.at[..., _numbers(0, n - 2, 2), _numbers(2, n, 2)].set(1)
    out = out.at[..., _numbers(3, n, 2), _numbers(1, n - 2, 2)].set(1)
    out = out.at[..., _numbers(0, n - 1, 2), _numbers(1, n, 2)].set(-c[..., 2::2])
    out = out.at[..., 0, 0].set(-c[..., 1]).at[..., 1, 0].set(1)
    rows = _numbers(2, n, 2)
    return out.at[..., rows, rows - 1].set(-c[..., 3::2])


@jit(static_argnames=("n", "mode"))
def convolution_matrix(a: Any, n: int, mode: str = "full") -> Any:
    """The matrices of the convolutions of vectors [n] with `a` [..., m], as numpy.convolve does them in that mode.

    Raises:
      ArgumentValueError: n is not positive, `a` empty or a scalar, the mode unknown.

    Args:
      a: an array.
      n: the number of columns.
      mode: "full", "same" or "valid".

    >>> meshrt.scipy.linalg.convolution_matrix(jnp.array([1, 2]), 2)
    Array([[1, 0],
           [2, 1],
           [0, 2]], dtype=int32)
    """
    n = operator.index(n)
    if n <= 0:
        raise errors.ArgumentValueError(f"n must be a positive integer; got {n}.")
    a = jnp.asarray(operand("convolution_matrix", a))
    if not a.ndim:
        raise errors.ArgumentValueError("convolution_matrix: a must be at least 1-dimensional, got a scalar.")
    m = a.shape[-1]
    if m < 1:
        raise errors.ArgumentValueError(f"len(a) must be at least 1; got shape {a.shape}.")
    if mode not in ("full", "valid", "same"):
        raise errors.ArgumentValueError(f"mode must be one of 'full', 'valid', 'same'; got {mode!r}.")
    cut = min_dim(n, m) - 1
    first, last = {"full": (0, 0), "valid": (cut, cut), "same": (cut // 2, cut - cut // 2)}[mode]
    places = _numbers(first, m + n - 1 - last)[:, None] - _numbers(n)
    inside = (places >= 0) & (places < m)
    return jnp.where(inside, a[..., places.clip(0, m - 1)], 0).astype(a.dtype)


def _count(name: str, n: Any) -> int:
    """How many rows a size stands for: as many as `arange(n)` has elements, so it may be floating."""
    if isinstance(n, float | np.floating):
        if not math.isfinite(n):
            raise errors.ArgumentValueError(f"{name}: n must be a number of rows; got {n}")
        return max(math.ceil(n), 0)
    return max(operator.index(n), 0)


@usual_promotion
def hilbert(n: int) -> Any:
    """Hilbert's matrix [n, n]: 1 / (i + j + 1).

    >>> meshrt.scipy.linalg.hilbert(2)
    Array([[1.        , 0.5       ],
           [0.5       , 0.33333334]], dtype=float32)
    """
    if not is_symbolic_dim(n):
        not_negative("iota", (operator.index(n), 1))
    i = _numbers(n)
    return (1.0 / jnp.asarray(i[:, None] + i + 1)).astype(jnp.result_type(float))


def invhilbert(n: int) -> Any:
    """The inverse of `hilbert(n)`, from its formula in whole numbers.

    >>> meshrt.scipy.linalg.invhilbert(2)
    Array([[ 4., -6.],
           [-6., 12.]], dtype=float32)
    """
    if is_symbolic_dim(n):
        return sized.inverse_of_hilbert(n)
    if n > 0 and n != _count("invhilbert", n):
        raise errors.ArgumentValueError("invhilbert: n must be a whole number, as its formula is one of binomials")
    n = _count("invhilbert", n)

    def entry(i: int, j: int) -> float:
        s = i + j
        sign = -1 if s % 2 else 1
        factor = math.comb(n + i, n - j - 1) * math.comb(n + j, n - i - 1) * math.comb(s, i) ** 2
        return float(sign * (s + 1) * factor)

    return jnp.asarray(np.array([[entry(i, j) for j in range(n)] for i in range(n)], float).reshape(n, n))


_KINDS = ("symmetric", "lower", "upper")


def _triangle(n: int, kind: str | None, signed: bool) -> Any:
    kind = "symmetric" if kind is None else kind
    if kind not in _KINDS:
        raise errors.ArgumentValueError(f"Expected kind to be one of: {list(_KINDS)}; got {kind}")
    if is_symbolic_dim(n):
        lower = sized.binomials(n, signed)
    else:
        n = _count("pascal", n)
        lower = np.array(
            [[float(math.comb(i, j)) * (-1 if signed and (i - j) % 2 else 1) for j in range(n)] for i in range(n)],
            float,
        ).reshape(n, n)
    whole = lower.T @ lower if signed else lower @ lower.T
    return {"symmetric": whole, "lower": lower, "upper": lower.T}[kind]


def pascal(n: int, kind: str | None = None) -> Any:
    """Pascal's matrix [n, n] of binomial coefficients, float32: "symmetric", or its "lower" or "upper" factor.

    Raises:
      ArgumentValueError: another kind.

    Args:
      n: the number of rows.
      kind: "symmetric", "lower" or "upper".

    >>> meshrt.scipy.linalg.pascal(3)
    Array([[1., 1., 1.],
           [1., 2., 3.],
           [1., 3., 6.]], dtype=float32)
    """
    return jnp.asarray(_triangle(n, kind, False).astype(np.float32))


def invpascal(n: int, kind: str | None = None) -> Any:
    """The inverse of `pascal(n, kind)`.

    Args:
      n: the number of rows.
      kind: "symmetric", "lower" or "upper".

    >>> meshrt.scipy.linalg.invpascal(2)
    Array([[ 2., -1.],
           [-1.,  1.]], dtype=float32)
    """
    return jnp.asarray(_triangle(n, kind, True))


def helmert(n: int, full: bool = False) -> Any:
    """Helmert's matrix [n - 1, n] of contrasts, rows of length 1; with `full` below a row of 1 / sqrt(n).

    Raises:
      ArgumentValueError: n is not positive.

    Args:
      n: the number of columns.
      full: keep the first row.

    >>> meshrt.scipy.linalg.helmert(2)
    Array([[ 0.70710677, -0.70710677]], dtype=float32)
    """
    if n < 1:
        raise errors.ArgumentValueError(f"n must be a positive integer; got {n}.")
    if is_symbolic_dim(n):
        return sized.helmert_rows(n)[0 if full else 1 :]
    i, j = np.arange(n)[:, None], np.arange(n)
    scale = np.sqrt(np.maximum(i * (i + 1.0), 1))
    rows = np.where(j < i, 1 / scale, np.where(j == i, -i / scale, 0.0))
    rows[0] = 1 / np.sqrt(n)
    return jnp.asarray(rows if full else rows[1:])


def hadamard(n: int, dtype: Any = int) -> Any:
    """Hadamard's matrix [n, n] of 1 and -1, in Sylvester's order.

    Raises:
      ArgumentValueError: n is no power of two.

    Args:
      n: the number of rows, a power of two.
      dtype: the dtype of the result.

    >>> meshrt.scipy.linalg.hadamard(2)
    Array([[ 1,  1],
           [ 1, -1]], dtype=int32)
    """
    size = _count("hadamard", n)
    if size != n or size < 1 or size & (size - 1):
        raise errors.ArgumentValueError(f"n must be a positive power of 2; got {n}.")
    pair = np.array([[1, 1], [1, -1]])
    return jnp.asarray(functools.reduce(np.kron, [pair] * (size.bit_length() - 1), np.ones((1, 1), int)), dtype)


def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Any:
    """The matrix [n, n] of the discrete Fourier transform; divided by n, or its root for "sqrtn".

    Raises:
      ArgumentValueError: another scale, or a real dtype.

    Args:
      n: the number of rows.
      scale: None, "sqrtn" or "n".
      dtype: the dtype of the result.

    >>> meshrt.scipy.linalg.dft(2).round(3)
    Array([[ 1.+0.j,  1.+0.j],
           [ 1.+0.j, -1.-0.j]], dtype=complex64)
    """
    if scale not in (None, "sqrtn", "n"):
        raise errors.ArgumentValueError(f"scale must be None, 'sqrtn', or 'n'; got {scale!r}.")
    if dtype is not None and not dtypes.issubdtype(dtype, np.complexfloating):
        raise errors.ArgumentValueError(f"dtype must be a complex floating-point type; got {dtype}.")
    wanted = jnp.result_type(complex) if dtype is None else dtype
    if is_symbolic_dim(n):
        return sized.fourier(n, scale).astype(wanted)
    turns = np.outer(np.arange(n), np.arange(n)) % max(n, 1) / max(n, 1)
    divisor = {None: 1.0, "sqrtn": math.sqrt(max(n, 0)), "n": float(n)}[scale]
    return lax.convert_element_type(np.exp(-2j * np.pi * turns) / divisor, wanted)
