"""`jax.core`: types, tracers, evaluation of Jaxprs."""

from __future__ import annotations

from typing import Any

from meshrt.core.dimensions.expression import max_dim, min_dim
from meshrt.core.eager import ensure_compile_time_eval
from meshrt.core.jaxpr import Atom
from meshrt.core.trace import EVAL, Trace, Tracer
from meshrt.core.trace import eval_jaxpr as _eval_jaxpr
from meshrt.core.trace import set_trace as _set_trace
from meshrt.core.types import AbstractValue, ShapedArray
from meshrt.core.types import aval_rules as pytype_aval_mappings
from meshrt.extend.core import DropVar, find_top_trace, get_opaque_trace_state, jaxprs_in_params
from meshrt.numpy.names import missing as _missing
from meshrt.sharding.mesh_caches import note_read as _note_read

__all__ = [
    "AbstractValue", "Atom", "DropVar", "ParamDict", "ShapedArray", "Trace", "Tracer", "Value",
    "ensure_compile_time_eval", "eval_context", "eval_jaxpr",
    "find_top_trace", "get_opaque_trace_state", "jaxprs_in_params", "max_dim", "min_dim",
    "pytype_aval_mappings",
]  # fmt: skip


ParamDict = dict[str, Any]
Value = Any


def eval_jaxpr(jaxpr: Any, consts: Any, *args: Any, propagate_source_info: bool = True) -> list[Any]:
    """The results of a Jaxpr on flat arrays."""
    return _eval_jaxpr(jaxpr, consts, args)


def eval_context() -> _set_trace:
    """A context in which operations are evaluated, whatever is being traced around it."""
    _note_read()  # what is evaluated lies on the devices in context
    return _set_trace(EVAL)


__getattr__ = _missing("jax.core", __all__)
