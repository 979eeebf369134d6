"""What the dimension numbers of a gather or scatter have to fulfil, said in the words of the operation's own fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.dimensions.arithmetic import is_surely
from meshrt.core.types import ShapedArray

__all__: list[str] = []


class Fields(NamedTuple):
    """How one of the operations calls the kinds of dimensions that both have."""

    op: str
    window: str
    dropped: str
    index_map: str
    batching: str
    indices_batching: str


_GATHER = Fields(
    "gather", "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
    "start_indices_batching_dims",
)  # fmt: skip
_SCATTER = Fields(
    "scatter", "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "operand_batching_dims",
    "scatter_indices_batching_dims",
)  # fmt: skip


class _Checks:
    """The conditions that gather and scatter share. `name` is the primitive's: several ones scatter."""

    def __init__(self, name: str, fields: Fields, operand: ShapedArray, indices: ShapedArray):
        self.name, self.fields, self.operand, self.indices = name, fields, operand, indices

    def refuse(self, text: str) -> NoReturn:
        where = f"{self.name} of {self.operand.short()} at indices {self.indices.short()}"
        raise errors.ArgumentTypeError(f"{where}: {text}")

    def differ(self, field: str, dims: Sequence[int]) -> None:
        if len(set(dims)) != len(dims):
            self.refuse(f"{field} in {self.fields.op} op must not repeat; got {tuple(dims)}")

    def increase(self, field: str, dims: Sequence[int]) -> None:
        if list(dims) != sorted(dims):
            self.refuse(f"{field} in {self.fields.op} op must be sorted; got {tuple(dims)}")
        self.differ(field, dims)

    def lie_below(self, field: str, dims: Sequence[int], rank: int) -> None:
        if any(not 0 <= d < rank for d in dims):
            self.refuse(f"Invalid {field} set in {self.fields.op} op; valid range is [0, {rank}), got {tuple(dims)}")

    def disjoint(self, first: str, a: Sequence[int], second: str, b: Sequence[int]) -> None:
        if set(a) & set(b):
            self.refuse(f"{first} and {second} in {self.fields.op} op must be disjoint; got {tuple(a)} and {tuple(b)}")

    def shared(
        self, dropped: Sequence[int], index_map: Sequence[int], batching: Sequence[int], other: Sequence[int]
    ) -> None:
        """All but what concerns the window. `other` are the indices' batching dimensions."""
        f, ndim, title = self.fields, self.operand.ndim, self.fields.op.capitalize()
        for field, dims in ((f.dropped, dropped), (f.batching, batching)):
            self.increase(field, dims)
            self.lie_below(field, dims, ndim)
        self.disjoint(f.dropped, dropped, f.batching, batching)
        self.disjoint(f.index_map, index_map, f.batching, batching)
        self.differ(f.indices_batching, other)
        self.lie_below(f.indices_batching, other, self.indices.ndim)
        vector = self.indices.ndim - 1
        if vector in other:
            self.refuse(f"{title} op cannot have the index vector dimension as a batching dimension; got {vector}")
        if len(index_map) != self.indices.shape[-1]:
            self.refuse(
                f"{title} op has {len(index_map)} elements in {f.index_map} and the bound of dimension "
                f"index_vector_dim={vector} of indices is {self.indices.shape[-1]}. These two numbers must be equal."
            )
        if any(not 0 <= d < ndim for d in index_map):
            kind = f"Invalid {f.index_map}" + (" mapping" if f is _SCATTER else "")
            self.refuse(f"{kind}; dimensions of the operand are [0, {ndim}), got {tuple(index_map)}")
        self.differ(f.index_map, index_map)
        self.paired(batching, other)

    def paired(self, batching: Sequence[int], other: Sequence[int]) -> None:
        """Batching dimensions of the operand and of the indices are as many and as long."""
        f, title = self.fields, self.fields.op.capitalize()
        if len(batching) != len(other):
            self.refuse(
                f"{title} op requires equal numbers of {f.batching} and {f.indices_batching}; got {tuple(batching)} "
                f"and {tuple(other)}"
            )
        sizes = [self.operand.shape[d] for d in batching], [self.indices.shape[d] for d in other]
        if sizes[0] != sizes[1]:
            self.refuse(
                f"{title} op requires operand batching dimensions and indices batching dimensions to have the same "
                f"shape; got {sizes[0]} and {sizes[1]}"
            )


