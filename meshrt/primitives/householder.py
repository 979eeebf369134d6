"""The QR decomposition as LAPACK leaves it: reflections below the diagonal of r."""

from __future__ import annotations

from typing import Any

from meshrt.core.explicit import matrices
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.lapack import batch_leading, call_kernel, check_matrix


def _infer(x: ShapedArray) -> list[ShapedArray]:
    check_matrix("geqrf", x)
    (*batch, m, n) = x.shape
    return [x, ShapedArray((*batch, min(m, n)), x.dtype, x.weak_type)]


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    aval, taus = eqn.invars[0].aval.strong(), eqn.outvars[1].aval.strong()
    if not aval.size:
        return [x, ctx.full(0, taus)]
    return list(call_kernel(ctx, "geqrf", [x], [aval], [aval, taus]))


geqrf_p: Primitive = Primitive(
    "geqrf",
    _infer,
    lower=_lower,
    explicit=matrices,
    batch=batch_leading(lambda: geqrf_p),
    multiple_results=True,
    absent={**NOT_LINEAR, "jvp": "the reflections have no derivative of their own; differentiate qr"},
)


def geqrf(a: Any) -> tuple[Any, Any]:
    """(r with the reflections below its diagonal, their scales) of matrices `[..., m, n]`, as LAPACK's geqrf has it."""
    packed, taus = geqrf_p.bind(a)
    return packed, taus
