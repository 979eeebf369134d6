"""Sparse arrays from nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, random
from meshrt.contexts import usual_promotion
from meshrt.experimental.sparse.arrays import BCOO, JAXSparse
from meshrt.experimental.sparse.compressed import BCSR, COO, CSC, CSR
from meshrt.experimental.sparse.coordinates import bcoo_sort_indices
from meshrt.transforms.vmap import vmap

__all__ = ["empty", "eye", "random_bcoo"]

_FORMATS: dict[str, Any] = {"bcoo": BCOO, "bcsr": BCSR, "coo": COO, "csc": CSC, "csr": CSR}


def _format(name: str) -> Any:
    if name not in _FORMATS:
        raise errors.ArgumentValueError(f"sparse_format={name!r} not recognized; must be one of {list(_FORMATS)}")
    return _FORMATS[name]


@usual_promotion
def empty(
    shape: Sequence[int], dtype: Any = None, index_dtype: Any = "int32", sparse_format: str = "bcoo", **kwds: Any
) -> JAXSparse:
    """A sparse array of zeros.

    Args:
      sparse_format: "bcoo", "bcsr", "coo", "csr" or "csc".
      kwds: of the format: n_batch, n_dense, nse.

    Raises:
      ArgumentValueError: another format.

    >>> sparse.empty((2, 3)).nse
    0
    """
    made: JAXSparse = _format(sparse_format)._empty(tuple(shape), dtype=dtype, index_dtype=index_dtype, **kwds)
    return made


@usual_promotion
def eye(
    N: int, M: int | None = None, k: int = 0, dtype: Any = None, index_dtype: Any = "int32",
    sparse_format: str = "bcoo", n_batch: int = 0, n_dense: int = 0,
) -> JAXSparse:  # fmt: skip
    """A sparse matrix [N, M] of ones on its k-th diagonal, in the format `sparse_format`.

    >>> sparse.eye(2).todense()
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    kind = _format(sparse_format)
    n, m, k = operator.index(N), operator.index(N if M is None else M), operator.index(k)
    if n_batch or n_dense:
        dense = jnp.eye(n, m, k, dtype=dtype)
        out: JAXSparse = kind.fromdense(dense, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype)
        return out
    places = np.arange(max(0, min(n + min(k, 0), m - max(k, 0))))
    indices = jnp.asarray(np.stack([places - min(k, 0), places + max(k, 0)], -1), index_dtype)
    mat = BCOO((jnp.ones(len(places), dtype), indices), shape=(n, m), indices_sorted=True, unique_indices=True)
    return mat if kind is BCOO else kind.from_bcoo(mat)


@usual_promotion
def random_bcoo(
    key: Any,
    shape: Sequence[int],
    *,
    dtype: Any = float,
    indices_dtype: Any = None,
    nse: float = 0.2,
    n_batch: int = 0,
    n_dense: int = 0,
    unique_indices: bool = True,
    sorted_indices: bool = False,
    generator: Callable[..., Any] = random.uniform,
    **kwds: Any,
) -> BCOO:
    """A sparse array whose coordinates and elements are drawn.

    Args:
      nse: the number of elements, or below 1 their share.
      generator: `generator(key, shape=, dtype=, **kwds)` draws elements.

    Raises:
      ArgumentValueError: numbers that do not fit the shape.

    >>> sparse.random_bcoo(meshrt.random.key(0), (4, 4), nse=3).nse
    3
    """
    sizes = tuple(map(operator.index, shape))
    n_sparse = len(sizes) - n_batch - n_dense
    if min(n_batch, n_dense, n_sparse) < 0:
        raise errors.ArgumentValueError(f"Invalid n_batch={n_batch}, n_dense={n_dense} for shape={sizes}")
    batch, sparse, dense = sizes[:n_batch], sizes[n_batch : n_batch + n_sparse], sizes[n_batch + n_sparse :]
    whole = math.prod(sparse)
    if not 0 <= nse < whole:
        raise errors.ArgumentValueError(f"got nse={nse}, expected to be between 0 and {whole}")
    count = math.ceil(nse * whole) if 0 < nse < 1 else operator.index(int(nse))
    kind = dtypes.default_int_dtype() if indices_dtype is None else indices_dtype
    if whole > np.iinfo(kind).max:
        raise errors.ArgumentValueError(f"indices_dtype={kind} does not have enough range for {whole} elements")

    def places(key: Any) -> Any:
        if not sparse:
            return jnp.zeros((count, 0), kind)
        flat = random.choice(key, whole, shape=(count,), replace=not unique_indices).astype(kind)
        return jnp.stack(jnp.unravel_index(flat, sparse), -1)

    keys = random.split(key, math.prod(batch) + 1)
    data = generator(keys[0], shape=(*batch, count, *dense), dtype=dtype, **kwds)
    indices = vmap(places)(keys[1:]).reshape(*batch, count, n_sparse)
    mat = BCOO((data, indices), shape=sizes)
    return bcoo_sort_indices(mat) if sorted_indices else mat
