"""Element types and the rules that combine them.

The rules are JAX's: two dtypes combine to their least upper bound on a small lattice that also holds the
*weak* types of Python scalars (``int``, ``float``, ``complex``), so that ``x + 1.0`` keeps ``x``'s precision.
With x64 off (the default) 64-bit types are canonicalised to their 32-bit counterparts.

Everything here is plain NumPy plus ``ml_dtypes``. Answers are memoised by ``(dtype, weak_type)``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from meshrt import errors
from meshrt._dtype_kinds import (
    DTypeError,
    float0,
    isdtype,
    issubdtype,
    itemsize_bits,
    short_dtype_name,
    tangent_dtype,
)
from meshrt._dtype_words import EXAMPLES, described, remedy
from meshrt._keytypes import (
    KEY_IMPLS,
    ExtendedDType,
    KeyImpl,
    KeyType,
    extended,
    prng_key,
)
from meshrt._lattice import (
    BOOL,
    SIGNED,
    STRONG,
    UNSIGNED,
    TypePromotionError,
    dtypes_of,
    least_upper_bound,
)
from meshrt.config import settings

__all__ = [
    "KEY_IMPLS", "DTypeError", "ExtendedDType", "KeyImpl", "KeyType", "TypePromotionError", "bfloat16",
    "canonicalize_dtype", "check_user_dtype", "check_value_dtype", "dtype", "dtype_and_weak_type", "extended", "finfo",
    "float0",
    "iinfo", "is_weakly_typed", "isdtype", "issubdtype", "itemsize_bits", "lattice_result_type", "prng_key",
    "promote_dtypes", "promote_types", "python_scalar_dtypes", "result_type", "scalar_type_of",
    "short_dtype_name", "tangent_dtype", "to_complex_dtype", "to_floating_dtype", "to_inexact_dtype", "x64_enabled",
]  # fmt: skip

DType = np.dtype | ExtendedDType


# ----------------------------------------------------------------------------------------------------------
# Settings that these rules depend on.


def x64_enabled() -> bool:
    """Whether 64-bit types are kept (``meshrt.config.enable_x64``).

    >>> meshrt.dtypes.x64_enabled()
    False
    """
    return _x64_source()


_x64_source: Callable[[], bool] = lambda: settings.enable_x64
_strict_source: Callable[[], bool] = lambda: settings.numpy_dtype_promotion == "strict"


# ----------------------------------------------------------------------------------------------------------
# The types, beside those of NumPy.

bfloat16 = ml_dtypes.bfloat16
float8_e3m4 = ml_dtypes.float8_e3m4
float8_e4m3 = ml_dtypes.float8_e4m3
float8_e8m0fnu = ml_dtypes.float8_e8m0fnu
float8_e4m3b11fnuz = ml_dtypes.float8_e4m3b11fnuz
float8_e4m3fn = ml_dtypes.float8_e4m3fn
float8_e4m3fnuz = ml_dtypes.float8_e4m3fnuz
float8_e5m2 = ml_dtypes.float8_e5m2
float8_e5m2fnuz = ml_dtypes.float8_e5m2fnuz
float6_e2m3fn = ml_dtypes.float6_e2m3fn
float6_e3m2fn = ml_dtypes.float6_e3m2fn
float4_e2m1fn = ml_dtypes.float4_e2m1fn
int2 = ml_dtypes.int2
uint2 = ml_dtypes.uint2
int4 = ml_dtypes.int4
uint4 = ml_dtypes.uint4

finfo = ml_dtypes.finfo
iinfo = ml_dtypes.iinfo


# Every dtype that an array may have.
_VALID = frozenset([float0, *STRONG])

_WIDE = dtypes_of("int64", "uint64", "float64", "complex128")
_TO_32 = dict(zip(_WIDE, dtypes_of("int32", "uint32", "float32", "complex64")))

#: Python's scalar types and the (64-bit, not yet canonical) dtypes they stand for.
python_scalar_dtypes: dict[type, np.dtype] = {
    bool: BOOL, int: np.dtype("int64"), float: np.dtype("float64"), complex: np.dtype("complex128"),
}  # fmt: skip
_WEAK_SCALARS = (int, float, complex)


# ----------------------------------------------------------------------------------------------------------
# Canonical types.


def default_int_dtype() -> np.dtype:
    """int32, or int64 with x64."""
    return canonicalize_dtype(python_scalar_dtypes[int])


def default_uint_dtype() -> np.dtype:
    """uint32, or uint64 with x64."""
    return canonicalize_dtype(np.dtype("uint64"))


def default_float_dtype() -> np.dtype:
    """float32, or float64 with x64."""
    return canonicalize_dtype(python_scalar_dtypes[float])


@cache
def _default_like(dt: np.dtype) -> np.dtype:
    """The widest dtype of ``dt``'s kind; canonical form gives the default of that kind."""
    for abstract, wide in (
        (np.floating, "float64"),
        (np.signedinteger, "int64"),
        (np.unsignedinteger, "uint64"),
    ):
        if issubdtype(dt, abstract):
            return np.dtype(wide)
    return BOOL if dt == BOOL else np.dtype("complex128")


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = True) -> Any:
    """``dtype`` as arrays hold it: 64-bit types become 32-bit ones unless x64 is on.

    >>> meshrt.dtypes.canonicalize_dtype("int64")
    dtype('int32')
    """
    if not isinstance(dtype, np.dtype):
        if isinstance(dtype, ExtendedDType):
            if not allow_extended_dtype:
                raise DTypeError(f"an ordinary dtype is needed here, not the extended dtype {dtype}")
            return dtype
        try:
            dtype = np.dtype(dtype)
        except TypeError as e:
            raise DTypeError(f"{dtype!r} is not a dtype; {EXAMPLES} ({e})") from e
    narrow = _TO_32.get(dtype)
    return dtype if narrow is None or _x64_source() else narrow


