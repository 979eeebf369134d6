"""Operands of NumPy functions: which values are accepted, and how they come to a common dtype and shape.

The primitives take operands of one dtype, of equal shapes or rank 0. What is done here is therefore little, and
in the usual case (same dtype, same shape) nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt._lattice import COMPLEX, FLOAT, SIGNED, STRONG, UNSIGNED
from meshrt.core.basic.pointwise import PYTHON_SCALARS
from meshrt.core.basic.shapes import broadcast_in_dim_p
from meshrt.core.dimensions.expression import DimExpr, as_size
from meshrt.core.operators import ArrayOperators
from meshrt.core.trace import EVAL, Tracer, current_trace, not_concrete, why_unknown
from meshrt.core.tracebacks import is_boundary, strip
from meshrt.core.types import ShapedArray, aval_of
from meshrt.dispatch import at_once
from meshrt.heuristics import KEPT_OPERATIONS
from meshrt.numpy.broadcasting import ShapeError, broadcast_shapes, common_shape, ranked_shape, refuse_broadcast
from meshrt.primitives.conversion import bind_conversion, convert_element_type_p
from meshrt.runtime import backend, guards
from meshrt.runtime.array import Array
from meshrt.runtime.transfer import scalar_beside

__all__ = [
    "ADAPTING",
    "AxisError",
    "ShapeError",
    "aval_for",
    "beside",
    "broadcast_shapes",
    "broadcast_to_shape",
    "canonical_axes",
    "canonical_axis",
    "cast",
    "common_shape",
    "equal_sizes",
    "in_one_dtype",
    "is_array",
    "no_integer",
    "operand",
    "pairwise",
    "promote",
    "promote_inexact",
    "promote_numeric",
    "promote_pair",
    "refuse_broadcast",
    "same_dtype",
    "scalar_like",
    "shape_tuple",
    "static_int",
    "to_dtype",
    "unsupported_argument",
]


AxisError = errors.AxisError


def is_array(x: Any) -> bool:
    """Whether ``x`` is an array of ours or a tracer."""
    return isinstance(x, ArrayOperators)


def aval_for(name: str, x: Any, position: int = 0) -> ShapedArray:
    """The type of operand number ``position`` of the function ``name``.

    Raises:
      ArgumentTypeError: the operand is no array and no scalar (lists are refused, as in JAX).
    """
    if isinstance(x, ArrayOperators):
        return x.aval
    if isinstance(x, (bool, int, float, complex, np.ndarray, np.generic)):
        return aval_of(x)
    fix = (
        f"Make an array of it first: jnp.{name}(jnp.asarray(x))"
        if isinstance(x, (list, tuple))
        else "Pass an array or a number"
    )
    raise errors.ArgumentTypeError(
        f"{name} requires ndarray or scalar arguments, got {type(x)} at position {position}. {fix}"
    )


def operand(name: str, x: Any, position: int = 0) -> Any:
    """``x`` as something with ``.shape``, ``.dtype`` and ``.aval`` or as a NumPy value of canonical dtype.

    Values of high types that say what array they are (``__jax_array__``) become it.
    """
    if type(x) is Array or (isinstance(x, ArrayOperators) and not x.aval.is_high):
        return x
    convert = getattr(x, "__jax_array__", None)
    if convert is not None:
        return convert()
    if isinstance(x, ArrayOperators):
        return x
    aval = aval_for(name, x, position)
    if isinstance(x, PYTHON_SCALARS):
        return x
    return x if x.dtype == aval.dtype else x.astype(aval.dtype)


def unsupported_argument(name: str, argument: str, value: Any) -> None:
    """Raises if an argument that NumPy has and we do not is given."""
    if value is not None:
        raise errors.UnsupportedError(
            f"The {argument!r} argument to jnp.{name} is not supported. Arrays cannot be written in place; use the "
            "function's result"
        )


# ----------------------------------------------------------------------------------------------------------
# Dtypes.


def cast(x: Any, aval: ShapedArray, dtype: Any, weak: bool) -> Any:
    """``x``, of type ``aval``, as ``dtype``. Scalars and NumPy arrays are converted here and now where they can be."""
    if isinstance(x, ArrayOperators):
        if aval.dtype == dtype and aval.weak_type <= weak:
            return x
        return bind_conversion(x, dtype, weak)
    if aval.dtype == dtype:
        return x if type(x) not in PYTHON_SCALARS or (weak and aval.weak_type) else np.asarray(x, dtype)[()]
    if weak and aval.ndim:
        return convert_element_type_p.bind(x, new_dtype=dtype, weak_type=True)
    if weak:
        scalar = dtypes.scalar_type_of(dtype)(x)
        if aval_of(scalar).dtype == dtype:
            return scalar
    return np.asarray(x).astype(dtype)[()] if aval.ndim == 0 else x.astype(dtype)


def to_dtype(x: Any, dtype: np.dtype) -> Any:
    """An array of ours with elements of ``dtype``, not weak."""
    aval = x.aval
    if aval.dtype == dtype and not aval.weak_type:
        return x
    return bind_conversion(x, dtype, False)


def scalar_like(x: Any, value: Any) -> Any:
    """``value`` as a scalar of ``x``'s dtype, weak if ``x`` is."""
    if isinstance(x, ArrayOperators):
        aval = x.aval
        if not aval.weak_type:
            return np.asarray(value, aval.dtype)[()]
        scalar = dtypes.scalar_type_of(aval.dtype)(value)
        return scalar if aval_of(scalar).dtype == aval.dtype else np.asarray(value, aval.dtype)[()]
    return type(x)(value) if type(x) in PYTHON_SCALARS else np.asarray(value, x.dtype)[()]


