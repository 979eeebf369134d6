"""Linear algebra below NumPy, on batches of matrices. Names and signatures are those of `jax.lax.linalg`."""

from __future__ import annotations

from typing import Any

from meshrt import errors as _errors
from meshrt.primitives.decomposition import eigh, qr, svd
from meshrt.primitives.eig import eig
from meshrt.primitives.linalg import cholesky, triangular_solve
from meshrt.primitives.lu import lu, lu_pivots_to_permutation

__all__ = ["cholesky", "eig", "eigh", "lu", "lu_pivots_to_permutation", "qr", "svd", "triangular_solve"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.MissingFunctionError(f"meshrt.lax.linalg.{name} is not implemented")
