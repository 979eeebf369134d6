"""Methods and operators of `BCOO`, from the functions beside this file."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.contexts import usual_promotion
from meshrt.experimental.sparse import coordinates, products, shapes
from meshrt.experimental.sparse.arrays import BCOO, JAXSparse
from meshrt.experimental.sparse.transform import sparsify

__all__: list[str] = []


def _transpose(self: BCOO, axes: Sequence[int] | None = None) -> BCOO:
    """The array with its dimensions in another order, by default the reverse."""
    order = range(self.ndim)[::-1] if axes is None else [a % self.ndim for a in axes]
    return shapes.bcoo_transpose(self, permutation=tuple(order))


def _sum(self: BCOO, axis: Any = None) -> Any:
    """The sum over some dimensions, sparse; over all, which is the default, a dense scalar."""
    axes = range(self.ndim) if axis is None else (axis,) if np.ndim(axis) == 0 else axis
    total = shapes.bcoo_reduce_sum(self, axes=tuple(a % self.ndim for a in axes))
    return total if total.shape else total.todense()


def _reshape(self: BCOO, *args: Any) -> BCOO:
    """The array in another shape; -1 stands for what is left."""
    sizes = tuple(args[0]) if len(args) == 1 and np.iterable(args[0]) else args
    if -1 in sizes:
        rest = self.size // int(np.prod([n for n in sizes if n != -1]))
        sizes = tuple(rest if n == -1 else n for n in sizes)
    return shapes.bcoo_reshape(self, new_sizes=sizes)


def _astype(self: BCOO, dtype: Any) -> BCOO:
    """The array of another dtype."""
    return _mapped(self, lambda data: data.astype(dtype))


def _mapped(mat: BCOO, f: Callable[[Any], Any]) -> BCOO:
    return BCOO(
        (f(mat.data), mat.indices), shape=mat.shape, indices_sorted=mat.indices_sorted,
        unique_indices=mat.unique_indices,
    )  # fmt: skip


def _sum_duplicates(self: BCOO, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
    """The array with every coordinate once, and without zeros unless they are to stay."""
    merge = coordinates.bcoo_eliminate_zeros if remove_zeros else coordinates.bcoo_sum_duplicates
    return merge(self, nse=nse)


def _from_scipy_sparse(
    cls: type[BCOO], mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0
) -> BCOO:
    """From a sparse matrix of SciPy's."""
    if n_dense or n_batch:
        raise errors.UnsupportedError("BCOO.from_scipy_sparse with nonzero n_dense/n_batch")
    mat = mat.tocoo()
    indices = np.column_stack([mat.row, mat.col]).astype(index_dtype or np.int32)
    return cls((mat.data, indices), shape=mat.shape)


def _empty(
    cls: type[BCOO], shape: Sequence[int], *, dtype: Any = None, index_dtype: Any = "int32", n_dense: int = 0,
    n_batch: int = 0, nse: int = 0,
) -> BCOO:  # fmt: skip
    shape = tuple(shape)
    n_sparse = len(shape) - n_dense - n_batch
    if min(n_sparse, n_dense, n_batch, nse) < 0:
        raise errors.ArgumentValueError(
            f"Invalid inputs: shape={shape}, n_dense={n_dense}, n_batch={n_batch}, nse={nse}"
        )
    batch, sparse, dense = shape[:n_batch], shape[n_batch : n_batch + n_sparse], shape[n_batch + n_sparse :]
    indices = jnp.broadcast_to(jnp.array(sparse, index_dtype), (*batch, nse, n_sparse))
    parts = jnp.zeros((*batch, nse, *dense), dtype), indices
    return cls(parts, shape=shape, indices_sorted=True, unique_indices=True)


def _product(self: BCOO, other: Any) -> Any:
    if isinstance(other, BCOO):
        return _same_shape(products.bcoo_multiply_sparse, self, other)
    return NotImplemented if isinstance(other, JAXSparse) else products.multiplied(self, other)


def _same_shape(f: Callable[..., BCOO], x: BCOO, y: BCOO) -> BCOO:
    shape = jnp.broadcast_shapes(x.shape, y.shape)
    grown = [
        m if m.shape == shape
        else shapes.bcoo_broadcast_in_dim(
            m, shape=shape, broadcast_dimensions=range(len(shape) - m.ndim, len(shape))
        )
        for m in (x, y)
    ]  # fmt: skip
    return f(*grown)


def _total(self: BCOO, other: Any) -> Any:
    if isinstance(other, BCOO):
        return _same_shape(products.bcoo_add, self, other)
    return NotImplemented if isinstance(other, JAXSparse) else products.add_dense(self, other)


def _less(self: BCOO, other: Any) -> Any:
    if not isinstance(other, BCOO):
        raise errors.UnsupportedError("Subtraction between sparse and dense array: use todense() before.")
    return _total(self, _mapped(other, operator.neg))


def _refused(operation: str) -> Callable[[BCOO, Any], Any]:
    """Of an operator whose results would be dense."""

    def refuse(self: BCOO, other: Any) -> Any:
        raise errors.UnsupportedError(
            f"sparse rule for {operation} is not implemented because it would result in dense output. If this is your "
            "intent, use todense() to convert your arguments to dense matrices."
        )

    return refuse


