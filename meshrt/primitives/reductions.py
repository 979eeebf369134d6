"""Forms that unitary transformations bring square matrices into: Hessenberg, tridiagonal and Schur form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.lapack import INFO, Kernel, batch_leading, call_kernel, nan_unless_ok, real_dtype
from meshrt.primitives.matrix_types import check_square

_NO_DERIVATIVE = {**NOT_LINEAR, "jvp": "the transformations are not unique; LAPACK's choice has no known derivative"}


# ----------------------------------------------------------------------------------------------------------
# Hessenberg form


def _hessenberg_infer(a: ShapedArray) -> list[ShapedArray]:
    batch = check_square("hessenberg", a)
    if not a.shape[-1]:
        raise errors.ArgumentValueError(f"hessenberg needs matrices of at least one row, got shape {a.shape}")
    return [a, ShapedArray((*batch, a.shape[-1] - 1), a.dtype, a.weak_type)]


def _hessenberg_lower(ctx: LoweringContext, eqn: Eqn, a: Any) -> Any:
    aval, outs = eqn.invars[0].aval.strong(), [v.aval.strong() for v in eqn.outvars]
    if not aval.size:
        return [ctx.full(0, o) for o in outs]
    batch = aval.shape[:-2]
    kernel = Kernel("gehrd", low=np.int32(1), high=np.int32(aval.shape[-1]))
    *found, info = call_kernel(ctx, "hessenberg", [a], [aval], [*outs, ShapedArray(batch, INFO)], {"cpu": kernel})
    return nan_unless_ok(ctx, info, batch, found, outs)


hessenberg_p: Primitive = Primitive(
    "hessenberg",
    _hessenberg_infer,
    lower=_hessenberg_lower,
    explicit=matrices,
    batch=batch_leading(lambda: hessenberg_p),
    multiple_results=True,
    absent=_NO_DERIVATIVE,
)


def hessenberg(a: Any) -> list[Any]:
    """The Hessenberg form of square matrices `[..., n, n]`, on CPU.

    Returns:
      [h with reflections below its first subdiagonal, their scales `[..., n - 1]`]: see `householder_product`.

    Raises:
      ArgumentValueError: the matrices are not square, or empty.

    >>> [x.shape for x in lax.linalg.hessenberg(jnp.ones((3, 3)))]
    [(3, 3), (2,)]
    """
    packed, taus = hessenberg_p.bind(a)
    return [packed, taus]


# ----------------------------------------------------------------------------------------------------------
# Tridiagonal form of Hermitian matrices


def _tridiagonal_infer(a: ShapedArray, *, lower: bool) -> list[ShapedArray]:
    batch = check_square("tridiagonal", a)
    n = a.shape[-1]
    if not n:
        raise errors.ArgumentValueError(f"The input to tridiagonal must be a square matrix. Got shape {a.shape}.")
    sizes = ((n, real_dtype(a.dtype)), (n - 1, real_dtype(a.dtype)), (n - 1, a.dtype))
    return [a, *(ShapedArray((*batch, size), dtype, a.weak_type) for size, dtype in sizes)]


def _tridiagonal_lower(ctx: LoweringContext, eqn: Eqn, a: Any) -> Any:
    aval, outs, lower = eqn.invars[0].aval.strong(), [v.aval.strong() for v in eqn.outvars], eqn.params["lower"]
    if not aval.size:
        return [ctx.full(0, o) for o in outs]
    batch = aval.shape[:-2]
    kernels = {
        "cpu": Kernel("hetrd" if aval.dtype.kind == "c" else "sytrd", uplo="L" if lower else "U"),
        "cuda": Kernel("cusolver_sytrd_ffi", lower=lower),
    }
    *found, info = call_kernel(ctx, "tridiagonal", [a], [aval], [*outs, ShapedArray(batch, INFO)], kernels)
    return nan_unless_ok(ctx, info, batch, found, outs)


tridiagonal_p: Primitive = Primitive(
    "tridiagonal",
    _tridiagonal_infer,
    lower=_tridiagonal_lower,
    explicit=matrices,
    batch=batch_leading(lambda: tridiagonal_p),
    multiple_results=True,
    absent=_NO_DERIVATIVE,
)


def tridiagonal(a: Any, *, lower: bool = True) -> list[Any]:
    """The tridiagonal form of Hermitian matrices `[..., n, n]`.

    Args:
      lower: which triangle is read, and holds the reflections afterwards.

    Returns:
      [packed `[..., n, n]`, diagonal `[..., n]`, the real numbers beside it `[..., n - 1]`, the reflections' scales
      `[..., n - 1]`]: the form stands in `packed` too, the reflections behind it.

    Raises:
      ArgumentValueError: the matrices are not square, or empty.

    >>> [x.shape for x in lax.linalg.tridiagonal(jnp.eye(3))]
    [(3, 3), (3,), (2,), (2,)]
    """
    packed, d, e, taus = tridiagonal_p.bind(a, lower=bool(lower))
    return [packed, d, e, taus]


# ----------------------------------------------------------------------------------------------------------
# Schur form


def _schur_infer(
    x: ShapedArray, *, compute_schur_vectors: bool, sort_eig_vals: bool, select_callable: Any
) -> list[ShapedArray]:
    check_square("schur", x)
    return [x, x] if compute_schur_vectors else [x]


def _schur_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, p, outs = eqn.invars[0].aval.strong(), eqn.params, [v.aval.strong() for v in eqn.outvars]
    if p["sort_eig_vals"]:
        raise errors.UnsupportedError("The sort feature of LAPACK's gees routine is not implemented.")
    if not aval.size:
        return [ctx.full(0, o) for o in outs]
    batch = aval.shape[:-2]
    values, number = ShapedArray(aval.shape[:-1], aval.dtype), ShapedArray(batch, INFO)
    # Real eigenvalues come as two arrays; behind them the number of selected ones.
    parts = [values] if aval.dtype.kind == "c" else [values, values]
    kernel = Kernel("gees", mode="NV"[p["compute_schur_vectors"]], sort="N")
    form, vectors, *_, info = call_kernel(
        ctx, "schur", [x], [aval], [aval, aval, *parts, number, number], {"cpu": kernel}
    )
    return nan_unless_ok(ctx, info, batch, [form, vectors][: len(outs)], outs)


schur_p: Primitive = Primitive(
    "schur",
    _schur_infer,
    lower=_schur_lower,
    explicit=matrices,
    batch=batch_leading(lambda: schur_p),
    multiple_results=True,
    absent=_NO_DERIVATIVE,
)


def schur(
    x: Any,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Callable[..., Any] | None = None,
) -> list[Any]:
    """The Schur form of square matrices `[..., n, n]`, on CPU: x = q t q^H with unitary q.

    t is upper triangular; of real matrices it has blocks of two rows for pairs of complex eigenvalues.

    Returns:
      [t, q], or [t] without `compute_schur_vectors`.

    Raises:
      ArgumentValueError: the matrices are not square. UnsupportedError: `sort_eig_vals`.

    >>> lax.linalg.schur(jnp.array([[2.0, 1.0], [0.0, 3.0]]))[0]
    Array([[2., 1.],
           [0., 3.]], dtype=float32)
    """
    return list(
        schur_p.bind(
            x, compute_schur_vectors=bool(compute_schur_vectors), sort_eig_vals=bool(sort_eig_vals),
            select_callable=select_callable,
        )
    )  # fmt: skip
