"""Products of Householder reflections: the QR decomposition as LAPACK leaves it, and what is made of it.

A reflection is 1 - tau v v^H. Its v has zeros above its own row, a one there, and the rest stands below the diagonal
of a matrix whose upper triangle is r.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.dimensions.expression import min_dim
from meshrt.core.explicit import matrices, stacks
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.lapack import INFO, Kernel, batch_leading, call_kernel, call_tpu
from meshrt.primitives.matrix_types import check_matrices

_NO_DERIVATIVE = {**NOT_LINEAR, "jvp": "reflections have no derivative of their own; differentiate lax.linalg.qr"}


def _unitary(dtype: np.dtype, name: str) -> str:
    """LAPACK's name of a routine for unitary matrices, which are orthogonal where they are real."""
    return ("un" if dtype.kind == "c" else "or") + name


# ----------------------------------------------------------------------------------------------------------
# a = q r


def _geqrf_infer(a: ShapedArray) -> list[ShapedArray]:
    batch = check_matrices("geqrf", [a], [2])
    k: Any = min_dim(*a.shape[-2:])
    return [a, ShapedArray((*batch, k), a.dtype, a.weak_type)]


def _geqrf_lower(ctx: LoweringContext, eqn: Eqn, a: Any) -> Any:
    aval, taus = eqn.invars[0].aval.strong(), eqn.outvars[1].aval.strong()
    if not aval.size:
        return [a, ctx.full(0, taus)]
    if ctx.module.platform == "tpu":
        return list(call_tpu(ctx, "Qr", [a], [aval, taus]))
    kernels = {"cpu": Kernel("geqrf"), "cuda": Kernel("cusolver_geqrf_ffi")}
    return list(call_kernel(ctx, "geqrf", [a], [aval], [aval, taus], kernels))


geqrf_p: Primitive = Primitive(
    "geqrf",
    _geqrf_infer,
    lower=_geqrf_lower,
    explicit=matrices,
    batch=batch_leading(lambda: geqrf_p),
    multiple_results=True,
    absent=_NO_DERIVATIVE,
)


def geqrf(a: Any) -> tuple[Any, Any]:
    """(r with the reflections below its diagonal, their scales) of matrices `[..., m, n]`, as LAPACK's geqrf has it."""
    packed, taus = geqrf_p.bind(a)
    return packed, taus


# ----------------------------------------------------------------------------------------------------------
# a[:, p] = q r


def _geqp3_infer(a: ShapedArray, order: ShapedArray, *, use_magma: bool | None) -> list[ShapedArray]:
    batch = check_matrices("geqp3", [a], [2])
    m, n = a.shape[-2:]
    if order.shape != (*batch, n) or order.dtype != INFO:
        raise errors.ArgumentTypeError(f"geqp3 of {a.short()} needs int32{[*batch, n]}, got {order.short()}")
    weak = a.weak_type and order.weak_type
    k: Any = min_dim(m, n)
    return [
        ShapedArray(a.shape, a.dtype, weak),
        ShapedArray(order.shape, INFO, weak),
        ShapedArray((*batch, k), a.dtype, weak),
    ]


def _geqp3_lower(ctx: LoweringContext, eqn: Eqn, a: Any, order: Any) -> Any:
    avals, outs = [v.aval.strong() for v in eqn.invars], [v.aval.strong() for v in eqn.outvars]
    if not avals[0].size:
        return [a, order, ctx.full(0, outs[2])]
    asked = eqn.params["use_magma"]
    magma = "auto" if asked is None else "on" if asked else "off"
    kernels = {"cpu": Kernel("geqp3"), "cuda": Kernel("cuhybrid_geqp3", magma=magma)}
    return list(call_kernel(ctx, "geqp3", [a, order], avals, outs, kernels))


geqp3_p: Primitive = Primitive(
    "geqp3",
    _geqp3_infer,
    lower=_geqp3_lower,
    explicit=stacks(2, 1),
    batch=batch_leading(lambda: geqp3_p),
    multiple_results=True,
    absent=_NO_DERIVATIVE,
)


def geqp3(a: Any, order: Any, *, use_magma: bool | None = None) -> tuple[Any, Any, Any]:
    """`geqrf` with columns exchanged so that the diagonal of r falls: (packed, order of columns from 1, scales).

    `order` is int32[..., n]: columns with a number other than 0 are taken first.
    """
    packed, order, taus = geqp3_p.bind(a, order, use_magma=use_magma)
    return packed, order, taus


# ----------------------------------------------------------------------------------------------------------
# q


