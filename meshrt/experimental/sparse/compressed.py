"""Sparse matrices by rows and columns, and by compressed rows: `COO`, `CSR`, `CSC`, and `BCSR` with batch and dense
dimensions.

They are stored as their names say, and computed with as `BCOO` arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors
from meshrt.contexts import usual_promotion
from meshrt.experimental.sparse.arrays import BCOO, JAXSparse, checked_groups, rebatched
from meshrt.experimental.sparse.coordinates import (
    bcoo_fromdense,
    bcoo_sort_indices,
    bcoo_sum_duplicates,
    bcoo_todense,
    over_batch,
    whole_batch,
)
from meshrt.experimental.sparse.products import bcoo_dot_general, matmul
from meshrt.experimental.sparse.shapes import bcoo_broadcast_in_dim, bcoo_concatenate
from meshrt.numpy.arrays import operand_array
from meshrt.tree_util import register_pytree_node_class

__all__ = [
    "BCSR", "COO", "CSC", "CSR", "bcsr_broadcast_in_dim", "bcsr_concatenate",
    "bcsr_dot_general", "bcsr_extract", "bcsr_fromdense", "bcsr_sum_duplicates",
    "bcsr_todense", "coo_fromdense", "coo_matmat", "coo_matvec", "coo_todense", "csr_fromdense", "csr_matmat",
    "csr_matvec", "csr_todense",
]  # fmt: skip


def row_numbers(pointers: Any, count: int) -> Any:
    """The row of each of `count` elements, from where rows begin [m + 1]; m behind the last."""
    return jnp.cumsum(jnp.zeros(count, pointers.dtype).at[pointers[1:]].add(1, mode="drop"))


def _pointers_of(rows: Any, size: int) -> Any:
    """Where each of `size` rows begins among elements in the order of rows, and where the last ends: [size + 1]."""
    counts = jnp.zeros(size, rows.dtype).at[rows].add(1, mode="drop")
    return jnp.concatenate([jnp.zeros(1, rows.dtype), jnp.cumsum(counts).astype(rows.dtype)])


class _Matrix(JAXSparse):
    """A matrix of three parts, the first of which is the data."""

    names: ClassVar[tuple[str, str, str]]

    def __init__(self, args: tuple[Any, Any, Any], *, shape: Sequence[int]):
        self.shape = tuple(int(n) for n in shape)
        for name, part in zip(self.names, args):
            setattr(self, name, jnp.asarray(part))

    @property
    def nse(self) -> int:
        return int(self.data.size)

    def _parts(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.names)

    def tree_flatten(self) -> tuple[Any, Any]:
        return self._parts(), self.shape

    @classmethod
    def tree_unflatten(cls, shape: Any, parts: Any) -> Any:
        new = object.__new__(cls)
        new.shape = shape
        for name, part in zip(cls.names, parts):
            setattr(new, name, part)
        return new

    def to_bcoo(self) -> BCOO:
        """The matrix by coordinates."""
        raise NotImplementedError

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> Any:
        """The matrix from one by coordinates."""
        raise NotImplementedError

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> Any:
        """The elements of a dense matrix that are not 0."""
        return cls.from_bcoo(bcoo_fromdense(mat, nse=nse, index_dtype=index_dtype))

    @classmethod
    def _empty(cls, shape: Sequence[int], *, dtype: Any = None, index_dtype: Any = "int32") -> Any:
        if len(tuple(shape)) != 2:
            raise errors.ArgumentValueError(f"{cls.__name__} must have ndim=2; got shape={tuple(shape)}")
        return cls.from_bcoo(_no_elements(shape, dtype, index_dtype))

    def todense(self) -> Any:
        return bcoo_todense(self.to_bcoo())

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, JAXSparse):
            raise errors.UnsupportedError("matmul between two sparse objects; convert both to BCOO")
        other = jnp.asarray(other)
        if other.ndim not in (1, 2):
            raise errors.UnsupportedError(f"matmul with object of shape {other.shape}")
        return matmul(self.to_bcoo(), other)


def _no_elements(shape: Sequence[int], dtype: Any, index_dtype: Any) -> BCOO:
    shape = tuple(shape)
    parts = jnp.zeros(0, dtype), jnp.zeros((0, len(shape)), index_dtype)
    return BCOO(parts, shape=shape, indices_sorted=True, unique_indices=True)


@register_pytree_node_class
class COO(_Matrix):
    """A sparse matrix by rows and columns: `COO((data, row, col), shape=shape)`, each [nse]."""

    names = ("data", "row", "col")
    row: Any
    col: Any

    def __init__(
        self, args: tuple[Any, Any, Any], *, shape: Sequence[int], rows_sorted: bool = False, cols_sorted: bool = False
    ):
        super().__init__(args, shape=shape)

    def to_bcoo(self) -> BCOO:
        return BCOO((self.data, jnp.stack([self.row, self.col], -1)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> COO:
        return cls((mat.data, mat.indices[:, 0], mat.indices[:, 1]), shape=mat.shape)

    def _sort_indices(self) -> COO:
        """The matrix with its elements in the order of rows, those of a row in that of columns."""
        return COO.from_bcoo(bcoo_sort_indices(self.to_bcoo()))

    def transpose(self, axes: Sequence[int] | None = None) -> COO:
        if axes is not None:
            raise errors.UnsupportedError("axes argument to transpose()")
        return COO((self.data, self.col, self.row), shape=self.shape[::-1])


@register_pytree_node_class
class CSR(_Matrix):
    """A sparse matrix by compressed rows: `CSR((data, indices, indptr), shape=(m, n))`, columns [nse], where rows begin
    [m + 1]."""

    names = ("data", "indices", "indptr")
    indices: Any
    indptr: Any

    def to_bcoo(self) -> BCOO:
        rows = row_numbers(self.indptr, self.nse).astype(self.indices.dtype)
        return BCOO((self.data, jnp.stack([rows, self.indices], -1)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> CSR:
        mat = bcoo_sort_indices(mat)
        return cls((mat.data, mat.indices[:, 1], _pointers_of(mat.indices[:, 0], mat.shape[0])), shape=mat.shape)

    def transpose(self, axes: Sequence[int] | None = None) -> CSC:
        if axes is not None:
            raise errors.UnsupportedError("axes argument to transpose()")
        return CSC((self.data, self.indices, self.indptr), shape=self.shape[::-1])


@register_pytree_node_class
class CSC(_Matrix):
    """A sparse matrix by compressed columns: rows [nse], where columns begin [n + 1]."""

    names = ("data", "indices", "indptr")
    indices: Any
    indptr: Any

    def to_bcoo(self) -> BCOO:
        columns = row_numbers(self.indptr, self.nse).astype(self.indices.dtype)
        return BCOO((self.data, jnp.stack([self.indices, columns], -1)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> CSC:
        turned = CSR.from_bcoo(BCOO((mat.data, mat.indices[:, ::-1]), shape=mat.shape[::-1]))
        return cls((turned.data, turned.indices, turned.indptr), shape=mat.shape)

    def transpose(self, axes: Sequence[int] | None = None) -> CSR:
        if axes is not None:
            raise errors.UnsupportedError("axes argument to transpose()")
        return CSR((self.data, self.indices, self.indptr), shape=self.shape[::-1])


@register_pytree_node_class
class BCSR(JAXSparse):
    """A sparse array by compressed rows, with batch and dense dimensions as of `BCOO` and two sparse ones.

    Args:
      args: data [*batch, nse, *dense], columns [*batch, nse], where rows begin [*batch, m + 1].
      shape: [*batch, m, n, *dense].
    """

    indices: Any
    indptr: Any

    def __init__(
        self,
        args: tuple[Any, Any, Any],
        *,
        shape: Sequence[int],
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ):
        self.data, self.indices, self.indptr = map(jnp.asarray, args)
        self.shape, self.indices_sorted, self.unique_indices = tuple(map(int, shape)), indices_sorted, unique_indices
        checked_groups("BCSR", self.data, jnp.stack([self.indices, self.indices], -1), self.shape)
        if self.indptr.shape[-1] != self.shape[self.n_batch] + 1:
            raise errors.ArgumentValueError(
                f"invalid BCSR: indptr.shape={self.indptr.shape} must end with {self.shape[self.n_batch] + 1} for "
                f"shape {self.shape}"
            )

    @property
    def nse(self) -> int:
        return int(self.indices.shape[-1])

    @property
    def n_batch(self) -> int:
        return int(self.indices.ndim - 1)

    @property
    def n_sparse(self) -> int:
        return 2

    @property
    def n_dense(self) -> int:
        return int(self.data.ndim - self.indices.ndim)

    def _parts(self) -> tuple[Any, ...]:
        return self.data, self.indices, self.indptr

    def _more(self) -> str:
        groups = (("n_batch", self.n_batch), ("n_dense", self.n_dense))
        return "".join(f", {name}={count}" for name, count in groups if count)

    def tree_flatten(self) -> tuple[Any, Any]:
        return self._parts(), (
            self.shape, self.indices_sorted, self.unique_indices, getattr(self.indices, "ndim", None)
        )  # fmt: skip

    @classmethod
    def tree_unflatten(cls, known: Any, parts: Any) -> BCSR:
        new = object.__new__(cls)
        new.data, new.indices, new.indptr = parts
        shape, new.indices_sorted, new.unique_indices, rank = known
        now = getattr(new.indices, "ndim", None)
        if rank is not None and now is not None and now != rank:
            batches = [getattr(part, "shape", ())[: now - 1] for part in parts]
            shape = (*rebatched(shape[: rank - 1], batches, now - 1), *shape[rank - 1 :])
        new.shape = shape
        return new

    def to_bcoo(self) -> BCOO:
        """The array by coordinates."""
        rows = over_batch(lambda p: row_numbers(p, self.nse), self.n_batch)(self.indptr).astype(self.indices.dtype)
        indices = jnp.stack([jnp.broadcast_to(rows, self.indices.shape), self.indices], -1)
        return BCOO(
            (self.data, indices), shape=self.shape, indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )  # fmt: skip

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> BCSR:
        """From an array by coordinates. UnsupportedError unless it has two sparse dimensions."""
        if arr.n_sparse != 2:
            raise errors.UnsupportedError(f"BSCR.from_bcoo requires n_sparse=2; got {arr.n_sparse}")
        arr = bcoo_sort_indices(arr)
        data, indices = whole_batch(arr)
        rows = arr.shape[arr.n_batch]
        pointers = over_batch(lambda r: _pointers_of(r, rows), arr.n_batch)(indices[..., 0])
        return cls(
            (data, indices[..., 1], pointers), shape=arr.shape, indices_sorted=True, unique_indices=arr.unique_indices
        )

    @classmethod
    def fromdense(
        cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_dense: int = 0, n_batch: int = 0
    ) -> BCSR:
        """The elements of a dense array that are not 0."""
        return bcsr_fromdense(mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> BCSR:
        """From a sparse matrix of SciPy's."""
        if n_dense or n_batch:
            raise errors.UnsupportedError("BCSR from_scipy_sparse with nonzero n_dense/n_batch")
        mat, kind = mat.tocsr(), index_dtype or np.int32
        return cls((mat.data, mat.indices.astype(kind), mat.indptr.astype(kind)), shape=mat.shape)

    @classmethod
    def _empty(
        cls, shape: Sequence[int], *, dtype: Any = None, index_dtype: Any = "int32", n_dense: int = 0, n_batch: int = 0,
        nse: int = 0,
    ) -> BCSR:  # fmt: skip
        return bcsr_fromdense(
            jnp.zeros(shape, dtype), nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype
        )

    def todense(self) -> Any:
        return bcsr_todense(self)

    def transpose(self, axes: Sequence[int] | None = None) -> Any:
        raise errors.UnsupportedError("Tranpose is not implemented for BCSR; use to_bcoo()")

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCSR:
        """The array with each element once."""
        return bcsr_sum_duplicates(self, nse=nse)

    def __matmul__(self, other: Any) -> Any:
        other = other if isinstance(other, JAXSparse) else operand_array("matmul", other, 1)
        out = matmul(self.to_bcoo(), other.to_bcoo() if isinstance(other, BCSR) else other)
        return BCSR.from_bcoo(out) if isinstance(out, BCOO) else out


