"""Plans for NumPy indexing: from an index expression and a shape to slices and gathers.

Pure Python. An index expression is first reduced to *tokens*, hashable tuples that hold everything static about
it, and a list of array operands; the plan depends on tokens and shape alone and is memoised. There are three
kinds of plan, tried in this order:

    StaticSlice    only integers, slices, None and ...: slice, reverse, squeeze, expand
    DynamicSlice   also scalar arrays and windows, every slice of step 1 or -1: one dynamic_slice
    Gather         index arrays: what is static is sliced first, the rest is one gather

"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from meshrt.core.dimensions.arithmetic import (
    broadcast_shapes,
    ceil_div,
    count_of_steps,
    is_surely,
    slice_bounds,
    steps_down,
)
from meshrt.core.dimensions.expression import is_symbolic_shape, max_dim, min_dim
from meshrt.numpy.index_tokens import (
    CONSUMING,
    FULL,
    EmptyAxisError,
    IndexingError,
    IndexShapeError,
    IndexTypeError,
    Token,
    expand,
    tokenize,
)

__all__ = [
    "DynamicSlicePlan",
    "GatherPlan",
    "IndexTypeError",
    "IndexingError",
    "StaticSlicePlan",
    "TakePlan",
    "UpdatePlan",
    "plan_take",
    "plan_update",
    "tokenize",
]

# ----------------------------------------------------------------------------------------------------------
# Static slices.


class StaticSlicePlan(NamedTuple):
    """``rev``, ``lax.slice``, ``rev``, ``squeeze`` and ``expand_dims``, each left out (None or empty) where trivial."""

    starts: tuple[int, ...] | None
    limits: tuple[int, ...]
    strides: tuple[int, ...] | None
    reverse: tuple[int, ...]
    squeeze: tuple[int, ...]
    newaxis: tuple[int, ...]
    shape: tuple[int, ...]  # after slicing and squeezing, before new axes
    turned: tuple[int, ...] = ()  # the dimensions that are reversed before they are sliced

    @property
    def trivial(self) -> bool:
        """Whether the result is the operand itself."""
        return self.starts is None and not (self.turned or self.reverse or self.squeeze or self.newaxis)


def _slice_bounds(token: Token, size: Any) -> tuple[Any, Any, Any, bool]:
    """``(start, limit, stride, reversed)`` of the ascending slice that picks the same elements."""
    _, start, stop, step = token
    return slice_bounds(start, stop, step, size)


def _steps_down(token: Token, size: Any) -> tuple[Any, Any] | None:
    _, start, stop, step = token
    return steps_down(start, stop, step, size)


def _clamped(n: Any, axis: int, size: Any, wrap: bool) -> Any:
    if size == 0:
        raise EmptyAxisError(f"index is out of bounds for axis {axis} with size 0: {n}")
    return min_dim(max_dim(n + size if wrap and n < 0 else n, 0), size - 1)


def _in_bounds(n: int, size: int, wrap: bool) -> bool:
    return is_surely(lambda: (-size if wrap else 0) <= n < size)


def _all_in_bounds(tokens: Sequence[Token], shape: tuple[int, ...], wrap: bool) -> bool:
    """Whether the static integers lie inside. One that does not is a dynamic start: programs say what was asked for."""
    dims = [t for t in tokens if t[0] != "n"]
    return all(t[0] != "i" or _in_bounds(t[1], n, wrap) for t, n in zip(dims, shape))


def _static_plan(tokens: Sequence[Token], shape: tuple[int, ...], wrap: bool) -> StaticSlicePlan:
    starts: list[int] = []
    limits: list[int] = []
    strides: list[int] = []
    reverse: list[int] = []
    squeeze: list[int] = []
    newaxis: list[int] = []
    kept: list[int] = []
    turned: list[int] = []
    for t in tokens:
        axis = len(starts)
        if t[0] == "n":
            newaxis.append(len(kept) + len(newaxis))
        elif t[0] == "i":
            n = _clamped(t[1], axis, shape[axis], wrap)
            starts.append(n)
            limits.append(n + 1)
            strides.append(1)
            squeeze.append(axis)
        else:
            start, limit, stride, back = _slice_bounds(t, shape[axis])
            down = _steps_down(t, shape[axis])
            if down is not None:
                start, limit, stride, back = shape[axis] - 1 - down[0], shape[axis] - 1 - down[1], -t[3], False
                turned.append(axis)
            starts.append(start)
            limits.append(limit)
            strides.append(stride)
            kept.append(ceil_div(limit - start, stride))
            if back:
                reverse.append(axis)
    whole = all(n == 0 for n in starts) and tuple(limits) == shape and all(s == 1 for s in strides)
    return StaticSlicePlan(
        None if whole else tuple(starts), tuple(limits), None if all(s == 1 for s in strides) else tuple(strides),
        tuple(reverse), tuple(squeeze), tuple(newaxis), tuple(kept), tuple(turned),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# Dynamic slices.


class DynamicSlicePlan(NamedTuple):
    """One ``dynamic_slice``. A start is a static int or ``("a", operand, wrap size)``; wrap size 0: never negative."""

    starts: tuple[Any, ...]
    sizes: tuple[int, ...]
    reverse: tuple[int, ...]
    squeeze: tuple[int, ...]
    newaxis: tuple[int, ...]


def _dynamic_plan(tokens: Sequence[Token], shape: tuple[int, ...], wrap: bool) -> DynamicSlicePlan | None:
    starts: list[Any] = []
    sizes: list[int] = []
    reverse: list[int] = []
    squeeze: list[int] = []
    newaxis: list[int] = []
    for t in tokens:
        axis = len(starts)
        if t[0] == "n":
            newaxis.append(axis - len(squeeze) + len(newaxis))
        elif t[0] == "i" or (t[0] == "a" and t[1] == ()):
            if shape[axis] == 0:
                raise EmptyAxisError(f"index is out of bounds for axis {axis} with size 0")
            static = t[0] == "i"
            starts.append(
                (t[1] + shape[axis] if wrap and t[1] < 0 else t[1]) if static
                else ("a", t[3], shape[axis] if wrap and not t[2] else 0)
            )  # fmt: skip
            sizes.append(1)
            squeeze.append(axis)
        elif t[0] == "s" and t[3] in (None, 1, -1):
            start, limit, _, back = _slice_bounds(t, shape[axis])
            starts.append(start)
            sizes.append(limit - start)
            if back:
                reverse.append(axis)
        elif t[0] == "w" and t[3] == 1:
            starts.append(("a", t[1], shape[axis]))
            sizes.append(t[2])
        else:
            return None
    return DynamicSlicePlan(tuple(starts), tuple(sizes), tuple(reverse), tuple(squeeze), tuple(newaxis))


# ----------------------------------------------------------------------------------------------------------
# Gathers.


class Ramp(NamedTuple):
    """The positions of a slice of which it is not known where or how many they are.

    ``start`` is a size, or ``("a", operand)``.
    """

    start: Any
    stride: Any


class IndexPart(NamedTuple):
    """One component of the index vectors of a gather, placed at dimensions ``at``... of the batch shape.

    ``value`` is a static integer, a ``range`` or a ``Ramp``, or ``("a", operand)``; ``wrap`` is the size to add to
    negative entries of an operand, 0 for none.
    """

    value: Any
    wrap: int
    at: int
    shape: tuple[int, ...]


class GatherPlan(NamedTuple):
    """A gather, or with the same fields a scatter of updates of ``slice_shape``.

    ``insert`` are unit dimensions to give the operand first (scalar boolean indices). ``slice_shape`` is the
    shape of the result with new axes; ``newaxis`` and ``reverse`` (counted without new axes) come after a gather
    and before a scatter. ``unique`` says that no index array takes part, nor a window that may be clamped element by
    element, so no element is met twice.
    """

    insert: tuple[int, ...]
    parts: tuple[IndexPart, ...]
    batch_shape: tuple[int, ...]
    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    slice_sizes: tuple[int, ...]
    slice_shape: tuple[int, ...]
    newaxis: tuple[int, ...]
    reverse: tuple[int, ...]
    unique: bool

    @property
    def empty(self) -> bool:
        """Whether the selection has no elements."""
        return 0 in self.slice_shape


def _insert_flags(
    tokens: Sequence[Token], shape: tuple[int, ...]
) -> tuple[list[Token], tuple[int, ...], tuple[int, ...]]:
    """Scalar booleans as index arrays into new unit dimensions: True takes the one element, False none."""
    insert: list[int] = []
    out: list[Token] = []
    new_shape: list[int] = []
    axis = 0
    for t in tokens:
        if t[0] == "b":
            insert.append(len(new_shape))
            new_shape.append(1)
            out.append(("r", range(int(t[1]))))
            continue
        out.append(t)
        if t[0] != "n":
            new_shape.append(shape[axis])
            axis += 1
    return out, tuple(new_shape), tuple(insert)


def _contiguous(tokens: Sequence[Token]) -> bool:
    """NumPy's rule on where the dimensions of index arrays go: in place if all of them stand side by side."""
    at = [i for i, t in enumerate(tokens) if t[0] in "ia"]
    return all(b - a == 1 for a, b in itertools.pairwise(at))