def _product_infer(a: ShapedArray, taus: ShapedArray) -> ShapedArray:
    check_matrices("householder_product", [a, taus], [2, 1])
    (m, n), k = a.shape[-2:], taus.shape[-1]
    if m < n:
        raise errors.ArgumentValueError(
            f"The first argument to householder_product must have at least as many rows as columns, got shape {a.shape}"
        )
    if k > n:
        raise errors.ArgumentValueError(
            "The second argument to householder_product must not have more rows than the minimum of the first "
            f"argument's rows and columns, got {k} for shape {a.shape}"
        )
    return ShapedArray(a.shape, a.dtype, a.weak_type and taus.weak_type)


def _product_lower(ctx: LoweringContext, eqn: Eqn, a: Any, taus: Any) -> Any:
    avals, out = [v.aval.strong() for v in eqn.invars], eqn.outvars[0].aval.strong()
    if not out.size:
        return a
    if ctx.module.platform == "tpu":
        return call_tpu(ctx, "ProductOfElementaryHouseholderReflectors", [a, taus], [out])[0]
    kernels = {"cpu": Kernel(_unitary(out.dtype, "gqr")), "cuda": Kernel("cusolver_orgqr_ffi")}
    return call_kernel(ctx, "householder_product", [a, taus], avals, [out], kernels)[0]


householder_product_p: Primitive = Primitive(
    "householder_product",
    _product_infer,
    lower=_product_lower,
    explicit=stacks(2, 1),
    batch=batch_leading(lambda: householder_product_p),
    absent=_NO_DERIVATIVE,
)


def householder_product(a: Any, taus: Any) -> Any:
    """The product of reflections, as far as the columns of `a` go: q of a QR decomposition.

    Args:
      a: [..., m, n] with n <= m, the reflections below the diagonal.
      taus: [..., k] with k <= n, their scales.

    Returns:
      [..., m, n] with orthonormal columns.

    Raises:
      ArgumentValueError: more columns than rows, or more scales than columns.

    >>> lax.linalg.householder_product(jnp.ones((3, 2)), jnp.zeros(2))
    Array([[ 1.,  0.],
           [-0.,  1.],
           [-0., -0.]], dtype=float32)
    """
    return householder_product_p.bind(a, taus)


# ----------------------------------------------------------------------------------------------------------
# q c


def _ormqr_infer(a: ShapedArray, taus: ShapedArray, c: ShapedArray, *, left: bool, transpose: bool) -> ShapedArray:
    check_matrices("ormqr", [a, taus, c], [2, 1, 2])
    if c.shape[-2 if left else -1] != a.shape[-2]:
        raise errors.ArgumentValueError(
            f"ormqr with left={left} expects c to have as many {'rows' if left else 'columns'} as the Householder "
            f"matrix a has rows. Got a shape {a.shape} and c shape {c.shape}."
        )
    return ShapedArray(c.shape, c.dtype, a.weak_type and taus.weak_type and c.weak_type)


def _ormqr_lower(ctx: LoweringContext, eqn: Eqn, a: Any, taus: Any, c: Any) -> Any:
    avals, out = [v.aval.strong() for v in eqn.invars], eqn.outvars[0].aval.strong()
    if not out.size or not avals[1].size:
        return c
    settings = {name: eqn.params[name] for name in ("left", "transpose")}
    kernels = {
        "cpu": Kernel(_unitary(out.dtype, "mqr"), **settings), "cuda": Kernel("cusolver_ormqr_ffi", **settings)
    }  # fmt: skip
    return call_kernel(ctx, "ormqr", [a, taus, c], avals, [out], kernels)[0]


ormqr_p: Primitive = Primitive(
    "ormqr",
    _ormqr_infer,
    lower=_ormqr_lower,
    explicit=stacks(2, 1, 2),
    batch=batch_leading(lambda: ormqr_p),
    absent=_NO_DERIVATIVE,
)


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """q c, or c q without `left`; with `transpose` by the adjoint of q, which is never formed.

    Args:
      a: [..., m, n], the reflections below the diagonal, as in the adjoint of what `numpy.linalg.qr(mode="raw")` gives.
      taus: [..., k], their scales.
      c: [..., m, p], or [..., p, m] without `left`.

    Returns:
      An array like `c`.

    Raises:
      ArgumentValueError: `c` does not fit `a`.

    >>> lax.linalg.ormqr(jnp.ones((3, 2)), jnp.zeros(2), jnp.ones((3, 1))).shape
    (3, 1)
    """
    return ormqr_p.bind(a, taus, c, left=bool(left), transpose=bool(transpose))
