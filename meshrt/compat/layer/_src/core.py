"""`jax._src.core`: what `jax.core` and `jax.extend.core` have, the state of tracing, shapes and types."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from meshrt.compat.layer.core import *  # noqa: F403
from meshrt.compat.layer.core import __all__ as _public
from meshrt.core.axes import NamedAxis as _NamedAxis
from meshrt.core.axes import axes_in_scope as _axes_in_scope
from meshrt.core.axes import axis_names, bind_axes  # noqa: F401
from meshrt.core.dimensions.expression import DimExpr as _DimExpr
from meshrt.core.dimensions.expression import max_dim
from meshrt.core.trace import EVAL as eval_trace  # noqa: F401
from meshrt.core.trace import EvalTrace, Tracer, current_trace  # noqa: F401
from meshrt.core.types import ShapedArray
from meshrt.core.types import aval_of as get_aval  # noqa: F401
from meshrt.core.types import aval_of as shaped_abstractify  # noqa: F401
from meshrt.errors import ConcretizationTypeError, InconclusiveDimensionOperation, ShardingTypeError  # noqa: F401
from meshrt.experimental import cur_qdd  # noqa: F401
from meshrt.extend import core as _extend
from meshrt.extend.core.primitives import call_p, closed_call_p  # noqa: F401
from meshrt.extend.core.state import OpaqueTraceState, trace_state_clean  # noqa: F401
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.collective_axes import pvary  # noqa: F401
from meshrt.primitives.references import empty_ref, free_ref, freeze, new_ref  # noqa: F401
from meshrt.primitives.reshard import typeof  # noqa: F401
from meshrt.primitives.state import freeze_p  # noqa: F401
from meshrt.primitives.state import new_ref_p as ref_p  # noqa: F401
from meshrt.primitives.tokens import AbstractToken as _AbstractToken
from meshrt.runtime.reference import Ref  # noqa: F401
from meshrt.sharding.axes import AxisType  # noqa: F401

globals().update({name: getattr(_extend, name) for name in _extend.__all__})

abstract_token = _AbstractToken()
no_axis_name = object()
unsafe_get_current_trace = current_trace
AxisName = Any


def subjaxprs(jaxpr: _extend.Jaxpr) -> Iterator[_extend.Jaxpr]:
    """The Jaxprs among the parameters of a Jaxpr's equations, but not those in turn within them."""
    for eqn in jaxpr.eqns:
        yield from _extend.jaxprs_in_params(eqn.params)


def last_used(jaxpr: _extend.Jaxpr) -> dict[Any, Any]:
    """By variable, the equation that reads it last; None for a result of the program."""
    found: dict[Any, Any] = {v: None for v in jaxpr.outvars if isinstance(v, _extend.Var)}
    for eqn in reversed(jaxpr.eqns):
        for v in eqn.invars:
            if isinstance(v, _extend.Var):
                found.setdefault(v, eqn)
    return found


def definitely_equal(x: Any, y: Any) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(x, Tracer) or isinstance(y, Tracer):
        return x is y
    return x is y or bool(x == y)


