"""Universal functions: elementwise functions with `reduce`, `accumulate`, `at`, `outer` and `reduceat`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.primitive import Primitive
from meshrt.core.tracebacks import strip
from meshrt.jit import jit
from meshrt.numpy import cumulative, logic, pointwise, reductions, transcendental, ufuncs
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.indexing import take
from meshrt.numpy.joining import append
from meshrt.numpy.mapping import vectorize
from meshrt.numpy.operands import ShapeError, broadcast_shapes, canonical_axes, canonical_axis, unsupported_argument
from meshrt.numpy.shapes import broadcast_to, moveaxis
from meshrt.primitives import reduce as rd
from meshrt.staging import eval_shape
from meshrt.transforms.vmap import vmap

__all__ = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "frompyfunc", "logaddexp", "logaddexp2", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "subtract", "ufunc",
]  # fmt: skip


class ufunc:
    """An elementwise function of ``nin`` operands and ``nout`` results.

    Methods other than the call are for functions of two operands and one result.

    Attributes:
      nin, nout, nargs: how many operands and results; ``nargs`` is ``nin``.
      identity: the operand that changes nothing, or None; what a reduction of no elements gives.
    """

    def __init__(
        self, func: Callable[..., Any], /, nin: int, nout: int, *, name: str | None = None, nargs: int | None = None,
        identity: Any = None, call: Callable[..., Any] | None = None, reduce: Callable[..., Any] | None = None,
        accumulate: Callable[..., Any] | None = None, at: Callable[..., Any] | None = None,
        reduceat: Callable[..., Any] | None = None,
    ):  # fmt: skip
        self._function = func
        self.__doc__ = func.__doc__
        self.__name__ = name or func.__name__
        self._nin, self._nout, self._nargs = operator.index(nin), operator.index(nout), operator.index(nargs or nin)
        self._identity = identity
        self._call = jit(vectorize(func)) if call is None else call
        self._reduce, self._accumulate, self._at, self._reduceat = reduce, accumulate, at, reduceat

    _func = property(lambda self: self._function, doc="What is called.")
    nin = property(lambda self: self._nin, doc="How many operands it has.")
    nout = property(lambda self: self._nout, doc="How many results it has.")
    nargs = property(lambda self: self._nargs, doc="How many arguments it takes.")
    identity = property(lambda self: self._identity, doc="The operand that changes nothing, or None.")

    @property
    def _key(self) -> tuple[Any, ...]:
        return self._func, self.__name__, self._identity, self._nin, self._nout, self._nargs

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and self._key == other._key

    def __repr__(self) -> str:
        return f"<jnp.ufunc '{self.__name__}'>"

    def __call__(self, *args: Any, out: None = None, where: None = None) -> Any:
        if out is not None or where is not None:
            argument = "out" if out is not None else "where"
            raise errors.UnsupportedError(f"{argument} argument of {self} is not supported")
        try:
            return self._call(*args)
        except Exception as e:
            strip(e)
            raise

    # -- over dimensions ------------------------------------------------------------------------------------------

    def reduce(
        self, a: Any, axis: Any = 0, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
        where: Any = None,
    ) -> Any:  # fmt: skip
        """The function of all elements along ``axis``, taken one after the other.

        Args:
          initial: what it starts from, by default the identity. where: which elements count.
        """
        name = self._for("reduce", out)
        x = operand_array(name, a)
        if where is not None:
            where = reductions.boolean_mask(name, where)
            if self._identity is None and initial is None:
                raise errors.ArgumentValueError(reductions.no_identity(name))
        if self._reduce is not None:
            return self._reduce(x, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        return self._one_by_one(name, x, axis, dtype, keepdims, initial, where)

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """The reductions of the elements up to each position along ``axis``."""
        name = self._for("accumulate", out)
        x = operand_array(name, a)
        if self._accumulate is not None:
            return self._accumulate(x, axis=axis, dtype=dtype)
        if axis is None or isinstance(axis, tuple):
            raise errors.ArgumentValueError(f"{name} does not allow multiple axes, got axis={axis}")
        axis, dtype = canonical_axis(axis, x.ndim, name), self._dtype(dtype, x, x)
        rows = moveaxis(x.astype(dtype), axis, 0)
        if not x.size:
            return lax.full(x.shape, 0, dtype)
        rest = _running(self._call, rows[0], rows[1:])
        return moveaxis(lax.concatenate([rows[:1], rest], 0), 0, axis)

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """Reductions from each of ``indices`` to the next along ``axis``; a single element where that lies before."""
        name = self._for("reduceat", out)
        x, starts = operand_array(name, a), operand_array(name, indices, 1)
        if self._reduceat is not None:
            return self._reduceat(x, starts, axis=axis, dtype=dtype)
        if x.ndim == 0:
            raise ShapeError("reduceat: a must have 1 or more dimension, got a.shape=()")
        if starts.ndim != 1:
            raise ShapeError(f"reduceat: indices must be one-dimensional, got indices.shape={starts.shape}")
        if axis is None or isinstance(axis, tuple | list):
            raise errors.ArgumentValueError(f"{name} needs one axis, got {axis}")
        axis = canonical_axis(axis, x.ndim, name)
        ends = append(starts[1:], np.asarray(x.shape[axis], starts.dtype)[()])
        shape = tuple(-1 if i == axis else 1 for i in range(x.ndim))
        starts_, ends = starts.reshape(shape), ends.reshape(shape)
        return _between(self._call, axis, x, starts_, ends, take(x, starts, axis=axis))

    def outer(self, A: Any, B: Any, /) -> Any:
        """The function of all pairs of elements: shape ``A.shape + B.shape``."""
        name = self._for("outer", None)
        a, b = operand_array(name, A), operand_array(name, B, 1)
        out = vmap(vmap(self._call, (None, 0)), (0, None))(a.ravel(), b.ravel())
        return out.reshape((*a.shape, *b.shape))

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Any:
        """A copy of ``a`` with the function applied at ``indices``, once for each; needs ``inplace=False``."""
        if inplace:
            raise errors.UnsupportedError(
                f"Because JAX arrays are immutable, jnp.ufunc.at() cannot operate inplace; use {self.__name__}.at(..., "
                "inplace=False) and its result"
            )
        name = f"{self.__name__}.at"
        x = operand_array(name, a)
        args = () if b is None else (operand_array(name, b, 2),)
        if self._at is not None:
            return self._at(x, indices, *args)
        dtype = self._dtype(None, x, *args)
        return self._at_each(x.astype(dtype), indices, tuple(v.astype(dtype) for v in args))

    # -- one element after the other ------------------------------------------------------------------------------

    def _for(self, method: str, out: Any) -> str:
        """The method's full name, if this function has it."""
        name = f"{self.__name__}.{method}"
        if self._nin != 2:
            raise errors.ArgumentValueError(f"{name}: {method} only supported for binary ufuncs, got nin={self._nin}")
        if self._nout != 1:
            raise errors.ArgumentValueError(
                f"{name}: {method} only supported for functions returning a single value, got nout={self._nout}"
            )
        unsupported_argument(name, "out", out)
        return name

    def _dtype(self, dtype: Any, *xs: Any) -> Any:
        """The dtype of results of elements of these arrays, unless one is given."""
        if dtype is not None:
            return dtypes.check_user_dtype(dtype, self.__name__)
        return eval_shape(self._func, *(lax.full_like(x, 1, shape=()) for x in xs)).dtype

    def _one_by_one(self, name: str, x: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        if isinstance(axis, tuple):
            raise errors.UnsupportedError(f"{name}: a tuple of axes is not supported, got {axis}; reduce one by one")
        dtype = self._dtype(dtype, x, x)
        axes, shape = canonical_axes(axis, x.ndim, name), x.shape
        initial = self._identity if initial is None else initial
        rows = x.reshape((-1,)) if axis is None else moveaxis(x, axis, 0)
        if where is not None:
            where = broadcast_to(where, shape)
            where = where.reshape((-1,)) if axis is None else moveaxis(where, axis, 0)
        if not rows.shape[0] and initial is None:
            raise ShapeError(f"{name} has no identity, but there is nothing to reduce in shape {shape}")
        rows = rows.astype(dtype)
        if not rows.shape[0]:
            empty = lax.full(rows.shape[1:], initial, dtype)
            return reductions.keep_dimensions(empty, shape, axes, keepdims)
        start = rows[0] if initial is None else broadcast_to(asarray(initial).astype(dtype), rows.shape[1:])
        out = _over_rows(self._call, 0 if initial is not None else 1, rows, where, start)
        return reductions.keep_dimensions(out, shape, axes, keepdims)

    def _at_each(self, x: Any, indices: Any, args: tuple[Any, ...]) -> Any:
        indices = indices if isinstance(indices, tuple) else (indices,)
        arrays = [asarray(i) for i in indices if not isinstance(i, slice)]
        shape = broadcast_shapes(*(i.shape for i in arrays)) if arrays else ()
        if not shape:
            return x.at[indices].set(self._call(x[indices], *args))
        count = math.prod(shape)
        flat = tuple(i if isinstance(i, slice) else broadcast_to(i, shape).reshape((count,)) for i in indices)
        rows = tuple(
            broadcast_to(v, (*shape, *v.shape[len(shape) :])).reshape((count, *v.shape[len(shape) :])) for v in args
        )
        slices = tuple((i.start, i.stop, i.step) if isinstance(i, slice) else None for i in flat)
        return _in_turn(self._call, count, slices, x, tuple(i for i in flat if not isinstance(i, slice)), rows)


# The loops of functions that are no reductions of XLA's. Called eagerly they are compiled once for each function; in a
# program they stand as if it had been written there.
@jit(static_argnums=0, inline=True)
def _running(call: Callable[..., Any], start: Any, rows: Any) -> Any:
    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        y = call(carry, row).astype(start.dtype)
        return y, y

    return lax.scan(step, start, rows)[1]


@jit(static_argnums=(0, 1), inline=True)
def _between(call: Callable[..., Any], axis: int, x: Any, starts: Any, ends: Any, first: Any) -> Any:
    def step(i: Any, out: Any) -> Any:
        inside = el.and_p.bind(el.gt_p.bind(*_alike(i, starts)), el.lt_p.bind(*_alike(i, ends)))
        return choose(inside, call(out, take(x, i[None], axis=axis)).astype(out.dtype), out)

    return lax.fori_loop(0, x.shape[axis], step, first)


@jit(static_argnums=(0, 1), inline=True)
def _over_rows(call: Callable[..., Any], first: int, rows: Any, where: Any, start: Any) -> Any:
    def step(i: Any, value: Any) -> Any:
        new = call(value, rows[i]).astype(rows.dtype)
        return new if where is None else choose(where[i], new, value)

    return lax.fori_loop(first, rows.shape[0], step, start)


@jit(static_argnums=(0, 1, 2), inline=True)
def _in_turn(call: Callable[..., Any], count: int, slices: Any, x: Any, arrays: Any, rows: Any) -> Any:
    """`slices` are the places' parts that are slices, by their ends, with None where one of `arrays` is."""

    def step(i: Any, x: Any) -> Any:
        indices = iter(arrays)
        place = tuple(next(indices)[i] if ends is None else slice(*ends) for ends in slices)
        return x.at[place].set(call(x[place], *(r[i] for r in rows)))

    return lax.fori_loop(0, count, step, x)


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A :class:`ufunc` of a function of ``nin`` scalars with ``nout`` results.

    Args:
      func: a function of scalars.
      nin: how many arguments it takes.
      nout: how many results it gives.
      identity: the neutral element, which reductions start with.

    >>> jnp.frompyfunc(lambda x, y: x + 2 * y, 2, 1, identity=0)(1, jnp.array([1, 2]))
    Array([3, 5], dtype=int32)
    """
    return ufunc(func, nin, nout, identity=identity)


def _alike(i: Any, x: Any) -> tuple[Any, Any]:
    return broadcast_to(asarray(i).astype(x.dtype), x.shape), x


# ----------------------------------------------------------------------------------------------------------
# The functions of jax.numpy that are ufuncs.


def _reduction(
    name: str, p: Primitive, combine: Callable[..., Any], identity: Callable[[Any], Any], prepare: Callable[[Any], Any]
) -> Callable[..., Any]:
    """A reduction by a primitive."""

    def reduce(x: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        x = prepare(x)
        if dtype is not None:
            x = x.astype(dtypes.check_user_dtype(dtype, name))
        return reductions.reduce_with(name, p, x, axis, keepdims, initial, where, combine, identity)

    return reduce


def _integers(x: Any) -> Any:
    if x.dtype != np.bool_ and not dtypes.issubdtype(x.dtype, np.integer):
        raise errors.ArgumentValueError(f"a bitwise reduction needs integers or booleans, got dtype {x.dtype}")
    return x


def _booleans(x: Any) -> Any:
    return x.astype(bool)


def _extreme(name: str, reduce: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        x = x if dtype is None else x.astype(dtypes.check_user_dtype(dtype, name))
        return reduce(x, axis, None, keepdims, initial, where)

    return function


def _log_of_sum(base: float) -> Callable[..., Any]:
    """logaddexp (2 ** x for ``base`` 2) of all elements at once, without overflow."""
    scale = math.log(base)
    pair = transcendental.logaddexp if scale == 1.0 else transcendental.logaddexp2

    def reduce(x: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        (x,) = promoted_inexact("logaddexp.reduce", x)
        x = x if scale == 1.0 else x * scale
        top = reductions.max(ufuncs.real(x), axis, None, True, -np.inf, where)
        top = lax.stop_gradient(choose(logic.isfinite(top), top, np.zeros((), top.dtype)[()]))
        spread = broadcast_to(top, x.shape).astype(x.dtype)
        sums = reductions.sum(el.exp_p.bind(x - spread), axis, keepdims=keepdims, where=where)
        top = top if keepdims else lax.squeeze(top, canonical_axes(axis, x.ndim, "logaddexp.reduce"))
        out = el.log_p.bind(sums) + top.astype(sums.dtype)
        out = out if scale == 1.0 else out / scale
        return out if initial is None else pair(initial, out)

    return reduce


def _updating(method: str) -> Callable[..., Any]:
    """`at` by a scatter; booleans are added and multiplied as integers are."""

    def at(x: Any, indices: Any, b: Any) -> Any:
        if x.dtype == np.bool_ and method != "subtract":
            counted = x.astype(np.int32).at[indices]
            return getattr(counted, method)(b.astype(bool).astype(np.int32)).astype(bool)
        return getattr(x.at[indices], method)(b)

    return at


def _binary(function: Callable[..., Any], identity: Any, **methods: Any) -> ufunc:
    return ufunc(function, 2, 1, identity=identity, call=function, **methods)


def _sums(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis, dtype, keepdims, initial, where: function(x, axis, dtype, None, keepdims, initial, where)


def _zero(dtype: Any) -> Any:
    return 0


def _all_bits(dtype: Any) -> Any:
    return np.invert(np.zeros((), dtype))[()]


add = _binary(
    pointwise.add, 0, reduce=_sums(reductions.sum), accumulate=cumulative.cumsum, at=_updating("add")
)  # fmt: skip
multiply = _binary(
    pointwise.multiply, 1, reduce=_sums(reductions.prod), accumulate=cumulative.cumprod, at=_updating("multiply")
)  # fmt: skip
subtract = _binary(pointwise.subtract, None, at=_updating("subtract"))
negative = ufunc(ufuncs.negative, 1, 1, call=ufuncs.negative)
maximum = _binary(pointwise.maximum, None, reduce=_extreme("maximum.reduce", reductions.max))
minimum = _binary(pointwise.minimum, None, reduce=_extreme("minimum.reduce", reductions.min))
bitwise_and = _binary(
    pointwise.bitwise_and, -1,
    reduce=_reduction("bitwise_and.reduce", rd.reduce_and_p, el.and_p.bind, _all_bits, _integers),
)  # fmt: skip
bitwise_or = _binary(
    pointwise.bitwise_or, 0, reduce=_reduction("bitwise_or.reduce", rd.reduce_or_p, el.or_p.bind, _zero, _integers)
)
bitwise_xor = _binary(
    pointwise.bitwise_xor, 0, reduce=_reduction("bitwise_xor.reduce", rd.reduce_xor_p, el.xor_p.bind, _zero, _integers)
)
logical_and = _binary(
    logic.logical_and, True,
    reduce=_reduction("logical_and.reduce", rd.reduce_and_p, el.and_p.bind, lambda d: True, _booleans),
)  # fmt: skip
logical_or = _binary(
    logic.logical_or, False, reduce=_reduction("logical_or.reduce", rd.reduce_or_p, el.or_p.bind, _zero, _booleans)
)
logical_xor = _binary(
    logic.logical_xor, False, reduce=_reduction("logical_xor.reduce", rd.reduce_xor_p, el.xor_p.bind, _zero, _booleans)
)
logaddexp = _binary(transcendental.logaddexp, -np.inf, reduce=_log_of_sum(math.e))
logaddexp2 = _binary(transcendental.logaddexp2, -np.inf, reduce=_log_of_sum(2.0))
