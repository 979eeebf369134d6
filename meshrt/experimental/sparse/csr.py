"""Operations on the parts of matrices by compressed rows, as primitives; see `bcoo`."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt.experimental.sparse.arrays import JAXSparse as JAXSparse
from meshrt.experimental.sparse.compressed import CSC as CSC
from meshrt.experimental.sparse.compressed import CSR, csr_matmat, csr_matvec
from meshrt.experimental.sparse.compressed import csr_fromdense as csr_fromdense
from meshrt.experimental.sparse.compressed import csr_todense as csr_todense
from meshrt.primitives.compositions import composition

__all__ = ["csr_fromdense_p", "csr_matmat_p", "csr_matvec_p", "csr_todense_p"]


def _array(parts: tuple[Any, ...], shape: Any) -> CSR:
    data, first, second = parts
    return CSR((data, first, second), shape=shape)


def _vector_product(data: Any, indices: Any, indptr: Any, v: Any, *, shape: Any, transpose: bool) -> Any:
    return csr_matvec(_array((data, indices, indptr), shape), v, transpose)


def _matrix_product(data: Any, indices: Any, indptr: Any, B: Any, *, shape: Any, transpose: bool) -> Any:
    return csr_matmat(_array((data, indices, indptr), shape), B, transpose=transpose)


csr_todense_p = composition("csr_todense", lambda *parts, shape: _array(parts, shape).todense())
csr_fromdense_p = composition(
    "csr_fromdense", lambda mat, **params: list(CSR.fromdense(mat, **params)._parts()), several=True
)
csr_matvec_p = composition("csr_matvec", _vector_product)
csr_matmat_p = composition("csr_matmat", _matrix_product)


def _csr_todense(data: Any, indices: Any, indptr: Any, *, shape: tuple[int, ...]) -> Any:
    return csr_todense_p.bind(*map(jnp.asarray, (data, indices, indptr)), shape=tuple(shape))


def _csr_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> tuple[Any, Any, Any]:
    mat = jnp.asarray(mat)
    count = int((mat != 0).sum()) if nse is None else int(nse)
    data, indices, indptr = csr_fromdense_p.bind(mat, nse=count, index_dtype=np.dtype(index_dtype))
    return data, indices, indptr


def _csr_matvec(
    data: Any, indices: Any, indptr: Any, v: Any, *, shape: tuple[int, ...], transpose: bool = False
) -> Any:
    operands = map(jnp.asarray, (data, indices, indptr, v))
    return csr_matvec_p.bind(*operands, shape=tuple(shape), transpose=transpose)


def _csr_matmat(
    data: Any, indices: Any, indptr: Any, B: Any, *, shape: tuple[int, ...], transpose: bool = False
) -> Any:
    operands = map(jnp.asarray, (data, indices, indptr, B))
    return csr_matmat_p.bind(*operands, shape=tuple(shape), transpose=transpose)
