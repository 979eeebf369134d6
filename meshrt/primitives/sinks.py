"""`dce_sink`: values that count as used."""

from __future__ import annotations

from typing import Any

from meshrt import tree_util
from meshrt.core.effects import NO_DCE
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.lowering.context import LoweringContext

__all__ = ["dce_sink"]


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> list[Any]:
    """For the compiler, too, a barrier keeps nothing: only an operation with an effect would."""
    return []


dce_sink_p: Primitive = Primitive(
    "dce_sink", lambda x, *, prevent_mlir_dce: [], lower=_lower, multiple_results=True,
    effects=lambda x, *, prevent_mlir_dce: frozenset({NO_DCE}), impl=lambda x, *, prevent_mlir_dce: [],
    jvp=lambda primals, tangents, **params: (dce_sink_p.bind(*primals, **params), []),
    batch=lambda size, args, dims, params: (dce_sink_p.bind(*args, **params), []), typed=True,
    absent={"transpose": "it has no result"},
)  # fmt: skip


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Keeps what computes the arrays of the pytree `val` from being dropped as dead code of a Jaxpr.

    Compilers may still drop it; `prevent_mlir_dce` is accepted, and changes nothing on CPUs.

    >>> meshrt.jit(lambda x: (lax.dce_sink(x + 1, prevent_mlir_dce=False), x)[1])(1)
    Array(1, dtype=int32, weak_type=True)
    """
    for x in tree_util.tree_leaves(val):
        dce_sink_p.bind(x, prevent_mlir_dce=bool(prevent_mlir_dce))
