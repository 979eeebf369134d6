"""Operations on the parts of arrays by compressed rows, as primitives; see `bcoo`."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt.experimental.sparse import compressed
from meshrt.experimental.sparse.arrays import CuSparseEfficiencyWarning as CuSparseEfficiencyWarning
from meshrt.experimental.sparse.arrays import JAXSparse as JAXSparse
from meshrt.experimental.sparse.arrays import SparseEfficiencyWarning as SparseEfficiencyWarning
from meshrt.experimental.sparse.arrays import SparseInfo
from meshrt.experimental.sparse.compressed import BCSR
from meshrt.experimental.sparse.compressed import bcsr_broadcast_in_dim as bcsr_broadcast_in_dim
from meshrt.experimental.sparse.compressed import bcsr_concatenate as bcsr_concatenate
from meshrt.experimental.sparse.compressed import bcsr_dot_general as bcsr_dot_general
from meshrt.experimental.sparse.compressed import bcsr_extract as bcsr_extract
from meshrt.experimental.sparse.compressed import bcsr_fromdense as bcsr_fromdense
from meshrt.experimental.sparse.compressed import bcsr_sum_duplicates as bcsr_sum_duplicates
from meshrt.experimental.sparse.compressed import bcsr_todense as bcsr_todense
from meshrt.primitives.compositions import composition

__all__ = ["bcsr_dot_general_p", "bcsr_extract_p", "bcsr_fromdense_p", "bcsr_todense_p"]


def _array(data: Any, indices: Any, indptr: Any, spinfo: Any) -> BCSR:
    return BCSR((data, indices, indptr), **SparseInfo(*spinfo)._asdict())


bcsr_todense_p = composition(
    "bcsr_todense",
    lambda data, indices, indptr, *, spinfo: compressed.bcsr_todense(_array(data, indices, indptr, spinfo)),
)
bcsr_fromdense_p = composition(
    "bcsr_fromdense", lambda mat, **params: list(compressed.bcsr_fromdense(mat, **params)._parts()), several=True
)
bcsr_extract_p = composition("bcsr_extract", compressed.bcsr_extract)
bcsr_dot_general_p = composition(
    "bcsr_dot_general",
    lambda data, indices, indptr, rhs, *, lhs_spinfo, **params: compressed.bcsr_dot_general(
        _array(data, indices, indptr, lhs_spinfo), rhs, **params
    ),
)


def _bcsr_todense(data: Any, indices: Any, indptr: Any, *, spinfo: SparseInfo) -> Any:
    return bcsr_todense_p.bind(jnp.asarray(data), jnp.asarray(indices), jnp.asarray(indptr), spinfo=spinfo)


def _bcsr_fromdense(
    mat: Any, *, nse: int, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32
) -> tuple[Any, Any, Any]:
    data, indices, indptr = bcsr_fromdense_p.bind(
        jnp.asarray(mat), nse=int(nse), n_batch=n_batch, n_dense=n_dense, index_dtype=np.dtype(index_dtype)
    )
    return data, indices, indptr


def _bcsr_extract(indices: Any, indptr: Any, mat: Any) -> Any:
    return bcsr_extract_p.bind(jnp.asarray(indices), jnp.asarray(indptr), jnp.asarray(mat))