def _promote_dtypes(name: str, args: Sequence[Any], adjust: Any) -> list[Any]:
    if len(args) == 1 and isinstance(args[0], ArrayOperators):
        dtype = args[0].aval.dtype
        if dtype in _ORDINARY and (adjust is None or adjust(dtype) is dtype):
            return [args[0]]
    args = [operand(name, a, i) for i, a in enumerate(args)]
    avals = [aval_of(a) for a in args]
    for a in avals:
        if a.dtype not in _ORDINARY:
            why = (
                "float0s do not support any operations by design" if a.dtype == dtypes.float0 else "they are no numbers"
            )
            given = ", ".join(str(x.dtype) for x in avals)
            raise errors.ArgumentTypeError(f"{name} does not accept dtypes {given}: {why}")
    dtype, weak = dtypes.promote_dtypes(*[(a.dtype, a.weak_type) for a in avals])
    if adjust is not None:
        dtype = adjust(dtype)
    return [cast(x, a, dtype, weak) for x, a in zip(args, avals)]


def in_one_dtype(name: str, args: Sequence[Any], inexact: bool = False) -> list[Any]:
    """The operands with one dtype, whatever their shapes; ``inexact`` makes integers and bool floating."""
    return _promote_dtypes(name, args, _inexact if inexact else None)


def promote(name: str, *args: Any) -> list[Any]:
    """The operands with one dtype and shapes that a primitive takes together."""
    return fit_shapes(name, _promote_dtypes(name, args, None))


def promote_inexact(name: str, *args: Any) -> list[Any]:
    """As :func:`promote`; integers and bool become floating."""
    return fit_shapes(name, _promote_dtypes(name, args, _inexact))


def promote_numeric(name: str, *args: Any) -> list[Any]:
    """As :func:`promote`; bool becomes int32."""
    return fit_shapes(name, _promote_dtypes(name, args, _numeric))


def _inexact(dtype: Any) -> np.dtype:
    if dtype in _FLOATING:
        return dtype
    return dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(dtype))


def _numeric(dtype: Any) -> np.dtype:
    return np.dtype("int32") if dtype == np.bool_ else dtype


# Python's numbers that adapt to the dtype of an array beside them.
ADAPTING = (float, int)

