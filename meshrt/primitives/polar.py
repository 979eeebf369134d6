"""The polar decomposition by iteration: no singular values, only QR and Cholesky decompositions.

After Nakatsukasa, Bai and Gygi, "Optimizing Halley's iteration for computing the matrix polar decomposition" (2010):
singular values in [l, 1] are brought to 1 by rational functions whose coefficients follow from l alone, which is known
beforehand; while l is small the step is a QR decomposition, later a Cholesky decomposition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.basic.shapes import broadcast_in_dim, reduce_sum_p, zeros
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.control_loops import while_loop
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.dynamic_slice import dynamic_slice_in_dim, dynamic_update_slice_in_dim
from meshrt.primitives.functions import cbrt
from meshrt.primitives.linalg import adjoint, cholesky, matmul, triangular_solve
from meshrt.primitives.matrix_parts import eye_like
from meshrt.primitives.qr import qr
from meshrt.primitives.reduce import reduce_max_p
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.selection import select_n
from meshrt.primitives.slice import pad, slice_in_dim

__all__: list[str] = []

# Up to this c the matrix 1 + c u^H u is conditioned well enough for its Cholesky decomposition.
_CHOLESKY_CUTOFF = 100.0
_Weights = tuple[float, float, float]  # a, b, c of x (a + b x^2) / (1 + c x^2)
_HALLEY: _Weights = (3.0, 1.0, 3.0)  # what they tend to
_Sizes = tuple[Any, Any]  # how many rows and columns count: numbers, or None for all


def _schedule(eps: float, limit: int) -> list[_Weights]:
    """The weights of each step, given that no singular value is below `eps` of the largest."""
    steps: list[_Weights] = []
    least = eps
    while least + 5.0 * eps < 1 and len(steps) < limit:
        square = least * least
        d = (4 * (1 / square - 1) / square) ** (1 / 3)
        root = (1 + d) ** 0.5
        a = root + (2 - d + 2 * (2 - square) / (square * root)) ** 0.5
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        least *= (a + b * square) / (1 + c * square)
        steps.append((a, b, c))
    return steps


def _within(x: Any, rows: Any, columns: Any, beyond: Any = None) -> Any:
    """`x` with `beyond`, or zeros, outside of its first rows and columns; None counts all of them."""
    aval = aval_of(x)
    other = zeros(aval.strong()) if beyond is None else beyond
    for dim, size in enumerate((rows, columns)):
        if size is not None:
            places = broadcasted_iota(np.int32, aval.shape, dim)
            limit = broadcast_in_dim(convert_element_type(size, np.int32), aval.shape, ())
            x = select_n(ew.lt_p.bind(places, limit), other, x)
    return x


def _real(value: float, x: Any) -> Any:
    return np.asarray(value, aval_of(x).dtype)[()]


def _by_qr(u: Any, sizes: _Sizes, weights: _Weights) -> Any:
    """One step by the QR decomposition of [sqrt(c) u; 1]."""
    (a, b, c), (m, n) = weights, sizes
    rows, columns = aval_of(u).shape
    scaled = ew.mul(u, _real(c**0.5, u))
    one = eye_like(zeros(ShapedArray((columns, columns), aval_of(u).dtype)))
    if m is None:
        stacked = concatenate([scaled, one], 0)
    else:  # the identity comes right behind the rows that count
        padded = pad(scaled, _real(0, u), [(0, columns, 0), (0, 0, 0)])
        stacked = dynamic_update_slice_in_dim(padded, one, m, 0)
    q = qr(stacked, full_matrices=False)[0]
    top = _within(slice_in_dim(q, 0, rows), m, n)
    bottom = _within(dynamic_slice_in_dim(q, rows if m is None else m, columns, 0), n, n)
    moved = ew.mul(matmul(top, adjoint(bottom)), _real((a - b / c) / c**0.5, u))
    return ew.add(ew.mul(u, _real(b / c, u)), moved)


def _by_cholesky(u: Any, sizes: _Sizes, weights: _Weights) -> Any:
    """One step by the Cholesky decomposition of 1 + c u^H u."""
    (a, b, c), (_, n) = weights, sizes
    gram = ew.mul(matmul(adjoint(u), u), _real(c, u))
    one = eye_like(gram)
    factor = cholesky(_within(ew.add(gram, one), n, n, one), symmetrize_input=False)
    lower = {"left_side": True, "lower": True}
    x = triangular_solve(factor, adjoint(u), **lower)
    x = adjoint(triangular_solve(factor, x, transpose_a=True, conjugate_a=True, **lower))
    return ew.add(ew.mul(u, _real(b / c, u)), ew.mul(x, _real(a - b / c, u)))


def _largest_sum(x: Any, dim: int) -> Any:
    return reduce_max_p.bind(reduce_sum_p.bind(ew.abs_p.bind(x), axes=(dim,)), axes=(0,))


def _length(x: Any) -> Any:
    size = ew.abs_p.bind(x)
    return ew.sqrt_p.bind(reduce_sum_p.bind(ew.mul(size, size), axes=(0, 1)))


def _iterated(x: Any, sizes: _Sizes, limit: int, eps: float) -> tuple[Any, Any, Any]:
    """(the unitary factor, the number of steps, whether the last one still changed it)."""
    bound = ew.mul(ew.rsqrt_p.bind(_largest_sum(x, 0)), ew.rsqrt_p.bind(_largest_sum(x, 1)))
    scale = select_n(ew.is_finite_p.bind(bound), _real(1, bound), bound)
    u = ew.mul(x, convert_element_type(scale, aval_of(x).dtype))
    tolerance = cbrt(_real(5.0 * eps, bound))

    def step(u: Any, weights: _Weights) -> tuple[Any, Any]:
        new = _by_cholesky(u, sizes, weights)
        return new, ew.gt_p.bind(_length(ew.sub(new, u)), tolerance)

    steps = _schedule(eps, limit)
    moving: Any = np.True_
    for weights in steps:
        if weights[2] > _CHOLESKY_CUTOFF:
            u = _by_qr(u, sizes, weights)
        else:
            u, moving = step(u, weights)

    def unfinished(state: tuple[Any, Any, Any]) -> Any:
        count, _, moving = state
        return ew.and_p.bind(moving, ew.lt_p.bind(count, np.asarray(limit, aval_of(count).dtype)[()]))

    def proceed(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        count, u, _ = state
        return (ew.add(count, 1), *step(u, _HALLEY))

    first = np.asarray(len(steps), dtypes.default_int_dtype())[()]
    count, u, moving = while_loop(unfinished, proceed, (first, u, moving))
    # One step of Newton and Schulz, for what rounding left.
    cubed = matmul(u, matmul(adjoint(u), u))
    return ew.sub(ew.mul(u, _real(1.5, u)), ew.mul(cubed, _real(0.5, u))), count, moving


def polar(x: Any, sizes: _Sizes = (None, None), limit: int = 10, eps: float | None = None) -> tuple[Any, Any, Any, Any]:
    """x = u h of a matrix [m, n], m >= n: (u, h, the number of steps, whether the last one changed nothing).

    Singular directions of zero stay zero in u. `sizes` are how many rows and columns count, `limit` the number of steps
    at most (seven are enough for double precision), `eps` the precision aimed at, that of the dtype by default.
    """
    x = _within(x, *sizes)
    accuracy = float(dtypes.finfo(aval_of(x).dtype).eps) if eps is None else float(eps)
    u, count, moving = _iterated(x, sizes, limit, accuracy)
    h = matmul(adjoint(u), x)
    return u, ew.mul(ew.add(h, adjoint(h)), _real(0.5, h)), count, ew.not_p.bind(moving)
