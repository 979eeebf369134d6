"""Views of references: which part of what a reference holds an operation reads or writes.

A view is a tuple of steps, each of which narrows or rearranges what the one before gave:

    r.at[2].at[ds(i, 4)].reshape(2, 2)    (Indexer(2, :), Indexer(ds(i, 4)), Reshape((2, 2)))

Steps are pytrees: their leaves are what is only known when the program runs (indices, starts of slices), everything
else is static. Operations take the leaves as operands and the structure as the parameter `tree`, so that whoever
compiles a program, for XLA or as a kernel, puts the steps together again with `view_of`. `read` and `write` say what
they mean: of an array `x`, `read(x, view)` is the part and `write(x, view, value)` the array with that part replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import reshape
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.bitcast import bitcast_convert_type
from meshrt.primitives.elementwise import add
from meshrt.primitives.gather import scatter_add_p
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.state_indices import Indexer
from meshrt.primitives.state_steps import Bitcast, Step

__all__: list[str] = []

View = tuple[Step, ...]


def view_of(tree: Any, leaves: Sequence[Any]) -> View:
    """The steps of structure `tree` with these operands."""
    view: View = tree_util.tree_unflatten(tree, leaves)
    return view


def view_type(view: View, aval: ShapedArray, *, masked: bool = False) -> ShapedArray:
    """The type of the part of a value of type `aval` that a view shows.

    Raises:
      ArgumentValueError: it shows elements beyond the end. With `masked` it may, as a mask says which exist.
    """
    for step in view:
        if not masked and type(step) is Indexer:
            step.need_inside()
        aval = step.infer(aval)
    return aval


def read(x: Any, view: View) -> Any:
    """The part of the array `x` that a view shows."""
    for step in view:
        x = step.read(x)
    return x


def by_number(view: View, dtype: Any) -> bool:
    """Whether a view, of elements of `dtype`, narrows what an array of indices gave. Where that names an element twice
    there are two copies of it to change, of which one would be kept: such a view is changed by the numbers of its
    elements instead, where these are int32 and no step makes elements of several, or parts, of others."""
    first, *rest = view
    if not rest or type(first) is not Indexer or not first.int_shape or math.prod(first.shape) >= 2**31:
        return False
    casts = [np.dtype(step.dtype) for step in rest if type(step) is Bitcast]
    return all(cast.itemsize == dtype.itemsize for cast in casts)


def need_one_width(view: View, dtype: Any) -> None:
    """Raises UnsupportedError for an update, of a reference's elements of `dtype`, through a view of which it is not
    known that it changes each element as often as it shows it: one that narrows what an array of indices gave, and
    shows parts of elements, or several as one."""
    is_chosen = False
    for step in view:
        if type(step) is Indexer:
            is_chosen |= bool(step.int_shape)
        elif type(step) is Bitcast:
            before, dtype = dtype, np.dtype(step.dtype)
            if is_chosen and dtype.itemsize != before.itemsize:
                raise errors.UnsupportedError(
                    f"an update of {before} elements viewed as {dtype} behind an array of indices, which may name one "
                    "twice; update the reference's bitcast, indexed: ref.bitcast(dtype)[indices]"
                )


def on_numbers(
    x: Any, view: View, change: Callable[[Any, Indexer], Any], places: Callable[[Step, Any], Any] | None = None
) -> Any:
    """`change(x as a vector, which of its elements the view shows)`, in the shape of `x`. `places(step, numbers)` is
    what a step gives of the elements' numbers (default: `Step.places`); negative ones are beyond the end. The vector's
    elements are of the dtype that the view shows."""
    kind, shown = aval_of(x), aval_of(x).dtype
    shape, count = kind.shape, math.prod(kind.shape)
    numbers = reshape(broadcasted_iota(np.dtype(np.int32), (count,), 0), shape)
    for step in view:
        if type(step) is Bitcast:
            shown = np.dtype(step.dtype)
        else:
            numbers = step.places(numbers) if places is None else places(step, numbers)
    at = Indexer((numbers,), (count,), aval_of(numbers).shape)
    flat, cast = reshape(x, (count,)), shown != kind.dtype
    changed = change(bitcast_convert_type(flat, shown) if cast else flat, at)
    return reshape(bitcast_convert_type(changed, kind.dtype) if cast else changed, shape)


def write(x: Any, view: View, value: Any) -> Any:
    """The array `x` with the part that a view shows replaced by `value`."""
    if not view:
        return value
    first, *rest = view
    if by_number(view, aval_of(x).dtype):
        return on_numbers(x, view, lambda flat, at: at.write(flat, value))
    return first.write(x, write(first.read(x), tuple(rest), value) if rest else value)


def accumulate(x: Any, view: View, value: Any) -> Any:
    """The array `x` with `value` added to the part that a view shows; where an index is given twice, twice."""
    if not view:
        kind: Any = aval_of(x)
        return kind.vspace_add(x, value) if kind.is_high else add(x, value)
    first, *rest = view
    need_one_width(view, aval_of(x).dtype)
    if by_number(view, aval_of(x).dtype):
        return on_numbers(x, view, lambda flat, at: at.put(flat, value, scatter_add_p))
    if rest:
        return first.write(x, accumulate(first.read(x), tuple(rest), value))
    if type(first) is Indexer and first.int_shape:
        return first.put(x, value, scatter_add_p)
    return first.write(x, add(first.read(x), value))
