"""The QR decomposition of batches of matrices (the last two dimensions), with its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.core.basic.shapes import broadcast_in_dim, zeros
from meshrt.core.dimensions.expression import min_dim
from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive, also
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.gather import take_along
from meshrt.primitives.householder import geqp3, geqrf, householder_product
from meshrt.primitives.lapack import INFO, batch_leading, write_eye
from meshrt.primitives.linalg import adjoint, matmul, triangle, triangular_solve
from meshrt.primitives.lu import lu, lu_solve
from meshrt.primitives.matrix_parts import diagonal_part, eye_like
from meshrt.primitives.matrix_types import check_matrices
from meshrt.primitives.slice import pad, slice_in_dim


def _infer(x: ShapedArray, *, pivoting: bool, full_matrices: bool, use_magma: bool | None) -> list[ShapedArray]:
    batch = check_matrices("qr", [x], [2])
    m, n = x.shape[-2:]
    k = m if full_matrices else min_dim(m, n)
    factors = [ShapedArray((*batch, *shape), x.dtype, x.weak_type) for shape in ((m, k), (k, n))]
    return [*factors, ShapedArray((*batch, n), INFO, x.weak_type)] if pivoting else factors


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, outs, p = eqn.invars[0].aval.strong(), [v.aval.strong() for v in eqn.outvars], eqn.params
    if 0 in aval.shape[-2:]:
        return [write_eye(ctx, outs[0]), *(ctx.full(0, o) for o in outs[1:])]
    k = outs[0].shape[-1]
    return write_composed(ctx, eqn, [x], [aval], lambda x: _decomposed(x, k, p["pivoting"], p["use_magma"]))


def _decomposed(x: Any, k: int, pivoting: bool, use_magma: bool | None) -> list[Any]:
    """q with k columns, r with k rows, and the order of columns if they are exchanged."""
    (*batch, _, n) = aval_of(x).shape
    order = []
    if pivoting:
        first = zeros(ShapedArray((*batch, n), INFO))
        packed, places, taus = geqp3(x, first, use_magma=use_magma)
        order = [ew.sub(places, 1)]  # LAPACK counts from 1
    else:
        packed, taus = geqrf(x)
    own: Any = min_dim(k, n)
    reflections, more = _part(packed, 0, own, -1), k - own
    if more != 0:
        zero = np.zeros((), aval_of(x).dtype)[()]
        reflections = pad(reflections, zero, [(0, 0, 0)] * (len(batch) + 1) + [(0, more, 0)])
    return [householder_product(reflections, taus), triangle(_part(packed, 0, k, -2), False), *order]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, pivoting: bool, full_matrices: bool, use_magma: bool | None
) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    q, r, *order = qr_p.bind(x, pivoting=pivoting, full_matrices=full_matrices, use_magma=use_magma)
    if t is None:
        return [q, r, *order], [None] * (2 + len(order))
    if order:
        x, t = (_columns_in_order(y, *order) for y in (x, t))
    return [q, r, *order], [*_factors_jvp(x, t, q, r, full_matrices), *(None for _ in order)]


def _columns_in_order(x: Any, order: Any) -> Any:
    aval = aval_of(x)
    last = aval.ndim - 1
    return take_along(x, broadcast_in_dim(order, aval.shape, (*range(last - 1), last)), last)


def _factors_jvp(x: Any, t: Any, q: Any, r: Any, full_matrices: bool) -> tuple[Any, Any]:
    """The tangents of q and r where x = q r."""
    m, n = aval_of(x).shape[-2:]
    if m < n:
        dq, left = _thin_qr_jvp(q, _part(r, 0, m, -1), _part(t, 0, m, -1))
        right = ew.add_p.bind(matmul(adjoint(dq), _part(x, m, n, -1)), matmul(adjoint(q), _part(t, m, n, -1)))
        return dq, concatenate([left, right], aval_of(r).ndim - 1)
    if not full_matrices or m == n:
        return _thin_qr_jvp(q, r, t)
    dq, dr = _thin_qr_jvp(_part(q, 0, n, -1), _part(r, 0, n, -2), t)
    below = zeros(ShapedArray((*aval_of(r).shape[:-2], m - n, n), aval_of(r).dtype))
    rest = _completing_jvp(q, dq)
    last = aval_of(q).ndim - 1
    return concatenate([dq, rest], last), concatenate([dr, below], last - 1)


def _part(x: Any, start: int, stop: int, axis: int) -> Any:
    aval = aval_of(x)
    whole = (start, stop) == (0, aval.shape[axis])
    return x if whole else slice_in_dim(x, start, stop, axis=aval.ndim + axis)


def _thin_qr_jvp(q: Any, r: Any, t: Any) -> tuple[Any, Any]:
    """The tangents of q [m, n] and of square r, for m >= n."""
    scaled = triangular_solve(r, t)  # dx r^-1
    inner = matmul(adjoint(q), scaled)
    below = triangle(inner, True, -1)
    rotation = ew.sub_p.bind(below, adjoint(below))
    if aval_of(q).dtype.kind == "c":
        imaginary = ew.complex(None, ew.imag_p.bind(diagonal_part(inner)))
        rotation = ew.add_p.bind(rotation, imaginary)
    dq = ew.add_p.bind(matmul(q, ew.sub_p.bind(rotation, inner)), scaled)
    return dq, matmul(ew.sub_p.bind(inner, rotation), r)


def _completing_jvp(q: Any, dq: Any) -> Any:
    """The tangent of the columns of square q behind the first n, whose tangent is `dq`.

    They are what products of n reflections make of the identity, 1 - v t v^H, so that the blocks of q below the first n
    rows are z = v2 v1^-1 times those above: q[n:, :n] = z (q[:n, :n] - 1), and z holds all that is free.
    """
    n = aval_of(dq).shape[-1]
    m = aval_of(q).shape[-1]
    first, rest = _part(q, 0, n, -1), _part(q, n, m, -1)
    top, bottom = _part(first, 0, n, -2), _part(first, n, m, -2)
    factors, _, permutation = lu(ew.sub_p.bind(top, eye_like(top)))
    z_adjoint = lu_solve(factors, permutation, adjoint(bottom), trans=2)
    z = adjoint(z_adjoint)
    moved = ew.sub_p.bind(_part(dq, n, m, -2), matmul(z, _part(dq, 0, n, -2)))
    turned = matmul(ew.add_p.bind(first, matmul(rest, z)), adjoint(moved))
    return ew.sub_p.bind(matmul(dq, z_adjoint), turned)


qr_p: Primitive = Primitive(
    "qr",
    _infer,
    shown=also("use_magma"),
    lower=_lower,
    jvp=_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: qr_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> tuple[Any, ...]:
    """`x = q r` with unitary q and upper triangular r, for matrices `[..., m, n]`.

    Args:
      pivoting: exchange columns so that the diagonal of r falls, and return their order int32[..., n] too:
        `x[..., p] = q r`.
      full_matrices: give a square q.
      use_magma: on CUDA devices with pivoting, use MAGMA or not.

    >>> [x.shape for x in lax.linalg.qr(jnp.ones((3, 2)), full_matrices=False)]
    [(3, 2), (2, 2)]
    """
    check_matrices("qr", [aval_of(x)], [2])  # mapped dimensions hide too few from the primitive
    return tuple(qr_p.bind(x, pivoting=bool(pivoting), full_matrices=bool(full_matrices), use_magma=use_magma))
