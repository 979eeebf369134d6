"""Operations on the parts of arrays by coordinates, as primitives: their data, and their coordinates.

Each is one equation of a program under JAX's name; its rules follow from what the function beside it computes. The
functions named `_bcoo_*` take parts in place of arrays. As in JAX, the module has the functions of arrays too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt.experimental.sparse import coordinates, products, shapes
from meshrt.experimental.sparse.arrays import BCOO, SparseInfo
from meshrt.experimental.sparse.arrays import CuSparseEfficiencyWarning as CuSparseEfficiencyWarning
from meshrt.experimental.sparse.arrays import JAXSparse as JAXSparse
from meshrt.experimental.sparse.arrays import SparseEfficiencyError as SparseEfficiencyError
from meshrt.experimental.sparse.arrays import SparseEfficiencyWarning as SparseEfficiencyWarning
from meshrt.experimental.sparse.convolution import bcoo_conv_general_dilated as bcoo_conv_general_dilated
from meshrt.experimental.sparse.coordinates import bcoo_extract as bcoo_extract
from meshrt.experimental.sparse.coordinates import bcoo_fromdense as bcoo_fromdense
from meshrt.experimental.sparse.coordinates import bcoo_sort_indices as bcoo_sort_indices
from meshrt.experimental.sparse.coordinates import bcoo_sum_duplicates as bcoo_sum_duplicates
from meshrt.experimental.sparse.coordinates import bcoo_todense as bcoo_todense
from meshrt.experimental.sparse.coordinates import bcoo_update_layout as bcoo_update_layout
from meshrt.experimental.sparse.gathering import bcoo_gather as bcoo_gather
from meshrt.experimental.sparse.products import bcoo_dot_general as bcoo_dot_general
from meshrt.experimental.sparse.products import bcoo_dot_general_sampled as bcoo_dot_general_sampled
from meshrt.experimental.sparse.products import bcoo_multiply_dense as bcoo_multiply_dense
from meshrt.experimental.sparse.products import bcoo_multiply_sparse as bcoo_multiply_sparse
from meshrt.experimental.sparse.shapes import bcoo_broadcast_in_dim as bcoo_broadcast_in_dim
from meshrt.experimental.sparse.shapes import bcoo_concatenate as bcoo_concatenate
from meshrt.experimental.sparse.shapes import bcoo_dynamic_slice as bcoo_dynamic_slice
from meshrt.experimental.sparse.shapes import bcoo_reduce_sum as bcoo_reduce_sum
from meshrt.experimental.sparse.shapes import bcoo_reshape as bcoo_reshape
from meshrt.experimental.sparse.shapes import bcoo_rev as bcoo_rev
from meshrt.experimental.sparse.shapes import bcoo_slice as bcoo_slice
from meshrt.experimental.sparse.shapes import bcoo_squeeze as bcoo_squeeze
from meshrt.experimental.sparse.shapes import bcoo_transpose as bcoo_transpose
from meshrt.primitives.compositions import composition

__all__ = [
    "bcoo_dot_general_p", "bcoo_dot_general_sampled_p", "bcoo_extract_p", "bcoo_fromdense_p", "bcoo_sort_indices_p",
    "bcoo_spdot_general_p", "bcoo_sum_duplicates_p", "bcoo_todense_p", "bcoo_transpose_p",
]  # fmt: skip


def bcoo_eliminate_zeros(mat: BCOO, nse: int | None = None) -> BCOO:
    """`mat` without the specified elements that are zero, with room for `nse` (by default for those that are left)."""
    zero = (mat.data == 0).all(range(mat.n_batch + 1, mat.data.ndim))
    outside = jnp.array(shapes.sparse_shape(mat), mat.indices.dtype)
    indices = jnp.where(zero[..., None], outside, mat.indices)
    return coordinates.bcoo_sum_duplicates(BCOO((mat.data, indices), shape=mat.shape), nse=nse)


def _array(data: Any, indices: Any, spinfo: Any) -> BCOO:
    return BCOO((data, indices), **SparseInfo(*spinfo)._asdict())


def _parts(mat: BCOO) -> list[Any]:
    return [mat.data, mat.indices]


def _extract(indices: Any, arr: Any, *, assume_unique: bool) -> Any:
    n_batch = indices.ndim - 2
    dense = arr.shape[n_batch + indices.shape[-1] :]
    like = BCOO((jnp.ones((*indices.shape[:-1], *dense), arr.dtype), indices), shape=arr.shape)
    return coordinates.bcoo_extract(like, arr, assume_unique=assume_unique).data


def _product_of_sparse(
    data: Any, indices: Any, rhs_data: Any, rhs_indices: Any, *, lhs_spinfo: Any, rhs_spinfo: Any,
    dimension_numbers: Any, preferred_element_type: Any,
) -> list[Any]:  # fmt: skip
    lhs, rhs = _array(data, indices, lhs_spinfo), _array(rhs_data, rhs_indices, rhs_spinfo)
    return _parts(
        products.bcoo_dot_general(
            lhs, rhs, dimension_numbers=dimension_numbers, preferred_element_type=preferred_element_type
        )
    )


bcoo_todense_p = composition(
    "bcoo_todense", lambda data, indices, *, spinfo: coordinates.bcoo_todense(_array(data, indices, spinfo))
)
bcoo_fromdense_p = composition(
    "bcoo_fromdense", lambda mat, **params: _parts(coordinates.bcoo_fromdense(mat, **params)), several=True
)
bcoo_extract_p = composition("bcoo_extract", _extract)
bcoo_transpose_p = composition(
    "bcoo_transpose",
    lambda data, indices, *, permutation, spinfo: _parts(
        shapes.bcoo_transpose(_array(data, indices, spinfo), permutation=permutation)
    ),
    several=True,
)
bcoo_sort_indices_p = composition(
    "bcoo_sort_indices",
    lambda data, indices, *, spinfo: _parts(coordinates.bcoo_sort_indices(_array(data, indices, spinfo))),
    several=True,
)
bcoo_sum_duplicates_p = composition(
    "bcoo_sum_duplicates",
    lambda data, indices, *, spinfo, nse: _parts(coordinates.bcoo_sum_duplicates(_array(data, indices, spinfo), nse)),
    several=True,
)
bcoo_dot_general_p = composition(
    "bcoo_dot_general",
    lambda data, indices, rhs, *, lhs_spinfo, **params: products.bcoo_dot_general(
        _array(data, indices, lhs_spinfo), rhs, **params
    ),
)
bcoo_spdot_general_p = composition("bcoo_spdot_general", _product_of_sparse, several=True)
bcoo_dot_general_sampled_p = composition("bcoo_dot_general_sampled", products.bcoo_dot_general_sampled)


def _frozen(dimension_numbers: Any) -> Any:
    return tuple(tuple(tuple(map(int, d)) for d in pair) for pair in dimension_numbers)


def _bcoo_todense(data: Any, indices: Any, *, spinfo: SparseInfo) -> Any:
    return bcoo_todense_p.bind(jnp.asarray(data), jnp.asarray(indices), spinfo=spinfo)


def _bcoo_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32
) -> tuple[Any, Any]:
    mat, sizes = jnp.asarray(mat), {"n_batch": n_batch, "n_dense": n_dense, "index_dtype": np.dtype(index_dtype)}
    if nse is None:
        found = coordinates.bcoo_fromdense(mat, **sizes)
        return found.data, found.indices
    data, indices = bcoo_fromdense_p.bind(mat, nse=int(nse), **sizes)
    return data, indices


def _bcoo_extract(indices: Any, arr: Any, *, assume_unique: bool = True) -> Any:
    return bcoo_extract_p.bind(jnp.asarray(indices), jnp.asarray(arr), assume_unique=bool(assume_unique))


def _bcoo_transpose(data: Any, indices: Any, *, permutation: Sequence[int], spinfo: SparseInfo) -> tuple[Any, Any]:
    data, indices = bcoo_transpose_p.bind(data, indices, permutation=tuple(map(int, permutation)), spinfo=spinfo)
    return data, indices


def _bcoo_dot_general(
    lhs_data: Any, lhs_indices: Any, rhs: Any, *, dimension_numbers: Any, preferred_element_type: Any,
    lhs_spinfo: SparseInfo,
) -> Any:  # fmt: skip
    return bcoo_dot_general_p.bind(
        jnp.asarray(lhs_data), jnp.asarray(lhs_indices), jnp.asarray(rhs), dimension_numbers=_frozen(dimension_numbers),
        preferred_element_type=preferred_element_type, lhs_spinfo=lhs_spinfo,
    )  # fmt: skip
