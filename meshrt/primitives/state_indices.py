"""Indices into references: integers, slices and arrays, as a step of a view."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.shapes import broadcast_in_dim, reshape
from meshrt.core.trace import EVAL, Tracer, current_trace
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.dynamic_slice import dynamic_slice, dynamic_update_slice
from meshrt.primitives.elementwise import add, and_p, eq_p, lt_p, rem_p
from meshrt.primitives.gather import gather
from meshrt.primitives.gather_scatter import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.scatter import scatter_p
from meshrt.primitives.selection import select_n
from meshrt.primitives.slice import pad
from meshrt.primitives.slice import slice as static_slice
from meshrt.primitives.state_steps import Step
from meshrt.runtime.array import Array

__all__: list[str] = []


@dataclass(frozen=True)
class Slice:
    """`size` elements from `start` on, `stride` apart: a slice whose start may be traced.

    Its size may be traced only where nothing is sliced by it: in what an index map gives for a bounded dimension.

    >>> Slice(2, 3)
    Slice(start=2, size=3, stride=1)
    """

    start: Any
    size: int
    stride: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.size, Tracer) and not hasattr(type(self.size), "__index__"):
            raise errors.ArgumentTypeError(f"the size of a slice must be an integer, got {self.size!r}")
        if self.stride < 0:
            raise errors.ArgumentValueError(f"`stride` must be >= 0, got {self.stride}")

    def need_size(self) -> int:
        """The size, which what is sliced has to know; ArgumentTypeError if it is traced."""
        if isinstance(self.size, Tracer):
            raise errors.ArgumentTypeError(
                f"the size of a slice must be an int known while tracing, got {self.size!r}: only its start may be "
                "traced"
            )
        return self.size

    @property
    def is_static(self) -> bool:
        return isinstance(self.start, int)

    @property
    def is_dynamic_start(self) -> bool:
        """Whether the start is known only when the program runs."""
        return not self.is_static

    @property
    def is_dynamic_size(self) -> bool:
        """Whether the size is: only in what an index map gives."""
        return isinstance(self.size, Tracer)

    @classmethod
    def from_slice(cls, slc: builtins.slice, size: int) -> Slice:
        """What `slc` takes of a dimension of `size`.

        Raises:
          ArgumentTypeError: a bound that is traced.
          ArgumentValueError: a step below 1.
        """
        try:
            start, stop, step = slc.indices(size)
        except (TypeError, errors.ConcretizationError):
            raise errors.ArgumentTypeError(
                f"{slc} of a reference: the bounds of a slice must be ints known while tracing; write "
                "meshrt.ds(start, size) for a start that is traced"
            ) from None
        if step < 1:
            raise errors.ArgumentValueError(f"slice must have a step >= 1 (found: {step})")
        return cls(start, len(range(start, stop, step)), step)

    @property
    def extent(self) -> int:
        """How many elements lie between the first and the last one, both included."""
        return (self.size - 1) * self.stride + 1 if self.size else 0

    def beyond(self, size: int) -> int:
        """How many elements a slice whose start is a number takes beyond the end of a dimension of `size`."""
        return max(self.start + self.extent - size, 0) if self.is_static else 0

    def need_inside(self, start: int, size: int) -> None:
        """ArgumentValueError if the slice, which begins at `start`, reaches beyond the end of a dimension of `size`."""
        if start + self.extent > size:
            raise errors.ArgumentValueError(
                f"Out of bound slice: start={start}, size={self.size}, stride={self.stride}, dim={size}."
            )


def ds(start: Any, size: Any = None, stride: int | None = None) -> builtins.slice | Slice:
    """A slice by its start, which may be traced, and its size: `ds(i, 4)` is `i:i+4`; `ds(4)` is `:4`.

    >>> ds(3, 2)
    Slice(start=3, size=2, stride=1)
    """
    if start is None:
        return builtins.slice(None)
    step = 1 if stride is None else stride
    if size is None:
        if not isinstance(start, int):
            raise errors.ArgumentTypeError(f"Non-static `dslice`: ds(j) needs an int, got {start!r}; write ds(i, size)")
        return Slice(0, start, step)
    return Slice(start, size, step)


tree_util.register_pytree_node(
    Slice,
    lambda s: ((), (s.start, s.size, s.stride)) if s.is_static else ((s.start,), (None, s.size, s.stride)),
    lambda aux, leaves: Slice(leaves[0] if leaves else aux[0], *aux[1:]),
)


@dataclass(frozen=True)
class Indexer(Step):
    """`[i, 2:4, idx]`: for each dimension of `shape` a Slice or an integer index (an int, a scalar, an array).

    Arrays among the indices have one shape, `int_shape`, which is () if there are none. As in NumPy, their dimensions
    stand where the indices do if those are adjacent, and in front if not.
    """

    indices: tuple[Any, ...]
    shape: tuple[int, ...]
    int_shape: tuple[int, ...]

    @property
    def int_dims(self) -> tuple[int, ...]:
        """The dimensions with an integer index."""
        return tuple([i for i, idx in enumerate(self.indices) if type(idx) is not Slice])

    @property
    def is_trivial(self) -> bool:
        """Whether the whole is indexed."""
        return all(
            type(i) is Slice and i.is_static and i.start == 0 and i.size == n and i.stride == 1
            for i, n in zip(self.indices, self.shape)
        )

    def _position(self) -> int:
        """Where the dimensions of the integer indices stand among the others."""
        dims = self.int_dims
        if not dims or dims[-1] - dims[0] != len(dims) - 1:
            return 0
        return dims[0]

    def out_shape(self) -> tuple[int, ...]:
        sizes = tuple([i.size for i in self.indices if type(i) is Slice])
        at = self._position()
        return (*sizes[:at], *self.int_shape, *sizes[at:])

    def need_inside(self) -> None:
        """ArgumentValueError if a slice whose start is a number reaches beyond the end."""
        for i, n in zip(self.indices, self.shape):
            if type(i) is Slice and i.is_static:
                i.need_inside(i.start, n)

    def infer(self, aval: ShapedArray) -> ShapedArray:
        if aval.explicit is None:
            return aval.with_shape(self.out_shape())
        if self.int_dims:
            raise errors.ArgumentTypeError(
                f"sharded ref (array reference) can only be indexed by slices, not integers: it refers to "
                f"{aval.short()}"
            )
        for d, (s, n, axes) in enumerate(zip(self.indices, self.shape, aval.explicit.spec.partitions)):
            if axes is not None and s != Slice(0, n):
                raise errors.ArgumentValueError(
                    f"sharded ref (array reference) can only be sliced along unsharded axes, but ref of shape "
                    f"{self.shape} was sliced on axis {d}, which is sharded like {axes}"
                )
        return aval.update(shape=self.out_shape(), sharding=aval.explicit)

    # -- slices and single indices: one block

    def _is_block(self) -> bool:
        return not self.int_shape

    def _starts(self) -> list[Any]:
        raw = [i.start if type(i) is Slice else i for i in self.indices]
        as_int32 = lambda r: (
            np.int32(r) if isinstance(r, int | np.integer) else convert_element_type(r, np.dtype(np.int32))
        )
        return list(map(as_int32, raw))

    def _extents(self) -> tuple[int, ...]:
        return tuple([i.extent if type(i) is Slice else 1 for i in self.indices])

    def _strides(self) -> tuple[int, ...]:
        return tuple([i.stride if type(i) is Slice else 1 for i in self.indices])

    def _block(self, x: Any) -> Any:
        """The block from the first to the last index in every dimension."""
        if all(i.is_static if type(i) is Slice else isinstance(i, int | np.integer) for i in self.indices):
            starts = [i.start if type(i) is Slice else int(i) for i in self.indices]
            return static_slice(x, starts, [s + e for s, e in zip(starts, self._extents())])
        return dynamic_slice(x, self._starts(), self._extents())

    def _put_block(self, x: Any, block: Any) -> Any:
        if self._extents() == self.shape:
            return block
        return dynamic_update_slice(x, block, self._starts())

    def _kept(self) -> tuple[int, ...]:
        """The shape of the block without the elements that a stride leaves out."""
        return tuple([i.size if type(i) is Slice else 1 for i in self.indices])

    # -- arrays of indices

    def _around(self) -> Indexer:
        """The slices alone: every dimension with integer indices is whole."""
        whole = tuple([i if type(i) is Slice else Slice(0, n) for i, n in zip(self.indices, self.shape)])
        return Indexer(whole, self.shape, ())

    def _vectors(self) -> Any:
        """The integer indices as vectors: int32[*int_shape, number of them], negative ones counted from the end."""
        columns = []
        for d in self.int_dims:
            index, size = convert_element_type(self.indices[d], np.dtype(np.int32)), np.int32(self.shape[d])
            index = select_n(lt_p.bind(index, np.int32(0)), index, add(index, size))
            columns.append(broadcast_in_dim(index, (*self.int_shape, 1), range(aval_of(index).ndim)))
        if len(columns) == 1:
            return columns[0]
        return concatenate(columns, len(self.int_shape))

    def _numbers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(dimensions of the result that are slices, dimensions of the operand that are indexed)."""
        at, count = self._position(), len(self.int_shape)
        rank = len(self.shape) - len(self.int_dims) + count
        return tuple([i for i in range(rank) if not at <= i < at + count]), self.int_dims

    def put(self, x: Any, value: Any, scatter: Any) -> Any:
        """`x` with `value` scattered to the integer indices by a primitive; what is out of bounds is dropped."""
        around = self._around()
        inner = x if around.is_trivial else around.read(x)
        window, mapped = self._numbers()
        inner = scatter.bind(
            inner, self._vectors(), value, dimension_numbers=ScatterDimensionNumbers(window, mapped, mapped),
            indices_are_sorted=False, unique_indices=False, mode=GatherScatterMode.FILL_OR_DROP,
        )  # fmt: skip
        return inner if around.is_trivial else around.write(x, inner)

    def read(self, x: Any) -> Any:
        if self.is_trivial:
            return x
        if self._is_block():
            x = self._block(x)
            if any(s != 1 for s in self._strides()):
                x = static_slice(x, [0] * len(self.shape), aval_of(x).shape, self._strides())
            return x if not self.int_dims else reshape(x, self.out_shape())
        return self._gathered(x, "clip")

    def _gathered(self, x: Any, mode: str) -> Any:
        around = self._around()
        x = around.read(x)
        offset, mapped = self._numbers()
        sizes = [1 if d in mapped else n for d, n in enumerate(around.out_shape())]
        return gather(x, self._vectors(), GatherDimensionNumbers(offset, mapped, mapped), sizes, mode=mode)

    def places(self, numbers: Any) -> Any:
        return self.read(numbers) if self._is_block() else self._gathered(numbers, "fill")

    def write(self, x: Any, value: Any) -> Any:
        if self.is_trivial:
            return value
        if not self._is_block():
            return self.put(x, value, scatter_p)
        if self.int_dims:
            value = reshape(value, self._kept())
        if any(s != 1 for s in self._strides()):
            value = _interleaved(self._block(x), value, self._strides())
        return self._put_block(x, value)

    def show(self, atom: Any) -> str:
        return "[" + ",".join(_shown(i, n, atom) for i, n in zip(self.indices, self.shape)) + "]"


