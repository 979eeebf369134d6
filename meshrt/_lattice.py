"""The promotion lattice: which dtypes exist, and how they join.

Nodes are dtypes and the weak scalar types ``int``, ``float`` and ``complex``. The order is the one JAX
documents: https://docs.jax.dev/en/latest/jep/9407-type-promotion.html.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from meshrt.errors import MeshrtError


class TypePromotionError(MeshrtError, ValueError):
    """Operands whose dtypes have no common type that both may be converted to implicitly."""


def dtypes_of(*types: Any) -> list[np.dtype]:
    return [np.dtype(t) for t in types]


BOOL = np.dtype(bool)
# int1 and uint1 exist only in newer versions of ml_dtypes.
NARROW_SIGNED = dtypes_of(*(t for n in ("int1", "int2", "int4") if (t := getattr(ml_dtypes, n, None))))
NARROW_UNSIGNED = dtypes_of(*(t for n in ("uint1", "uint2", "uint4") if (t := getattr(ml_dtypes, n, None))))
SIGNED = NARROW_SIGNED + dtypes_of("int8", "int16", "int32", "int64")
UNSIGNED = NARROW_UNSIGNED + dtypes_of("uint8", "uint16", "uint32", "uint64")
NARROW_FLOAT = dtypes_of(
    ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn, ml_dtypes.float8_e3m4,
    ml_dtypes.float8_e4m3, ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
)  # fmt: skip
FLOAT = [*NARROW_FLOAT, *dtypes_of(ml_dtypes.bfloat16, "float16", "float32", "float64")]
COMPLEX = dtypes_of("complex64", "complex128")
STRONG = [BOOL, *UNSIGNED, *SIGNED, *FLOAT, *COMPLEX]
# What never promotes implicitly, by the names that messages have for it.
_NO_IMPLICIT_KINDS = (
    *((frozenset(d for d in NARROW_FLOAT if d.name.startswith(f"float{n}_")), f"{n}-bit floats") for n in (8, 6, 4)),
    (frozenset([*NARROW_SIGNED, *NARROW_UNSIGNED]), "1-bit, 2-bit and 4-bit integers"),
)


def _edges(strict: bool, x64: bool) -> dict[Any, list[Any]]:
    """The lattice: each type with the types directly above it."""
    if strict:
        return {
            int: [float, *SIGNED, *UNSIGNED], float: [complex, *FLOAT], complex: COMPLEX,
            **{t: [] for t in STRONG},
        }  # fmt: skip
    up: dict[Any, list[Any]] = {t: [] for t in STRONG}
    chain = [
        ("uint8", "int16 uint16"), ("uint16", "int32 uint32"), ("uint32", "int64 uint64"), ("int8", "int16"),
        ("int16", "int32"), ("int32", "int64"), ("float16", "float32"), ("float32", "float64 complex64"),
        ("float64", "complex128"), ("complex64", "complex128"),
    ]  # fmt: skip
    up.update({np.dtype(below): dtypes_of(*above.split()) for below, above in chain})
    up[np.dtype(ml_dtypes.bfloat16)] = dtypes_of("float32")
    if not x64:  # uint32 with int32 would need int64, which nobody asked for
        up[np.dtype("uint32")] = dtypes_of("int32", "uint64")
    up[BOOL] = [int]
    up[int] = [*dtypes_of("uint8", "int8"), *NARROW_SIGNED, *NARROW_UNSIGNED]
    up[np.dtype("int64")] = up[np.dtype("uint64")] = [float]
    up[float] = [*NARROW_FLOAT, *dtypes_of(ml_dtypes.bfloat16, "float16"), complex]
    up[complex] = dtypes_of("complex64")
    return up


@cache
def _upper_bounds(strict: bool, x64: bool) -> dict[Any, frozenset]:
    edges = _edges(strict, x64)
    bounds: dict[Any, frozenset] = {}

    def visit(node: Any) -> frozenset:
        if node not in bounds:
            bounds[node] = frozenset([node]).union(*map(visit, edges[node]))
        return bounds[node]

    for node in edges:
        visit(node)
    return bounds


@cache
def least_upper_bound(strict: bool, x64: bool, nodes: frozenset) -> Any:
    """The one common upper bound that lies below all others; nodes are dtypes and weak scalar types."""
    bounds = _upper_bounds(strict, x64)
    unknown = [n for n in nodes if n not in bounds]
    if unknown:
        raise TypePromotionError(
            f"Input dtypes ({_names(nodes)}) have no available implicit dtype promotion path: {_names(unknown)} never "
            "promotes"
        )
    common = frozenset.intersection(*(bounds[n] for n in nodes))
    least = [c for c in common if common <= bounds[c]]
    if len(least) == 1:
        return least[0]
    raise TypePromotionError(_no_path(strict, nodes))


def _names(nodes: Iterable[Any]) -> str:
    return ", ".join(sorted(repr(f"weak {n.__name__}" if isinstance(n, type) else str(n)) for n in nodes))


def _no_path(strict: bool, nodes: frozenset) -> str:
    fix = "convert the operands explicitly, e.g. with x.astype('float32')"
    missing = f"Input dtypes ({_names(nodes)}) have no available implicit dtype promotion path"
    if strict:
        return (
            f"{missing} when jax_numpy_dtype_promotion=strict; {fix}, or set "
            "meshrt.config.update('numpy_dtype_promotion', 'standard')"
        )
    for kinds, name in _NO_IMPLICIT_KINDS:
        if narrow := nodes & kinds:
            return f"{missing}, as {name} do not support implicit promotion ({_names(narrow)}); {fix}"
    return f"{missing}; {fix}"
