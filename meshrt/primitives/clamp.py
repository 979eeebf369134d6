"""Values limited to what lies between two bounds: clamp.

clamp lo x hi -> x: bounds are scalars, or of the shape of x
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.kinds import not_accepted
from meshrt.core.basic.pointwise import add_tangents, spread
from meshrt.core.basic.shapes import bring_to_front, broadcast_in_dim
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.elementwise import and_p, gt_p, lt_p, mul
from meshrt.primitives.selection import select_n_p


def _clamp_infer(lo: ShapedArray, x: ShapedArray, hi: ShapedArray) -> ShapedArray:
    if x.is_extended:
        raise errors.ArgumentTypeError(not_accepted("clamp", x.dtype, "iufcb", 0))
    for name, bound in (("min", lo), ("max", hi)):
        if bound.shape not in ((), x.shape):
            raise errors.ArgumentTypeError(
                f"clamp requires {name}.shape == operand.shape or {name}.shape == (), got {name}.shape={bound.shape}, "
                f"operand.shape={x.shape}"
            )
        if bound.dtype != x.dtype:
            raise errors.ArgumentTypeError(
                f"lax.clamp requires arguments to have the same dtypes, got {lo.dtype}, {x.dtype}, {hi.dtype}. (Tip: "
                "jnp.clip promotes them)"
            )
    return ShapedArray(x.shape, x.dtype, lo.weak_type and x.weak_type and hi.weak_type)


def _clamp_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    lo, x, hi = primals
    out = clamp_p.bind(*primals)
    total = None

    def masked(condition: Any, t: Any) -> Any:
        t = spread(t, aval_of(out).shape)
        return select_n_p.bind(condition, mul(t, 0.0), t)

    below, above = spread(gt_p.bind(lo, x), aval_of(out).shape), spread(lt_p.bind(hi, x), aval_of(out).shape)
    if tangents[1] is not None:
        total = masked(and_p.bind(gt_p.bind(x, lo), lt_p.bind(x, hi)), tangents[1])
    if tangents[0] is not None:
        total = add_tangents(total, masked(below, tangents[0]))
    if tangents[2] is not None:
        total = add_tangents(total, masked(above, tangents[2]))
    return out, total


def _clamp_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    lo, x, hi = args
    if dims[0] is None and dims[2] is None and aval_of(lo).ndim == aval_of(hi).ndim == 0:
        return clamp_p.bind(lo, x, hi), dims[1]
    x = bring_to_front(size, x, dims[1])

    def bound(b: Any, d: Any) -> Any:
        if d is None and aval_of(b).ndim == 0:
            return b
        b = bring_to_front(size, b, d)
        return broadcast_in_dim(b, aval_of(x).shape, (0,)) if aval_of(b).ndim != aval_of(x).ndim else b

    return clamp_p.bind(bound(lo, dims[0]), x, bound(hi, dims[2])), 0


clamp_p = Primitive(
    "clamp", _clamp_infer, jvp=_clamp_jvp, batch=_clamp_batch, fuses=True,
    lower=lambda ctx, eqn, lo, x, hi: ctx.op("stablehlo.clamp", [lo, x, hi], eqn.outvars[0].aval),
    absent=NOT_LINEAR, finite=True, explicit=lambda app: [app.specs[1]],
)  # fmt: skip


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` limited to [min, max]; the bounds are scalars or of x's shape."""
    dtype = aval_of(x).dtype
    bounds = [np.asarray(b, dtype)[()] if isinstance(b, int | float) else b for b in (min, max)]
    return clamp_p.bind(bounds[0], x, bounds[1])
