"""Convolution, correlation, covariance."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import array, operand_array, promoted, promoted_inexact
from meshrt.numpy.averages import average
from meshrt.numpy.contractions import dot
from meshrt.numpy.diagonals import diag
from meshrt.numpy.filled import full
from meshrt.numpy.joining import concatenate
from meshrt.numpy.operands import ShapeError
from meshrt.numpy.reductions import sum as total
from meshrt.numpy.selection import clip
from meshrt.numpy.shapes import atleast_2d, reshape, squeeze
from meshrt.numpy.turning import flip
from meshrt.numpy.ufuncs import absolute, conjugate, imag, real, sqrt, true_divide

__all__ = ["convolve", "corrcoef", "correlate", "cov"]


class WeightsError(ShapeError, RuntimeError):
    """Weights of observations that do not fit them."""


def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The convolution of two vectors.

    Args:
      mode: "full" gives every position where they overlap, "same" as many as the longer one has, "valid" those
        where they overlap entirely.
      precision: a ``lax.Precision``, its name, or one for each operand.
      preferred_element_type: dtype to accumulate in and return.

    >>> jnp.convolve(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 1.0]), mode="valid")
    Array([3., 5.], dtype=float32)
    """
    x, y = _vectors("convolve", a, v, preferred_element_type)
    if x.shape[0] < y.shape[0]:
        x, y = y, x
    return _slide("convolve", x, flip(y), mode, precision, preferred_element_type)


def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The correlation of two vectors, the second conjugated; see :func:`convolve`.

    Args:
      a: an array, or what `asarray` makes one of.
      v: an array, or what `asarray` makes one of.
      mode: "valid", "same" or "full": which positions the result has.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> jnp.correlate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0]))
    Array([2., 3.], dtype=float32)
    """
    x, y = _vectors("correlate", a, v, preferred_element_type)
    y = conjugate(y)
    if x.shape[0] < y.shape[0]:
        return flip(_slide("correlate", y, x, mode, precision, preferred_element_type))
    return _slide("correlate", x, y, mode, precision, preferred_element_type)


def _vectors(name: str, a: Any, v: Any, preferred: Any) -> list[Any]:
    x, y = operand_array(name, a), operand_array(name, v, 1)
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"{name}() only support 1-dimensional inputs, got shapes {x.shape} and {y.shape}")
    if not x.size or not y.size:
        raise ShapeError(f"{name}: inputs cannot be empty, got shapes {x.shape} and {y.shape}")
    return promoted_inexact(name, x, y) if preferred is None else promoted(name, x, y)


def _slide(name: str, x: Any, y: Any, mode: str, precision: Any, preferred: Any) -> Any:
    n = y.shape[0]
    paddings = {"valid": (0, 0), "same": (n // 2, n - n // 2 - 1), "full": (n - 1, n - 1)}
    if mode not in paddings:
        raise errors.ArgumentValueError(f"mode must be one of ['full', 'same', 'valid']; {name} got {mode!r}")
    rows = (reshape(v, (1, 1, v.shape[0])) for v in (x, y))
    out = lax.conv_general_dilated(*rows, (1,), [paddings[mode]], precision=precision, preferred_element_type=preferred)
    return reshape(out, out.shape[2:])


@at_once(1, ["rowvar", "bias"])
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
    aweights: Any = None, dtype: Any = None,
) -> Any:  # fmt: skip
    """The covariance matrix of variables, the rows of ``m`` (and ``y``), or its columns without ``rowvar``.

    Args:
      bias: divide by the number of observations, not by one less; ``ddof`` says how many less.
      fweights: how often each observation counts, integers; ``aweights``: its importance.
      dtype: of the result, floating or complex.

    >>> jnp.cov(jnp.array([1.0, 2.0, 3.0]))
    Array(1., dtype=float32)
    """
    m, *rest = promoted_inexact("cov", m) if y is None else promoted_inexact("cov", m, y)
    for name, x in zip("my", (m, *rest)):
        if x.ndim > 2:
            raise ShapeError(f"{name} has more than 2 dimensions: shape {x.shape}")
    if dtype is not None and not dtypes.issubdtype(dtype, np.inexact):
        raise errors.ArgumentValueError(f"cov: dtype must be a subclass of float or complex; got {dtype}")
    x = atleast_2d(m)
    x = x.T if not rowvar and m.ndim != 1 else x
    if x.shape[0] == 0:
        return reshape(array([]), (0, 0))
    if rest:
        other = atleast_2d(rest[0])
        x = concatenate([x, other.T if not rowvar and other.shape[0] != 1 else other], 0)
    rows, count = x.shape
    if count == 0:
        return full(() if rows == 1 else (rows, rows), np.nan, x.dtype)
    ddof = (0 if bias else 1) if ddof is None else ddof
    weights, importance = _weights(fweights, aweights, count)
    if dtype is not None:
        x = x.astype(dtype)
        weights = None if weights is None else weights.astype(dtype)
    center, sums = average(x, axis=1, weights=weights, returned=True)
    if weights is None:
        divisor: Any = count - ddof
    elif importance is None or ddof == 0:
        divisor = sums[0] - ddof if ddof else sums[0]
    else:
        divisor = sums[0] - ddof * total(weights * importance) / sums[0]
    x = x - center[:, None]
    right = x if weights is None else x * weights[None, :]
    return squeeze(true_divide(dot(x, conjugate(right.T)), divisor))


def _weights(fweights: Any, aweights: Any, count: int) -> tuple[Any, Any]:
    """(what each observation counts or None, its importance or None)."""
    out = None
    if fweights is not None:
        out = _observed("fweights", fweights, count)
        if not dtypes.issubdtype(out.dtype, np.integer):
            raise errors.ArgumentTypeError(f"cov: fweights must be integers, got dtype {out.dtype}")
        out = absolute(out)
    if aweights is None:
        return out, None
    importance = absolute(_observed("aweights", aweights, count))
    return importance if out is None else out * importance, importance


def _observed(argument: str, weights: Any, count: int) -> Any:
    weights = operand_array("cov", weights)
    if weights.ndim != 1 or weights.shape[0] != count:
        raise WeightsError(
            f"cov: {argument} must be a vector with one element for each of {count} observations, got shape "
            f"{weights.shape}"
        )
    return weights


@at_once(1, ["rowvar"])
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Any:
    """The correlation coefficients of variables: :func:`cov` divided by both standard deviations.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.
      rowvar: rows are variables, columns observations.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.corrcoef(jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 4.0, 6.0])).shape
    (2, 2)
    """
    if dtype is not None and not dtypes.issubdtype(dtype, np.inexact):
        raise errors.ArgumentValueError(f"corrcoef: dtype must be a subclass of float or complex; got {dtype}")
    c = cov(operand_array("corrcoef", x), y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return true_divide(c, c)
    deviations = sqrt(real(diag(c))).astype(c.dtype)
    c = c / deviations[:, None] / deviations[None, :]
    if not dtypes.issubdtype(c.dtype, np.complexfloating):
        return clip(c, -1, 1)
    return el.complex(clip(real(c), -1, 1), clip(imag(c), -1, 1))
