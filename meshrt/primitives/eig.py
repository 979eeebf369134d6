"""Eigenvalues and eigenvectors of general square matrices, by LAPACK on CPU."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, reduce_sum_p
from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.identity import stop_gradient
from meshrt.primitives.lapack import INFO, Kernel, batch_leading, call_kernel, nan_unless_ok
from meshrt.primitives.linalg import adjoint, matmul, matrix_transpose
from meshrt.primitives.lu import factored_solve, lu
from meshrt.primitives.matrix_parts import diagonal, safe_inverse
from meshrt.primitives.matrix_types import check_square
from meshrt.primitives.reduce import argmax
from meshrt.primitives.reshape import broadcasted_iota


class EigImplementation(enum.Enum):
    """How eigenvalues of general matrices are computed."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


def _infer(
    x: ShapedArray,
    *,
    compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool,
    enable_eigvec_derivs: bool,
    implementation: EigImplementation | None,
) -> list[ShapedArray]:
    check_square("eig", x)
    dtype = dtypes.to_complex_dtype(x.dtype)
    vectors = ShapedArray(x.shape, dtype, x.weak_type)
    count = bool(compute_left_eigenvectors) + bool(compute_right_eigenvectors)
    return [ShapedArray(x.shape[:-1], dtype, x.weak_type), *[vectors] * count]


def _kernels(dtype: np.dtype, left: bool, right: bool, asked: EigImplementation | None) -> dict[str, Kernel]:
    """LAPACK, on CUDA devices called on the host, or MAGMA there."""
    magma = "auto" if asked is None else "on" if asked == EigImplementation.MAGMA else "off"
    name = f"cuhybrid_eig_{'comp' if dtype.kind == 'c' else 'real'}"
    return {
        "cpu": Kernel("geev", compute_left="NV"[left], compute_right="NV"[right]),
        "cuda": Kernel(name, magma=magma, left=left, right=right),
    }


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, outs, p = eqn.invars[0].aval.strong(), [v.aval.strong() for v in eqn.outvars], eqn.params
    left, right, asked = (p[k] for k in ("compute_left_eigenvectors", "compute_right_eigenvectors", "implementation"))
    if ctx.module.platform == "cpu" and asked not in (None, EigImplementation.LAPACK):
        raise errors.ArgumentValueError(f"Only the lapack implementation is supported on CPU, got {asked}")
    if asked == EigImplementation.CUSOLVER:
        raise errors.UnsupportedError("eig by cuSOLVER is not implemented; there are LAPACK and MAGMA")
    if not aval.size:
        return [ctx.full(0, o) for o in outs]
    batch, values = aval.shape[:-2], ShapedArray(aval.shape[:-1], aval.dtype)
    vectors = ShapedArray(aval.shape, outs[0].dtype)
    is_complex = aval.dtype.kind == "c"
    found = [*([values] if is_complex else [values, values]), vectors, vectors, ShapedArray(batch, INFO)]
    *w, vl, vr, info = call_kernel(ctx, "eig", [x], [aval], found, _kernels(aval.dtype, left, right, asked))
    eigenvalues = w[0] if is_complex else ctx.op("stablehlo.complex", w, outs[0])
    results = [eigenvalues, *([vl] if left else []), *([vr] if right else [])]
    return nan_unless_ok(ctx, info, batch, results, outs)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    left, right = params["compute_left_eigenvectors"], params["compute_right_eigenvectors"]
    if t is None:
        outs = eig_p.bind(x, **params)
        return outs, [None] * len(outs)
    if (left or right) and not params["enable_eigvec_derivs"]:
        raise errors.UnsupportedError(
            "derivatives of eigenvectors of general matrices need distinct eigenvalues and a choice of their phases, "
            "which cannot be checked; pass enable_eigvec_derivs=True to lax.linalg.eig if they are given"
        )
    w, *sides = eig_p.bind(x, **{**params, "compute_right_eigenvectors": True})
    v = sides[-1]
    t = convert_element_type(t, aval_of(v).dtype)
    if not (left or right):
        return [w], [diagonal(_inverse_times(v, matmul(t, v)))]
    dw, dv = _vectors_jvp(w, v, t)
    outs, changes = [w], [dw]
    if left:
        outs.append(sides[0])
        changes.append(_vectors_jvp(ew.conj(w), sides[0], adjoint(t))[1])
    if right:
        outs.append(v)
        changes.append(dv)
    return outs, changes


