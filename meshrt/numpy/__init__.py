# ruff: noqa: F401  (names are collected below)
"""NumPy's functions over arrays of ours. Names, signatures and dtype rules are JAX's ``jax.numpy``.

``_ROOMS`` lists the modules from the lowest up: each imports only those before it (below all of them stand operands,
the primitives of ``prims`` and ``choose``, the three-argument ``where``; above all, linalg, ``at`` and ``methods``).
What is missing raises an AttributeError that says so.
"""

from __future__ import annotations

import importlib
import operator as _operator
from typing import Any, Literal

import numpy as _np

from meshrt.core.operators import ArrayOperators as ndarray
from meshrt.core.tracebacks import boundaries
from meshrt.dtypes import finfo, iinfo, isdtype, promote_types
from meshrt.dtypes import issubdtype as _issubdtype
from meshrt.dtypes import result_type as _result_type
from meshrt.numpy import fft, linalg
from meshrt.numpy.methods import astype, attach_all
from meshrt.numpy.names import missing
from meshrt.numpy.namespace import API_VERSION as __array_api_version__
from meshrt.numpy.namespace import ArrayNamespaceInfo as __array_namespace_info__
from meshrt.numpy.scalar_types import SCALAR_TYPES

_ROOMS = (
    "arrays", "filled", "pointwise", "ufuncs", "logic", "division", "powers", "indexing", "shapes", "joining",
    "turning", "splitting", "creation", "reductions", "averages", "cumulative", "positions", "selection",
    "transcendental", "nan_reductions", "padding", "contractions", "diagonals", "sorting", "borders", "divisors",
    "representation", "windows", "grids", "quantiles", "editing", "calculus", "histograms", "correlations", "sets",
    "mapping", "polynomials", "universal", "files",
)  # fmt: skip

attach_all()


def _collect() -> dict[str, Any]:
    found: dict[str, Any] = dict(SCALAR_TYPES)
    for room in _ROOMS:
        module = importlib.import_module(f"{__name__}.{room}")
        found.update({name: getattr(module, name) for name in module.__all__ if name not in _INTERNAL})
    return boundaries(found, __name__)


_INTERNAL = frozenset(["gather_indices", "getitem", "static_slice", "logsumexp"])

newaxis = None
pi, e, euler_gamma = _np.pi, _np.e, _np.euler_gamma
inf, nan = _np.inf, _np.nan
dtype = _np.dtype
generic, number, integer, signedinteger, unsignedinteger = (
    _np.generic, _np.number, _np.integer, _np.signedinteger, _np.unsignedinteger,
)  # fmt: skip
inexact, floating, complexfloating, character = _np.inexact, _np.floating, _np.complexfloating, _np.character
object_, flexible, ComplexWarning = _np.object_, _np.flexible, _np.exceptions.ComplexWarning
set_printoptions, get_printoptions, printoptions = _np.set_printoptions, _np.get_printoptions, _np.printoptions
array_repr, array_str = _np.array_repr, _np.array_str


_Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]


def result_type(*args: Any) -> Any:
    """The dtype that arrays, scalars and dtypes promote to together.

    >>> jnp.result_type(jnp.int32, 1.5)
    dtype('float32')
    """
    return _result_type(*args)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether dtype ``arg1`` is ``arg2`` or below it in NumPy's hierarchy, which has every dtype of ours.

    Args:
      arg1: a dtype.
      arg2: a dtype or an abstract type such as `jnp.floating`.

    >>> jnp.issubdtype(jnp.bfloat16, jnp.floating)
    True
    """
    return _issubdtype(arg1, arg2)


def can_cast(from_: Any, to: Any, casting: _Casting = "safe") -> bool:
    """As ``numpy.can_cast``.

    Args:
      from_: a dtype, an array or a scalar.
      to: a dtype.
      casting: "no", "equiv", "safe", "same_kind" or "unsafe".

    >>> jnp.can_cast("int32", "float32"), jnp.can_cast("int16", "float32")
    (False, True)
    """
    return _np.can_cast(from_, to, casting)


def isscalar(element: Any) -> bool:
    """Whether ``element`` is a Python or NumPy scalar, or an array of no dimensions.

    >>> jnp.isscalar(3), jnp.isscalar(jnp.array(3)), jnp.isscalar([3])
    (True, True, False)
    """
    if _np.isscalar(element):
        return True
    if hasattr(element, "__jax_array__"):
        element = element.__jax_array__()
    return isinstance(element, ndarray | _np.ndarray) and element.ndim == 0


def iscomplexobj(x: Any) -> bool:
    """Whether the elements of ``x`` are complex.

    >>> jnp.iscomplexobj(jnp.array([1j]))
    True
    """
    if isinstance(x, (list, tuple)):  # as NumPy sees them
        x = _np.asarray(x)
    return x is not None and issubdtype(_result_type(x), complexfloating)


def isrealobj(x: Any) -> bool:
    """Whether the elements of ``x`` are not complex.

    >>> jnp.isrealobj(jnp.array([1.0]))
    True
    """
    return not iscomplexobj(x)


def iterable(y: Any) -> bool:
    """Whether ``y`` can be iterated over.

    >>> jnp.iterable(jnp.ones(3)), jnp.iterable(1)
    (True, False)
    """
    return _operator.truth(_np.iterable(y))


_public = _collect()
globals().update(_public)
_OTHER = (
    "ndarray", "finfo", "iinfo", "isdtype", "issubdtype", "promote_types", "result_type", "can_cast", "isscalar",
    "iscomplexobj", "isrealobj", "iterable", "linalg", "fft", "astype", "newaxis", "pi", "e",
    "inf", "nan", "euler_gamma", "dtype", "generic", "number", "integer", "signedinteger", "unsignedinteger",
    "inexact", "floating", "complexfloating", "character", "flexible", "object_", "ComplexWarning",
    "set_printoptions", "get_printoptions", "printoptions", "array_repr", "array_str",
)  # fmt: skip
__all__ = sorted({*_public, *_OTHER})  # noqa: PLE0605
__getattr__ = missing(__name__, __all__)


def __dir__() -> list[str]:
    """The public names: none of the modules that they come from."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