# Dtypes whose arrays are numbers, and those among them that a Python int or float adapts to.
_ORDINARY = frozenset(STRONG)
_FLOATING = frozenset([*FLOAT, *COMPLEX])
_INTEGER = frozenset([*SIGNED, *UNSIGNED])


def _adapted(aval: ShapedArray, scalar: Any) -> Any:
    """A Python int or float as a scalar of a strong array's dtype; None if that needs a closer look."""
    if aval.weak_type:
        return None
    dtype = aval.dtype
    if dtype.itemsize >= 8 and dtypes.canonicalize_dtype(dtype) is not dtype:  # made where 64 bits were enabled
        return None
    if type(scalar) is int:
        if not -(1 << 31) <= scalar < 1 << 31:
            _check_whole(scalar)
        if dtype in _INTEGER:
            try:
                return np.asarray(scalar, dtype)[()]
            except OverflowError:  # around the range, as all arithmetic of integers
                return np.asarray(scalar).astype(dtype)[()]
    return dtype.type(scalar) if dtype in _FLOATING else None


def _check_whole(scalar: int) -> None:
    """Raises for a Python int beyond the integers that scalars are, whatever it is to become."""
    info = np.iinfo(dtypes.default_int_dtype())
    if not info.min <= scalar <= info.max:
        raise errors.IntegerOverflowError(
            f"An overflow was encountered: {scalar} does not fit into {info.dtype}. Pass a NumPy value of a wider "
            "dtype with meshrt.config.update('enable_x64', True), or write the number as a float"
        )


# Scalars on devices, by the signature of the array that they stand beside.
_beside: dict[Any, Array] = {}
backend.on_clear(_beside.clear)


def beside(scalar: Any, array: Array) -> Any:
    """A Python int or float as the array that an operation with `array` makes of it; itself if that is not simple."""
    # Zeros are equal, whatever their sign.
    key = (array._sig, type(scalar), scalar or repr(scalar))
    found = _beside.get(key)
    if found is None or guards.active:  # then the transfer is asked about each time
        if array._sig.sharding.num_devices > 1:
            return scalar
        adapted = _adapted(array._sig.aval, scalar)
        if adapted is None:  # the array becomes what the number is: in the program, as compilers see both together
            adapted = scalar
        # Not kept are complex numbers, whose zeros have two signs, and wide integers, which settings may refuse.
        elif adapted.dtype.kind == "c":
            return scalar
        if type(scalar) is int and (scalar.bit_length() > 31 or (array.dtype in _INTEGER and adapted != scalar)):
            return scalar  # (as an integer it would wrap around, and functions of floating point take the number)
        if len(_beside) >= KEPT_OPERATIONS:
            _beside.clear()
        found = _beside[key] = scalar_beside(adapted, array)
    return found


