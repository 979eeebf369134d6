"""Operations on the parts of matrices by rows and columns, as primitives; see `bcoo`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt.experimental.sparse.arrays import JAXSparse as JAXSparse
from meshrt.experimental.sparse.compressed import COO, coo_matmat, coo_matvec
from meshrt.experimental.sparse.compressed import coo_fromdense as coo_fromdense
from meshrt.experimental.sparse.compressed import coo_todense as coo_todense
from meshrt.primitives.compositions import composition

__all__ = ["coo_fromdense_p", "coo_matmat_p", "coo_matvec_p", "coo_todense_p"]


class COOInfo(NamedTuple):
    """What is known of a matrix by rows and columns beside its parts."""

    shape: tuple[int, ...]
    rows_sorted: bool = False
    cols_sorted: bool = False


def _array(parts: tuple[Any, ...], spinfo: Any) -> COO:
    data, first, second = parts
    return COO((data, first, second), **COOInfo(*spinfo)._asdict())


def _vector_product(data: Any, row: Any, col: Any, v: Any, *, spinfo: Any, transpose: bool) -> Any:
    return coo_matvec(_array((data, row, col), spinfo), v, transpose)


def _matrix_product(data: Any, row: Any, col: Any, B: Any, *, spinfo: Any, transpose: bool) -> Any:
    return coo_matmat(_array((data, row, col), spinfo), B, transpose=transpose)


coo_todense_p = composition("coo_todense", lambda *parts, spinfo: _array(parts, spinfo).todense())
coo_fromdense_p = composition(
    "coo_fromdense", lambda mat, **params: list(COO.fromdense(mat, **params)._parts()), several=True
)
coo_matvec_p = composition("coo_matvec", _vector_product)
coo_matmat_p = composition("coo_matmat", _matrix_product)


def _coo_todense(data: Any, row: Any, col: Any, *, spinfo: COOInfo) -> Any:
    return coo_todense_p.bind(*map(jnp.asarray, (data, row, col)), spinfo=spinfo)


def _coo_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> tuple[Any, Any, Any]:
    mat = jnp.asarray(mat)
    count = int((mat != 0).sum()) if nse is None else int(nse)
    data, row, col = coo_fromdense_p.bind(mat, nse=count, index_dtype=np.dtype(index_dtype))
    return data, row, col


def _coo_matvec(data: Any, row: Any, col: Any, v: Any, *, spinfo: COOInfo, transpose: bool = False) -> Any:
    operands = map(jnp.asarray, (data, row, col, v))
    return coo_matvec_p.bind(*operands, spinfo=spinfo, transpose=transpose)


def _coo_matmat(data: Any, row: Any, col: Any, B: Any, *, spinfo: COOInfo, transpose: bool = False) -> Any:
    operands = map(jnp.asarray, (data, row, col, B))
    return coo_matmat_p.bind(*operands, spinfo=spinfo, transpose=transpose)
