"""`jax._src.core`: what `jax.core` and `jax.extend.core` have, and the state of tracing."""

from __future__ import annotations

from collections.abc import Iterator

from meshrt.compat.layer.core import *  # noqa: F403
from meshrt.compat.layer.core import __all__ as _public
from meshrt.core.axes import axis_names  # noqa: F401
from meshrt.core.types import aval_of as get_aval  # noqa: F401
from meshrt.errors import ConcretizationTypeError, ShardingTypeError  # noqa: F401
from meshrt.extend import core as _extend
from meshrt.extend.core.state import OpaqueTraceState, trace_state_clean  # noqa: F401
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.reshard import typeof  # noqa: F401

globals().update({name: getattr(_extend, name) for name in _extend.__all__})


def subjaxprs(jaxpr: _extend.Jaxpr) -> Iterator[_extend.Jaxpr]:
    """The Jaxprs among the parameters of a Jaxpr's equations, but not those in turn within them."""
    for eqn in jaxpr.eqns:
        yield from _extend.jaxprs_in_params(eqn.params)


_more = (
    "ConcretizationTypeError",
    "OpaqueTraceState",
    "ShardingTypeError",
    "axis_names",
    "get_aval",
    "subjaxprs",
    "trace_state_clean",
    "typeof",
)
__getattr__ = _missing("jax._src.core", (*_public, *_extend.__all__, *_more))
