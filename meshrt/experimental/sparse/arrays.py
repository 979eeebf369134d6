"""Sparse arrays by coordinates.

A `BCOO` has three groups of dimensions: `n_batch` that are stored as a whole and have coordinates of their own for
every element, then `n_sparse` that coordinates are of, then `n_dense` that are stored as a whole for every coordinate.

    data     [*batch, nse, *dense]      nse: how many elements are specified
    indices  [*batch, nse, n_sparse]    outside the array: nothing is specified

The batch dimensions of both may be 1 where all are alike. Coordinates may occur several times; their elements are
added.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors
from meshrt.core.trace import Tracer
from meshrt.tree_util import register_pytree_node_class

__all__ = [
    "BCOO",
    "CuSparseEfficiencyWarning",
    "JAXSparse",
    "SparseEfficiencyError",
    "SparseEfficiencyWarning",
    "SparseInfo",
    "checked_groups",
    "rebatched",
]


class SparseEfficiencyError(errors.MeshrtError, ValueError):
    """A layout that would store many more elements than the array has."""


class SparseEfficiencyWarning(UserWarning):
    """A layout that stores many more elements than the array has."""


class CuSparseEfficiencyWarning(SparseEfficiencyWarning):
    """A program that has no kernel of a GPU's library for sparse matrices. meshrt, which uses none, never warns."""


class SparseInfo(NamedTuple):
    """What is known of a sparse array beside its parts."""

    shape: tuple[int, ...]
    indices_sorted: bool = False
    unique_indices: bool = False