def _vectors_jvp(w: Any, v: Any, t: Any) -> tuple[Any, Any]:
    """Tangents of eigenvalues and of eigenvectors."""
    inner = _inverse_times(v, matmul(t, v))
    shape = aval_of(v).shape
    batch = tuple(range(len(shape) - 2))
    columns = broadcast_in_dim(w, shape, (*batch, len(shape) - 1))
    gaps = ew.sub_p.bind(columns, matrix_transpose(columns))
    change = matmul(v, ew.mul_p.bind(safe_inverse(gaps), inner))
    # What leaves the columns at length one, and their largest elements real, as LAPACK has them.
    norm = reduce_sum_p.bind(ew.mul_p.bind(ew.conj(v), change), axes=(len(shape) - 2,))
    largest = _at_largest(v)
    turn = ew.div_p.bind(
        ew.imag_p.bind(_summed(ew.mul_p.bind(largest, change))), ew.real_p.bind(_summed(ew.mul_p.bind(largest, v)))
    )
    factor = ew.complex(ew.neg_p.bind(ew.real_p.bind(norm)), ew.neg_p.bind(turn))
    spread = broadcast_in_dim(factor, shape, (*batch, len(shape) - 1))
    return diagonal(inner), ew.add_p.bind(change, ew.mul_p.bind(v, spread))


def _at_largest(v: Any) -> Any:
    """1 at the largest element of each column, 0 elsewhere."""
    aval = aval_of(v)
    rows = aval.ndim - 2
    place = argmax(ew.abs_p.bind(v), rows, np.int32)
    place = broadcast_in_dim(place, aval.shape, (*range(rows), rows + 1))
    return convert_element_type(ew.eq_p.bind(broadcasted_iota(np.int32, aval.shape, rows), place), aval.dtype)


def _summed(x: Any) -> Any:
    return reduce_sum_p.bind(x, axes=(aval_of(x).ndim - 2,))


def _inverse_times(v: Any, x: Any) -> Any:
    factors, _, permutation = lu(stop_gradient(v))
    return factored_solve(factors, permutation, v, x)


eig_p: Primitive = Primitive(
    "eig",
    _infer,
    lower=_lower,
    jvp=_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: eig_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def eig(
    x: Any,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: EigImplementation | None = None,
    use_magma: bool | None = None,
) -> list[Any]:
    """[eigenvalues, left eigenvectors, right eigenvectors], as far as asked for, of square matrices `[..., n, n]`.

    All are complex; eigenvectors are columns of length one. Those on the left belong to the adjoint matrix.

    Args:
      enable_eigvec_derivs: promises that the eigenvalues are distinct.
      implementation: on CPUs `LAPACK`; on CUDA devices `MAGMA` too.
      use_magma: the older way to choose between the two.

    Raises:
      ArgumentValueError: the matrices are not square; another implementation.

    >>> lax.linalg.eig(jnp.array([[2.0, 0.0], [0.0, 3.0]]))[0]
    Array([2.+0.j, 3.+0.j], dtype=complex64)
    """
    if use_magma is not None:
        warnings.warn(
            "use_magma is deprecated; pass implementation=EigImplementation.MAGMA", DeprecationWarning, stacklevel=2
        )
        implementation = EigImplementation.MAGMA if use_magma else EigImplementation.LAPACK
    return list(
        eig_p.bind(
            x,
            compute_left_eigenvectors=bool(compute_left_eigenvectors),
            compute_right_eigenvectors=bool(compute_right_eigenvectors),
            enable_eigvec_derivs=bool(enable_eigvec_derivs),
            implementation=implementation,
        )
    )
