"""Functional updates: ``x.at[index].set(values)`` and its relatives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.reshard import as_split
from meshrt.core.basic.shapes import reshape_p
from meshrt.core.dimensions.expression import guessed
from meshrt.core.explicit import refusal
from meshrt.core.tracebacks import boundaries
from meshrt.core.types import ShapedArray, aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.filled import ones_like
from meshrt.numpy.index_plan import GatherPlan, StaticSlicePlan, plan_update, tokenize
from meshrt.numpy.indexing import gather_indices, getitem, index_dtype, static_slice
from meshrt.numpy.operands import broadcast_to_shape, refuse_broadcast, size_as
from meshrt.primitives.axis_types import constrained, is_explicit, split_by
from meshrt.primitives.conversion import bind_conversion
from meshrt.primitives.dynamic_slice import dynamic_update_slice_p
from meshrt.primitives.gather_scatter import GatherScatterMode
from meshrt.primitives.reshape import expand_dims

__all__ = ["IndexUpdateHelper", "IndexUpdateRef"]


class IndexUpdateHelper:
    """``x.at``: index it to choose what to update."""

    __slots__ = ("array",)

    def __init__(self, array: Any):
        self.array = array

    def __getitem__(self, index: Any) -> IndexUpdateRef:
        return IndexUpdateRef(self.array, index)

    def __repr__(self) -> str:
        return f"_{type(self).__name__}({self.array!r})"


class IndexUpdateRef:
    """``x.at[index]``: each method gives a new array in which the chosen elements are changed.

    Keyword arguments of all methods: ``mode`` ("drop", the default: updates out of bounds are dropped; "clip";
    "promise_in_bounds"), ``unique_indices`` and ``indices_are_sorted`` (promises that help the compiler) and
    ``wrap_negative_indices``.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any):
        self.array, self.index = array, index

    def __repr__(self) -> str:
        return f"_{type(self).__name__}({self.array!r}, {self.index!r})"

    def get(
        self, *, indices_are_sorted: bool = False, unique_indices: bool = False, mode: Any = None,
        fill_value: Any = None, out_sharding: Any = None, wrap_negative_indices: bool = True,
    ) -> Any:  # fmt: skip
        """``x[index]``; with ``mode="fill"`` elements out of bounds are ``fill_value`` (NaN by default)."""
        options = dict(
            mode=mode, fill_value=fill_value, indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices, wrap=wrap_negative_indices,
        )  # fmt: skip
        if out_sharding is not None and is_explicit(out_sharding):
            return split_by(getitem, (self.array, self.index), options, out_sharding)
        return constrained(getitem(self.array, self.index, **options), out_sharding, "get")

    def set(self, values: Any, **options: Any) -> Any:
        """``x[index] = values``."""
        return update(self.array, self.index, values, lax.scatter, _second, **options)

    def add(self, values: Any, **options: Any) -> Any:
        """``x[index] += values``; repeated indices add up."""
        return update(self.array, self.index, values, lax.scatter_add, el.add_p.bind, **options)

    def subtract(self, values: Any, **options: Any) -> Any:
        """``x[index] -= values``; repeated indices add up."""
        return update(self.array, self.index, values, lax.scatter_sub, el.sub_p.bind, **options)

    def multiply(self, values: Any, **options: Any) -> Any:
        """``x[index] *= values``; repeated indices multiply."""
        return update(self.array, self.index, values, lax.scatter_mul, lax.mul, **options)

    mul = multiply

    def divide(self, values: Any, **options: Any) -> Any:
        """``x[index] /= values``."""
        factors = ones_like(self.array).at[self.index].multiply(values, **options)
        return self.array / factors

    def power(self, values: Any, **options: Any) -> Any:
        """``x[index] **= values``."""
        exponents = ones_like(self.array).at[self.index].multiply(values, **options)
        return self.array**exponents

    def min(self, values: Any, **options: Any) -> Any:
        """``x[index] = minimum(x[index], values)``."""
        return update(self.array, self.index, values, lax.scatter_min, el.min_p.bind, **options)

    def max(self, values: Any, **options: Any) -> Any:
        """``x[index] = maximum(x[index], values)``."""
        return update(self.array, self.index, values, lax.scatter_max, el.max_p.bind, **options)

    def apply(self, func: Callable[[Any], Any], **options: Any) -> Any:
        """``x[index] = func(x[index])``, for elementwise ``func``.

        What index arrays name several times ``func`` is applied to as often; only where they are said to be unique
        (``unique_indices=True``) is there a derivative.
        """
        tokens, _ = tokenize(self.index)
        if any(t[0] == "a" and len(t) == 4 and t[1] for t in tokens) and not options.get("unique_indices"):
            return self._apply_often(func, **options)
        wrap = options.get("wrap_negative_indices", True)
        return self.set(func(self.get(mode=options.get("mode"), wrap_negative_indices=wrap)), **options)

    def _apply_often(self, func: Callable[[Any], Any], **options: Any) -> Any:
        def scatter(x: Any, indices: Any, values: Any, numbers: Any, **how: Any) -> Any:
            return lax.scatter_apply(x, indices, func, numbers, update_shape=values.shape, **how)

        nothing = np.zeros((), self.array.dtype)[()]  # has the shape of updates, is not looked at
        return update(self.array, self.index, nothing, scatter, lambda old, new: func(old), **options)


