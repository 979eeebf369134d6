"""Functions applied along dimensions, over broadcast arguments, and piece by piece."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from meshrt import errors, lax
from meshrt.core.naming import wraps
from meshrt.jit import jit
from meshrt.numpy.arrays import asarray, operand_array
from meshrt.numpy.creation import arange
from meshrt.numpy.cumulative import cumsum
from meshrt.numpy.filled import zeros_like
from meshrt.numpy.joining import concatenate
from meshrt.numpy.operands import ShapeError, broadcast_shapes, canonical_axis, shape_tuple
from meshrt.numpy.reductions import argmax
from meshrt.numpy.shapes import broadcast_arrays, expand_dims
from meshrt.transforms.vmap import vmap

__all__ = ["apply_along_axis", "apply_over_axes", "fromfunction", "piecewise", "vectorize"]

_NAMES = r"(?:\w+(?:,\w+)*)?"
_OPERANDS = rf"\({_NAMES}\)(?:,\({_NAMES}\))*"
_SIGNATURE = re.compile(rf"{_OPERANDS}->{_OPERANDS}")


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """``function`` applied to each position of an array of ``shape``.

    The function is mapped over positions, so unlike with NumPy it sees scalars; what it returns may be of any shape,
    which comes behind ``shape``.

    Args:
      function: a function of a position: one scalar per dimension.
      shape: sizes of the result.
      dtype: the dtype of the positions.
      kwargs: passed on to the function; arrays are mapped along their first dimension, once per dimension of ``shape``.

    Raises:
      ArgumentTypeError: ``shape`` is not made of integers.

    >>> jnp.fromfunction(lambda i, j: i + j, (2, 2), dtype=int)
    Array([[0, 1],
           [1, 2]], dtype=int32)
    """
    sizes = shape_tuple(shape, "fromfunction")
    for i in reversed(range(len(sizes))):
        function = vmap(function, in_axes=tuple([0 if i == j else None for j in range(len(sizes))]))
    return function(*[arange(n, dtype=dtype) for n in sizes], **kwargs)


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """``func1d(vector, *args, **kwargs)`` of all vectors along ``axis``; its results stand in their places.

    Args:
      func1d: a function of a vector.
      axis: the dimension to work along; negative numbers count from the end.
      arr: an array, or what `asarray` makes one of.
      args: passed on to the function.
      kwargs: passed on to the function.

    >>> jnp.apply_along_axis(lambda row: row[::-1], 1, jnp.array([[1, 2], [3, 4]]))
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    x = operand_array("apply_along_axis", arr)
    axis = canonical_axis(axis, x.ndim, "apply_along_axis")

    def function(vector: Any) -> Any:
        return func1d(vector, *args, **kwargs)

    for i in range(1, x.ndim - axis):
        function = vmap(function, in_axes=i, out_axes=-1)
    for _ in range(axis):
        function = vmap(function, in_axes=0, out_axes=0)
    return function(x)


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Sequence[int]) -> Any:
    """``func(a, axis)`` for one axis after the other; dimensions that it drops come back with size 1.

    Args:
      func: a function of an array and an axis.
      a: an array, or what `asarray` makes one of.
      axes: the dimensions, one after the other.

    >>> jnp.apply_over_axes(jnp.sum, jnp.ones((2, 3, 4)), [0, 2])
    Array([[[8.],
            [8.],
            [8.]]], dtype=float32)
    """
    x = operand_array("apply_over_axes", a)
    for axis in axes:
        out = func(x, axis)
        if out.ndim not in (x.ndim, x.ndim - 1):
            raise ShapeError(
                f"apply_over_axes: the function made an array of shape {out.shape} of one of shape {x.shape}; it has "
                "to keep the dimensions or drop one"
            )
        x = out if out.ndim == x.ndim else expand_dims(out, axis)
    return x


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """For each element the function in ``funclist`` whose condition is true, the last one of several.

    A function beyond the conditions is for where none is true (0 without it). Numbers stand for constant functions.

    Args:
      x: an array, or what `asarray` makes one of.
      condlist: boolean arrays.
      funclist: a function or a value for each, and perhaps one more for the rest.
      args: passed on to the functions.
      kw: passed on to the functions.

    >>> jnp.piecewise(jnp.array([-1.0, 2.0]), [jnp.array([True, False])], [lambda x: -x, lambda x: 10 * x])
    Array([ 1., 20.], dtype=float32)
    """
    value = operand_array("piecewise", x)
    functions, count = list(funclist), len(condlist)
    if len(functions) == count:
        functions = [0, *functions]
    elif len(functions) == count + 1:
        functions = [functions[-1], *functions[:-1]]
    else:
        raise errors.ArgumentValueError(
            f"piecewise: with {count} condition(s), either {count} or {count + 1} functions are expected; got "
            f"{len(functions)}"
        )
    constants = {i: f for i, f in enumerate(functions) if not callable(f)}
    given = frozenset((i, f) for i, f in enumerate(functions) if callable(f))
    return _chosen(value, asarray(condlist, bool), constants, given, args, kw)


