"""`jax._src.dtypes`."""

import dataclasses
import types
from typing import Any

import numpy as np

from meshrt import dtypes as _dtypes
from meshrt.core.dimensions.expression import DimExpr
from meshrt.dtypes import *  # noqa: F403
from meshrt.dtypes import DType
from meshrt.dtypes import __all__ as _all
from meshrt.errors import ArgumentValueError
from meshrt.numpy.names import missing as _missing

__all__ = [  # noqa: PLE0604
    *_all, "DType", "check_and_canonicalize_user_dtype", "coerce_to_array", "default_types", "default_uint_dtype",
    "is_string_dtype", "jax_dtype", "primal_tangent_dtype", "python_scalar_types", "python_scalar_types_to_dtypes",
    "safe_to_cast", "string_dtype", "supports_inf", "to_numeric_dtype",
]  # fmt: skip

bool_: Any = np.bool_
int_: Any = np.int64
uint: Any = np.uint64
float_: Any = np.float64
complex_: Any = np.complex128
default_int_dtype, default_uint_dtype = _dtypes.default_int_dtype, _dtypes.default_uint_dtype
default_float_dtype = _dtypes.default_float_dtype


def default_complex_dtype() -> np.dtype:
    """The dtype of complex numbers that say nothing else."""
    return np.dtype(np.complex128 if _dtypes.x64_enabled() else np.complex64)


default_types = {
    "b": lambda: np.dtype(bool), "i": default_int_dtype, "u": default_uint_dtype, "f": default_float_dtype,
    "c": default_complex_dtype,
}  # fmt: skip
python_scalar_types: set[type] = {bool, int, float, complex, DimExpr}
python_scalar_types_to_dtypes: dict[type, np.dtype] = {
    bool: np.dtype(bool), int: np.dtype(int_), float: np.dtype(float_), complex: np.dtype(complex_),
    DimExpr: np.dtype(int_),
}  # fmt: skip


def _named(*names: str) -> list[np.dtype]:
    return [np.dtype(getattr(_dtypes, name, name)) for name in names]


_float4_dtypes = _named("float4_e2m1fn")
_float6_dtypes = _named("float6_e2m3fn", "float6_e3m2fn")
_float8_dtypes = _named(
    "float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz",
)  # fmt: skip
_custom_float_dtypes = [*_float4_dtypes, *_float6_dtypes, *_float8_dtypes, *_named("bfloat16")]
_custom_float_scalar_types = [dtype.type for dtype in _custom_float_dtypes]
_intn_dtypes = _named("int2", "uint2", "int4", "uint4", "int1", "uint1")
_weak_types: list[type] = [int, float, complex]
_bool_types = _named("bool")
_unsigned_types = _named("uint1", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64")
_signed_types = _named("int1", "int2", "int4", "int8", "int16", "int32", "int64")
_int_types = _unsigned_types + _signed_types
_float_types = [*_custom_float_dtypes, *_named("float16", "float32", "float64")]
_complex_types = _named("complex64", "complex128")
_jax_types = _bool_types + _int_types + _float_types + _complex_types
_jax_dtype_set = {_dtypes.float0, *_bool_types, *_int_types, *_float_types, *_complex_types}
_dtype_kinds: dict[str, set[np.dtype]] = {
    "bool": {*_bool_types}, "signed integer": {*_signed_types}, "unsigned integer": {*_unsigned_types},
    "integral": {*_signed_types, *_unsigned_types}, "real floating": {*_float_types},
    "complex floating": {*_complex_types}, "numeric": {*_int_types, *_float_types, *_complex_types},
}  # fmt: skip
string_dtype: Any = np.dtypes.StringDType() if hasattr(np.dtypes, "StringDType") else None


def is_string_dtype(dtype: Any) -> bool:
    """Whether elements are strings of any length."""
    return string_dtype is not None and isinstance(dtype, type(string_dtype))


def jax_dtype(obj: Any, *, align: bool = False, copy: bool = False) -> Any:
    """As `numpy.dtype`, of which Python's types are those that arrays have here; None is a default float."""
    if obj is None:
        return default_float_dtype()
    if obj in (int, float, complex):
        return _dtypes.canonicalize_dtype(python_scalar_types_to_dtypes[obj])
    return np.dtype(obj, align=align, copy=copy)


def to_numeric_dtype(dtype: Any) -> Any:
    """int32 for bool, any other dtype as it is."""
    dtype = np.dtype(dtype)
    return default_int_dtype() if dtype == np.bool_ else dtype


def coerce_to_array(x: Any, dtype: Any = None) -> np.ndarray:
    """`x` as an array of NumPy's; Python's scalars in the dtype that they have here."""
    if dtype is None and type(x) in python_scalar_types:
        dtype = _dtypes.canonicalize_dtype(python_scalar_types_to_dtypes[type(x)])
    return np.asarray(x, dtype)


def check_and_canonicalize_user_dtype(dtype: Any, fun_name: str | None = None) -> Any:
    """A dtype that a user gave, as arrays have it. ValueError if none is given."""
    if dtype is None:
        raise ArgumentValueError("dtype must be specified.")
    return _dtypes.canonicalize_dtype(_dtypes.check_user_dtype(dtype, fun_name))


def safe_to_cast(input_dtype_or_value: Any, output_dtype_or_value: Any) -> bool:
    """Whether values of one dtype may stand where the other is wanted, without promotion to a wider one."""
    wanted = _dtypes.dtype(output_dtype_or_value)
    given = input_dtype_or_value
    if _dtypes.dtype(given) == wanted:
        return True
    return bool(_dtypes.result_type(given, wanted) == wanted)


class _Scalar(_dtypes.extended):
    """The scalar type of dtypes that differ from that of their derivatives."""


@dataclasses.dataclass(frozen=True)
class _PrimalTangent(_dtypes.ExtendedDType):
    """Elements of one dtype whose derivatives are of another."""

    primal: Any
    tangent: Any
    name: str
    type = _Scalar

    def __repr__(self) -> str:
        return self.name

    @property
    def _rules(self) -> Any:
        return types.SimpleNamespace(
            physical_element_aval=lambda dtype: types.SimpleNamespace(shape=(), dtype=self.primal),
            tangent_dtype=lambda dtype: self.tangent,
            allow_conversion=True,
        )


def primal_tangent_dtype(primal_dtype: Any, tangent_dtype: Any, name: str | None = None) -> Any:
    """The extended dtype of elements of `primal_dtype` whose derivatives have `tangent_dtype`."""
    primal, tangent = _dtypes.dtype(primal_dtype), _dtypes.dtype(tangent_dtype)
    short = f"{_dtypes.short_dtype_name(primal)}/{_dtypes.short_dtype_name(tangent)}"
    return _PrimalTangent(primal, tangent, name or f"PrimalTangentDType{{{short}}}")


def supports_inf(dtype: Any) -> bool:
    """Whether a floating-point type has infinities."""
    return bool(np.isinf(np.array(np.inf).astype(dtype)))


__getattr__ = _missing("jax._src.dtypes", __all__)