def _quotient(self: BCOO, other: Any) -> Any:
    if isinstance(other, JAXSparse):
        raise errors.UnsupportedError("division by a sparse array is not implemented; most quotients are infinite")
    return products.divide_dense(self, other)


def _power(self: BCOO, exponent: Any) -> BCOO:
    if not isinstance(exponent, int) or exponent < 1:
        raise errors.UnsupportedError(f"powers of a sparse array need exponents that are positive ints, got {exponent}")
    return _mapped(coordinates.bcoo_sum_duplicates(self) if not self.unique_indices else self, lambda x: x**exponent)


def _matmul(self: BCOO, other: Any) -> Any:
    return products.matmul(self, other if isinstance(other, BCOO) else jnp.asarray(other))


def _rmatmul(self: BCOO, other: Any) -> Any:
    return products.matmul(jnp.asarray(other), self)


_BASIC = (int, slice, np.integer, type(None), type(...))


@usual_promotion
def _getitem(self: BCOO, index: Any) -> BCOO:
    """Part of the array, as of NumPy's: ints, slices, None, Ellipsis, and arrays of ints or bools.

    Raises:
      UnsupportedError: an index is a sparse array.
      ArgumentValueError: more indices than dimensions.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(e, JAXSparse) for e in entries):
        raise errors.UnsupportedError("sparse arrays are no indices; use todense()")
    if any(
        not isinstance(e, int | slice | np.integer | type(None) | type(...)) or isinstance(e, bool) for e in entries
    ):
        taken = sparsify(lambda x: x[index])(self)
        return taken if isinstance(taken, BCOO) else coordinates.bcoo_fromdense(taken)
    used = sum(e is not None and e is not ... for e in entries)
    if used > self.ndim:
        raise errors.JAXIndexError(f"Too many indices for array: {used} indices for {self.ndim} dimensions")
    if ... not in entries:
        entries.append(...)
    at = entries.index(...)
    entries[at : at + 1] = [slice(None)] * (self.ndim - used)
    return _sliced(self, entries)


def _iterated(self: BCOO) -> Iterator[BCOO]:
    return iter([_getitem(self, i) for i in range(self.shape[0])])


def _sliced(mat: BCOO, entries: list[Any]) -> BCOO:
    begin: list[int] = []
    end: list[int] = []
    by: list[int] = []
    turned, dropped, places = [], [], []
    out = axis = 0
    for e in entries:
        if e is None:
            out += 1
            continue
        size = mat.shape[axis]
        if isinstance(e, slice):
            start, stop, step = e.indices(size)
            count = len(range(start, stop, step))
            low, high = (start, stop) if step > 0 else (start + (count - 1) * step, start + 1)
            begin, end, by = [*begin, low if count else 0], [*end, max(low, high) if count else 0], [*by, abs(step)]
            turned += [axis] if step < 0 else []
            places.append(out)
            out += 1
        else:
            place = operator.index(e)
            if not -size <= place < size:
                raise errors.JAXIndexError(f"index {place} is out of bounds for axis {axis} with size {size}")
            begin, end, by = [*begin, place % size], [*end, place % size + 1], [*by, 1]
            dropped.append(axis)
        axis += 1
    part = shapes.bcoo_slice(mat, start_indices=begin, limit_indices=end, strides=by)
    part = shapes.bcoo_rev(part, turned) if turned else part
    part = shapes.bcoo_squeeze(part, dimensions=dropped) if dropped else part
    if out == part.ndim:
        return part
    sizes = [1] * out
    for n, p in zip(part.shape, places):
        sizes[p] = n
    return shapes.bcoo_broadcast_in_dim(part, shape=sizes, broadcast_dimensions=places)


_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_METHODS: dict[str, Any] = {
    "todense": coordinates.bcoo_todense, "sort_indices": coordinates.bcoo_sort_indices,
    "update_layout": coordinates.bcoo_update_layout, "fromdense": staticmethod(coordinates.bcoo_fromdense),
    "from_scipy_sparse": classmethod(_from_scipy_sparse), "_empty": classmethod(_empty), "transpose": _transpose,
    "sum": _sum, "reshape": _reshape, "astype": _astype, "sum_duplicates": _sum_duplicates, "__mul__": _product,
    "__rmul__": _product, "__add__": _total, "__radd__": _total, "__sub__": _less, "__truediv__": _quotient,
    "__pow__": _power, "__matmul__": _matmul, "__rmatmul__": _rmatmul, "__getitem__": _getitem,
    "__neg__": lambda self: _mapped(self, operator.neg), "__pos__": lambda self: self,
    "__iter__": _iterated, "__rsub__": _less, "__rtruediv__": _refused("div"), "__rpow__": _refused("pow"),
    **{f"__{op.__name__}__": _refused(op.__name__) for op in _COMPARISONS},
    "__abs__": lambda self: _mapped(coordinates.bcoo_sum_duplicates(self), lax.abs),
}  # fmt: skip

for _name, _method in _METHODS.items():
    setattr(BCOO, _name, _method)
