"""Polynomials as vectors of coefficients, that of the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.jit import jit
from meshrt.numpy.arrays import asarray, operand_array, promoted, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.contractions import dot, outer
from meshrt.numpy.correlations import convolve
from meshrt.numpy.creation import arange, vander
from meshrt.numpy.diagonals import diag
from meshrt.numpy.editing import concrete, trim_zeros
from meshrt.numpy.filled import full, ones, zeros
from meshrt.numpy.joining import concatenate, stack
from meshrt.numpy.linalg import eigvals, inv, lstsq
from meshrt.numpy.operands import ShapeError, common_shape, refuse_broadcast, static_int
from meshrt.numpy.reductions import all as all_
from meshrt.numpy.reductions import argmin, prod
from meshrt.numpy.shapes import atleast_1d, broadcast_to
from meshrt.numpy.turning import roll
from meshrt.numpy.ufuncs import maximum, negative, sqrt, true_divide

__all__ = [
    "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval", "roots",
]  # fmt: skip


def _check_coefficients(name: str, *polynomials: Any) -> None:
    """ArgumentTypeError if one is a scalar: it has no coefficients to count."""
    for p in polynomials:
        if not p.ndim:
            raise errors.ArgumentTypeError(
                f"{name}: a polynomial is a vector of coefficients, the highest power first, but got a scalar; wrap it "
                "in a list"
            )


def polyval(p: Any, x: Any, *, unroll: int = 16) -> Any:
    """The polynomial ``p`` at ``x``, elementwise, by Horner's rule; ``unroll`` steps of it are written in a row.

    Args:
      p: coefficients, the highest power first.
      x: where to evaluate.
      unroll: how many steps of the loop are written out.

    >>> jnp.polyval(jnp.array([1, 0, 2]), 3)
    Array(11, dtype=int32)
    """
    p, x = promoted("polyval", p, x)
    start = lax.full_like(x, 0, x.dtype, common_shape("polyval", p.shape[1:], x.shape))
    return _horner(p, x, start, unroll)


@jit(static_argnums=3, inline=True)  # so that a second call finds the loop that was compiled for the first
def _horner(p: Any, x: Any, start: Any, unroll: int) -> Any:
    return lax.scan(lambda y, c: (y * x + c, None), start, p, unroll=unroll)[0]


def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials.

    Args:
      a1: an array, or what `asarray` makes one of.
      a2: a second array.

    >>> jnp.polyadd(jnp.array([1, 2]), jnp.array([1, 0, 0]))
    Array([1, 1, 2], dtype=int32)
    """
    x, y = promoted("polyadd", a1, a2)
    long, short = (x, y) if y.shape[0] <= x.shape[0] else (y, x)
    if not short.shape[0]:
        refuse_broadcast(short.aval, long.shape)
    return long.at[-short.shape[0] :].add(short) if short.shape[0] else long