@usual_promotion
def bcsr_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32
) -> BCSR:
    """The array by compressed rows of the elements of a dense one that are not 0; see `bcoo_fromdense`.

    >>> sparse.bcsr_fromdense(jnp.eye(3)).indptr
    Array([0, 1, 2, 3], dtype=int32)
    """
    return BCSR.from_bcoo(bcoo_fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype))


def bcsr_todense(mat: BCSR) -> Any:
    """The array with all its elements.

    >>> sparse.bcsr_todense(sparse.BCSR.fromdense(jnp.eye(2)))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return bcoo_todense(mat.to_bcoo())


@usual_promotion
def bcsr_extract(indices: Any, indptr: Any, mat: Any) -> Any:
    """The elements of a dense array at the coordinates of a sparse one, [*batch, nse, *dense].

    >>> m = sparse.BCSR.fromdense(jnp.eye(2))
    >>> sparse.bcsr_extract(m.indices, m.indptr, jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array([1., 4.], dtype=float32)
    """
    mat, indices = jnp.asarray(mat), jnp.asarray(indices)

    def one(indices: Any, pointers: Any, mat: Any) -> Any:
        return mat.at[row_numbers(pointers, indices.shape[0]), indices].get(mode="fill", fill_value=0)

    return over_batch(one, indices.ndim - 1)(indices, jnp.asarray(indptr), mat)


@usual_promotion
def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """The array with each element once, and those of equal coordinates added.

    >>> sparse.bcsr_sum_duplicates(sparse.BCSR.fromdense(jnp.eye(2))).nse
    2
    """
    return BCSR.from_bcoo(bcoo_sum_duplicates(mat.to_bcoo(), nse))


@usual_promotion
def bcsr_broadcast_in_dim(
    mat: BCSR, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any = None
) -> BCSR:
    """`bcoo_broadcast_in_dim` of an array by compressed rows; new dimensions must be batch or dense dimensions.

    >>> sparse.bcsr_broadcast_in_dim(sparse.BCSR.fromdense(jnp.eye(2)), shape=(3, 2, 2), broadcast_dimensions=(1,
    ...     2)).shape
    (3, 2, 2)
    """
    wide = bcoo_broadcast_in_dim(
        mat.to_bcoo(), shape=shape, broadcast_dimensions=broadcast_dimensions, sharding=sharding
    )
    return BCSR.from_bcoo(wide)


@usual_promotion
def bcsr_concatenate(operands: Sequence[BCSR], *, dimension: int) -> BCSR:
    """Arrays by compressed rows behind one another along a dimension; see `bcoo_concatenate`.

    >>> sparse.bcsr_concatenate([sparse.BCSR.fromdense(jnp.eye(2))] * 2, dimension=0).shape
    (4, 2)
    """
    return BCSR.from_bcoo(bcoo_concatenate([mat.to_bcoo() for mat in operands], dimension=dimension))


@usual_promotion
def bcsr_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """`bcoo_dot_general` of arrays by compressed rows.

    >>> sparse.bcsr_dot_general(sparse.BCSR.fromdense(jnp.eye(2)), jnp.ones((2, 3)), dimension_numbers=(((1,), (0,)),
    ...     ((), ()))).shape
    (2, 3)
    """
    left, right = (x.to_bcoo() if isinstance(x, BCSR) else x for x in (lhs, rhs))
    return bcoo_dot_general(
        left, right, dimension_numbers=dimension_numbers, precision=precision,
        preferred_element_type=preferred_element_type, out_sharding=out_sharding,
    )  # fmt: skip


@usual_promotion
def coo_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> COO:
    """The matrix by rows and columns of the elements of a dense one that are not 0.

    >>> sparse.coo_fromdense(jnp.eye(2)).row
    Array([0, 1], dtype=int32)
    """
    return COO.fromdense(mat, nse=nse, index_dtype=index_dtype)


def coo_todense(mat: COO) -> Any:
    """The matrix with all its elements.

    >>> sparse.coo_todense(sparse.coo_fromdense(jnp.eye(2)))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return mat.todense()


def _product(mat: _Matrix, other: Any, transpose: bool, rank: int) -> Any:
    other = jnp.asarray(other)
    if other.ndim != rank:
        raise errors.ArgumentValueError(f"needs {rank} dimensions of the dense operand, got shape {other.shape}")
    return (mat.T if transpose else mat) @ other


@usual_promotion
def coo_matvec(mat: COO, v: Any, transpose: bool = False) -> Any:
    """The product of a matrix, or of its transpose, and a vector.

    >>> sparse.coo_matvec(sparse.coo_fromdense(jnp.eye(2)), jnp.array([1.0, 2.0]))
    Array([1., 2.], dtype=float32)
    """
    return _product(mat, v, transpose, 1)


@usual_promotion
def coo_matmat(mat: COO, B: Any, *, transpose: bool = False) -> Any:
    """The product of a matrix, or of its transpose, and a dense matrix.

    >>> sparse.coo_matmat(sparse.coo_fromdense(jnp.eye(2)), jnp.ones((2, 3))).shape
    (2, 3)
    """
    return _product(mat, B, transpose, 2)


@usual_promotion
def csr_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> CSR:
    """The matrix by compressed rows of the elements of a dense one that are not 0.

    >>> sparse.csr_fromdense(jnp.eye(2)).indptr
    Array([0, 1, 2], dtype=int32)
    """
    return CSR.fromdense(mat, nse=nse, index_dtype=index_dtype)


def csr_todense(mat: CSR) -> Any:
    """The matrix with all its elements.

    >>> sparse.csr_todense(sparse.csr_fromdense(jnp.eye(2)))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return mat.todense()


@usual_promotion
def csr_matvec(mat: CSR, v: Any, transpose: bool = False) -> Any:
    """The product of a matrix, or of its transpose, and a vector.

    >>> sparse.csr_matvec(sparse.csr_fromdense(jnp.eye(2)), jnp.array([1.0, 2.0]))
    Array([1., 2.], dtype=float32)
    """
    return _product(mat, v, transpose, 1)


@usual_promotion
def csr_matmat(mat: CSR, B: Any, *, transpose: bool = False) -> Any:
    """The product of a matrix, or of its transpose, and a dense matrix.

    >>> sparse.csr_matmat(sparse.csr_fromdense(jnp.eye(2)), jnp.ones((2, 3))).shape
    (2, 3)
    """
    return _product(mat, B, transpose, 2)