class JAXSparse:
    """What all sparse arrays have."""

    data: Any
    shape: tuple[int, ...]
    __hash__ = None  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """The number of elements, specified or not."""
        return int(np.prod(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nse(self) -> int:
        """The number of elements that are specified."""
        raise NotImplementedError

    def todense(self) -> Any:
        """The array with all its elements."""
        raise NotImplementedError

    def transpose(self, axes: Sequence[int] | None = None) -> Any:
        """The array with its dimensions in another order, by default the reverse."""
        raise NotImplementedError

    @property
    def T(self) -> Any:
        return self.transpose()

    def block_until_ready(self) -> Any:
        """The array, when its parts have been computed."""
        for part in self._parts():
            part.block_until_ready()
        return self

    def _parts(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            text = f"{type(self).__name__}({self.dtype}{list(self.shape)}, nse={self.nse}{self._more()})"
            return f"{type(self.data).__name__}[{text}]" if isinstance(self.data, Tracer) else text
        except (AttributeError, IndexError, TypeError):  # its parts are no arrays: a tree is being walked
            return f"{type(self).__name__}(<invalid>)"

    def _more(self) -> str:
        return ""

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        """The sum over dimensions, of formats that have it."""
        raise errors.UnsupportedError(f"{type(self)}.sum: convert the array to BCOO")


def _lacks(name: str) -> Any:
    """An operator that a format does not have."""

    def operation(self: JAXSparse, *_: Any) -> Any:
        raise errors.UnsupportedError(f"{type(self)}.{name}: convert the array to BCOO, or to a dense one (todense)")

    operation.__name__ = name
    return operation


for _operator in ["getitem", "neg", "pos", "add", "radd", "sub", "rsub", "mul", "rmul", "matmul", "rmatmul"]:
    setattr(JAXSparse, f"__{_operator}__", _lacks(f"__{_operator}__"))


@register_pytree_node_class
class BCOO(JAXSparse):
    """A sparse array by coordinates, with batch and dense dimensions: see the module.

    Args:
      args: data [*batch, nse, *dense] and indices [*batch, nse, n_sparse].
      shape: of the whole, [*batch, *sparse, *dense].
      indices_sorted: whether coordinates are in lexicographic order.
      unique_indices: whether none occurs twice.

    Raises:
      ArgumentValueError: parts that do not fit one another or the shape.

    >>> import meshrt.numpy as mnp
    >>> from meshrt.experimental.sparse import BCOO
    >>> m = BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> m
    BCOO(float32[2, 2], nse=2)
    >>> m @ mnp.array([1.0, 10.0])
    Array([20.,  3.], dtype=float32)
    """

    indices: Any
    indices_sorted: bool
    unique_indices: bool
    # Operators of NumPy's arrays leave it to this one; of other formats they say what is lacking.
    __array_priority__ = 100

    def __init__(
        self,
        args: tuple[Any, Any],
        *,
        shape: Sequence[int],
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ):
        self.data, self.indices = map(jnp.asarray, args)
        self.shape = tuple(int(n) for n in shape)
        self.indices_sorted, self.unique_indices = indices_sorted, unique_indices
        checked_groups("BCOO", self.data, self.indices, self.shape)

    @property
    def nse(self) -> int:
        return int(self.indices.shape[-2])

    @property
    def n_batch(self) -> int:
        return int(self.indices.ndim - 2)

    @property
    def n_sparse(self) -> int:
        return int(self.indices.shape[-1])

    @property
    def n_dense(self) -> int:
        return int(self.data.ndim - 1 - self.n_batch)

    @property
    def info(self) -> SparseInfo:
        return SparseInfo(self.shape, self.indices_sorted, self.unique_indices)

    def _parts(self) -> tuple[Any, ...]:
        return self.data, self.indices

    def _more(self) -> str:
        groups = (("n_batch", self.n_batch), ("n_dense", self.n_dense))
        return "".join(f", {name}={count}" for name, count in groups if count)

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.data, self.indices), (*self.info, getattr(self.indices, "ndim", None))

    @classmethod
    def tree_unflatten(cls, known: Any, parts: Any) -> BCOO:
        """The array of other parts. What maps over batch dimensions takes them away from the parts or adds them; the
        shape follows."""
        shape, indices_sorted, unique_indices, rank = known
        new = object.__new__(cls)
        new.data, new.indices = parts
        new.indices_sorted, new.unique_indices = indices_sorted, unique_indices
        now = getattr(new.indices, "ndim", None)
        if rank is not None and now is not None and now != rank:
            batches = [getattr(part, "shape", ())[: now - 2] for part in parts]
            shape = (*rebatched(shape[: rank - 2], batches, now - 2), *shape[rank - 2 :])
        new.shape = shape
        return new


def rebatched(old: tuple[int, ...], parts: Sequence[tuple[int, ...]], count: int) -> tuple[int, ...]:
    """The batch dimensions of an array whose parts have lost or got some, so that there are `count`.

    `parts` are those of the parts, each as large as the array's or 1. Of several possibilities it is that with most
    dimensions as large as they were, then that in which the first ones came or went.
    """
    now = tuple(max(sizes) for sizes in zip(*parts))
    fewer, more = (now, old) if count < len(old) else (old, now)
    best: tuple[int, ...] = ()
    most = -1
    for kept in reversed(list(itertools.combinations(range(len(more)), len(fewer)))):
        pairs = [(more[k], n) for k, n in zip(kept, fewer)]
        alike = sum(a == b for a, b in pairs)
        if alike > most and all(a == b or 1 in (a, b) for a, b in pairs):
            most, best = alike, kept
    if count < len(old):
        return tuple(old[k] for k in best)
    sizes = dict(zip(best, old))
    return tuple(sizes.get(i, n) for i, n in enumerate(now))


def checked_groups(name: str, data: Any, indices: Any, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(n_batch, n_sparse, n_dense) of parts.

    Raises:
      ArgumentValueError: they do not fit one another or the shape.
    """

    def refuse(what: str) -> errors.ArgumentValueError:
        return errors.ArgumentValueError(
            f"invalid {name}: {what}, got data.shape={data.shape}, indices.shape={indices.shape}, shape={shape}"
        )

    if indices.ndim < 2:
        raise refuse("indices must have a dimension of elements and one of coordinates")
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise refuse(f"indices must be integers, not {indices.dtype}")
    n_batch, n_sparse = indices.ndim - 2, indices.shape[-1]
    n_dense = len(shape) - n_batch - n_sparse
    if n_dense < 0 or data.ndim != n_batch + 1 + n_dense:
        raise refuse("data, indices and shape have ranks that do not fit")
    if data.shape[n_batch] != indices.shape[n_batch]:
        raise refuse("data and indices must have the same number of elements")
    for part in (data, indices):
        if any(n not in (1, whole) for n, whole in zip(part.shape[:n_batch], shape)):
            raise refuse("batch dimensions must be those of the shape, or 1")
    if data.shape[n_batch + 1 :] != shape[n_batch + n_sparse :]:
        raise refuse("dense dimensions of data must be those of the shape")
    return n_batch, n_sparse, n_dense
