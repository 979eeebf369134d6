"""Recognising gathers and scatters at indices known at compile time as strided slices, and updates of strided slices.

Frontends write `x.at[1:-1].set(y)`, `x.at[::2, 1::2].add(y)` and `x[jnp.arange(0, n, 3)]` as scatters and gathers whose
index tensors are computed from constants and iotas. Following that computation, an index tensor is known as an
arithmetic progression along each of its dimensions (`_Line`), and the operation as a slice with a stride along each
dimension of the indexed tensor (`StridedSlice`). `static_gather` partitions them so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxlib.mlir import ir

from propagation.attributes import GatherDims, ScatterDims, gather_dims, integer, integers, scatter_dims
from propagation.program import Op, Value

from ..heuristics import ANALYSIS_STEPS, PROGRESSION_ELEMENTS
from .constants import bounds_of, scalar_constant

__all__ = ["StridedSlice", "read", "written"]


class StridedSlice(NamedTuple):
    """Positions start + k * step of a dimension, for k < length; `along` is the dimension of the smaller tensor that
    counts k, None if it has none (then length is 1). Rows 1, 3, 5 of x in `x.at[1:7:2].set(y)`: StridedSlice(0, 1, 2,
    3)."""

    along: int | None
    start: int
    step: int
    length: int

    @property
    def first(self) -> int:
        """The least of the positions."""
        return min(self.start, self.last)

    @property
    def last(self) -> int:
        """The position of k = length - 1."""
        return self.start + (self.length - 1) * self.step

    def is_whole(self, size: int) -> bool:
        """Whether these are all positions of a dimension of `size`, in order."""
        return self.start == 0 and self.length == size and (self.step == 1 or size == 1)

    def fits(self, size: int) -> bool:
        """Whether all positions lie in a dimension of `size`."""
        return min(self.start, self.last) >= 0 and max(self.start, self.last) < size


class _Line(NamedTuple):
    """The elements of an integer tensor as an affine function of their position p: first + sum of steps[d] * p[d]."""

    first: int
    steps: tuple[int, ...]


# -- what an index tensor holds -------------------------------------------------------------------------------


def _line(value: Value, depth: int = ANALYSIS_STEPS) -> _Line | None:
    """The elements of `value`, if they are known to be affine in their position and do not overflow their type."""
    if not value.type.dtype.startswith(("i", "ui")) or value.type.dtype == "i1" or value.op is None or not depth:
        return None
    number = scalar_constant(value)
    if number is not None:
        return _Line(int(number), (0,) * len(value.type.shape))
    found = _made(value, value.op, depth)
    if found is None:
        return None
    low, high = _range(found, value.type.shape)
    least, most = bounds_of(value.type.dtype)
    return found if least <= low and high <= most else None


def _lines(values: Sequence[Value], depth: int = ANALYSIS_STEPS) -> list[_Line] | None:
    """The numbers of several values; None unless those of all are known."""
    out = []
    for v in values:
        line = _line(v, depth)
        if line is None:
            return None
        out.append(line)
    return out


def _range(line: _Line, shape: tuple[int, ...]) -> tuple[int, int]:
    ends = [step * max(0, n - 1) for step, n in zip(line.steps, shape)]
    return line.first + sum(min(0, e) for e in ends), line.first + sum(max(0, e) for e in ends)


_FOLLOWED = frozenset(
    ("add", "broadcast_in_dim", "convert", "multiply", "reshape", "reverse", "slice", "subtract", "transpose")
)


def _made(value: Value, op: Op, depth: int) -> _Line | None:
    name, shape = op.name.partition(".")[2], value.type.shape
    if name == "constant":
        return _literal(op, shape)
    if name == "iota":
        d = integer(op.attrs["iota_dimension"])
        return _Line(0, tuple(int(i == d) for i in range(len(shape))))
    if name == "select":
        taken = _decided(op.operands[0], depth - 1)
        return None if taken is None else _line(op.operands[1 if taken else 2], depth - 1)
    if name not in _FOLLOWED:
        return None
    lines = _lines(op.operands, depth - 1)
    if lines is None:
        return None
    a, b, old = lines[0], lines[-1], op.operands[0].type.shape
    if name == "convert":
        return a
    if name == "transpose":
        return _Line(a.first, tuple(a.steps[d] for d in integers(op.attrs["permutation"])))
    if name == "reverse":
        back = {d: a.steps[d] for d in integers(op.attrs["dimensions"])}
        first = a.first + sum(step * (old[d] - 1) for d, step in back.items())
        return _Line(first, tuple(-step if d in back else step for d, step in enumerate(a.steps)))
    if name == "slice":
        starts, strides = integers(op.attrs["start_indices"]), integers(op.attrs["strides"])
        first = a.first + sum(step * s for step, s in zip(a.steps, starts))
        return _Line(first, tuple(step * k if n > 1 else 0 for step, k, n in zip(a.steps, strides, shape)))
    if name == "broadcast_in_dim":
        place = dict(zip(integers(op.attrs["broadcast_dimensions"]), zip(a.steps, old)))
        steps = [place.get(d, (0, 1)) for d in range(len(shape))]
        return _Line(a.first, tuple(step if n > 1 else 0 for step, n in steps))
    if name == "reshape":
        return _renamed(a, old, shape)
    if name == "multiply":
        if any(a.steps) and any(b.steps):
            return None
        return _Line(a.first * b.first, tuple(x * b.first + y * a.first for x, y in zip(a.steps, b.steps)))
    sign = 1 if name == "add" else -1
    return _Line(a.first + sign * b.first, tuple(x + sign * y for x, y in zip(a.steps, b.steps)))


def _literal(op: Op, shape: tuple[int, ...]) -> _Line | None:
    attr = op.attrs["value"]
    if not isinstance(attr, ir.DenseIntElementsAttr) or not 0 < op.results[0].type.size <= PROGRESSION_ELEMENTS:
        return None
    numbers = np.array(attr).astype(np.int64).reshape(shape)
    first = int(numbers.reshape(-1)[0])
    zero = (0,) * len(shape)
    steps = [int(numbers[(*zero[:d], 1, *zero[d + 1 :])]) - first if n > 1 else 0 for d, n in enumerate(shape)]
    expected = first + sum((s * g for s, g in zip(steps, np.indices(shape))), np.zeros(shape, np.int64))
    return _Line(first, tuple(steps)) if (numbers == expected).all() else None


def _renamed(line: _Line, old: tuple[int, ...], new: tuple[int, ...]) -> _Line | None:
    """The line after a reshape that only adds or drops dimensions of size 1."""
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return None
    kept = iter([s for s, n in zip(line.steps, old) if n != 1])
    return _Line(line.first, tuple(next(kept) if n != 1 else 0 for n in new))


def _decided(value: Value, depth: int) -> bool | None:
    """The result of a comparison of known numbers, if it is the same for all elements."""
    op = value.op
    if op is None or op.name != "stablehlo.compare":
        return None
    lines = _lines(op.operands, depth)
    if lines is None:
        return None
    a, b = lines
    low, high = _range(
        _Line(a.first - b.first, tuple(x - y for x, y in zip(a.steps, b.steps))), op.operands[0].type.shape
    )
    direction = next((n for n in ("LT", "LE", "GT", "GE") if n in str(op.attrs["comparison_direction"])), "")
    outcomes = {
        "LT": (high < 0, low >= 0), "LE": (high <= 0, low > 0), "GT": (low > 0, high <= 0), "GE": (low >= 0, high < 0),
    }  # fmt: skip
    yes, no = outcomes.get(direction, (False, False))
    return True if yes else False if no else None


def _columns(indices: Value, vector: int, count: int) -> list[_Line] | None:
    """The lines of each of the `count` columns (along dimension `vector`) of an index tensor."""
    shape, op = indices.type.shape, indices.op
    if vector == len(shape):
        line = _line(indices)
        return None if line is None else [line]
    without = lambda steps: (*steps[:vector], *steps[vector + 1 :])
    if op is not None and op.name == "stablehlo.concatenate" and integer(op.attrs["dimension"]) == vector:
        if any(v.type.shape[vector] != 1 for v in op.operands):
            return None
        lines = _lines(op.operands)
        return None if lines is None else [_Line(line.first, without(line.steps)) for line in lines]
    line = _line(indices)
    if line is not None:
        return [_Line(line.first + k * line.steps[vector], without(line.steps)) for k in range(count)]
    if (
        len(shape) == 1
        and op is not None
        and op.name == "stablehlo.constant"
        and op.results[0].type.size <= PROGRESSION_ELEMENTS
    ):
        if isinstance(op.attrs["value"], ir.DenseIntElementsAttr):
            return [_Line(int(n), ()) for n in np.array(op.attrs["value"]).reshape(-1)]
    return None


# -- where it leads -------------------------------------------------------------------------------------------


class _Windows(NamedTuple):
    """The dimension numbers of a gather or scatter in one vocabulary: the large tensor is the gather's operand (the
    scatter's target), the small one the gather's result (the scatter's updates)."""

    inner: tuple[int, ...]  # dimensions of the small tensor inside of windows (offset_dims, update_window_dims)
    absent: tuple[int, ...]  # those of the large one that windows lack (collapsed_slice_dims, inserted_window_dims)
    batching: dict[int, int]  # batching dimensions: of the large tensor -> of the indices
    mapped: tuple[int, ...]  # dimension of the large tensor that each column of the indices indexes
    vector: int


def read(op: Op) -> tuple[StridedSlice, ...] | None:
    """A gather as strided slices: for every dimension of its operand the positions that the result holds; `along` are
    dimensions of the result. None unless all indices are known, and each of the result's dimensions is one slice's."""
    if 0 in integers(op.attrs["slice_sizes"]):
        return None
    dims: GatherDims = gather_dims(op.attrs["dimension_numbers"])
    batching = dict(zip(dims.operand_batching, dims.indices_batching))
    windows = _Windows(dims.offset, dims.collapsed_slice, batching, dims.start_index_map, dims.index_vector)
    table, indices = op.operands
    return _stretches(windows, table.type.shape, indices, op.results[0].type.shape)


def written(op: Op) -> tuple[StridedSlice, ...] | None:
    """A scatter as updates of strided slices: for every dimension of its target the positions that are written; `along`
    are dimensions of the updates. None unless all indices are known and in bounds, and no element is written twice."""
    dims: ScatterDims = scatter_dims(op.attrs["scatter_dimension_numbers"])
    batching = dict(zip(dims.input_batching, dims.indices_batching))
    windows = _Windows(dims.update_window, dims.inserted_window, batching, dims.to_operand, dims.index_vector)
    target, indices, update = (op.operands[i] for i in (0, len(op.results), len(op.results) + 1))
    return _stretches(windows, target.type.shape, indices, update.type.shape)


def _stretches(
    windows: _Windows, large: tuple[int, ...], indices: Value, small: tuple[int, ...]
) -> tuple[StridedSlice, ...] | None:
    """The slices along each dimension of `large`; None unless all indices are known and in bounds, and each dimension
    of `small` belongs to one of them."""
    columns = _columns(indices, windows.vector, len(windows.mapped))
    if columns is None:
        return None
    starts = dict(zip(windows.mapped, columns))
    batch = [j for j in range(len(small)) if j not in windows.inner]
    counted_in = [i for i in range(len(indices.type.shape)) if i != windows.vector]
    batching = {d: batch[counted_in.index(i)] for d, i in windows.batching.items()}
    kept = [d for d in range(len(large)) if d not in windows.absent and d not in batching]
    inner = dict(zip(kept, windows.inner))
    out, used = [], []
    for d, n in enumerate(large):
        if d in batching:
            out.append(StridedSlice(batching[d], 0, 1, n))
            used.append(batching[d])
            continue
        size = small[inner[d]] if d in inner else 1
        line = starts.get(d, _Line(0, (0,) * len(batch)))
        counted = [(j, step) for j, step in zip(batch, line.steps) if step and small[j] > 1]
        if len(counted) > 1 or (counted and size != 1):
            return None
        if counted:
            ((j, step),) = counted
            out.append(StridedSlice(j, line.first, step, small[j]))
            used.append(j)
        else:
            out.append(StridedSlice(inner.get(d), line.first, 1, size))
        if not out[-1].fits(n):
            return None
    once = [j for j in batch if small[j] > 1]
    return tuple(out) if sorted(j for j in used if small[j] > 1) == once and all(small) else None