def _canonicalize_explicit(dt: np.dtype, where: str | None, stacklevel: int) -> np.dtype:
    if dt not in _VALID:
        raise DTypeError(
            f"{where or 'a dtype'}: {described(dt)} is not one that arrays can have; {EXAMPLES}. "
            f"JAX only supports number, bool, and string dtypes, got dtype {dt}{f' in {where}' if where else ''}"
        )
    if dt not in _TO_32 or _x64_source():
        return dt
    place = f" requested in {where}" if where else ""
    warnings.warn(
        f"Explicitly requested dtype {dt}{place} is not available, and will be truncated to dtype "
        f"{_TO_32[dt]}. To enable more dtypes, set meshrt.config.update('enable_x64', True).",
        stacklevel=stacklevel,
    )
    return _TO_32[dt]


def named_dtype(x: Any) -> Any:
    """The dtype that ``x`` names, a dtype, its name or a scalar type, as it is: not narrowed to 32 bits.

    Raises:
      DTypeError: it names none, or one that no array can have.
    """
    if isinstance(x, ExtendedDType):
        return x
    own = getattr(x, "dtype", None)
    if isinstance(own, ExtendedDType):
        return own
    try:
        dt = np.dtype(own if isinstance(own, np.dtype) else x)
    except TypeError as e:
        raise DTypeError(f"{x!r} is not a dtype; {EXAMPLES} ({e})") from e
    return dt if dt in _VALID else _canonicalize_explicit(dt, None, 4)


def is_held(dtype: np.dtype) -> bool:
    """Whether arrays can have elements of ``dtype`` (of 64 bits, as far as x64 is on)."""
    return dtype in _VALID


def check_user_dtype(dtype: Any, where: str | None = None) -> Any:
    """The canonical dtype for a dtype that a user passed to ``where``.

    Python scalar types give the default dtype of their kind. A 64-bit dtype gives a warning with x64 off.

    Raises:
      DTypeError: no array can have this dtype.

    >>> meshrt.dtypes.check_user_dtype("float32", "example")
    dtype('float32')
    """
    if type(dtype) is np.dtype or isinstance(dtype, np.dtype):
        return _canonicalize_explicit(dtype, where, 4)
    if isinstance(dtype, ExtendedDType):
        return dtype
    if isinstance(dtype, type) and dtype in python_scalar_dtypes:
        return canonicalize_dtype(python_scalar_dtypes[dtype])
    place = where or "a dtype"
    if dtype is None:
        raise DTypeError(f"{place}: a dtype must be given, got None")
    if hasattr(dtype, "aval") or isinstance(dtype, np.ndarray):
        kind = DTypeError if isinstance(dtype, np.ndarray) else errors.ArgumentValueError  # as in JAX
        raise kind(f"{place}: Cannot construct a dtype from an array; pass its .dtype instead")
    try:
        dt = np.dtype(dtype)
    except TypeError as e:
        raise DTypeError(f"{place}: dtype={dtype!r} is not a dtype; {EXAMPLES} ({e})") from e
    return _canonicalize_explicit(dt, where, 4)


_TO_INEXACT: dict[np.dtype, np.dtype] = {
    BOOL: np.dtype("float32"),
    **{d: np.dtype("float64" if d.itemsize == 8 else "float32") for d in SIGNED + UNSIGNED},
}


