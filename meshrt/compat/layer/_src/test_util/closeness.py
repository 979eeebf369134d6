"""How near numbers have to be to each other, by element type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshrt import dtypes, tree_util

__all__ = [
    "ToleranceDict", "assert_numpy_allclose", "check_close", "check_dtypes_match", "check_eq",
    "default_gradient_tolerance", "default_tolerance", "dtype_of", "join_tolerance", "limits", "rand_like", "tolerance",
]  # fmt: skip

ToleranceDict = dict[np.dtype, float]


def _by_bits() -> ToleranceDict:
    narrow = [t for n in ml_dtypes.__dict__.values() if isinstance(n, type) for t in [_dtype_or_none(n)] if t]
    table: ToleranceDict = {np.dtype(t): 0 for t in ("bool", "int8", "int16", "int32", "int64")}
    table |= {np.dtype(t): 0 for t in ("uint8", "uint16", "uint32", "uint64")} | {dtypes.float0: 0}
    for dtype in narrow:
        name = dtype.name
        if "int" in name:
            table[dtype] = 0
        else:  # a format of 4 bits or without a fraction holds powers of two only, and those of 8 bits an eighth more
            table[dtype] = 1e-2 if name == "bfloat16" else 1.0 if name in ("float4_e2m1fn", "float8_e8m0fnu") else 1e-1
    real = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-15, "complex64": 1e-6, "complex128": 1e-15}
    return table | {np.dtype(name): value for name, value in real.items()}


def _dtype_or_none(kind: type) -> np.dtype | None:
    try:
        found = np.dtype(kind)
    except TypeError:
        return None
    return found if found.kind in "fV" and found.name != "object" and "void" not in found.name else None


_TOLERANCE = _by_bits()
_GRADIENTS = {
    "bfloat16": 1e-1,
    "float16": 1e-2,
    "float32": 2e-3,
    "float64": 1e-5,
    "complex64": 1e-3,
    "complex128": 1e-5,
}
# Those of derivatives against differences: the latter have as many digits less.
default_gradient_tolerance: ToleranceDict = {
    d: _GRADIENTS.get(d.name, t) for d, t in _TOLERANCE.items() if t > 0
}  # fmt: skip


def default_tolerance() -> ToleranceDict:
    """How far values may be apart, by dtype; may be written to."""
    return _TOLERANCE


def dtype_of(x: Any) -> Any:
    """The dtype of an array, or the one that JAX gives a number of Python's."""
    if hasattr(x, "dtype"):
        return x.dtype
    return dtypes.python_scalar_dtypes.get(type(x)) or np.asarray(x).dtype


def tolerance(dtype: Any, tol: Any = None) -> Any:
    """How far values of a dtype may be apart: `tol`, or what it has for the dtype if it is a dict, or the default."""
    if tol is not None and not isinstance(tol, dict):
        return tol
    wanted = dtypes.canonicalize_dtype(np.dtype(dtype))
    given = {np.dtype(k): v for k, v in (tol or {}).items()}
    return given[wanted] if wanted in given else _TOLERANCE[wanted]


def join_tolerance(first: Any, second: Any) -> ToleranceDict:
    """The greater of two tolerances, for each dtype."""
    one, other = (
        {np.dtype(k): v for k, v in t.items()} if isinstance(t, dict) else dict.fromkeys(_TOLERANCE, t or 0)
        for t in (first, second)
    )
    return one | {k: max(v, one.get(k, 0)) for k, v in other.items()}


def _readable(x: np.ndarray) -> np.ndarray:
    """As a dtype that NumPy compares."""
    if x.dtype.kind in "biufcOSU":
        return x
    return x.astype(np.int8 if x.dtype.name.startswith("int") else np.uint8 if "int" in x.dtype.name else np.float32)


def assert_numpy_allclose(a: Any, b: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """AssertionError unless arrays are equal within tolerances; without any, equal to 1e-7 of the value."""
    a, b = map(np.asarray, (a, b))
    if {a.dtype, b.dtype} == {dtypes.float0}:
        return np.testing.assert_array_equal(a, b, err_msg=err_msg)
    options = {name: value for name, value in (("atol", atol), ("rtol", rtol)) if value}
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(_readable(a), _readable(b), err_msg=err_msg, **options)


def limits(a: Any, b: Any, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """How far elements of two arrays may be apart: what the dtype that is less exact has."""
    kinds = dtype_of(a), dtype_of(b)
    absolute, relative = (max(tolerance(kind, given) for kind in kinds) for given in (atol, rtol))
    return absolute, relative


def check_close(xs: Any, ys: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """AssertionError unless trees of arrays are equal within tolerances, which are those of an element times their
    number."""

    def check(*pair: Any) -> None:
        x, y = map(np.asarray, pair)
        if x.shape != y.shape:
            raise AssertionError(f"{err_msg}: shapes {x.shape} and {y.shape}")
        each = limits(x, y, atol, rtol)
        assert_numpy_allclose(x, y, each[0] * x.size, each[1] * x.size, err_msg)

    tree_util.tree_map(check, xs, ys)


def check_eq(xs: Any, ys: Any, err_msg: str = "") -> None:
    """AssertionError unless trees of arrays are equal."""
    tree_util.tree_map(lambda x, y: assert_numpy_allclose(x, y, err_msg=err_msg), xs, ys)


def check_dtypes_match(xs: Any, ys: Any) -> None:
    """AssertionError unless trees of arrays have the same dtypes, as wide as the settings have them."""

    kinds = [tree_util.tree_map(lambda x: dtypes.canonicalize_dtype(dtype_of(x)), tree) for tree in (xs, ys)]
    if kinds[0] != kinds[1]:
        raise AssertionError(f"dtypes {kinds[0]} and {kinds[1]}")


def rand_like(rng: np.random.RandomState, x: Any) -> Any:
    """Normal numbers of the shape and dtype of `x`, integers cut off; a number of Python's for one."""
    values = np.empty(np.shape(x), dtype_of(x))
    for part in (values.real, values.imag) if np.iscomplexobj(values) else (values,):
        part[...] = rng.randn(*values.shape)
    return values.item() if type(x) in (bool, int, float, complex) else values