for _name, _method in boundaries({n: m for n, m in vars(IndexUpdateRef).items() if n[0] != "_"}, __name__).items():
    setattr(IndexUpdateRef, _name, _method)


def _second(old: Any, new: Any) -> Any:
    return new


def update(
    x: Any, index: Any, values: Any, scatter: Callable[..., Any], combine: Callable[[Any, Any], Any], *,
    indices_are_sorted: bool = False, unique_indices: bool = False, mode: Any = None, out_sharding: Any = None,
    wrap_negative_indices: bool = True,
) -> Any:  # fmt: skip
    """``x`` with ``values`` combined into ``x[index]``.

    A static window is read, combined and written back with dynamic_update_slice; anything else is one scatter.
    """
    if out_sharding is not None and is_explicit(out_sharding):
        options = dict(
            indices_are_sorted=indices_are_sorted, unique_indices=unique_indices, mode=mode,
            wrap_negative_indices=wrap_negative_indices,
        )  # fmt: skip
        return split_by(update, (x, index, values, scatter, combine), options, out_sharding)
    tokens, operands = tokenize(index)
    plan = plan_update(tokens, x.shape, wrap_negative_indices)
    if plan.gather.empty:
        return x
    mode = None if mode is None else GatherScatterMode.from_any(mode)  # of windows, which need none, too
    dtype, weak = x.dtype, aval_of(x).weak_type
    x, values = _promoted(x, values)
    if plan.window is not None:
        out = _update_window(x, values, plan.window, plan.gather, combine)
    else:
        options = dict(
            indices_are_sorted=indices_are_sorted or plan.gather.unique,
            unique_indices=unique_indices or plan.gather.unique, mode="drop" if mode is None else mode,
        )  # fmt: skip
        out = _scatter(x, values, plan.gather, operands, scatter, options)
    out = out if isinstance(dtype, dtypes.ExtendedDType) else _kept(out, dtype, weak)
    return constrained(out, out_sharding, "at")


def _promoted(x: Any, values: Any) -> tuple[Any, Any]:
    if isinstance(x.dtype, dtypes.ExtendedDType):
        if getattr(values, "dtype", None) != x.dtype:
            raise errors.ArgumentTypeError(f"elements of an array of {x.dtype} can only be set to {x.dtype}")
        return x, values
    if type(values) is int and dtypes.issubdtype(x.dtype, np.integer):
        info = dtypes.iinfo(x.dtype)
        values = asarray(values, dtypes.canonicalize_dtype(x.dtype) if info.min <= values <= info.max else None)
    else:
        values = asarray(values)
    if values.dtype == x.dtype:
        return x, values
    wide = dtypes.result_type(values, x.dtype)
    if wide != x.dtype:
        warnings.warn(
            f"scatter inputs have incompatible types: cannot safely cast value from dtype={values.dtype} to "
            f"dtype={x.dtype}. It may lose values; convert it explicitly with astype",
            FutureWarning,
            stacklevel=5,
        )
    return _kept(x, wide), _kept(values, wide)