def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials.

    Args:
      a1: an array, or what `asarray` makes one of.
      a2: a second array.

    >>> jnp.polysub(jnp.array([1, 2]), jnp.array([1, 1]))
    Array([0, 1], dtype=int32)
    """
    x, y = promoted("polysub", a1, a2)
    return polyadd(x, negative(y))


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Any:
    """The product of two polynomials; ``trim_leading_zeros`` needs concrete ones.

    Args:
      a1: an array, or what `asarray` makes one of.
      a2: a second array.
      trim_leading_zeros: drop zeros in front; not under `jit`.

    >>> jnp.polymul(jnp.array([1, 1]), jnp.array([1, 2]))
    Array([1., 3., 2.], dtype=float32)
    """
    x, y = promoted_inexact("polymul", a1, a2)
    _check_coefficients("polymul", x, y)
    if trim_leading_zeros and (x.shape[0] > 1 or y.shape[0] > 1):
        x, y = trim_zeros(x, "f"), trim_zeros(y, "f")
    x, y = (v if v.shape[0] else zeros(1, v.dtype) for v in (x, y))
    return convolve(x, y)


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Any, Any]:
    """(quotient, remainder) of two polynomials; ``trim_leading_zeros`` of the remainder needs concrete ones.

    Args:
      u: the dividend.
      v: the divisor.
      trim_leading_zeros: drop zeros in front; not under `jit`.

    >>> jnp.polydiv(jnp.array([1.0, 3.0, 2.0]), jnp.array([1.0, 1.0]))
    (Array([1., 2.], dtype=float32), Array([0., 0., 0.], dtype=float32))
    """
    rest, divisor = promoted_inexact("polydiv", u, v)
    _check_coefficients("polydiv", rest, divisor)
    m, n = rest.shape[0] - 1, divisor.shape[0] - 1
    scale = 1.0 / divisor[0]
    quotient = zeros(max(m - n + 1, 1), rest.dtype)
    for k in range(m - n + 1):
        factor = scale * rest[k]
        quotient = quotient.at[k].set(factor)
        rest = rest.at[k : k + n + 1].add(-factor * divisor)
    if trim_leading_zeros:
        values = concrete("polydiv", "its operands", rest, "pass trim_leading_zeros=False")
        used = np.flatnonzero(~(np.abs(values) < np.sqrt(dtypes.finfo(rest.dtype).eps)))  # NaN is not zero
        rest = rest[used[0] if used.size else rest.shape[0] :]
    return quotient, rest


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The integral of a polynomial, ``m`` times; ``k`` are the constants, 0 by default.

    Args:
      p: coefficients, the highest power first.
      m: how often.
      k: constants of integration.

    >>> jnp.polyint(jnp.array([2.0, 1.0]))
    Array([1., 1., 0.], dtype=float32)
    """
    m = static_int(m, "polyint: m")
    if m < 0:
        raise errors.ArgumentValueError(f"Order of integral must be positive (see polyder), got {m}")
    p, k = promoted_inexact("polyint", p, 0 if k is None else k)
    _check_coefficients("polyint", p)
    k = atleast_1d(k)
    k = full((m,), k[0]) if k.shape == (1,) else k
    if k.shape != (m,):
        raise errors.ArgumentValueError(f"polyint: k must be a number or a vector of 1 or {m} elements, got {k.shape}")
    if m == 0:
        return p
    return true_divide(concatenate([p, k]), _falling(p.shape[0] + m, m, 0, p.dtype))


def polyder(p: Any, m: int = 1) -> Any:
    """The ``m``-th derivative of a polynomial.

    Args:
      p: coefficients, the highest power first.
      m: how often.

    >>> jnp.polyder(jnp.array([3, 2, 1]))
    Array([6., 2.], dtype=float32)
    """
    m = static_int(m, "polyder: m")
    if m < 0:
        raise errors.ArgumentValueError(f"Order of derivative must be positive (see polyint), got {m}")
    (p,) = promoted_inexact("polyder", p)
    _check_coefficients("polyder", p)
    if m == 0:
        return p
    return p[:-m] * _falling(p.shape[0], m, m, p.dtype)


def _falling(count: Any, m: int, first: int, dtype: Any) -> Any:
    """By what `m` derivatives multiply x**k, k (k - 1) ... (k - m + 1), for k from `count` - 1 down to `first`; factors
    below 1 left out."""
    if is_symbolic_dim(count):
        powers = arange(count - 1, first - 1, -1)[None] - arange(m)[:, None]
        return prod(maximum(1, powers).astype(dtype), 0)
    known = np.arange(first, count)[None] - np.arange(m, dtype=np.float64)[:, None]
    return asarray(np.maximum(1.0, known).prod(0)[::-1].astype(dtype))


def poly(seq_of_zeros: Any) -> Any:
    """The polynomial with these zeros, or the characteristic polynomial of a square matrix.

    >>> jnp.poly(jnp.array([1.0, 2.0]))
    Array([ 1., -3.,  2.], dtype=float32)
    """
    (x,) = promoted_inexact("poly", operand_array("poly", seq_of_zeros))
    x = atleast_1d(x)
    if x.ndim == 2 and x.shape[0] == x.shape[1] != 0:
        x = eigvals(x)
    if x.ndim != 1:
        raise ShapeError(f"input must be 1d or non-empty square 2d array. Got shape {x.shape}")
    if not x.shape[0]:
        return ones((), x.dtype)
    out = ones(1, x.dtype)
    for i in range(x.shape[0]):
        out = convolve(out, stack([ones((), x.dtype), -x[i]]))
    return out


