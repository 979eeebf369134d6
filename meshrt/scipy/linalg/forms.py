"""Schur and Hessenberg form, and functions of matrices by way of their complex Schur form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.jit import jit
from meshrt.numpy.arrays import operand_array
from meshrt.scipy.operands import separate

__all__ = ["funm", "hessenberg", "rsf2csf", "schur", "sqrtm"]


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _in_turn(pairs: list[tuple[int, int]], entry: Callable[[Any, Any, Any], Any], start: Any) -> Any:
    """Sets the entries (i, j) of a matrix, one after the other, to `entry(i, j, matrix)`."""
    if not pairs:
        return start
    places = np.asarray(pairs, np.int32)

    def put(x: Any, place: Any) -> Any:
        i, j = place
        return x.at[i, j].set(entry(i, j, x)), None

    return lax.scan(put, start, (places[:, 0], places[:, 1]))[0]


# ----------------------------------------------------------------------------------------------------------
# Forms


@jit(static_argnames="output")
def _schur(a: Any, output: str) -> list[Any]:
    a = operand_array("schur", a)
    form, vectors = lax.linalg.schur(a.astype(dtypes.to_complex_dtype(a.dtype)) if output == "complex" else a)
    return [form, vectors]


def schur(a: Any, output: str = "real") -> list[Any]:
    """[t, z] with a = z t z^H, unitary z and upper triangular t, for matrices [..., n, n].

    Args:
      output: "real" leaves blocks of two rows on the diagonal of a real t, for pairs of complex eigenvalues; "complex"
        gives complex matrices.

    Raises:
      ArgumentValueError: another `output`; matrices that are not square.

    >>> meshrt.scipy.linalg.schur(jnp.array([[2.0, 1.0], [0.0, 3.0]]))[0]
    Array([[2., 1.],
           [0., 3.]], dtype=float32)
    """
    if output not in ("real", "complex"):
        raise errors.ArgumentValueError(f"Expected 'output' to be either 'real' or 'complex', got output={output!r}.")
    return _schur(a, output)


def _rotated(m: Any, t: Any, z: Any) -> tuple[Any, Any]:
    """`t` with zero at [m, m - 1], by a rotation of the rows and columns m - 1 and m, which z takes note of."""
    block = lax.dynamic_slice(t, (m - 1, m - 1), (2, 2))
    shifted = jnp.linalg.eigvals(block)[0] - block[1, 1]
    length = jnp.sqrt(jnp.abs(shifted) ** 2 + jnp.abs(block[1, 0]) ** 2).astype(t.dtype)
    c, s = shifted / length, block[1, 0] / length
    rotation = jnp.stack([jnp.stack([jnp.conj(c), s]), jnp.stack([-s, c])])
    back = _adjoint(rotation)
    # Left of the block rows are zeros, and below it columns are.
    rows = _product(rotation, lax.dynamic_slice_in_dim(t, m - 1, 2, 0))
    t = lax.dynamic_update_slice_in_dim(t, rows, m - 1, 0)
    columns = _product(lax.dynamic_slice_in_dim(t, m - 1, 2, 1), back)
    t = lax.dynamic_update_slice_in_dim(t, columns, m - 1, 1)
    vectors = _product(lax.dynamic_slice_in_dim(z, m - 1, 2, 1), back)
    return t, lax.dynamic_update_slice_in_dim(z, vectors, m - 1, 1)


def _complex_form(t: Any, z: Any) -> tuple[Any, Any]:
    """Of one matrix."""
    n, eps = t.shape[0], dtypes.finfo(t.dtype).eps
    # What is left of the diagonal beyond the first subdiagonal is no part of the form.
    t = jnp.triu(t, -1)

    def clear(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        m, (t, z) = n - i, state
        counts = jnp.abs(t[m, m - 1]) > eps * (jnp.abs(t[m - 1, m - 1]) + jnp.abs(t[m, m]))
        t, z = lax.cond(counts, _rotated, lambda m, t, z: (t, z), m, t, z)
        return t.at[m, m - 1].set(0), z

    return lax.fori_loop(1, n, clear, (t, z)) if n > 1 else (t, z)


@jit
def _rsf2csf(t: Any, z: Any) -> tuple[Any, Any]:
    t, z = separate("rsf2csf", t, z)
    dtype = dtypes.to_complex_dtype(t.dtype)
    one = jnp.vectorize(_complex_form, signature="(n,n),(n,n)->(n,n),(n,n)")
    found: tuple[Any, Any] = one(t.astype(dtype), z.astype(dtype))
    return found


def rsf2csf(T: Any, Z: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """The complex Schur form (t, z) of what has the real one (T, Z): blocks of two rows become triangular.

    Raises:
      ArgumentValueError: T or Z are not square, or of different sizes.

    Args:
      T: the triangular factor.
      Z: the unitary factor.
      check_finite: has no effect.

    >>> [x.dtype for x in meshrt.scipy.linalg.rsf2csf(jnp.eye(2), jnp.eye(2))]
    [dtype('complex64'), dtype('complex64')]
    """
    shapes = jnp.shape(T), jnp.shape(Z)
    for name, shape in zip("TZ", shapes):
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise errors.ArgumentValueError(f"Input '{name}' must be square, got shape {shape}.")
    if shapes[0][-1] != shapes[1][-1]:
        raise errors.ArgumentValueError(f"Input array shapes must match: Z: {shapes[1]} vs. T: {shapes[0]}")
    return _rsf2csf(T, Z)


@jit(static_argnames="calc_q")
def _hessenberg(a: Any, calc_q: bool) -> Any:
    a = operand_array("hessenberg", a)
    n = a.shape[-1]
    if not n:
        return (jnp.zeros_like(a), jnp.zeros_like(a)) if calc_q else jnp.zeros_like(a)
    packed, taus = lax.linalg.hessenberg(a)
    h = jnp.triu(packed, -1)
    if not calc_q:
        return h
    q = lax.linalg.householder_product(packed[..., 1:, :-1], taus)
    border = [(0, 0)] * (a.ndim - 2) + [(1, 0), (1, 0)]
    return h, jnp.pad(q, border).at[..., 0, 0].set(1)


def hessenberg(a: Any, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """h with a = q h q^H, unitary q and zeros below its first subdiagonal, for matrices [..., n, n].

    Args:
      calc_q: return (h, q).

    Raises:
      ArgumentValueError: matrices that are not square.

    >>> meshrt.scipy.linalg.hessenberg(jnp.eye(3)).shape
    (3, 3)
    """
    return _hessenberg(a, calc_q)


# ----------------------------------------------------------------------------------------------------------
# Functions


def _triangular_root(t: Any) -> Any:
    """The square root of an upper triangular matrix, one column after the other, from the diagonal upwards."""
    n = t.shape[0]
    diagonal = jnp.sqrt(jnp.diagonal(t))

    def entry(i: Any, j: Any, u: Any) -> Any:
        rest = t[i, j] - u[i] @ u[:, j]  # of which all but what is known is zero
        return jnp.where(rest == 0, 0, rest / (diagonal[i] + diagonal[j]))

    start = jnp.diag(diagonal)
    if is_symbolic_dim(n):
        column = lambda j, u: lax.fori_loop(1, j + 1, lambda k, u: u.at[j - k, j].set(entry(j - k, j, u)), u)
        return lax.fori_loop(0, n, column, start)
    return _in_turn([(i, j) for j in range(n) for i in reversed(range(j))], entry, start)


@jit
def _sqrtm(a: Any) -> Any:
    t, z = _schur(a, "complex")
    return _product(_product(z, _triangular_root(t)), _adjoint(z))


def sqrtm(A: Any, blocksize: int = 1) -> Any:
    """The principal square root of a matrix [n, n], complex, by its Schur form.

    Raises:
      UnsupportedError: `blocksize` above 1. ArgumentValueError: the matrix is not square.

    >>> meshrt.scipy.linalg.sqrtm(jnp.array([[4.0, 0.0], [0.0, 9.0]])).dtype
    dtype('complex64')
    """
    if blocksize > 1:
        raise errors.UnsupportedError("Blocked version is not implemented yet: leave blocksize=1")
    if jnp.ndim(A) != 2:
        raise errors.ArgumentShapeError(f"sqrtm takes one matrix, got shape {jnp.shape(A)}; map over others with vmap")
    return _sqrtm(A)


def _parlett(t: Any, values: Any) -> tuple[Any, Any]:
    """(f(t), the least distance that was divided by) from f of the diagonal of t: f(t) and t commute.

    One diagonal after the other; what is not known yet is zero.
    """
    n = t.shape[0]
    least = jnp.abs(t[0, 0])
    distances = jnp.abs(jnp.diagonal(t)[:, None] - jnp.diagonal(t)[None])
    if n > 1:
        least = jnp.minimum(least, distances[np.triu_indices(n, 1)].min())

    def entry(i: Any, j: Any, f: Any) -> Any:
        change = t[i] @ f[:, j] - f[i] @ t[:, j]
        distance = t[j, j] - t[i, i]
        return jnp.where(distance == 0, change, change / jnp.where(distance == 0, 1, distance))

    return _in_turn([(i, i + p) for p in range(1, n) for i in range(n - p)], entry, jnp.diag(values)), least


def funm(A: Any, func: Callable[[Any], Any], disp: bool = True) -> Any:
    """A function of a matrix [n, n], complex, by its Schur form.

    Args:
      func: computes the function of an array, element by element.
      disp: return the result alone; without, an estimate of its error beside it.

    Raises:
      ArgumentValueError: the matrix is not square.

    >>> meshrt.scipy.linalg.funm(jnp.array([[1.0, 0.0], [0.0, 2.0]]), lambda x: x**2).shape
    (2, 2)
    """
    (a,) = separate("funm", A)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise errors.ArgumentValueError(f"expected square array_like input, got shape {a.shape}")
    t, z = rsf2csf(*schur(a))
    f, least = _parlett(t, func(jnp.diagonal(t)).astype(t.dtype))
    f = _product(_product(z, f), _adjoint(z))
    if disp:
        return f
    precision = dtypes.finfo(t.dtype).eps
    least = jnp.where(least == 0, precision, least)
    estimate = (precision / least) * jnp.linalg.norm(jnp.triu(t, 1), 1)
    bounded = jnp.minimum(1, jnp.maximum(precision, estimate))
    return f, jnp.where(jnp.any(jnp.isinf(f)), np.inf, bounded)
