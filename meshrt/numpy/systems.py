"""Linear systems, inverses and determinants of batches of square matrices, by LU decomposition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import operand_array, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.creation import eye
from meshrt.numpy.cumulative import cumprod
from meshrt.numpy.diagonals import diagonal
from meshrt.numpy.diagonals import trace as trace_of
from meshrt.numpy.filled import zeros_like
from meshrt.numpy.joining import concatenate
from meshrt.numpy.logic import isfinite
from meshrt.numpy.operands import ShapeError, canonical_axes, common_shape
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.reductions import count_nonzero, prod
from meshrt.numpy.reductions import sum as total
from meshrt.numpy.results import SlogdetResult
from meshrt.numpy.shapes import broadcast_to, moveaxis, reshape
from meshrt.numpy.ufuncs import absolute, imag, log, real, sign
from meshrt.primitives.householder import geqrf
from meshrt.primitives.linalg import triangular_solve
from meshrt.primitives.lu import factored_solve, permute_rows
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["det", "inv", "slogdet", "solve", "tensorinv", "tensorsolve"]


# How JAX writes them.
_said = {"det": "_det()", "slogdet": "slogdet()"}


def check_square(name: str, x: Any) -> None:
    """Raises unless ``x`` is a batch of square matrices."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"Argument to {_said.get(name, name)} must have shape [..., n, n], got {x.shape}")


# ----------------------------------------------------------------------------------------------------------
# Systems


def solve(a: Any, b: Any) -> Any:
    """The x with ``a @ x == b``, for square matrices ``a``; leading dimensions broadcast.

    A vector ``b`` is one right-hand side; otherwise its last two dimensions are matrices of them, one per column.

    Args:
      a: square matrices.
      b: vectors or matrices.

    Returns:
      An array of the shape of `b`.

    >>> jnp.linalg.solve(jnp.array([[2.0, 0.0], [0.0, 4.0]]), jnp.array([2.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
    """
    a, b = promoted_inexact("solve", a, b)
    if a.ndim < 2:
        raise ShapeError(f"solve: left hand array must be at least two dimensional; got a.shape={a.shape}")
    check_square("solve", a)
    n = a.shape[-1]
    vector = b.ndim == 1
    b = b[:, None] if vector else b
    if b.ndim < 2 or b.shape[-2] != n:
        hint = ""
        if b.ndim == a.ndim - 1 and b.shape[-1] == n:
            hint = "; for one right-hand side per matrix write solve(a, b[..., None]).squeeze(-1)"
        raise ShapeError(f"Invalid shapes for solve: {a.shape}, {b.shape}. {n} rows are needed on the right{hint}")
    out = _solved(a, b)
    return out[..., 0] if vector else out


def _solved(a: Any, b: Any) -> Any:
    batch = common_shape("solve", a.shape[:-2], b.shape[:-2])
    if not a.shape[:-2] and batch and 0 not in batch:  # one matrix: the batch becomes more right-hand sides
        columns = moveaxis(b, -2, 0)
        flat = _solved(a, reshape(columns, (b.shape[-2], math.prod(columns.shape[1:]))))
        return moveaxis(reshape(flat, columns.shape), 0, -2)
    factors, _, permutation = lax.linalg.lu(lax.stop_gradient(a))
    own = a.ndim - 2
    factors, permutation, a = (broadcast_to(x, (*batch, *x.shape[own:])) for x in (factors, permutation, a))
    return factored_solve(factors, permutation, a, broadcast_to(b, (*batch, *b.shape[-2:])))


