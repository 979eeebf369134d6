"""Linear algebra below NumPy, on batches of matrices. Names and signatures are those of `jax.lax.linalg`."""

from __future__ import annotations

from typing import Any

from meshrt import errors as _errors
from meshrt.lax.polar import qdwh
from meshrt.primitives.eig import EigImplementation, eig, eig_p
from meshrt.primitives.eigh import EighImplementation, eigh, eigh_p
from meshrt.primitives.householder import householder_product, householder_product_p, ormqr, ormqr_p
from meshrt.primitives.linalg import cholesky, cholesky_p, triangular_solve, triangular_solve_p
from meshrt.primitives.lu import lu, lu_p, lu_pivots_to_permutation, lu_pivots_to_permutation_p
from meshrt.primitives.qr import qr, qr_p
from meshrt.primitives.reductions import hessenberg, hessenberg_p, schur, schur_p, tridiagonal, tridiagonal_p
from meshrt.primitives.svd import SvdAlgorithm, svd, svd_p
from meshrt.primitives.tridiagonal import tridiagonal_solve, tridiagonal_solve_p
from meshrt.primitives.updates import cholesky_update, cholesky_update_p, symmetric_product, symmetric_product_p

__all__ = [
    "EigImplementation", "EighImplementation", "SvdAlgorithm", "cholesky", "cholesky_p", "cholesky_update",
    "cholesky_update_p", "eig", "eig_p", "eigh", "eigh_p", "hessenberg", "hessenberg_p", "householder_product",
    "householder_product_p", "lu", "lu_p", "lu_pivots_to_permutation", "lu_pivots_to_permutation_p", "ormqr", "ormqr_p",
    "qdwh", "qr", "qr_p", "schur", "schur_p", "svd", "svd_p", "symmetric_product", "symmetric_product_p",
    "triangular_solve", "triangular_solve_p", "tridiagonal", "tridiagonal_p", "tridiagonal_solve",
    "tridiagonal_solve_p",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.missing_name("meshrt.lax.linalg", name, __all__)
