"""What kind of thing a dtype is: which types are below which, their sizes and their short names.

No answer depends on a setting. ml_dtypes' types and extended dtypes are known as well as NumPy's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from meshrt._keytypes import ExtendedDType
from meshrt._lattice import BOOL, COMPLEX, FLOAT, NARROW_FLOAT, NARROW_SIGNED, NARROW_UNSIGNED, SIGNED, UNSIGNED
from meshrt.errors import ArgumentTypeError, ArgumentValueError

__all__ = ["KINDS", "DTypeError", "float0", "isdtype", "issubdtype", "itemsize_bits", "short_dtype_name"]


class DTypeError(ArgumentTypeError):
    """A dtype, or a value's dtype, that no array of ours can have."""

    __module__ = "meshrt.dtypes"  # its public place, by which tracebacks and pickles name it


# The type of tangents of integer and boolean values: it holds no data.
float0: np.dtype = np.dtype([("float0", np.void, 0)])

# ml_dtypes' scalar types stand outside NumPy's hierarchy; this table puts them in.
_FLOAT_PARENTS = frozenset([np.floating, np.inexact, np.number, np.generic])
_SIGNED_PARENTS = frozenset([np.signedinteger, np.integer, np.number, np.generic])
_UNSIGNED_PARENTS = frozenset([np.unsignedinteger, np.integer, np.number, np.generic])
_ABSTRACT_PARENTS: dict[type, frozenset] = {
    **{d.type: _FLOAT_PARENTS for d in [*NARROW_FLOAT, np.dtype(ml_dtypes.bfloat16)]},
    **{d.type: _SIGNED_PARENTS for d in NARROW_SIGNED},
    **{d.type: _UNSIGNED_PARENTS for d in NARROW_UNSIGNED},
}

KINDS: dict[str, frozenset] = {
    "bool": frozenset([BOOL]),
    "signed integer": frozenset(SIGNED),
    "unsigned integer": frozenset(UNSIGNED),
    "integral": frozenset(SIGNED + UNSIGNED),
    "real floating": frozenset(FLOAT),
    "complex floating": frozenset(COMPLEX),
    "numeric": frozenset(SIGNED + UNSIGNED + FLOAT + COMPLEX),
}


def issubdtype(a: Any, b: Any) -> bool:
    """Whether dtype ``a`` is ``b`` or below it; knows ml_dtypes' types and extended dtypes as well.

    >>> meshrt.dtypes.issubdtype("bfloat16", jnp.floating)
    True
    """
    try:
        return _issubdtype(a, b)
    except TypeError:  # unhashable
        return _issubdtype(np.dtype(a), np.dtype(b))


def _scalar_type(x: Any) -> type:
    if isinstance(x, ExtendedDType):
        return x.type
    return x if isinstance(x, type) and issubclass(x, np.generic) else np.dtype(x).type


@cache
def _issubdtype(a: Any, b: Any) -> bool:
    if isinstance(b, ExtendedDType):
        return a == b if isinstance(a, ExtendedDType) else False
    sa, sb = _scalar_type(a), _scalar_type(b)
    parents = _ABSTRACT_PARENTS.get(sa)
    if parents is not None:
        return sb is sa or sb in parents
    return issubclass(sa, sb)


def tangent_dtype(dtype: Any) -> Any:
    """The dtype of derivatives: itself for floating and complex dtypes, what their rules say for extended ones, float0
    for all others.

    >>> meshrt.dtypes.tangent_dtype(np.dtype("float32"))
    dtype('float32')
    """
    if isinstance(dtype, ExtendedDType):
        return float0 if dtype.derivatives is None else dtype.derivatives
    return dtype if issubdtype(dtype, np.inexact) else float0


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether ``dtype`` is of ``kind``: a dtype, one of the array API's kind names, or a tuple of these.

    Args:
      dtype: the dtype that is asked about, or its name or scalar type.
      kind: what it may be: "bool", "integral", "real floating", "numeric", ... or a dtype, or several in a tuple.

    >>> jnp.isdtype(jnp.float32, "real floating")
    True
    """
    the_dtype = dtype if isinstance(dtype, ExtendedDType) else np.dtype(dtype)
    for k in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(k, str) and k in KINDS:
            if the_dtype in KINDS[k]:
                return True
            continue
        try:
            if the_dtype == np.dtype(k):
                return True
        except TypeError as e:
            known = ", ".join(map(repr, KINDS))
            raise ArgumentValueError(
                f"Unrecognized kind={k!r} expected one of [{known}], or a dtype, or a tuple of them"
            ) from e
    return False


def itemsize_bits(dtype: Any) -> int:
    """Bits per element as XLA stores them densely (bool: 8; int4: 4).

    >>> meshrt.dtypes.itemsize_bits("float32"), meshrt.dtypes.itemsize_bits("int4")
    (32, 4)
    """
    d = np.dtype(dtype)
    if d == BOOL:
        return 8
    if issubdtype(d, np.integer):
        return ml_dtypes.iinfo(d).bits
    if issubdtype(d, np.complexfloating):
        return 2 * ml_dtypes.finfo(d).bits
    if issubdtype(d, np.floating):
        return ml_dtypes.finfo(d).bits
    raise DTypeError(f"dtype {d} has no size in bits")


@cache
def short_dtype_name(dtype: Any) -> str:
    """The name used in printed types: f32, bf16, i32, u8, bool, c64, key<fry>.

    >>> meshrt.dtypes.short_dtype_name(np.dtype("float32"))
    'f32'
    """
    if isinstance(dtype, ExtendedDType):
        return str(dtype)
    name = np.dtype(dtype).name if dtype != float0 else "float0"
    for long, short in (("float0", "float0"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            return short + name[len(long) :]
        if name == "bfloat16":
            return "bf16"
    return name