def to_inexact_dtype(dtype: Any) -> np.dtype:
    """Integers and bool become float32 (float64 from 64 bits); floats and complex stay.

    >>> meshrt.dtypes.to_inexact_dtype(np.dtype("int32"))
    dtype('float32')
    """
    d = np.dtype(dtype)
    return _TO_INEXACT.get(d, d)


def to_floating_dtype(dtype: Any) -> np.dtype:
    """As :func:`to_inexact_dtype`, and complex becomes its real part's type.

    >>> meshrt.dtypes.to_floating_dtype(np.dtype("complex64"))
    dtype('float32')
    """
    return np.dtype(finfo(to_inexact_dtype(dtype)).dtype)


def to_complex_dtype(dtype: Any) -> np.dtype:
    """complex128 for 64-bit floats and complex128, complex64 for all else.

    >>> meshrt.dtypes.to_complex_dtype(np.dtype("float32"))
    dtype('complex64')
    """
    wide = to_inexact_dtype(dtype) in (np.dtype("float64"), np.dtype("complex128"))
    return np.dtype("complex128" if wide else "complex64")


# ----------------------------------------------------------------------------------------------------------
# The dtype of a value.


def is_weakly_typed(x: Any) -> bool:
    """Whether ``x`` adapts to the dtype it meets: Python scalars, and arrays made of nothing else.

    >>> meshrt.dtypes.is_weakly_typed(2.0), meshrt.dtypes.is_weakly_typed(np.float32(2))
    (True, False)
    """
    if type(x) in python_scalar_dtypes:
        return type(x) is not bool
    aval = getattr(x, "aval", x)
    return getattr(aval, "weak_type", False) is True


def dtype(x: Any) -> Any:
    """The canonical dtype of a value, a scalar type or a dtype.

    Raises:
      DTypeError: ``x`` has no dtype, or one that no array can have.

    >>> meshrt.dtypes.dtype(jnp.ones(2))
    dtype('float32')
    """
    return dtype_and_weak_type(x)[0]


def scalar_type_of(x: Any) -> type:
    """The Python scalar type (bool, int, float or complex) of the values of ``x``'s dtype.

    >>> meshrt.dtypes.scalar_type_of(np.float32(1))
    <class 'float'>
    """
    d = globals()["dtype"](x)
    if d == BOOL:
        return bool
    for abstract, typ in ((np.integer, int), (np.floating, float), (np.complexfloating, complex)):
        if issubdtype(d, abstract):
            return typ
    raise DTypeError(f"values of dtype {d} have no Python scalar type")


def dtype_and_weak_type(x: Any) -> tuple[Any, bool]:
    """``(dtype, weak_type)`` of a value, a scalar type or a dtype; the element that promotion works on.

    Arrays and tracers (whatever has ``.aval``) keep their dtype as it is; NumPy values and Python scalars are
    canonicalised. The types ``int``, ``float`` and ``complex`` count as weak.

    >>> meshrt.dtypes.dtype_and_weak_type(2.0)
    (dtype('float32'), True)
    """
    typ = type(x)
    if typ in python_scalar_dtypes:
        return canonicalize_dtype(python_scalar_dtypes[typ]), typ is not bool
    aval = getattr(x, "aval", None)
    if aval is not None:
        return aval.dtype, getattr(aval, "weak_type", False)
    if isinstance(x, np.dtype):
        return _canonicalize_explicit(x, None, 4), False
    if isinstance(x, ExtendedDType):
        return x, False
    if isinstance(x, type):
        if x in python_scalar_dtypes:
            return canonicalize_dtype(python_scalar_dtypes[x]), x is not bool
        if issubclass(x, np.generic):
            return _canonicalize_explicit(np.dtype(x), None, 4), False
    if isinstance(x, str):
        return _canonicalize_explicit(_parse(x), None, 4), False
    dt = getattr(x, "dtype", None)
    if isinstance(dt, ExtendedDType):
        return dt, False
    if not isinstance(dt, np.dtype):
        dt = _dtype_of_object(x)
    return check_value_dtype(dt, lambda: f"a value of type {typ.__name__}"), getattr(x, "weak_type", False) is True