def inv(a: Any) -> Any:
    """The inverses of square matrices; infinite or NaN where there are none.

    Args:
      a: square matrices.

    >>> jnp.linalg.inv(jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    x = operand_array("inv", a)
    check_square("inv", x)
    return solve(x, zeros_like(x) + broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape))  # split as x is


def tensorsolve(a: Any, b: Any, axes: tuple[int, ...] | None = None) -> Any:
    """The x with ``tensordot(a, x, x.ndim) == b``; ``axes`` of ``a`` are moved to its end first.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      axes: dimensions of `a` to move to the end first.

    >>> jnp.linalg.tensorsolve(jnp.eye(4).reshape(2, 2, 4), jnp.ones((2, 2)))
    Array([1., 1., 1., 1.], dtype=float32)
    """
    a, b = operand_array("tensorsolve", a), operand_array("tensorsolve", b, 1)
    if axes is not None:
        last = canonical_axes(tuple(axes), a.ndim, "tensorsolve")
        a = lax.transpose(a, (*(i for i in range(a.ndim) if i not in last), *last))
    shape = a.shape[b.ndim :]
    if a.shape[: b.ndim] != b.shape:
        raise ShapeError(
            "tensorsolve: After moving axes to end, leading shape of a must match shape of b. "
            f"Got a.shape={a.shape}, b.shape={b.shape}"
        )
    if b.size != math.prod(shape):
        raise ShapeError(
            "tensorsolve: Input arrays must have prod(a.shape[:b.ndim]) == prod(a.shape[b.ndim:]); "
            f"got a.shape={a.shape}, b.ndim={b.ndim}"
        )
    return reshape(solve(reshape(a, (b.size, b.size)), reshape(b, (b.size,))), shape)


def tensorinv(a: Any, ind: int = 2) -> Any:
    """The inverse of ``x -> tensordot(a, x, ...)``, with the first ``ind`` dimensions as the result's.

    Args:
      a: an array, or what `asarray` makes one of.
      ind: how many of the dimensions stand for rows.

    >>> jnp.linalg.tensorinv(jnp.eye(4).reshape(2, 2, 4), ind=2).shape
    (4, 2, 2)
    """
    x = operand_array("tensorinv", a)
    if ind <= 0:
        raise errors.ArgumentValueError(f"tensorinv: ind must be positive, got {ind}")
    lead, rest = x.shape[:ind], x.shape[ind:]
    if math.prod(lead) != math.prod(rest):
        raise ShapeError(
            "tensorinv is only possible when the product of the first `ind` dimensions equals that of the remaining "
            f"dimensions. got arr.shape={x.shape} with ind={ind}."
        )
    return reshape(inv(reshape(x, (math.prod(lead), math.prod(rest)))), (*rest, *lead))


# ----------------------------------------------------------------------------------------------------------
# Determinants


def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """(sign, logarithm of the absolute value) of the determinants of square matrices; 0 and -inf for singular ones.

    Args:
      method: "lu" (the default), or "qr" for real matrices.

    >>> jnp.linalg.slogdet(jnp.array([[-1.0, 0.0], [0.0, 1.0]]))
    SlogdetResult(sign=Array(-1., dtype=float32), logabsdet=Array(0., dtype=float32))
    """
    (x,) = promoted_inexact("slogdet", a)
    check_square("slogdet", x)
    if method == "qr":
        if dtypes.issubdtype(x.dtype, np.complexfloating):
            raise errors.UnsupportedError("slogdet method='qr' not implemented for complex inputs; use 'lu'")
        return SlogdetResult(*_slogdet_qr(x))
    if method is not None and method != "lu":
        raise errors.ArgumentValueError(
            f"Unknown slogdet method '{method}'. Supported methods are 'lu' (`None`), and 'qr'"
        )
    if x.shape[-1] in (1, 2):
        return SlogdetResult(*_slogdet_small(x))
    return SlogdetResult(*_slogdet_lu(x))


def _small_det(x: Any) -> Any:
    return x[..., 0, 0] if x.shape[-1] == 1 else _det2(x)


def _det2(x: Any) -> Any:
    return x[..., 0, 0] * x[..., 1, 1] - x[..., 0, 1] * x[..., 1, 0]


@custom_jvp
def _slogdet_small(x: Any) -> tuple[Any, Any]:
    value = _small_det(x)
    return sign(value), log(absolute(value))


@_slogdet_small.defjvp
def _slogdet_small_jvp(primals: tuple[Any], tangents: tuple[Any]) -> Any:
    (x,), (t,) = primals, tangents
    if x.shape[-1] == 1:
        change = t[..., 0, 0]
    else:
        change = t[..., 0, 0] * x[..., 1, 1] - t[..., 0, 1] * x[..., 1, 0]
        change = change - x[..., 0, 1] * t[..., 1, 0] + x[..., 0, 0] * t[..., 1, 1]
    return _slogdet_tangents(_slogdet_small(x), change / _small_det(x))


def _slogdet_tangents(outs: tuple[Any, Any], change: Any) -> Any:
    """Of (sign, logarithm), given the tangent of the logarithm of the determinant itself."""
    phase = outs[0]
    if not dtypes.issubdtype(phase.dtype, np.complexfloating):
        return outs, (zeros_like(phase), change)
    turn = el.complex(None, imag(change))
    return outs, (turn * phase, real(change))


@custom_jvp
def _slogdet_lu(x: Any) -> tuple[Any, Any]:
    factors, pivots, _ = lax.linalg.lu(x)
    diag = diagonal(factors, 0, -2, -1)
    swaps = count_nonzero(pivots != lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1), -1)
    size = absolute(diag)
    zero = any_(diag == 0, -1)
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        phase = prod(diag / size.astype(diag.dtype), -1)
    else:
        phase, swaps = np.ones((), x.dtype)[()], swaps + count_nonzero(diag < 0, -1)
    turned = phase * el.convert_element_type(1 - 2 * (swaps % 2), x.dtype)
    logarithm = total(log(size), -1)
    return (
        choose(zero, np.zeros((), x.dtype)[()], turned),
        choose(zero, np.asarray(-np.inf, logarithm.dtype)[()], logarithm),
    )


@custom_jvp
def _slogdet_qr(x: Any) -> tuple[Any, Any]:
    packed, taus = geqrf(x)
    diag = diagonal(packed, 0, -2, -1)
    reflections = choose(taus[..., : x.shape[-1] - 1] != 0, np.asarray(-1, x.dtype)[()], np.asarray(1, x.dtype)[()])
    return prod(sign(diag), -1) * prod(reflections, -1), total(log(absolute(diag)), -1)


def _slogdet_jvp(primals: tuple[Any], tangents: tuple[Any]) -> Any:
    (x,), (t,) = primals, tangents
    return _slogdet_tangents(tuple(slogdet(x)), trace_of(solve(x, t), 0, -1, -2))


_slogdet_lu.defjvp(_slogdet_jvp)
_slogdet_qr.defjvp(_slogdet_jvp)


def det(a: Any) -> Any:
    """The determinants of square matrices.

    Args:
      a: square matrices.

    >>> jnp.linalg.det(jnp.array([[2.0, 0.0], [0.0, 3.0]]))
    Array(6., dtype=float32)
    """
    (x,) = promoted_inexact("det", a)
    check_square("det", x)
    if x.shape[-1] == 2:
        return _det2(x)
    if x.shape[-1] == 3:
        minors = ((1, 2), (0, 2), (0, 1))
        parts = [
            x[..., 0, i] * (x[..., 1, j] * x[..., 2, k] - x[..., 1, k] * x[..., 2, j])
            for i, (j, k) in enumerate(minors)
        ]
        return parts[0] - parts[1] + parts[2]
    return _det(x)


@custom_jvp
def _det(x: Any) -> Any:
    phase, logarithm = slogdet(x)
    return phase * el.exp_p.bind(logarithm).astype(phase.dtype)


@_det.defjvp
def _det_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    value, product = _adjugate_times(*primals, *tangents)
    return value, trace_of(product, 0, -1, -2)


def _adjugate_times(a: Any, b: Any) -> tuple[Any, Any]:
    """(determinant of a, its adjugate times b), also where one singular value of a is zero.

    With P a = L U, the adjugate is det(a) U^-1 L^-1 P. The last pivot, which may be zero, is a factor of det(a):
    in its place stands the inverse of the product of the others, and the product of all is multiplied in where the last
    row was not divided by it.
    """
    n = a.shape[-1]
    if n == 1:
        return a[..., 0, 0], b
    factors, pivots, permutation = lax.linalg.lu(a)
    swaps = count_nonzero(pivots != lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1), -1)
    sign_ = el.convert_element_type(1 - 2 * (swaps % 2), a.dtype)
    products = cumprod(diagonal(factors, 0, -2, -1), -1) * sign_[..., None]
    upper = factors.at[..., -1, -1].set(1.0 / products[..., -2])
    # Where more than one pivot is zero, all of the adjugate is.
    probe = triangular_solve(upper, lax.full_like(b[..., :1], 1), left_side=True)
    bad = broadcast_to(any_(el.not_p.bind(isfinite(probe)), (-2, -1))[..., None, None], b.shape)
    x = permute_rows(choose(bad, zeros_like(b), b), permutation)
    x = triangular_solve(upper, x, left_side=True, lower=True, unit_diagonal=True)
    x = concatenate([x[..., :-1, :] * products[..., -1, None, None], x[..., -1:, :]], -2)
    x = triangular_solve(upper, x, left_side=True)
    return products[..., -1], choose(bad, zeros_like(x), x)