def roots(p: Any, *, strip_zeros: bool = True) -> Any:
    """The zeros of the polynomial ``p``, complex: eigenvalues of its companion matrix.

    Args:
      strip_zeros: leave out leading zeros, for which ``p`` must be concrete. Otherwise the zeros that are not there
        are NaN.

    >>> jnp.roots(jnp.array([1.0, 0.0, -4.0]))
    Array([-1.9999999+0.j,  2.0000002+0.j], dtype=complex64)
    """
    (p,) = promoted_inexact("roots", operand_array("roots", p))
    p = atleast_1d(p)
    if p.ndim != 1:
        raise ShapeError(f"roots: Input must be a rank-1 array, got shape {p.shape}")
    if p.shape[0] < 2:
        return _companion_eigenvalues(p)
    if strip_zeros:
        values = concrete("roots", "p", p, "pass strip_zeros=False")
        used = np.flatnonzero(values != 0)
        return _companion_eigenvalues(p[used[0] if used.size else p.shape[0] :])
    leading = choose(all_(p == 0), p.shape[0], argmin(p == 0))
    p = choose(leading == p.shape[0], 1.0, p)
    found = _companion_eigenvalues(roll(p, -leading))
    # Rolled behind the coefficients, the leading zeros became zeros at the origin: those are left out.
    found = lax.sort_key_val(found == 0, found)[1]
    count = found.shape[0]
    return choose(arange(count) < count - leading, found, complex(np.nan, np.nan))


def _companion_eigenvalues(p: Any) -> Any:
    if p.shape[0] < 2:
        return zeros(0, dtypes.to_complex_dtype(p.dtype))
    companion = diag(ones(p.shape[0] - 2, p.dtype), -1)
    return eigvals(companion.at[0, :].set(-p[1:] / p[0]))


def polyfit(
    x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: bool | str = False
) -> Any:
    """The polynomial of degree ``deg`` with the least sum of squared distances from points (``x``, ``y``).

    Args:
      y: a vector, or a matrix with one function per column.
      rcond: singular values below this part of the largest one count as zero.
      full: also give residuals, rank, singular values and ``rcond``.
      w: weights of the distances, before they are squared.
      cov: also give the covariance matrix of the coefficients; "unscaled" leaves out the residuals.

    >>> jnp.polyfit(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]), 1).round(3)
    Array([2., 1.], dtype=float32)
    """
    x, y = operand_array("polyfit", x), operand_array("polyfit", y, 1)
    order = static_int(deg, "polyfit: deg") + 1
    _check_points(x, y, order)
    rcond = x.shape[0] * float(dtypes.finfo(x.dtype).eps) if rcond is None else float(rcond)
    left, right = vander(x, order), y
    if w is not None:
        (weights,) = promoted_inexact("polyfit", w)
        if weights.shape != y.shape[:1]:
            raise errors.ArgumentTypeError(f"polyfit: weights must be a vector of {y.shape[0]}, got {weights.shape}")
        left = left * weights[:, None]
        right = right * (weights[:, None] if right.ndim == 2 else weights)
    scale = sqrt((left * left).sum(0))
    left = left / scale[None, :]
    coefficients, residuals, rank, singular = lstsq(left, right, rcond)
    coefficients = coefficients / (scale[:, None] if coefficients.ndim > 1 else scale)
    if full:
        return coefficients, residuals, rank, singular, asarray(rcond)
    if not cov:
        return coefficients
    base = inv(dot(left.T, left)) / outer(scale, scale)
    return coefficients, _covariance(base, residuals, x.shape[0] - order, cov, y.ndim)


def _check_points(x: Any, y: Any, order: int) -> None:
    if order < 1:
        raise errors.ArgumentValueError(f"expected deg >= 0, got {order - 1}")
    shapes = f"got {x.shape} and {y.shape}"
    if x.ndim != 1:
        raise errors.ArgumentTypeError(f"polyfit: expected 1D vector for x, {shapes}")
    if not x.size:
        raise errors.ArgumentTypeError(f"polyfit: expected non-empty vector for x, {shapes}")
    if y.ndim not in (1, 2):
        raise errors.ArgumentTypeError(f"polyfit: expected 1D or 2D array for y, {shapes}")
    if x.shape[0] != y.shape[0]:
        raise errors.ArgumentTypeError(f"polyfit: expected x and y to have same length, {shapes}")


def _covariance(base: Any, residuals: Any, freedom: int, cov: bool | str, rank: int) -> Any:
    if cov == "unscaled":
        factor = asarray(1.0)
    elif freedom <= 0:
        raise errors.ArgumentValueError("polyfit: scaling the covariance needs more points than coefficients")
    else:
        factor = residuals / freedom
    if rank == 1:
        return base * atleast_1d(factor)[None]
    return base[:, :, None] * broadcast_to(atleast_1d(factor), (1, 1, atleast_1d(factor).shape[0]))