def _check_integers(name: str, indices: ShapedArray) -> None:
    if indices.is_key or not dtypes.issubdtype(indices.dtype, np.integer):
        raise errors.ArgumentShapeError(f"{name}: indices must have an integer type, got {indices.short()}")
    if indices.ndim < 1:
        raise errors.ArgumentTypeError(
            f"{name} needs indices whose last dimension holds index vectors, but got a scalar {indices.short()}"
        )


def check_gather(
    operand: ShapedArray,
    indices: ShapedArray,
    window: Sequence[int],
    dropped: Sequence[int],
    index_map: Sequence[int],
    batching: Sequence[int],
    indices_batching: Sequence[int],
    sizes: Sequence[int],
) -> None:
    """Raises ArgumentTypeError unless a gather with these dimension numbers and slice sizes makes sense."""
    _check_integers("gather", indices)
    checks = _Checks("gather", _GATHER, operand, indices)
    rank = len(window) + indices.ndim - 1
    checks.increase("offset_dims", window)
    for position, d in enumerate(window):
        if not 0 <= d < rank:
            checks.refuse(
                f"Offset dimension {position} in gather op is out of bounds; got {d}, but the result has {rank} "
                "dimensions"
            )
    checks.shared(dropped, index_map, batching, indices_batching)
    if len(sizes) != operand.ndim:
        checks.refuse(
            f"Gather op must have one slice size for every input dimension; got: len(slice_sizes)={len(sizes)}, "
            f"input_shape.rank={operand.ndim}"
        )
    if len(window) + len(dropped) + len(batching) != operand.ndim:
        checks.refuse(
            "All components of the offset index in a gather op must either be a offset dimension or explicitly "
            f"collapsed/batching; got {len(window)} offset, {len(dropped)} collapsed and {len(batching)} batching "
            f"dimensions for {operand.ndim}"
        )
    # Where there is no index no window is read, of whatever size.
    nowhere = 0 in indices.shape[:-1]
    for i, (s, n) in enumerate(zip(sizes, operand.shape)):
        if s < 0 or (s > n and not nowhere):
            checks.refuse(
                f"Slice size at index {i} in gather op is out of range, must be within [0, {n} + 1), got {s}."
            )
    for position, d in enumerate(dropped):
        if sizes[d] > 1:
            checks.refuse(
                "Gather op can only collapse slice dims with bound 1, but bound is "
                f"{sizes[d]} for index {d} at position {position}."
            )
    for position, d in enumerate(batching):
        if sizes[d] > 1:
            checks.refuse(
                "Gather op can only have operand batching dims with bound 0/1, but bound is "
                f"{sizes[d]} for index {d} at position {position}."
            )


def check_scatter(
    name: str,
    operand: ShapedArray,
    indices: ShapedArray,
    updates: ShapedArray,
    window: Sequence[int],
    dropped: Sequence[int],
    index_map: Sequence[int],
    batching: Sequence[int],
    indices_batching: Sequence[int],
) -> None:
    """Raises ArgumentTypeError unless the scatter `name` with these dimension numbers makes sense."""
    _check_integers(name, indices)
    checks = _Checks(name, _SCATTER, operand, indices)
    checks.increase("update_window_dims", window)
    checks.lie_below("update_window_dims", window, updates.ndim)
    checks.shared(dropped, index_map, batching, indices_batching)
    size = len(window) + len(dropped) + len(batching)
    if size != operand.ndim:
        checks.refuse(f"Scatter op has window of size {size}; doesn't match operand of rank {operand.ndim}.")
    rank = len(window) + indices.ndim - 1
    if updates.ndim != rank:
        checks.refuse(f"Updates tensor must be of rank {rank}; got {updates.ndim}.")
    hidden = {*dropped, *batching}
    limits = [n for i, n in enumerate(operand.shape) if i not in hidden]
    bounds = [updates.shape[d] for d in window]
    if any(is_surely(lambda b=b, n=n: b > n) for b, n in zip(bounds, limits)):
        checks.refuse(
            "Bounds of the window dimensions of updates must not exceed the bounds of the corresponding dimensions of "
            f"operand, {tuple(limits)}: those of updates {updates.short()} are {tuple(bounds)}"
        )
    places = tuple(n for i, n in enumerate(updates.shape) if i not in window)
    if places != indices.shape[:-1]:
        checks.refuse(
            f"Bounds of the scatter dimensions of updates {updates.short()}, {places}, differ from those of the "
            f"indices, {indices.shape[:-1]}"
        )