def _kept(x: Any, dtype: Any, weak: bool = False) -> Any:
    """`x` in a dtype that an array has: one of 64 bits stays so, whether x64 is on by now or not."""
    own = aval_of(x)
    return x if own.dtype == dtype and own.weak_type == weak else bind_conversion(x, dtype, weak)


def _updates(values: Any, plan: GatherPlan) -> Any:
    """``values`` broadcast to what is selected, new axes dropped, reversed where the slice runs backwards."""
    shape = plan.slice_shape
    if values.ndim > len(shape) and all(n == 1 for n in values.shape[: values.ndim - len(shape)]):
        values = reshape_p.bind(values, new_sizes=values.shape[values.ndim - len(shape) :])
    refuse_broadcast(values.aval, shape)
    values = broadcast_to_shape(values, shape)
    if plan.newaxis:
        kept = tuple(n for i, n in enumerate(shape) if i not in plan.newaxis)
        values = reshape_p.bind(values, new_sizes=kept)
    return lax.rev(values, plan.reverse) if plan.reverse else values


def _update_window(x: Any, values: Any, window: StaticSlicePlan, plan: GatherPlan, combine: Callable[..., Any]) -> Any:
    if aval_of(x).weak_type or aval_of(values).weak_type:  # what comes back to them is as weak as they are
        x, values = _kept(x, x.dtype), _kept(values, values.dtype)
    starts = window.starts or (0,) * x.ndim
    sizes = tuple(b - a for a, b in zip(starts, window.limits))
    values = lax.reshape(_updates(values, plan), sizes)
    whole = StaticSlicePlan(window.starts, window.limits, None, (), (), (), sizes)
    window = static_slice(x, whole)
    values = _as_split(combine(window, values), aval_of(window))
    if sizes == x.shape and combine is not _second:
        return values  # (What is `_second` does not depend on `x`, where the result is to lie: it is written there.)
    dtype = np.dtype("int32") if max(map(guessed, x.shape), default=0) <= np.iinfo(np.int32).max else np.dtype("int64")
    return dynamic_update_slice_p.bind(x, values, *(size_as(s, dtype) for s in starts))


def _as_split(values: Any, window: ShapedArray) -> Any:
    """New values, split over Explicit axes as the window that they replace: of what they have whole each device takes
    its part. ShardingTypeError where they are split in another way."""
    have: Any = aval_of(values)
    if have.explicit is window.explicit:
        return values
    own = () if have.explicit is None else have.explicit.spec.partitions
    entries = (None,) * have.ndim if window.explicit is None else window.explicit.spec.partitions
    if any(e not in (None, wanted) for e, wanted in zip(own, entries)):
        raise refusal(
            "at", (have, window),
            f"Incompatible types for broadcasting: input type={have.str_short()} and requested "
            f"type={window.str_short()}, that of the elements which the values replace.",
        )  # fmt: skip
    is_sum = have.explicit is not None and (have.explicit.spec.unreduced or have.explicit.spec.reduced)
    return values if is_sum else as_split(values, window.explicit)


def _scatter(x: Any, values: Any, plan: GatherPlan, operands: Any, scatter: Callable[..., Any], options: dict) -> Any:
    values = _updates(values, plan)
    if plan.insert:
        x = expand_dims(x, plan.insert)
    numbers = lax.ScatterDimensionNumbers(plan.offset_dims, plan.collapsed_slice_dims, plan.start_index_map)
    indices = gather_indices(plan, operands, index_dtype(x.shape))
    out = scatter(x, indices, values, numbers, **options)
    if plan.insert:
        out = reshape_p.bind(out, new_sizes=tuple(n for i, n in enumerate(out.shape) if i not in plan.insert))
    return out
