"""What `jax.experimental.sparse.util` has: facts of sparse arrays, and numbers of elements."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt.experimental.sparse.arrays import (
    CuSparseEfficiencyWarning,
    SparseEfficiencyError,
    SparseEfficiencyWarning,
    SparseInfo,
)
from meshrt.experimental.sparse.compressed import row_numbers

__all__ = ["CuSparseEfficiencyWarning", "SparseEfficiencyError", "SparseEfficiencyWarning", "SparseInfo"]


def _csr_to_coo(indices: Any, indptr: Any) -> tuple[Any, Any]:
    """Rows and columns of elements by compressed rows."""
    return row_numbers(jnp.asarray(indptr), len(indices)), indices


def _count_stored_elements_per_batch(mat: Any, n_batch: int = 0, n_dense: int = 0) -> Any:
    """How many elements are not 0, [*batch]."""
    mat = jnp.asarray(mat)
    there = (mat != 0).any(tuple(range(mat.ndim - n_dense, mat.ndim)))
    return there.sum(tuple(range(n_batch, there.ndim)))


def _count_stored_elements(mat: Any, n_batch: int = 0, n_dense: int = 0) -> Any:
    """How many elements have to be stored for each batch."""
    return _count_stored_elements_per_batch(mat, n_batch, n_dense).max(initial=0)