def _interleaved(block: Any, value: Any, strides: Sequence[int]) -> Any:
    """`block` with every `strides`-th element replaced by those of `value`."""
    kind = aval_of(block)
    spread = pad(value, np.zeros((), kind.dtype)[()], [(0, 0, s - 1) for s in strides])
    taken = None
    for d, s in enumerate(strides):
        if s != 1:
            place = broadcasted_iota(np.dtype(np.int32), kind.shape, d)
            here = eq_p.bind(rem_p.bind(place, np.int32(s)), np.int32(0))
            taken = here if taken is None else and_p.bind(taken, here)
    return select_n(taken, block, spread)


def _shown(index: Any, size: int, atom: Any) -> str:
    if type(index) is not Slice:
        return str(index) if isinstance(index, int) else atom(index)
    if not index.is_static:
        start = atom(index.start)
        return f"{start}:{start}+{index.size}"
    end = index.start + index.size
    return f"{index.start or ''}:{'' if end == size else end}"


tree_util.register_pytree_node(
    Indexer,
    lambda i: ((i.indices,), (i.shape, i.int_shape)),
    lambda aux, children: Indexer(tuple(children[0]), *aux),
)


def indexer(index: Any, shape: Sequence[int], *, masked: bool = False) -> Indexer:
    """The Indexer that `ref[index]` means for a reference to arrays of `shape`.

    With `masked` a slice by numbers may reach beyond the end: it is of a view, and a load or store under a mask may
    leave out what does not exist. Everybody else who reads the view looks (`Indexer.need_inside`).

    Raises:
      ArgumentValueError: more indices than dimensions, or one that is known to be out of bounds.
      ArgumentTypeError: an index that is neither a slice nor of integers.
    """
    given = index if isinstance(index, tuple) else (index,)
    shape = tuple(shape)
    if sum(i is Ellipsis for i in given) > 1:
        raise errors.ArgumentValueError("Only one ellipsis is supported.")
    at = next((k for k, i in enumerate(given) if i is Ellipsis), None)
    if at is not None:
        given = (*given[:at], *[builtins.slice(None)] * (len(shape) - len(given) + 1), *given[at + 1 :])
    if len(given) > len(shape):
        raise errors.ArgumentValueError(
            f"`indices` must not be longer than `shape`: {len(given)} indices for a reference of shape {shape}"
        )
    given = (*given, *[builtins.slice(None)] * (len(shape) - len(given)))
    indices = [_index(i, n, d, masked) for d, (i, n) in enumerate(zip(given, shape))]
    shapes = [aval_of(i).shape for i in indices if type(i) is not Slice]
    try:
        int_shape = tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise errors.ArgumentValueError(f"Cannot broadcast shapes for indexing: {shapes}") from None
    indices = [i if type(i) is Slice else _spread(i, int_shape) for i in indices]
    return Indexer(tuple(indices), shape, int_shape)


