"""`jax.core`: types, tracers, evaluation of Jaxprs."""

from __future__ import annotations

from typing import Any

from meshrt import errors as _errors
from meshrt.core.dimensions.expression import is_symbolic_dim as _is_symbolic_dim
from meshrt.core.dimensions.expression import max_dim, min_dim
from meshrt.core.eager import ensure_compile_time_eval
from meshrt.core.jaxpr import Atom
from meshrt.core.trace import EVAL, Trace, Tracer
from meshrt.core.trace import eval_jaxpr as _eval_jaxpr
from meshrt.core.trace import set_trace as _set_trace
from meshrt.core.types import AbstractValue, ShapedArray
from meshrt.core.types import aval_rules as pytype_aval_mappings
from meshrt.extend import core as _extend
from meshrt.extend.core import DropVar, find_top_trace, get_opaque_trace_state, jaxprs_in_params
from meshrt.numpy.names import missing as _missing
from meshrt.sharding.mesh_caches import note_read as _note_read

__all__ = [
    "AbstractValue", "Atom", "DropVar", "ParamDict", "ShapedArray", "Trace", "Tracer", "Value",
    "ensure_compile_time_eval", "eval_context", "eval_jaxpr",
    "find_top_trace", "get_opaque_trace_state", "is_concrete", "is_constant_dim", "is_constant_shape",
    "jaxprs_in_params", "max_dim", "min_dim",
    "pytype_aval_mappings",
]  # fmt: skip


ParamDict = dict[str, Any]
Value = Any


def eval_jaxpr(jaxpr: Any, consts: Any, *args: Any, propagate_source_info: bool = True) -> list[Any]:
    """The results of a Jaxpr on flat arrays."""
    if len(args) != len(jaxpr.invars):
        raise _errors.ArgumentValueError(f"a Jaxpr of {len(jaxpr.invars)} arguments was given {len(args)}")
    return _eval_jaxpr(jaxpr, consts, args)


def eval_context() -> _set_trace:
    """A context in which operations are evaluated, whatever is being traced around it."""
    _note_read()  # what is evaluated lies on the devices in context
    return _set_trace(EVAL)


def is_concrete(x: Any) -> bool:
    """Whether the value of `x` is known now."""
    return not isinstance(x, Tracer) or x.concrete() is not None


def is_constant_dim(d: Any) -> bool:
    """Whether a size is a number, none with variables in it."""
    return not _is_symbolic_dim(d)


def is_constant_shape(s: Any) -> bool:
    """Whether all sizes of a shape are numbers."""
    return all(map(is_constant_dim, s))


# Where they stand now is `jax.extend.core` and `jax.errors`; libraries still look for them here.
_MOVED = (
    "CallPrimitive", "DebugInfo", "Effect", "Effects", "InconclusiveDimensionOperation", "JaxprTypeError",
    "check_jaxpr", "concrete_or_error", "gensym", "new_jaxpr_eqn", "no_effects", "nonempty_axis_env_DO_NOT_USE",
    "primal_dtype_to_tangent_dtype", "unsafe_am_i_under_a_jit_DO_NOT_USE", "unsafe_am_i_under_a_vmap_DO_NOT_USE",
    "unsafe_get_axis_names_DO_NOT_USE", "valid_jaxtype",
)  # fmt: skip
globals().update({name: getattr(_extend, name) for name in _MOVED})
__getattr__ = _missing("jax.core", __all__)
