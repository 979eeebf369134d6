"""The operators, methods and properties that arrays and tracers share.

``attach_all`` puts them on :class:`meshrt.core.operators.ArrayOperators`; importing :mod:`meshrt.numpy` does it.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NoReturn

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.operators import ArrayOperators, attach
from meshrt.core.references import AbstractRef
from meshrt.core.source import user_stacklevel
from meshrt.core.trace import not_concrete
from meshrt.core.tracebacks import boundaries, is_boundary, strip
from meshrt.core.tracer import Tracer, answering, ask_types
from meshrt.core.types import ShapedArray, aval_of
from meshrt.jit import jit
from meshrt.numpy import (
    arrays,
    averages,
    contractions,
    cumulative,
    diagonals,
    division,
    editing,
    indexing,
    joining,
    logic,
    padding,
    positions,
    powers,
    reductions,
    selection,
    shapes,
    sorting,
    ufuncs,
)
from meshrt.numpy import prims as el
from meshrt.numpy.at import IndexUpdateHelper
from meshrt.numpy.operands import PYTHON_SCALARS, is_unknown, operand, scalar_like
from meshrt.primitives.axis_types import unsplit
from meshrt.primitives.conversion import no_key_bits
from meshrt.primitives.device_put import device_put
from meshrt.primitives.references import METHODS, PROPERTIES, ref_get, ref_set
from meshrt.runtime.array import Array
from meshrt.sharding.context import off_other_devices

__all__ = ["attach_all"]

_ACCEPTED = (ArrayOperators, np.ndarray, np.generic, *PYTHON_SCALARS)
# Not left to the other side, which would compare them unequal without a word.
_CONTAINERS = (list, tuple, set, dict)


def _no_operand(function: Callable[[Any, Any], Any], x: Any, y: Any, container: Any) -> errors.ArgumentTypeError:
    kinds, kind = f"{type(x).__name__!r} and {type(y).__name__!r}", type(container).__name__
    symbol = next(_SYMBOLS[name] for name, f in (_BINARY | _COMPARISONS).items() if f is function)
    refused = f"unsupported operand type(s) for {symbol}: {kinds}"
    if symbol[0] in "<>" and symbol not in ("<<", ">>"):
        refused = f"{symbol!r} not supported between instances of {kinds}"
    return errors.ArgumentTypeError(f"{refused}; make the {kind} an array with meshrt.numpy.asarray")


def _operator(function: Callable[[Any, Any], Any], reflected: str) -> Callable[[Any, Any], Any]:
    """A binary operator that leaves operands it does not know to the other side, and those of high types that declare
    the `reflected` one."""

    def method(self: ArrayOperators, other: Any) -> Any:
        if type(other) is Array or isinstance(other, _ACCEPTED) or hasattr(other, "__jax_array__"):
            try:
                own = answering(other, reflected) if isinstance(other, Tracer) and other.aval.is_high else None
                return function(self, other) if own is None else own(self)
            except Exception as e:
                strip(e)
                raise
        if isinstance(other, _CONTAINERS):
            raise _no_operand(function, self, other, other)
        return NotImplemented

    method.__name__ = function.__name__
    return is_boundary(method)


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: ArrayOperators, other: Any) -> Any:
        if isinstance(other, _ACCEPTED) or hasattr(other, "__jax_array__"):
            try:
                return function(other, self)
            except Exception as e:
                strip(e)
                raise
        if isinstance(other, _CONTAINERS):
            raise _no_operand(function, other, self, other)
        return NotImplemented

    method.__name__ = f"reflected_{function.__name__}"
    return is_boundary(method)


_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "divmod": "divmod()",
    "pow": "** or pow()", "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "eq": "==",
    "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": ufuncs.add, "sub": ufuncs.subtract, "mul": ufuncs.multiply, "truediv": ufuncs.true_divide,
    "floordiv": division.floor_divide, "mod": division.remainder, "divmod": division.divmod, "pow": powers.power,
    "matmul": contractions.matmul, "and": ufuncs.bitwise_and, "or": ufuncs.bitwise_or, "xor": ufuncs.bitwise_xor,
    "lshift": ufuncs.left_shift, "rshift": ufuncs.right_shift,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": ufuncs.equal, "ne": ufuncs.not_equal, "lt": ufuncs.less, "le": ufuncs.less_equal, "gt": ufuncs.greater,
    "ge": ufuncs.greater_equal,
}  # fmt: skip
# What the other side is asked, as by Python.
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _power(self: ArrayOperators, other: Any, modulo: Any = None) -> Any:
    if modulo is not None:
        raise errors.UnsupportedError("pow with a modulus is not supported for arrays")
    if not isinstance(other, _ACCEPTED):
        return NotImplemented
    own = answering(other, "_rpow") if isinstance(other, Tracer) and other.aval.is_high else None
    return powers.power(self, other) if own is None else own(self)


def _round(self: ArrayOperators, ndigits: int | None = None) -> Any:
    """`round(x)` gives integers, `round(x, n)` elements of the same dtype, as for Python's numbers."""
    if ndigits is None:
        return _astype(selection.round(self), int)
    return selection.round(self, ndigits)


