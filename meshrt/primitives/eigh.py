"""Eigenvalues and eigenvectors of batches of Hermitian matrices (the last two dimensions).

The derivatives are those of Giles, "An extended collection of matrix derivative results for forward and reverse mode
automatic differentiation" (2008), for distinct eigenvalues.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive, also
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import elementwise as ew
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.lapack import INFO, Kernel, batch_leading, call_kernel, call_tpu, nan_unless_ok, real_dtype
from meshrt.primitives.linalg import adjoint, matmul, matrix_transpose, symmetrized
from meshrt.primitives.matrix_parts import as_rows, diagonal, off_diagonal, safe_inverse
from meshrt.primitives.matrix_types import check_square


class EighImplementation(enum.Enum):
    """How eigenvalues of Hermitian matrices are computed."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


_CUDA_ALGORITHMS = {None: 0, EighImplementation.QR: 1, EighImplementation.JACOBI: 2}  # as cuSOLVER's kernel counts


def _infer(
    x: ShapedArray,
    *,
    lower: bool,
    sort_eigenvalues: bool,
    subset_by_index: tuple[int, int] | None,
    algorithm: EighImplementation | None,
) -> list[ShapedArray]:
    batch = check_square("symmetric eigendecomposition", x)
    n = x.shape[-1]
    count = n if subset_by_index is None else subset_by_index[1] - subset_by_index[0]
    vectors = ShapedArray((*batch, n, count), x.dtype, x.weak_type)
    return [vectors, ShapedArray((*batch, count), real_dtype(x.dtype), x.weak_type)]


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, outs, p = eqn.invars[0].aval.strong(), [v.aval.strong() for v in eqn.outvars], eqn.params
    if p["subset_by_index"] not in (None, (0, aval.shape[-1])):
        raise errors.UnsupportedError("subset_by_index is not supported by eigh on CPU and GPU; slice the results")
    _check_algorithm(p["algorithm"], ctx.module.platform)
    if not aval.size:
        return [ctx.full(0, o) for o in outs]
    if ctx.module.platform == "tpu":
        # At most 100 sweeps, to a relative tolerance of 1e-6.
        settings = f"{int(p['lower'])},{int(p['sort_eigenvalues'])},100,1e-6"
        return list(call_tpu(ctx, "Eigh", [x], outs, settings))
    batch = aval.shape[:-2]
    kernels = {
        "cpu": Kernel("heevd" if aval.dtype.kind == "c" else "syevd", mode="V", uplo="L" if p["lower"] else "U"),
        "cuda": Kernel(
            "cusolver_syevd_ffi", lower=p["lower"], algorithm=np.uint8(_CUDA_ALGORITHMS.get(p["algorithm"], 0))
        ),
    }
    *results, info = call_kernel(ctx, "eigh", [x], [aval], [*outs, ShapedArray(batch, INFO)], kernels)
    return nan_unless_ok(ctx, info, batch, results, outs)


def _check_algorithm(algorithm: EighImplementation | None, platform: str) -> None:
    if platform == "tpu" and algorithm not in (None, EighImplementation.JACOBI):
        raise errors.UnsupportedError(
            f"eigh by {algorithm.value} is not implemented for platform tpu: there is JACOBI; leave implementation out"
        )
    if algorithm == EighImplementation.QDWH:
        raise errors.UnsupportedError("QDWH implementation is only supported on TPU; leave implementation out")
    if algorithm == EighImplementation.JACOBI and platform == "cpu":
        raise errors.UnsupportedError("Jacobi implementation is not supported on CPU; leave implementation out")


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **p: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    if p["subset_by_index"] not in (None, (0, aval_of(x).shape[-1])):
        raise errors.UnsupportedError("Derivatives not defined for partial eigen decomposition.")
    if t is None:
        return eigh_p.bind(x, **p), [None, None]
    # Both triangles count in derivatives, the second and higher ones too.
    v, w = eigh_p.bind(symmetrized("eigh", x), **p)
    inner = matmul(matmul(adjoint(v), t), v)
    rows = as_rows(w)
    gaps = off_diagonal(ew.sub_p.bind(rows, matrix_transpose(rows)))
    dv = matmul(v, ew.mul_p.bind(convert_element_type(safe_inverse(gaps), aval_of(x).dtype), inner))
    on_diagonal = diagonal(inner)
    return [v, w], [dv, ew.real_p.bind(on_diagonal) if aval_of(x).dtype.kind == "c" else on_diagonal]


eigh_p: Primitive = Primitive(
    "eigh",
    _infer,
    shown=also("algorithm", "subset_by_index"),
    lower=_lower,
    jvp=_jvp,
    explicit=matrices,
    batch=batch_leading(lambda: eigh_p),
    multiple_results=True,
    absent=NOT_LINEAR,
)


def eigh(
    x: Any,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Any, Any]:
    """(eigenvectors as columns, ascending eigenvalues) of Hermitian matrices.

    Args:
      x: matrices [..., n, n].
      lower: which triangle is read.
      symmetrize_input: use (x + x^H) / 2, so that both are.
      sort_eigenvalues: the kernels always sort them.
      subset_by_index: all eigenvalues at most; the kernels compute them together.
      implementation: on CUDA devices `QR` or `JACOBI`; on CPUs `QR`.

    Raises:
      ArgumentValueError: the matrices are not square.
      UnsupportedError: another implementation, or a smaller subset.

    >>> lax.linalg.eigh(jnp.array([[2.0, 0.0], [0.0, 3.0]]))[1]
    Array([2., 3.], dtype=float32)
    """
    if symmetrize_input:
        x = symmetrized("symmetric eigendecomposition", x)
    v, w = eigh_p.bind(
        x, lower=bool(lower), sort_eigenvalues=bool(sort_eigenvalues), subset_by_index=subset_by_index,
        algorithm=implementation,
    )  # fmt: skip
    return v, w