@functools.partial(jit, static_argnums=3)
def _chosen(
    x: Any, conditions: Any, constants: dict[int, Any], functions: frozenset[Any], args: Sequence[Any],
    kw: dict[str, Any],
) -> Any:  # fmt: skip
    """One branch per element: only what is asked for decides, also in derivatives. Functions are traced once."""
    # The running count of true conditions is largest, for the first time, at the last true one.
    which = argmax(cumsum(concatenate([zeros_like(conditions[:1]), conditions], 0), 0), 0)
    by_number = dict(functions)

    def branch(i: int) -> Callable[[Any], Any]:
        return lambda v: asarray(by_number[i](v, *args, **kw) if i in by_number else constants[i]).astype(x.dtype)

    def element(i: Any, v: Any) -> Any:
        return lax.switch(i, [branch(k) for k in range(len(constants) + len(by_number))], v)

    shape = broadcast_shapes(which.shape, x.shape)
    flat = [v.ravel() for v in broadcast_arrays(which, x)]
    return vmap(element)(*flat).reshape(shape)


# ----------------------------------------------------------------------------------------------------------
# vectorize


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """``pyfunc`` over the dimensions that its arguments broadcast to.

    Args:
      excluded: positions and names of arguments that are passed as they are.
      signature: the dimensions that ``pyfunc`` itself handles, as in ``"(n,m),(m)->(n)"``; scalars by default.

    >>> jnp.vectorize(jnp.dot, signature="(n,m),(m)->(n)")(jnp.ones((5, 2, 3)), jnp.ones(3)).shape
    (5, 2)
    """
    if any(not isinstance(e, str | int) for e in excluded):
        raise errors.ArgumentTypeError(f"vectorize: excluded holds positions and names of arguments, got {excluded!r}")
    if any(isinstance(e, int) and e < 0 for e in excluded):
        raise errors.ArgumentValueError(f"excluded={excluded!r} contains negative numbers: positions count from 0")

    @wraps(pyfunc)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = f"on vectorized function with excluded={excluded!r} and signature={signature!r}"
        ins, outs = ([()] * len(args), None) if signature is None else _parsed(signature)
        left_out = {i for i, a in enumerate(args) if i in excluded}
        if signature is not None and left_out:
            ins = _spread_out(ins, left_out, len(args))
        for i, a in enumerate(args):
            if a is None and i not in left_out:
                if i < len(ins) and ins[i]:
                    raise errors.ArgumentValueError(f"argument {i} {context} cannot be None")
                left_out.add(i)
        if words := sorted(set(kwargs) - set(excluded)):
            raise errors.ArgumentTypeError(f"the keyword arguments {', '.join(words)} {context} must be excluded")
        mapped = [asarray(a) for i, a in enumerate(args) if i not in left_out]
        own = [names for i, names in enumerate(ins) if i not in left_out]

        def function(*values: Any) -> Any:
            given = iter(values)
            return pyfunc(*(a if i in left_out else next(given) for i, a in enumerate(args)), **kwargs)

        return _broadcast(function, mapped, own, outs, context)

    return wrapped


