"""Sums, products, extremes and truth over dimensions.

Sums of 16-bit floats are computed in float32 and rounded once; integer sums use the default integer.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import reshape_p
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import operand_array
from meshrt.numpy.choose import choose
from meshrt.numpy.operands import ShapeError, canonical_axes, to_dtype, unsupported_argument
from meshrt.numpy.ufuncs import not_equal, real
from meshrt.primitives import reduce as rd

__all__ = ["all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "max", "min", "prod", "ptp", "sum"]


_HALF = frozenset([np.dtype("float16"), np.dtype(dtypes.bfloat16)])


def computation_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which a reduction to ``dtype`` runs: float32 for 16-bit floats."""
    return np.dtype("float32") if dtype in _HALF else dtype


def promoted_integer(dtype: Any) -> np.dtype:
    """Small integers and bool become the default integer of their kind."""
    if dtype.kind in "fc":
        return dtype
    if dtype == np.bool_:
        return dtypes.default_int_dtype()
    for kind, default in (
        (np.unsignedinteger, dtypes.default_uint_dtype),
        (np.signedinteger, dtypes.default_int_dtype),
    ):
        if dtypes.issubdtype(dtype, kind):
            wide = default()
            return wide if dtypes.iinfo(dtype).bits < dtypes.iinfo(wide).bits else dtype
    return dtype


def boolean_mask(name: str, where: Any) -> Any:
    """The argument ``where`` of the function `name` as an array, or None."""
    if where is None:
        return None
    where = operand_array(name, where)
    if where.dtype != np.bool_:
        raise errors.ArgumentValueError(f"jnp.{name}: where must be None or a boolean array, got dtype {where.dtype}")
    return where


def _masked(name: str, x: Any, where: Any, identity: Any) -> Any:
    return x if where is None else choose(boolean_mask(name, where), x, np.asarray(identity, x.dtype)[()])