class _GatherBuilder:
    """Accumulates a :class:`GatherPlan` token by token."""

    def __init__(self, shape: tuple[int, ...], wrap: bool):
        self.shape, self.wrap = shape, wrap
        self.parts: list[IndexPart] = []
        self.batch: list[int] = []
        self.offset: list[int] = []
        self.collapsed: list[int] = []
        self.index_map: list[int] = []
        self.sizes: list[int] = []
        self.result: list[int] = []
        self.newaxis: list[int] = []
        self.reverse: list[int] = []

    @property
    def rank(self) -> int:
        """Dimensions of the result so far, new axes not counted."""
        return len(self.result) - len(self.newaxis)

    def point(self, value: Any, axis: int, at: int, shape: tuple[int, ...], wrap: int) -> None:
        self.parts.append(IndexPart(value, wrap, at, shape))
        self.collapsed.append(axis)
        self.index_map.append(axis)

    def advanced_block(self, items: Sequence[tuple[int, Token]]) -> None:
        """The index arrays and, beside them, the integers, broadcast together."""
        shape = _broadcast([_token_shape(t) for _, t in items])
        at = len(self.batch)
        for axis, t in items:
            own = _token_shape(t)
            self.point(*self._source(axis, t, at + len(shape) - len(own), own))
        self.batch += shape
        self.result += shape

    def _source(self, axis: int, t: Token, at: int, shape: tuple[int, ...]) -> tuple:
        size = self.shape[axis]
        if t[0] == "r":
            return t[1], axis, at, shape, 0
        if t[0] == "i":
            return (t[1] + size if self.wrap and t[1] < 0 else t[1]), axis, at, shape, 0
        return ("a", t[3]), axis, at, shape, size if self.wrap and not t[2] else 0

    def scalar(self, axis: int, t: Token) -> None:
        if self.shape[axis] == 0:
            raise EmptyAxisError(f"index is out of bounds for axis {axis} with size 0")
        self.point(*self._source(axis, t, len(self.batch), ()))
        self.sizes.append(1)

    def slice(self, axis: int, t: Token) -> None:
        start, limit, stride, back = _slice_bounds(t, self.shape[axis])
        length = count_of_steps(start, limit, stride)
        down = _steps_down(t, self.shape[axis])
        if down is not None:
            start, stride, back = down[0], t[3], False
            length = count_of_steps(*down, stride)
        if back:
            self.reverse.append(self.rank)
        if stride == 1:
            if length != self.shape[axis]:
                self.parts.append(IndexPart(start, 0, len(self.batch), ()))
                self.index_map.append(axis)
            self.sizes.append(length)
            self.offset.append(self.rank)
        else:
            positions = (
                Ramp(start, stride) if is_symbolic_shape((start, stride, length)) else range(start, limit, stride)
            )
            self.point(positions, axis, len(self.batch), (length,), 0)
            self.batch.append(length)
            self.sizes.append(1)
        self.result.append(length)

    def window(self, axis: int, t: Token) -> None:
        """Elements from a start that is an operand; it does not count from the end."""
        _, operand, size, stride = t
        if stride == 1:
            self.parts.append(IndexPart(("a", operand), 0, len(self.batch), ()))
            self.index_map.append(axis)
            self.sizes.append(size)
            self.offset.append(self.rank)
        else:
            self.point(Ramp(("a", operand), stride), axis, len(self.batch), (size,), 0)
            self.batch.append(size)
            self.sizes.append(1)
        self.result.append(size)


