"""What `sparsify` knows of values: arrays by their places in a list of buffers.

Sparse arrays that name the same place for their coordinates are known to have the same ones, so that their sum and
their product are those of their elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.sparse.arrays import BCOO
from meshrt.experimental.sparse.compressed import BCSR
from meshrt.tree_util import tree_map

__all__ = [
    "SparsifyEnv", "SparsifyValue", "arrays_to_spvalues", "is_sparse_array", "spvalues_to_arrays", "spvalues_to_avals",
]  # fmt: skip


class SparsifyValue(NamedTuple):
    """An array, by the places of its parts in a `SparsifyEnv`: dense ones have data only."""

    shape: tuple[int, ...]
    data_ref: int | None
    indices_ref: int | None = None
    indptr_ref: int | None = None
    indices_sorted: bool | None = False
    unique_indices: bool | None = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def is_sparse(self) -> bool:
        return self.indices_ref is not None

    def is_dense(self) -> bool:
        return self.indices_ref is None

    def is_bcoo(self) -> bool:
        return self.is_sparse() and self.indptr_ref is None

    def is_bcsr(self) -> bool:
        return self.is_sparse() and self.indptr_ref is not None


class SparsifyEnv:
    """The buffers that values refer to."""

    _buffers: list[Any]

    def __init__(self, bufs: Iterable[Any] = ()):
        self._buffers = list(bufs)

    def _place(self, what: str, part: Any, ref: int | None) -> int:
        """Where a part is, which is given or is in the list already."""
        if (part is None) == (ref is None):
            raise errors.ArgumentValueError(f"SparsifyEnv.sparse: give either {what} or {what}_ref")
        if ref is not None:
            if not 0 <= ref < len(self._buffers):
                raise errors.ArgumentValueError(f"SparsifyEnv.sparse: {what}_ref={ref} of {len(self._buffers)} buffers")
            return ref
        self._buffers.append(jnp.asarray(part))
        return len(self._buffers) - 1

    def _part(self, what: str, ref: int | None) -> Any:
        if ref is None:
            raise errors.InternalError(f"a value without {what} was asked for them")
        return self._buffers[ref]

    def data(self, spvalue: SparsifyValue) -> Any:
        """The elements: all of a dense value."""
        return self._part("data", spvalue.data_ref)

    def indices(self, spvalue: SparsifyValue) -> Any:
        """The coordinates of a sparse value."""
        return self._part("indices", spvalue.indices_ref)

    def indptr(self, spvalue: SparsifyValue) -> Any:
        """Where the rows of a value by compressed rows begin."""
        return self._part("indptr", spvalue.indptr_ref)

    def dense(self, data: Any) -> SparsifyValue:
        """A new dense value."""
        return SparsifyValue(np.shape(data), self._place("data", data, None))

    def sparse(
        self, shape: tuple[int, ...], data: Any = None, indices: Any = None, indptr: Any = None, *,
        data_ref: int | None = None, indices_ref: int | None = None, indptr_ref: int | None = None,
        indices_sorted: bool | None = False, unique_indices: bool | None = False,
    ) -> SparsifyValue:  # fmt: skip
        """A new sparse value, each of whose parts is given or is the buffer at a place.

        Raises:
          ArgumentValueError: a part that is neither or both, or a place that there is not.
        """
        data_ref, indices_ref = self._place("data", data, data_ref), self._place("indices", indices, indices_ref)
        if indptr is not None or indptr_ref is not None:
            indptr_ref = self._place("indptr", indptr, indptr_ref)
        return SparsifyValue(tuple(shape), data_ref, indices_ref, indptr_ref, indices_sorted, unique_indices)


def is_sparse_array(x: Any) -> bool:
    """Whether x is an array of a format that `sparsify` computes with."""
    return isinstance(x, BCOO | BCSR)


def arrays_to_spvalues(spenv: SparsifyEnv, args: Any) -> Any:
    """A pytree of sparse and dense arrays, with values of `spenv` in their places."""

    def value(x: Any) -> SparsifyValue:
        if not is_sparse_array(x):
            return spenv.dense(x)
        known = {"indices_sorted": x.indices_sorted, "unique_indices": x.unique_indices}
        return spenv.sparse(x.shape, x.data, x.indices, x.indptr if isinstance(x, BCSR) else None, **known)

    return tree_map(value, args, is_leaf=is_sparse_array)


def _is_value(x: Any) -> bool:
    return isinstance(x, SparsifyValue)


def spvalues_to_arrays(spenv: SparsifyEnv, spvalues: Any) -> Any:
    """The inverse of `arrays_to_spvalues`."""

    def array(v: SparsifyValue) -> Any:
        if v.is_dense():
            return spenv.data(v)
        known = {"indices_sorted": bool(v.indices_sorted), "unique_indices": bool(v.unique_indices)}
        if v.is_bcsr():
            return BCSR((spenv.data(v), spenv.indices(v), spenv.indptr(v)), shape=v.shape, **known)
        return BCOO((spenv.data(v), spenv.indices(v)), shape=v.shape, **known)

    return tree_map(array, spvalues, is_leaf=_is_value)


def spvalues_to_avals(spenv: SparsifyEnv, spvalues: Any) -> Any:
    """The types that values have where nothing is known of their being sparse."""

    def aval(v: SparsifyValue) -> ShapedArray:
        data = aval_of(spenv.data(v))
        return ShapedArray(v.shape, data.dtype, data.weak_type)

    return tree_map(aval, spvalues, is_leaf=_is_value)