def check_value_dtype(dt: np.dtype, what: Callable[[], str]) -> np.dtype:
    """The canonical form of the dtype of a NumPy value. DTypeError, about `what()`, if no array can have it.

    >>> meshrt.dtypes.check_value_dtype(np.dtype("float32"), "a value")
    dtype('float32')
    """
    if dt not in _VALID:
        raise DTypeError(
            f"{what()} has {described(dt)}, which no array can have, so it is not a valid JAX type; {remedy(dt)}. A "
            f"value with dtype {dt} is not a valid JAX array type. Only arrays of numeric types are supported by JAX."
        )
    return canonicalize_dtype(dt)


def _parse(name: str) -> np.dtype:
    try:
        return np.dtype(name)
    except TypeError as e:
        raise DTypeError(f"{name!r} is not the name of a dtype; {EXAMPLES} ({e})") from e


def _dtype_of_object(x: Any) -> np.dtype:
    if x is None:
        raise DTypeError("None has no dtype; pass an array, a scalar or a dtype")
    try:
        return np.result_type(x)
    except TypeError as e:
        raise DTypeError(
            f"cannot tell the dtype of a value of type {type(x).__name__}: Value {str(x)!r} with dtype object is not a "
            "valid JAX array type; pass numbers, or an object with __jax_array__"
        ) from e


# ----------------------------------------------------------------------------------------------------------
# Promotion.


def _weak_node(dt: np.dtype) -> Any:
    if dt == BOOL:
        return dt
    for abstract, typ in ((np.integer, int), (np.floating, float)):
        if issubdtype(dt, abstract):
            return typ
    return complex


@cache
def _promote(strict: bool, x64: bool, pairs: tuple[tuple[Any, bool], ...]) -> tuple[Any, bool]:
    dtypes = frozenset(d for d, _ in pairs)
    all_weak = all(w for _, w in pairs)
    if len(pairs) == 1:
        out, weak = pairs[0]
    elif len(dtypes) == 1 and not all_weak:
        out, weak = pairs[0][0], False
    else:
        # Weak types alone join as if strong, and the result is weak again: weak int16 stays int16.
        join_weak = all_weak and not strict
        bound = least_upper_bound(
            strict, x64, dtypes if join_weak else frozenset(_weak_node(d) if w else d for d, w in pairs)
        )
        weak = join_weak or isinstance(bound, type)
        out = python_scalar_dtypes[bound] if isinstance(bound, type) else bound
        out = out if x64 else _TO_32.get(out, out)
    return out, weak and out != BOOL


def lattice_result_type(*args: Any) -> tuple[Any, bool]:
    """``(dtype, weak_type)`` that the arguments promote to; a weak result keeps its width.

    >>> meshrt.dtypes.lattice_result_type(np.int32(1), 2.0)
    (dtype('float32'), True)
    """
    return _promote(_strict_source(), _x64_source(), tuple(map(dtype_and_weak_type, args)))


def promote_dtypes(*pairs: tuple[Any, bool]) -> tuple[Any, bool]:
    """``(dtype, weak_type)`` that operands of these ``(dtype, weak_type)`` promote to; the fast way in.

    >>> meshrt.dtypes.promote_dtypes(((np.dtype("int32"), False), (np.dtype("float32"), False)))
    ((dtype('int32'), False), True)
    """
    return _promote(_strict_source(), _x64_source(), pairs)


def result_type(*args: Any, return_weak_type_flag: bool = False) -> Any:
    """The dtype that values, scalars, scalar types and dtypes promote to together.

    ``None`` stands for the default float. A weakly typed result has the default width of its kind.

    Args:
      return_weak_type_flag: return ``(dtype, weak_type)`` instead of the dtype.

    >>> meshrt.dtypes.result_type(np.int32(1), 2.0)
    dtype('float32')
    """
    if not args:
        raise ValueError("result_type needs at least one array, scalar or dtype")
    pairs = tuple((default_float_dtype(), False) if a is None else dtype_and_weak_type(a) for a in args)
    out, weak = _promote(_strict_source(), _x64_source(), pairs)
    if weak:
        out = canonicalize_dtype(_default_like(out))
    return (out, weak) if return_weak_type_flag else out


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype that two dtypes promote to; the types int, float and complex count as weak.

    Args:
      a: a dtype, its name or a scalar type.
      b: another one.

    >>> jnp.promote_types("int8", "uint8")
    dtype('int16')
    """
    nodes = frozenset(t if t in _WEAK_SCALARS and isinstance(t, type) else _as_dtype(t) for t in (a, b))
    bound = least_upper_bound(_strict_source(), _x64_source(), nodes)
    return np.dtype(bound)


def _as_dtype(t: Any) -> Any:
    if isinstance(t, (np.dtype, ExtendedDType)):
        return t
    return _parse(t) if isinstance(t, str) else np.dtype(t)