def pairwise(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Decorates a function of two operands that are promoted together: eager calls run one program (`at_once`)."""
    whole = at_once(2)(function)

    @wraps(function)
    def call(x: Any, y: Any, /) -> Any:
        try:
            if current_trace() is EVAL:
                if type(x) is Array:
                    if type(y) in ADAPTING:
                        y = beside(y, x)
                elif type(y) is Array and type(x) in ADAPTING:
                    x = beside(x, y)
            else:
                if isinstance(x, Tracer) and x.aval.is_high:
                    x = operand(function.__name__, x, 0)
                if isinstance(y, Tracer) and y.aval.is_high:
                    y = operand(function.__name__, y, 1)
            return whole(x, y)
        except Exception as e:
            strip(e)
            raise

    return is_boundary(call)


def same_dtype(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Two operands with one dtype, whatever their shapes."""
    if isinstance(x, ArrayOperators):
        ax = x.aval
        if isinstance(y, ArrayOperators):
            ay = y.aval
            if ax.dtype is ay.dtype and ax.weak_type == ay.weak_type and ax.dtype in _ORDINARY:
                return x, y
        elif type(y) in ADAPTING:
            scalar = _adapted(ax, y)
            if scalar is not None:
                return x, scalar
    elif isinstance(y, ArrayOperators) and type(x) in ADAPTING:
        scalar = _adapted(y.aval, x)
        if scalar is not None:
            return scalar, y
    x, y = _promote_dtypes(name, (x, y), None)
    return x, y


def promote_pair(name: str, x: Any, y: Any) -> tuple[Any, Any, np.dtype]:
    """Two operands with one dtype, their shapes made to fit, and that dtype."""
    x, y = same_dtype(name, x, y)
    ax, ay = aval_of(x), aval_of(y)
    if ax.shape != ay.shape and ax.shape and ay.shape:
        shape = ranked_shape(name, ax.shape, ay.shape)
        x, y = broadcast_to_shape(x, shape), broadcast_to_shape(y, shape)
    return x, y, ax.dtype


# ----------------------------------------------------------------------------------------------------------
# Shapes.


def broadcast_to_shape(x: Any, shape: tuple[int, ...]) -> Any:
    """``x`` broadcast to ``shape``, which must be reachable."""
    own = aval_of(x).shape
    if own == shape:
        return x
    if len(own) > len(shape):
        raise ShapeError(f"Cannot broadcast to shape with fewer dimensions: arr_shape={own} shape={shape}")
    dims = tuple(range(len(shape) - len(own), len(shape)))
    return broadcast_in_dim_p.bind(x, shape=shape, broadcast_dimensions=dims)


def fit_shapes(name: str, args: list[Any]) -> list[Any]:
    shapes = [aval_of(a).shape for a in args]
    common = None
    for s in shapes:
        if s and s != common:
            if common is not None:
                break
            common = s
    else:
        return args
    shape = ranked_shape(name, *shapes)
    return [a if not s else broadcast_to_shape(a, shape) for a, s in zip(args, shapes)]


def shape_tuple(shape: Any, name: str | None = None) -> tuple[int, ...]:
    """A shape given as an integer or a sequence of integers to the function `name`, as a tuple.

    Raises:
      ArgumentTypeError: an entry is not a static integer.
    """
    if type(shape) is tuple and all(type(d) is int for d in shape):
        return shape
    at = "" if name is None else f"{name}: "
    if isinstance(shape, str):
        raise errors.ArgumentTypeError(f"{at}{STATIC_SHAPES}, got {shape!r}")
    try:
        sizes = (shape,) if getattr(shape, "ndim", None) == 0 else tuple(shape)
    except TypeError:
        sizes = (shape,)
    return tuple(_static_size(d, sizes, at) for d in sizes)


STATIC_SHAPES = "Shapes must be 1D sequences of concrete values of integer type"


def _static_size(size: Any, sizes: Any, at: str) -> Any:
    try:
        return as_size(size)
    except TypeError:
        if not is_unknown(size):
            given = sizes if isinstance(sizes, str) else tuple(sizes)
            raise errors.ArgumentTypeError(f"{at}{STATIC_SHAPES}, got {given}.") from None
        raise errors.ConcretizationError(
            f"{at}{STATIC_SHAPES}, got the traced {size!r}.\n"
            "If using `jit`, try using `static_argnums` or applying `jit` to smaller subfunctions.\n"
            f"{why_unknown(size)}"
        ) from None


def is_unknown(x: Any) -> bool:
    """Whether ``x`` is traced and its value not known."""
    known = getattr(x, "concrete", None)
    return known is not None and known() is None


def refuse_traced(name: str, *xs: Any) -> None:
    """Raises ConcretizationError if an array is traced that ``mode='raise'`` of the function `name` has to look at."""
    for x in xs:
        if is_unknown(x):
            raise not_concrete(
                x,
                f"The error occurred because {name} was jit-compiled with mode='raise'. Use mode='wrap' or "
                "mode='clip' instead.",
            )


def no_integer(x: Any) -> str:
    """What Python says of something that is no integer where one belongs."""
    kind = type(x)
    place = "numpy." if kind.__module__ == "numpy" else ""
    return f"'{place}{kind.__name__}' object cannot be interpreted as an integer"


def static_int(x: Any, what: str) -> int:
    """``x`` as a Python int. ArgumentTypeError if it is no integer, or one that is traced."""
    try:
        return operator.index(x)
    except errors.InconclusiveDimensionOperation:
        raise errors.InconclusiveDimensionOperation(
            f"{what} must be known, and '{x}' is a symbolic size, whose value is not known before the exported program "
            "is called. Give the dimension a number"
        ) from None
    except TypeError:
        if not is_unknown(x):
            raise errors.ArgumentTypeError(f"{what} must be made of integers, got {x!r}: {no_integer(x)}") from None
        raise not_concrete(x, f"{what} must be made of static integers: take sizes from .shape") from None


class DiagonalError(errors.ArgumentTypeError, errors.ArgumentValueError):
    """What is to number a diagonal is no integer."""


def diagonal_number(k: Any, function: str, name: str = "k") -> Any:
    """The number of a diagonal: an int, a symbolic size, or an int32 that is traced. DiagonalError for anything else,
    bools too."""
    if type(k) is int or isinstance(k, DimExpr):
        return k
    dtype = getattr(k, "dtype", None)
    if is_unknown(k) and dtypes.issubdtype(dtype, np.integer) and k.ndim == 0:
        return convert_element_type_p.bind(k, new_dtype=np.dtype("int32"), weak_type=False)
    try:
        if isinstance(k, bool) or is_unknown(k):
            raise TypeError
        return operator.index(k)
    except TypeError:
        raise DiagonalError(
            f"{function}: {name} must be a scalar integer; got {k!r} as the number of a diagonal: {no_integer(k)}"
        ) from None


def static_diagonal(k: Any, function: str, name: str = "k") -> Any:
    """As :func:`diagonal_number`, of what must not be traced; True is 1."""
    k = diagonal_number(int(k) if isinstance(k, bool) else k, function, name)
    return static_size(k, f"{function}: {name}, the number of a diagonal,")


def static_size(x: Any, what: str) -> Any:
    """As :func:`static_int`, of what may be the symbolic size of a dimension."""
    return x if isinstance(x, DimExpr) else static_int(x, what)


def size_as(size: Any, dtype: Any) -> Any:
    """The size of a dimension, or a product of some, as a scalar of a dtype."""
    if isinstance(size, DimExpr):
        return convert_element_type_p.bind(size, new_dtype=np.dtype(dtype), weak_type=False)
    return np.asarray(size, dtype)[()]


def canonical_axis(axis: Any, rank: int, name: str = "axis") -> int:
    """``axis`` counted from the start. Raises AxisError if the array has not got it."""
    n = axis if type(axis) is int else static_int(axis, f"{name}: the axis")
    if not -rank <= n < rank:
        raise AxisError(f"{name}: axis {n} is out of bounds for array of dimension {rank}")
    return n + rank if n < 0 else n


def canonical_axes(axis: Any, rank: int, name: str = "axis") -> tuple[int, ...]:
    """Axes counted from the start; None stands for all."""
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, (tuple, list, range)) or (isinstance(axis, np.ndarray) and axis.ndim):
        axes = tuple(canonical_axis(a, rank, name) for a in axis)
        if len(set(axes)) != len(axes):
            raise AxisError(f"{name}: repeated axis, duplicate value in 'axis': {axes}")
        return axes
    return (canonical_axis(axis, rank, name),)


def equal_sizes(name: str, a: Any, i: int, b: Any, j: int) -> None:
    """ShapeError unless dimensions of two arrays, counted from the end, that are summed over together have one size."""
    if a.ndim >= -i and b.ndim >= -j and a.shape[i] != b.shape[j]:
        raise ShapeError(
            f"{name}: the dimensions that products are summed over differ in size: {a.shape[i]} in shape {a.shape}, "
            f"{b.shape[j]} in shape {b.shape}; they do not broadcast"
        )