def keep_dimensions(out: Any, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> Any:
    """A reduced array with its reduced dimensions back at size 1, if ``keepdims``."""
    if not keepdims:
        return out
    return reshape_p.bind(out, new_sizes=tuple(1 if i in axes else n for i, n in enumerate(shape)))


def reduced_axes(name: str, axis: Any, rank: int) -> tuple[tuple[int, ...], tuple[Hashable, ...]]:
    """The dimensions that `axis` has, counted from the start (None: all), and the named axes (of vmap, shard_map)."""
    if axis is None or type(axis) is int:
        return canonical_axes(axis, rank, name), ()
    several = tuple | list | range | set | frozenset
    is_several = isinstance(axis, several) or (isinstance(axis, np.ndarray) and axis.ndim)
    entries = tuple(axis) if is_several else (axis,)
    names = tuple([a for a in entries if _is_name(a)])
    if not names:
        return canonical_axes(entries, rank, name), ()
    if len(set(names)) != len(names):
        raise errors.AxisError(f"{name}: repeated axis, duplicate value in 'axis': {axis}")
    return canonical_axes(tuple([a for a in entries if not _is_name(a)]), rank, name), names


def _is_name(axis: Any) -> bool:
    if isinstance(axis, str):
        return True
    number = axis is None or isinstance(axis, numbers.Number | tuple) or hasattr(type(axis), "__index__")
    return not number and isinstance(axis, Hashable)


def _reduced(name: str, p: Primitive, x: Any, axes: tuple[int, ...], names: tuple[Hashable, ...]) -> Any:
    if not names:
        return p.bind(x, axes=axes)
    across = {rd.reduce_sum_p: lax.psum, rd.reduce_max_p: lax.pmax, rd.reduce_min_p: lax.pmin}.get(p)
    if across is None:
        raise errors.UnsupportedError(
            f"Named reductions not implemented for jnp.{name}(), over {names}: there are sums, maxima and minima"
        )
    return across(p.bind(x, axes=axes) if axes else x, names)


def reduce_with(
    name: str, p: Primitive, x: Any, axis: Any, keepdims: bool, initial: Any, where: Any,
    combine: Callable[..., Any] | None, identity: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """The reduction of an array that already has the dtype to compute in."""
    axes, names = reduced_axes(name, axis, x.ndim)
    if where is not None:
        x = _masked(name, x, where, identity(x.dtype))
    out = _reduced(name, p, x, axes, names)
    if initial is not None:
        assert combine is not None  # what has no initial value has none
        out = combine(el.convert_element_type(_initial(name, initial), x.dtype), out)
    return keep_dimensions(out, x.shape, axes, keepdims)


def _initial(name: str, initial: Any) -> Any:
    if aval_of(initial).ndim:
        shape = aval_of(initial).shape
        raise errors.ArgumentValueError(f"{name}: the initial value must be a scalar. Got array of shape {shape}")
    return initial


# ----------------------------------------------------------------------------------------------------------
# Sum, product.


def _accumulate(
    name: str, p: Primitive, a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any,
    promote_integers: bool, combine: Callable[..., Any], identity: int,
) -> Any:  # fmt: skip
    x = operand_array(name, a)
    if dtype is None:
        wanted = promoted_integer(x.dtype) if promote_integers or x.dtype == np.bool_ else x.dtype
        result = dtypes.check_user_dtype(wanted, name)
        work = computation_dtype(result)
    else:
        result = work = dtypes.check_user_dtype(dtype, name)
    if work == np.bool_:
        p, combine = (rd.reduce_or_p, el.or_p.bind) if identity == 0 else (rd.reduce_and_p, el.and_p.bind)
    x = to_dtype(x, work)
    out = reduce_with(name, p, x, axis, keepdims, initial, where, combine, lambda d: identity)
    return to_dtype(out, result)


@at_once(1)
def sum(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None, promote_integers: bool = True,
) -> Any:  # fmt: skip
    """The sum over ``axis`` (all by default). ``where`` chooses the elements that count.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.
      promote_integers: sum small integers in the default integer dtype.

    Returns:
      An array without the reduced dimensions, of the dtype in which it is summed.

    >>> jnp.sum(jnp.array([[1, 2], [3, 4]]), axis=0)
    Array([4, 6], dtype=int32)
    """
    unsupported_argument("sum", "out", out)
    return _accumulate(
        "sum", rd.reduce_sum_p, a, axis, dtype, keepdims, initial, where, promote_integers, el.add_p.bind, 0
    )


@at_once(1)
def prod(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None, promote_integers: bool = True,
) -> Any:  # fmt: skip
    """The product over ``axis`` (all by default).

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.
      promote_integers: multiply small integers in the default integer dtype.

    >>> jnp.prod(jnp.array([2, 3, 4]))
    Array(24, dtype=int32)
    """
    unsupported_argument("prod", "out", out)
    return _accumulate(
        "prod", rd.reduce_prod_p, a, axis, dtype, keepdims, initial, where, promote_integers, el.mul_p.bind, 1
    )


@at_once(1)
def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements that are not zero.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension or dimensions to reduce; all by default.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.count_nonzero(jnp.array([0, 1, 2]))
    Array(2, dtype=int32)
    """
    x = operand_array("count_nonzero", a)
    counted = x if x.dtype == np.bool_ else not_equal(x, 0)
    return sum(counted, axis, dtypes.default_int_dtype(), keepdims=keepdims)


# ----------------------------------------------------------------------------------------------------------
# Extremes and truth.


def no_identity(name: str) -> str:
    """What is said of a mask for a reduction that has no value for no element."""
    return f"reduction operation {name} does not have an identity, so to use a where mask one has to specify 'initial'"


def _extreme(
    name: str, p: Primitive, combine: Callable[..., Any], identity: Callable[[Any], Any], doc: str, example: str
) -> Callable[..., Any]:
    def function(
        a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        unsupported_argument(name, "out", out)
        x = operand_array(name, a)
        if initial is None:
            if where is not None:
                raise errors.ArgumentValueError(no_identity(name))
            empty = [i for i in reduced_axes(name, axis, x.ndim)[0] if x.shape[i] == 0]
            if empty:
                raise ShapeError(
                    f"zero-size array to reduction operation {name} which has no identity: shape {x.shape} along "
                    f"{empty}; give initial="
                )
        x = to_dtype(x, dtypes.check_user_dtype(x.dtype, name))
        return reduce_with(name, p, x, axis, keepdims, initial, where, combine, identity)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\n{example}\n"
    return at_once(1)(function)


max = amax = _extreme(
    "max",
    rd.reduce_max_p,
    el.max_p.bind,
    rd.lowest,
    "The largest element over ``axis``; NaN if there is one.",
    ">>> print(jnp.max(jnp.array([[5, 3], [4, 1]]), axis=0))\n[5 3]",
)
min = amin = _extreme(
    "min",
    rd.reduce_min_p,
    el.min_p.bind,
    rd.highest,
    "The smallest element over ``axis``; NaN if there is one.",
    ">>> print(jnp.min(jnp.array([[5, 3], [4, 1]]), axis=0))\n[4 1]",
)


def _truth(name: str, p: Primitive, identity: bool, doc: str, example: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
        unsupported_argument(name, "out", out)
        x = operand_array(name, a)
        if x.dtype.kind == "c":
            x = real(x)
        x = el.convert_element_type(x, np.dtype(bool))
        return reduce_with(name, p, x, axis, keepdims, None, where, None, lambda d: identity)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\n{example}\n"
    return at_once(1)(function)


all = _truth(
    "all",
    rd.reduce_and_p,
    True,
    "Whether all elements over ``axis`` are true (nonzero).",
    ">>> print(jnp.all(jnp.array([[True, False], [True, True]]), axis=0))\n[ True False]",
)
any = _truth(
    "any",
    rd.reduce_or_p,
    False,
    "Whether any element over ``axis`` is true (nonzero).",
    ">>> print(jnp.any(jnp.array([0, 3])))\nTrue",
)


@at_once(1)
def ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The largest minus the smallest element over ``axis``.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.ptp(jnp.array([3, 9, 4]))
    Array(6, dtype=int32)
    """
    unsupported_argument("ptp", "out", out)
    return el.sub_p.bind(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


def _arg(name: str, find: Callable[..., Any], doc: str, example: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
        unsupported_argument(name, "out", out)
        x = operand_array(name, a)
        if isinstance(axis, tuple | list):
            raise errors.ArgumentTypeError(
                f"{name} takes one axis or None, not {axis!r}; reshape the axes to one first"
            )
        shape, axes = x.shape, canonical_axes(axis, x.ndim, name)
        if axis is None:
            x, at = lax.reshape(x, (x.size,)), 0
        else:
            at = axes[0]
        if x.shape[at] == 0:
            raise ShapeError(f"attempt to get {name} of an empty sequence: dimension {at} of shape {shape}")
        out = find(x, at, dtypes.default_int_dtype())
        return keep_dimensions(out, shape, axes, bool(keepdims))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\n{example}\n"
    return at_once(1)(function)


argmax = _arg(
    "argmax",
    rd.argmax,
    "The position of the first maximum along ``axis`` (flattened by default).",
    ">>> print(jnp.argmax(jnp.array([5, 3, 9])))\n2",
)
argmin = _arg(
    "argmin",
    rd.argmin,
    "The position of the first minimum along ``axis`` (flattened by default).",
    ">>> print(jnp.argmin(jnp.array([5, 3, 9])))\n1",
)