def _spread_out(ins: list[Any], left_out: set[int], count: int) -> list[Any]:
    """Signatures leave excluded arguments out: the dimensions of each argument by its position."""
    given = iter(ins)
    return [() if i in left_out else next(given, ()) for i in range(count)]


def _parsed(signature: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    text = signature.replace(" ", "")
    if not _SIGNATURE.fullmatch(text):
        raise errors.ArgumentValueError(
            f"vectorize: not a valid gufunc signature: {signature!r}; write one like '(n,m),(m)->(n)'"
        )
    ins, outs = (
        [tuple(re.findall(r"\w+", part)) for part in re.findall(r"\([^)]*\)", side)] for side in text.split("->")
    )
    return ins, outs


def _broadcast(
    function: Callable[..., Any], args: list[Any], own: list[tuple[str, ...]], outs: Any, context: str
) -> Any:
    """The function mapped over all dimensions of its arguments but their last, own ones."""
    if len(args) != len(own):
        raise errors.ArgumentTypeError(
            f"wrong number of positional arguments: expected {len(own)}, got {len(args)} {context}"
        )
    sizes: dict[str, int] = {}
    for x, names in zip(args, own):
        _note_sizes(sizes, x.shape, names, context, is_input=True)
    outer = [x.shape[: x.ndim - len(names)] for x, names in zip(args, own)]
    shape = broadcast_shapes(*outer)
    padded = [(1,) * (len(shape) - len(s)) + s for s in outer]
    squeezed = [
        x.reshape((*(n for n in s if n != 1), *x.shape[len(s) :])) if 1 in s else x for x, s in zip(args, outer)
    ]
    mapped = _checked(function, sizes, outs, context)
    ones = []
    for dim in reversed(range(len(shape))):
        axes = tuple(None if s[dim] == 1 else 0 for s in padded)
        if all(a is None for a in axes):
            ones.append(dim)
        else:
            mapped = vmap(mapped, axes)
    result = mapped(*squeezed)
    if not ones:
        return result
    if isinstance(result, tuple):
        return tuple(expand_dims(r, tuple(ones)) for r in result)
    return expand_dims(result, tuple(ones))


def _note_sizes(
    sizes: dict[str, int], shape: tuple[int, ...], names: tuple[str, ...], context: str, is_input: bool
) -> None:
    if len(shape) < len(names) if is_input else len(shape) != len(names):
        if is_input:
            problem = f"input with shape {shape} does not have enough dimensions for all core dimensions {names}"
        else:
            problem = f"output shape {shape} does not match core dimensions {names}"
        raise ShapeError(f"{problem} {context}")
    for name, n in zip(names, shape[len(shape) - len(names) :]):
        if sizes.setdefault(name, n) != n:
            raise ShapeError(f"inconsistent size for core dimension {name!r}: {n} and {sizes[name]} {context}")


def _checked(function: Callable[..., Any], sizes: dict[str, int], outs: Any, context: str) -> Callable[..., Any]:
    if outs is None:
        return function

    def checked(*args: Any) -> Any:
        result = function(*args)
        results = result if isinstance(result, tuple) else (result,)
        if len(outs) > 1 and not isinstance(result, tuple):
            raise errors.ArgumentTypeError(
                f"output must be a tuple when multiple outputs are expected, got: {result!r} {context}"
            )
        if len(results) != len(outs):
            raise errors.ArgumentTypeError(
                f"wrong number of output arguments: expected {len(outs)}, got {result!r} {context}"
            )
        own = dict(sizes)
        for r, names in zip(results, outs):
            _note_sizes(own, np.shape(r), names, context, is_input=False)
        return result

    return checked