def definitely_equal_shape(s1: Sequence[Any], s2: Sequence[Any]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(s1) == len(s2) and all(map(definitely_equal, s1, s2))


def typematch(t1: Any, t2: Any, no_dtype_check: bool = False) -> bool:
    """Whether two types are the same but for what weak types leave open."""
    if not (hasattr(t1, "shape") and hasattr(t2, "shape")):
        return bool(t1 == t2)
    same = type(t1) is type(t2) and definitely_equal_shape(t1.shape, t2.shape)
    return same and (no_dtype_check or t1.dtype == t2.dtype)


def typecompat(aval_ref: Any, aval: Any) -> bool:
    """Whether values of type `aval` may stand where `aval_ref` is wanted."""
    return typematch(aval_ref, aval)


def is_empty_shape(s: Sequence[Any]) -> bool:
    """Whether arrays of a shape have no elements."""
    return any(definitely_equal(d, 0) for d in s)


def is_dim(v: Any) -> bool:
    """Whether a value may be a size."""
    try:
        operator.index(v)
    except Exception:  # arrays that are traced have their own
        return isinstance(v, _DimExpr)
    return True


def canonicalize_shape(shape: Sequence[Any], context: str = "") -> tuple[Any, ...]:
    """A shape of sizes: Python's integers and expressions of them. TypeError for anything else."""
    try:
        return tuple(d if isinstance(d, _DimExpr) else operator.index(d) for d in shape)
    except TypeError:
        where = f" {context}" if context else ""
        raise TypeError(
            f"Shapes must be 1D sequences of concrete values of integer type, got {tuple(shape)}.{where}"
        ) from None


def canonicalize_dim(d: Any, context: str = "") -> Any:
    """A size as an int or a symbolic one. TypeError if it is neither."""
    return canonicalize_shape((d,), context)[0]


def definitely_equal_one_of_dim(d1: Any, dlist: Sequence[Any]) -> bool:
    """Whether a size is known to be equal to one of several."""
    return any(definitely_equal(d1, d) for d in dlist)


def dilate_dim(d: Any, dilation: Any) -> Any:
    """The size of a dimension whose elements are moved `dilation` apart."""
    return max_dim(0, 1 + dilation * (d - 1))


def stride_dim(d: Any, window_size: Any, window_stride: Any) -> Any:
    """How many windows fit into a dimension, one every `window_stride` elements."""
    return max_dim(0, (d - window_size) // window_stride + 1)


def physical_shape(logical_shape: Sequence[Any], dtype: Any) -> tuple[Any, ...]:
    """The shape of the numbers that an array consists of: that of keys has dimensions for each key."""
    return (*logical_shape, *(dtype.impl.key_shape if _is_key(dtype) else ()))


def physical_aval(aval: Any) -> Any:
    """The type of the numbers that an array consists of."""
    if not isinstance(aval, ShapedArray) or not _is_key(aval.dtype):
        return aval
    return ShapedArray(physical_shape(aval.shape, aval.dtype), np.dtype("uint32"))


def _is_key(dtype: Any) -> bool:
    return hasattr(dtype, "impl")


def is_literalable(x: Any, for_ad: bool = False) -> bool:
    """Whether a value may stand in an equation: Python's numbers, and NumPy's of no dimensions."""
    return isinstance(x, bool | int | float | complex | np.generic) or (type(x) is np.ndarray and not x.shape)


def to_concrete_value(x: Any) -> Any:
    """The value of an argument; None of one that is not known yet."""
    return None if isinstance(x, Tracer) else x


def divide_shape_sizes(s1: Sequence[int], s2: Sequence[int]) -> int:
    """How many times as many elements arrays of shape `s1` have as those of `s2`.

    InconclusiveDimensionOperation if that is no whole number.
    """
    n, m = math.prod(s1), math.prod(s2)
    if n != m and n % m:
        raise InconclusiveDimensionOperation(
            f"Cannot divide evenly the sizes of shapes {tuple(s1)} and {tuple(s2)}. The remainder {n % m} should be 0."
        )
    return 1 if n == m else n // m


def concrete_dim_or_error(val: Any, context: str = "") -> Any:
    """A size that is known. ConcretizationTypeError if it is not."""
    return val if isinstance(val, _DimExpr) else operator.index(_extend.concrete_or_error(None, val, context))


def jaxpr_const_args(jaxpr: Any) -> list[Any]:
    """The constants that programs are given beside their arguments: none here."""
    return []


class extend_axis_env_nd:
    """A block in which mapped axes of given names and sizes are in scope."""

    def __init__(self, name_size_pairs: Iterable[tuple[Any, int]]):
        self._inner = bind_axes(tuple(_NamedAxis(name, size) for name, size in name_size_pairs))

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *details: Any) -> Any:
        return self._inner.__exit__(*details)


class _AxisEnvironment:
    """The mapped axes in scope."""

    @property
    def axis_sizes(self) -> dict[Any, int]:
        return {a.name: a.size for a in _axes_in_scope()}

    def axis_exists(self, axis_name: Any) -> bool:
        return axis_name in self.axis_sizes

    def axis_size(self, axis_name: Any) -> int:
        if axis_name not in self.axis_sizes:
            raise NameError(f"unbound axis name: {axis_name}")
        return self.axis_sizes[axis_name]

    def axis_names(self) -> tuple[Any, ...]:
        return tuple(self.axis_sizes)

    def empty(self) -> bool:
        return not self.axis_sizes


def get_axis_env() -> _AxisEnvironment:
    """The mapped axes in scope."""
    return _AxisEnvironment()


def reset_trace_state() -> bool:
    """Forgets traces that were left open: whether there were none, as always here."""
    return trace_state_clean()


def join_effects(*effects: Any) -> Any:
    """The effects of several."""
    return frozenset().union(*effects)


def dedup_referents(itr: Iterable[Any]) -> list[Any]:
    """Each object once."""
    return list({id(x): x for x in itr}.values())


_own = [name for name in globals() if not name.startswith("_")]
__getattr__ = _missing("jax._src.core", (*_public, *_extend.__all__, *_own))