def _token_shape(t: Token) -> tuple[int, ...]:
    return (len(t[1]),) if t[0] == "r" else t[1] if t[0] == "a" else ()


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(*shapes)
    except ValueError as e:
        listed = ", ".join(map(str, shapes))
        raise IndexShapeError(f"index arrays of shapes {listed} cannot be broadcast together") from e


def _gather_plan(tokens: Sequence[Token], shape: tuple[int, ...], contiguous: bool, wrap: bool) -> GatherPlan:
    tokens, shape, insert = _insert_flags(tokens, shape)
    axes, axis = [], 0
    for t in tokens:
        axes.append(axis)
        axis += t[0] != "n"
    any_array = any(_token_shape(t) != () for t in tokens)
    block = [(a, t) for a, t in zip(axes, tokens) if t[0] in "iar"] if any_array else []
    first = next((i for i, t in enumerate(tokens) if t[0] in "iar"), 0)
    b = _GatherBuilder(shape, wrap)
    for i, (a, t) in enumerate(zip(axes, tokens)):
        if block and i == (first if contiguous else 0):
            b.advanced_block(block)
        if t[0] == "n":
            b.newaxis.append(len(b.result))
            b.result.append(1)
        elif t[0] == "s":
            b.slice(a, t)
        elif t[0] == "w":
            b.window(a, t)
        elif block:
            b.sizes.append(1)
        else:
            b.scalar(a, t)
    return GatherPlan(
        insert, tuple(b.parts), tuple(b.batch), tuple(b.offset), tuple(sorted(b.collapsed)), tuple(b.index_map),
        tuple(b.sizes), tuple(b.result), tuple(b.newaxis), tuple(b.reverse),
        not block and all(t[0] != "w" or t[3] == 1 for t in tokens),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# Whole plans.


class TakePlan(NamedTuple):
    """How to read: ``static`` first, then ``dynamic`` or ``gather`` if there is one."""

    static: StaticSlicePlan | None
    dynamic: DynamicSlicePlan | None = None
    gather: GatherPlan | None = None


class UpdatePlan(NamedTuple):
    """How to write: at a static unit-stride ``window`` if there is one, else by the scatter of ``gather``."""

    gather: GatherPlan
    window: StaticSlicePlan | None = None


@lru_cache(maxsize=4096)
def plan_take(tokens: tuple[Token, ...], shape: tuple[int, ...], clamp: bool, wrap: bool) -> TakePlan:
    """The plan that reads ``x[tokens]`` from an array of ``shape``.

    Args:
      clamp: whether out-of-bounds scalars may be clamped (modes None, "clip" and "promise_in_bounds").
      wrap: whether negative indices count from the end.
    """
    full = expand(tokens, shape)
    kinds = {t[0] for t in full}
    if clamp and kinds <= {"i", "s", "n"} and _all_in_bounds(full, shape, wrap):
        return TakePlan(_static_plan(full, shape, wrap))
    if clamp and kinds <= {"n", *CONSUMING}:
        dynamic = _dynamic_plan(full, shape, wrap)
        if dynamic is not None:
            return TakePlan(None, dynamic)
        if kinds <= {"i", "s", "n"}:
            return TakePlan(_static_plan(full, shape, wrap))
    static, rest, rest_shape = _slice_first(full, shape)
    return TakePlan(static, None, _gather_plan(rest, rest_shape, _contiguous(tokens), wrap))


def _slice_first(tokens: list[Token], shape: tuple[int, ...]) -> tuple[StaticSlicePlan | None, list[Token], tuple]:
    """Takes static slices out of a gather: it then moves whole dimensions, which keep their sharding."""
    dims = [t for t in tokens if t[0] in CONSUMING]
    if 0 in shape:
        return None, tokens, shape
    static = _static_plan([t if t[0] == "s" else FULL for t in dims], shape, True)
    if static.trivial:
        return None, tokens, shape
    return static, [FULL if t[0] == "s" else t for t in tokens], static.shape


@lru_cache(maxsize=4096)
def plan_update(tokens: tuple[Token, ...], shape: tuple[int, ...], wrap: bool) -> UpdatePlan:
    """The plan that writes ``x[tokens]`` in an array of ``shape``."""
    full = expand(tokens, shape)
    gather = _gather_plan(full, shape, _contiguous(tokens), wrap)
    dims = [t for t in full if t[0] != "n"]
    inside = all(
        t[0] == "s" or (t[0] == "i" and _in_bounds(t[1], n, wrap)) for t, n in zip(dims, shape)
    ) and len(dims) == len(shape)  # fmt: skip
    if inside:
        window = _static_plan(full, shape, wrap)
        if window.strides is None and not window.turned:
            return UpdatePlan(gather, window)
    return UpdatePlan(gather)