def _known(index: Any) -> int | None:
    """The number that an index is, where that is at hand: outside of programs also that of an array.

    It is looked at, not used in place of the array: one program serves for all values of this.
    """
    if isinstance(index, Array) and not (current_trace() is EVAL and index.is_fully_addressable):
        return None
    is_scalar = isinstance(index, int | np.integer) or (isinstance(index, Array | np.ndarray) and index.shape == ())
    return int(index) if is_scalar else None


def _index(index: Any, size: int, dim: int, masked: bool) -> Any:
    if isinstance(index, builtins.slice):
        return Slice.from_slice(index, size)
    if type(index) is Slice:
        start = _known(index.start) if index.need_size() and isinstance(index.size, int) else None
        if start is not None and start < 0:
            raise errors.ArgumentTypeError(f"slice of dimension {dim} of a reference got the negative start {start}")
        if start is not None and not (masked and index.is_static):
            index.need_inside(start, size)
        return index
    if isinstance(index, list):
        index = np.asarray(index)
    aval = aval_of(index) if index is not None else None
    if aval is not None and aval.dtype == np.bool_:
        raise errors.NonConcreteBooleanIndexError(
            f"Array boolean indices must be concrete; got {aval.short()} as index of dimension {dim} of a "
            "reference, whose parts have sizes known while tracing: write meshrt.numpy.where(mask, value, ref[...])"
        )
    if aval is None or not dtypes.issubdtype(aval.dtype, np.integer):
        raise errors.ArgumentTypeError(
            f"index {index!r} of dimension {dim} of a reference is neither a slice nor of integers"
            + ("; read the whole with ref[...] and add dimensions to the array" if index is None else "")
        )
    number = _known(index)
    if number is not None and not -size <= number < size:
        raise errors.ArgumentValueError(f"Out of bound indexer: idx={number}, dim={size}.")
    if isinstance(index, int | np.integer) and index < 0:
        return int(index) + size  # from the end: what reads views, chips among them, counts from the front
    return index


def _spread(index: Any, shape: tuple[int, ...]) -> Any:
    """An integer index as all of them are: of one shape."""
    kind = aval_of(index)
    if not shape or kind.shape == shape:
        return index
    index = np.int32(index) if isinstance(index, int) else index
    dims = range(len(shape) - kind.ndim, len(shape))
    keep = [i for i, n in enumerate(kind.shape) if n != 1 or shape[dims[i]] == 1]
    index = reshape(index, tuple([kind.shape[i] for i in keep])) if len(keep) < kind.ndim else index
    return broadcast_in_dim(index, shape, [dims[i] for i in keep])