# ----------------------------------------------------------------------------------------------------------
# Methods whose arguments differ from the function's.


def _astype(self: ArrayOperators, dtype: Any, copy: bool = False, device: Any = None) -> Any:
    """The array with elements of ``dtype``."""
    return astype(self, dtype, copy=copy, device=device)


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Any:
    """``x`` with elements of ``dtype`` (None: the default float).

    Args:
      x: an array, or what `asarray` makes one of.
      dtype: the dtype of the result; by default the one that follows from the operands.
      copy: whether the result may share its buffer with the operand.
      device: a device or a sharding to put the result on.

    >>> jnp.astype(jnp.array([1.7, -1.7]), jnp.int32)
    Array([ 1, -1], dtype=int32)
    """
    x = arrays.asarray(operand("astype", x))
    if x.dtype != dtype or not isinstance(dtype, np.dtype):
        dtype = dtypes.check_user_dtype(float if dtype is None else dtype, "astype")
    if x.dtype.kind == "c" and dtype.kind != "c" and dtype != np.bool_:
        warnings.warn(
            "Casting from complex to real dtypes drops the imaginary part and will become an error; take x.real first",
            DeprecationWarning,
            stacklevel=user_stacklevel(),
        )
        x = el.real_p.bind(x)
    elif x.dtype.kind == "c" and dtype == np.bool_:
        x = el.ne_p.bind(x, scalar_like(x, 0))  # the conversion would ask for the real part alone
    x = el.convert_element_type(x, dtype)
    return arrays.array(x, copy=copy, device=device) if copy or device is not None else x


def _reshape(
    self: ArrayOperators, *shape: Any, order: str = "C", copy: bool | None = None, out_sharding: Any = None
) -> Any:
    """The array with another shape, given as one sequence or as separate sizes."""
    return shapes.reshape(self, _spread(shape), order, out_sharding=out_sharding)


def _spread(args: tuple) -> Any:
    return args[0] if len(args) == 1 else args


def _transpose(self: ArrayOperators, *axes: Any) -> Any:
    """The array with dimensions reordered, given as one sequence or separately; reversed by default."""
    return shapes.transpose(self, None if not axes or axes == (None,) else _as_axes(axes))


def _as_axes(axes: tuple) -> tuple:
    return tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes


def _view(self: ArrayOperators, dtype: Any = None) -> Any:
    """The same bits as elements of another dtype; the last dimension changes with the size of elements."""
    if dtype is None:
        return self
    new = dtypes.check_user_dtype(dtype, "view")
    if new == self.dtype:
        return self
    if isinstance(self.dtype, dtypes.ExtendedDType) or isinstance(new, dtypes.ExtendedDType):
        raise no_key_bits("view", aval_of(self), new)
    if self.dtype == np.bool_:
        return _view(_astype(self, np.uint8), new)
    if new == np.bool_:
        return ufuncs.not_equal(_view(self, np.uint8), np.uint8(0))
    old_size, new_size = dtypes.itemsize_bits(self.dtype), dtypes.itemsize_bits(new)
    if not self.ndim:
        if new_size != old_size:
            raise errors.ArgumentValueError(f"view as {new}: the size of elements of a 0d array cannot change")
        return shapes.squeeze(_view(shapes.expand_dims(self, 0), new), 0)
    if self.dtype.kind == "c":  # real and imaginary parts lie side by side
        parts = joining.stack([ufuncs.real(self), ufuncs.imag(self)], -1)
        return _view(shapes.reshape(parts, (*self.shape[:-1], 2 * self.shape[-1])), new)
    ratio = new_size // old_size
    if ratio and self.shape[-1] % ratio:
        raise errors.ArgumentValueError(
            f"view as {new}: When changing to a larger dtype, its size must be a divisor of the total size in bytes of "
            f"the last axis of the array; {self.shape} is no multiple of {ratio} there"
        )
    if new.kind == "c":
        parts = _view(self, dtypes.finfo(new).dtype)
        return el.complex(parts[..., ::2], parts[..., 1::2])
    if new_size > old_size:
        grouped = shapes.reshape(self, (*self.shape[:-1], self.shape[-1] // ratio, ratio))
        return el.bitcast_convert_type_p.bind(grouped, new_dtype=new)
    out = el.bitcast_convert_type_p.bind(self, new_dtype=new)
    if new_size == old_size:
        return out
    return shapes.reshape(out, (*self.shape[:-1], self.shape[-1] * (old_size // new_size)))


def _byteswap(self: ArrayOperators) -> Any:
    """Elements of the same dtype with the order of their bytes reversed."""
    if self.dtype.kind == "c":
        return el.complex(_byteswap(ufuncs.real(self)), _byteswap(ufuncs.imag(self)))
    if dtypes.itemsize_bits(self.dtype) <= 8:
        return arrays.copy(self)
    octets = el.bitcast_convert_type_p.bind(self, new_dtype=np.dtype(np.uint8))
    return el.bitcast_convert_type_p.bind(lax.rev(octets, (self.ndim,)), new_dtype=self.dtype)


def _item(self: ArrayOperators, *args: Any) -> Any:
    """The element at ``args`` (or the only one) as a Python number."""
    return np.asarray(self).item(*args)


def _iterate(self: ArrayOperators) -> Any:
    """The slices along the first dimension."""
    if self.ndim == 0:
        raise errors.ArgumentTypeError(
            f"iteration over a 0-d {'key array' if self.aval.is_key else 'array'}: it has no dimensions"
        )
    return _chunked(self) if type(self) is Array else iter(joining.unstack(self))


# Slices that one program cuts out of an array that is iterated over.
_CHUNK = 100


def _chunked(x: Array) -> Iterator[Any]:
    """The slices of an array along its first dimension, cut out many at a time: a program each would take as long as
    it takes to compile."""
    for start in range(0, x.shape[0], _CHUNK):
        with off_other_devices(x.sharding):
            rows = _cutter(min(_CHUNK, x.shape[0] - start))(x, start)
        yield from rows


@functools.cache
def _cutter(count: int) -> Any:
    def cut(x: Any, start: Any) -> Any:
        return lax.dynamic_slice_in_dim(x, start, count) if count < x.shape[0] else x

    def rows(x: Any, start: Any) -> Any:
        # Of an array that Explicit axes split: its rows are not.
        chunk = cut(x, start) if x.aval.explicit is None else unsplit(cut, _whole_rows(x.aval, count), x, start)
        return joining.unstack(chunk)

    return jit(rows)


def _whole_rows(aval: ShapedArray, count: int) -> ShapedArray:
    return aval.update(shape=(count, *aval.shape[1:]), sharding=None)


def _to_device(self: ArrayOperators, device: Any, *, stream: Any = None) -> Any:
    """The array on a device or with a sharding (array API)."""
    if stream is not None:
        raise errors.UnsupportedError(f"to_device: stream={stream!r} is not supported; leave it out")
    return device_put(self, device)


def _namespace(self: ArrayOperators, *, api_version: str | None = None) -> Any:
    """`meshrt.numpy` (array API)."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise errors.ArgumentValueError(
            f"{api_version=} is not available; available versions are: ['2021.12', '2022.12', '2023.12', '2024.12']"
        )
    return sys.modules["meshrt.numpy"]


def _known(self: ArrayOperators, method: str) -> None:
    if is_unknown(self):
        raise not_concrete(self, f"The {method}() method was called on traced array with shape {self.aval}")


def _tolist(self: ArrayOperators) -> Any:
    """The elements as nested lists of Python numbers."""
    _known(self, "tolist")
    return np.asarray(self).tolist()


def _tobytes(self: ArrayOperators, order: Literal["C", "F", "A", "K"] | None = "C") -> bytes:
    """The elements as bytes."""
    _known(self, "tobytes")
    return np.asarray(self).tobytes(order)


def _contains(self: ArrayOperators, value: Any) -> bool:
    """Whether an element of a vector equals a scalar."""
    if self.ndim != 1:
        raise errors.ArgumentValueError(
            f"Array.__contains__: search array must be one-dimensional, got arr.shape={self.shape}; ask "
            "(array == value).any()"
        )
    if isinstance(value, str | bytes) or value is None:
        raise errors.ArgumentTypeError(f"Array.__contains__: unsupported operand type {type(value)}.")
    found = ufuncs.equal(self, value)
    if found.ndim != 1 or np.shape(value):
        raise errors.ArgumentValueError(f"Array.__contains__: query must be a scalar, got shape {np.shape(value)}")
    return bool(found.any())


class NoFlatError(errors.UnsupportedError, AttributeError):
    """Arrays have no iterator that writes."""


def _flat(self: ArrayOperators) -> NoReturn:
    raise NoFlatError(
        "JAX Arrays do not implement the arr.flat property: consider arr.flatten() instead, that is x.flatten() or "
        "x.ravel(), and x.at[...] to change elements"
    )


def _matrix_transpose(self: ArrayOperators) -> Any:
    return shapes.matrix_transpose(self)


def _flatten(self: ArrayOperators, order: str = "C", *, out_sharding: Any = None) -> Any:
    """The array as a vector."""
    return shapes.ravel(self, order, out_sharding=out_sharding)


def _swapaxes(self: ArrayOperators, axis1: int, axis2: int) -> Any:
    """The array with two dimensions exchanged."""
    return shapes.swapaxes(self, axis1, axis2)


def _argsort(
    self: ArrayOperators,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Any:
    """The positions that sort the array along ``axis``."""
    return sorting.argsort(self, axis, kind=kind, order=order, stable=stable, descending=descending)


def _clip(self: ArrayOperators, min: Any = None, max: Any = None) -> Any:
    """The array limited to [min, max]."""
    return selection.clip(self, min, max)


def _compress(
    self: ArrayOperators, condition: Any, axis: int | None = None, *, out: None = None, size: int | None = None,
    fill_value: Any = 0,
) -> Any:  # fmt: skip
    """The positions along ``axis`` where ``condition`` is true."""
    return positions.compress(condition, self, axis, size=size, fill_value=fill_value, out=out)


def _choose_getitem(self: ArrayOperators, index: Any) -> Any:
    if type(self.aval) is AbstractRef:
        return ref_get(self, index)
    if type(self) is Array:
        self._check()  # before what types say of the index
    return indexing.getitem(self, index)


def _choose_setitem(self: ArrayOperators, index: Any, value: Any) -> None:
    if type(self.aval) is AbstractRef:
        return ref_set(self, index, value)
    raise errors.ArgumentTypeError(
        "JAX arrays are immutable and do not support in-place item assignment; use x = x.at[index].set(value)"
    )


def _contains_length(self: ArrayOperators) -> int:
    if not self.aval.shape:
        raise TypeError("len() of unsized object: the array has no dimensions")
    return self.aval.shape[0]


def _function_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first argument is the array, as a method."""

    def method(self: ArrayOperators, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except Exception as e:
            strip(e)
            raise

    method.__name__ = function.__name__
    method.__doc__ = function.__doc__
    method.__wrapped__ = function  # type: ignore[attr-defined]  # which has the arguments, for help() and editors
    return is_boundary(method)


_PLAIN: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        reductions.all, reductions.any, reductions.argmax, reductions.argmin, cumulative.cumprod, cumulative.cumsum,
        reductions.max, averages.mean, reductions.min, reductions.prod, reductions.ptp, averages.std,
        reductions.sum, averages.var, shapes.ravel, padding.repeat, shapes.squeeze, diagonals.diagonal,
        contractions.dot, diagonals.trace, indexing.take, positions.nonzero, sorting.sort,
        sorting.searchsorted, sorting.argpartition, editing.choose, selection.round, ufuncs.conj, ufuncs.conjugate,
        arrays.copy,
    )
}  # fmt: skip


def _of_references(methods: dict[str, Any]) -> dict[str, Any]:
    """What tracers that stand for references do by names that arrays have too, and by names of their own."""

    def method(name: str) -> Callable[..., Any]:
        own, arrays = METHODS[name], methods[name]

        def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (own if type(self.aval) is AbstractRef else arrays)(self, *args, **kwargs)

        return functools.update_wrapper(chosen, arrays)

    def prop(name: str) -> property:
        own, arrays = PROPERTIES[name], methods[name].fget

        def chosen(self: Any) -> Any:
            return own(self) if type(self.aval) is AbstractRef else arrays(self)

        return property(functools.update_wrapper(chosen, arrays))

    def only(name: str) -> property:
        def bound(self: Any) -> Any:
            if type(self.aval) is not AbstractRef:
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            return functools.partial(METHODS[name], self)

        return property(bound)

    names = [n for n in METHODS if not n.startswith("__")]
    return {n: method(n) if n in methods else only(n) for n in names} | {n: prop(n) for n in PROPERTIES}


def attach_all() -> None:
    """Defines everything on arrays and tracers."""
    methods: dict[str, Any] = {}
    for name, function in _BINARY.items():
        methods[f"__{name}__"] = _operator(function, f"_r{name}")
        methods[f"__r{name}__"] = _reflected(function)
    for name, function in _COMPARISONS.items():
        methods[f"__{name}__"] = _operator(function, f"_{_MIRRORED[name]}")
    methods |= {
        "__pow__": _power, "__neg__": ufuncs.negative, "__pos__": ufuncs.positive, "__abs__": ufuncs.absolute,
        "__invert__": logic.invert, "__round__": _round,
        "__getitem__": _choose_getitem, "__setitem__": _choose_setitem, "__iter__": _iterate,
        "__len__": _contains_length, "__contains__": _contains,
    }  # fmt: skip
    methods |= {name: _function_method(f) for name, f in _PLAIN.items()}
    methods["conj"] = methods["conjugate"] = _function_method(ufuncs.conjugate)
    methods |= {
        "astype": _astype, "reshape": _reshape, "transpose": _transpose, "view": _view, "item": _item,
        "tolist": _tolist, "flatten": _flatten, "swapaxes": _swapaxes, "clip": _clip,
        "argsort": _argsort, "to_device": _to_device, "tobytes": _tobytes, "__array_namespace__": _namespace,
        "compress": _compress, "byteswap": _byteswap,
        "T": property(shapes.transpose), "mT": property(_matrix_transpose), "flat": property(_flat),
        "real": property(ufuncs.real), "imag": property(ufuncs.imag), "at": property(IndexUpdateHelper),
    }  # fmt: skip
    methods |= _of_references(methods)
    # The length needs no time, and says itself what is wrong.
    attach(boundaries({n: m for n, m in methods.items() if n != "__len__"}, __name__) | {"__len__": _contains_length})
    ask_types({n: m for n, m in methods.items() if n != "__array_namespace__"})
