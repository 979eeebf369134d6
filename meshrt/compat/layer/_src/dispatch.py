"""`jax._src.dispatch`."""

from __future__ import annotations

from typing import Any

from meshrt.core.types import aval_of as _aval_of
from meshrt.extend.core import jaxprs_in_params as _inner
from meshrt.interpreters.xla import apply_primitive
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.sharding import device_put_p
from meshrt.runtime.array import Array as ArrayImpl
from meshrt.runtime.host_calls import effects_barrier as wait_for_tokens

__all__ = [
    "BACKEND_COMPILE_EVENT", "JAXPR_TO_MLIR_MODULE_EVENT", "JAXPR_TRACE_EVENT", "ArrayImpl", "apply_primitive",
    "check_arg", "device_put_p", "jaxpr_has_primitive", "runtime_tokens", "wait_for_tokens",
]  # fmt: skip

JAXPR_TRACE_EVENT = "/jax/core/compile/jaxpr_trace_duration"
JAXPR_TO_MLIR_MODULE_EVENT = "/jax/core/compile/jaxpr_to_mlir_module_duration"
BACKEND_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class _Tokens:
    """What orders effects. Programs keep it to themselves here: nothing is left between calls but those that run."""

    def clear(self) -> None:
        """Forgets tokens; there are none."""

    def block_until_ready(self) -> None:
        """Waits for the effects of programs that run."""
        wait_for_tokens()


runtime_tokens = _Tokens()


def check_arg(arg: Any) -> None:
    """TypeError for what no function of arrays takes."""
    _aval_of(arg)


def jaxpr_has_primitive(jaxpr: Any, prim_name: str) -> bool:
    """Whether a program, or one inside it, has a primitive whose name contains `prim_name`."""
    return any(
        prim_name in eqn.primitive.name or any(jaxpr_has_primitive(j, prim_name) for j in _inner(eqn.params))
        for eqn in jaxpr.eqns
    )


__getattr__ = _missing("jax._src.dispatch", __all__)
