"""Jaxprs and what they consist of: for programs that walk over them. Names are ``jax.extend.core``'s.

>>> closed = meshrt.make_jaxpr(lambda x: x + 1)(2.0)  # doctest: +SKIP
>>> [eqn.primitive is core.primitives.add_p for eqn in closed.eqns]  # doctest: +SKIP
[True]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes as _dtypes
from meshrt import errors as _errors
from meshrt.core.checking import check as check_jaxpr
from meshrt.core.effects import Effect
from meshrt.core.jaxpr import NO_EFFECTS as no_effects
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr, JaxprTypeError, Literal, Var, subjaxprs
from meshrt.core.jaxpr import Effects as Effects
from meshrt.core.jaxpr import Eqn as JaxprEqn
from meshrt.core.naming import DebugInfo
from meshrt.core.source import Source as _Source
from meshrt.core.source import capture as _capture
from meshrt.core.trace import Tracer as _Tracer
from meshrt.core.trace import eval_jaxpr
from meshrt.core.trace import not_concrete as _not_concrete
from meshrt.core.types import aval_of as _aval_of
from meshrt.errors import InconclusiveDimensionOperation
from meshrt.extend.core import primitives
from meshrt.extend.core.declared import Primitive
from meshrt.extend.core.state import (
    TraceTag,
    find_top_trace,
    get_opaque_trace_state,
    nonempty_axis_env_DO_NOT_USE,
    set_current_trace,
    take_current_trace,
    unsafe_am_i_under_a_jit_DO_NOT_USE,
    unsafe_am_i_under_a_vmap_DO_NOT_USE,
    unsafe_get_axis_names_DO_NOT_USE,
)
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.tokens import AbstractToken, Token

__all__ = [
    "AbstractToken", "CallPrimitive", "ClosedJaxpr", "DebugInfo", "DropVar", "Effect", "Effects",
    "InconclusiveDimensionOperation", "Jaxpr", "JaxprEqn",
    "JaxprTypeError", "Literal", "Primitive", "Token", "TraceTag", "Var", "array_types", "call_impl", "check_jaxpr",
    "concrete_or_error",
    "find_top_trace", "gensym", "get_opaque_trace_state", "jaxpr_as_fun", "jaxprs_in_params", "mapped_aval",
    "new_jaxpr_eqn", "no_effects", "nonempty_axis_env_DO_NOT_USE",
    "primal_dtype_to_tangent_dtype", "primitives", "set_current_trace", "take_current_trace", "unmapped_aval",
    "unsafe_am_i_under_a_jit_DO_NOT_USE", "unsafe_am_i_under_a_vmap_DO_NOT_USE", "unsafe_get_axis_names_DO_NOT_USE",
    "valid_jaxtype",
]  # fmt: skip


class DropVar:
    """Variables of results that nobody reads, in Jaxprs of JAX. Those of meshrt have ordinary ones: none is this."""


class CallPrimitive(Primitive):
    """A primitive that calls a function of flat arrays (`meshrt.extend.linear_util.wrap_init`), its first operand."""

    call_primitive = True

    def __init__(self, name: str):
        super().__init__(name)
        object.__setattr__(self, "multiple_results", True)
        self.def_impl(call_impl)


#: The classes of NumPy's values that are arrays.
array_types = {np.ndarray, *(dtype.type for dtype in _dtypes.STRONG)}


def call_impl(f: Any, *args: Any, **params: Any) -> Any:
    """The results of a function of flat arrays (`meshrt.extend.linear_util.wrap_init`)."""
    return f.call_wrapped(*args)


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
    """The function of flat arrays that `closed_jaxpr` is; it returns the list of its results.

    It can be transformed and staged as any other.
    """

    def function(*args: Any) -> list[Any]:
        return list(eval_jaxpr(closed_jaxpr.jaxpr, closed_jaxpr.consts, args))

    function.__name__ = function.__qualname__ = closed_jaxpr.jaxpr.name or "jaxpr"
    return function


def jaxprs_in_params(params: dict[str, Any]) -> list[Jaxpr]:
    """The Jaxprs among the parameters of an equation: bodies of loops, branches, called functions."""
    return list(subjaxprs(params))


def new_jaxpr_eqn(
    invars: Sequence[Any],
    outvars: Sequence[Var],
    primitive: Any,
    params: dict[str, Any],
    effects: Effects = no_effects,
    source_info: _Source | None = None,
    ctx: Any = None,
) -> JaxprEqn:
    """The equation `outvars = primitive[params] invars`, at the caller's line unless `source_info` says where."""
    where = _capture() if source_info is None else source_info
    return JaxprEqn(primitive, list(invars), list(outvars), params, where, frozenset(effects))


def gensym() -> Callable[[Any], Var]:
    """What makes variables, each different from all others: call it with a type."""
    return Var


def mapped_aval(size: int, axis: int | None, aval: Any) -> Any:
    """The type of one member of a batch whose members lie along dimension `axis`, of `size`; None: not mapped.

    Raises ArgumentShapeError where that dimension has another size.
    """
    if axis is None:
        return aval
    if aval.shape[axis] != size:
        raise _errors.ArgumentShapeError(f"{aval.short()} has {aval.shape[axis]} along dimension {axis}, not {size}")
    return aval.without(axis)


def unmapped_aval(size: int, axis: int | None, aval: Any, explicit_mesh_axis: Any = None) -> Any:
    """The type of a batch of `size` members of type `aval` along a new dimension `axis`; None: not mapped."""
    if axis is None:
        return aval
    return aval.with_shape((*aval.shape[:axis], size, *aval.shape[axis:]))


def valid_jaxtype(x: Any) -> bool:
    """Whether functions of arrays take `x`: arrays, traced values, and NumPy's and Python's numbers."""
    try:
        _aval_of(x)
    except TypeError:
        return False
    return True


def primal_dtype_to_tangent_dtype(primal_dtype: Any) -> Any:
    """The dtype of derivatives with respect to values of `primal_dtype`: float0 for those that are not inexact."""
    return primal_dtype if _dtypes.issubdtype(primal_dtype, np.inexact) else _dtypes.float0


def concrete_or_error(force: Callable[[Any], Any] | None, val: Any, context: str = "") -> Any:
    """`force` of the value of `val` (the value itself if None). ConcretizationError if it is traced and not known."""
    if isinstance(val, _Tracer):
        known = val.concrete()
        if known is None:
            raise _not_concrete(val, context)
        val = known
    return val if force is None else force(val)


__getattr__ = _missing(__name__, __all__)
