"""The error function, the gamma function's logarithm and its derivatives."""

from __future__ import annotations

import math
from typing import Any

from meshrt.core.basic.pointwise import nary, no_derivative
from meshrt.core.basic.shapes import broadcast_in_dim_p, constant
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.primitives.elementwise import add, exp_p, mul, mul_p, neg_p, unary

__all__: list[str] = []

erf_p = unary(
    "erf", "chlo.erf",
    lambda t, o, x: mul_p.bind(t, mul(2 / math.sqrt(math.pi), exp_p.bind(neg_p.bind(mul_p.bind(x, x))))),
    kinds="f", fuses=True, finite=True,
)  # fmt: skip
erfc_p = unary(
    "erfc", "chlo.erfc",
    lambda t, o, x: mul_p.bind(t, mul(-2 / math.sqrt(math.pi), exp_p.bind(neg_p.bind(mul_p.bind(x, x))))),
    kinds="f", fuses=True,
)  # fmt: skip
erf_inv_p = unary(
    "erf_inv", "chlo.erf_inv",
    lambda t, o, x: mul_p.bind(t, mul(math.sqrt(math.pi) / 2, exp_p.bind(mul_p.bind(o, o)))), kinds="f",
)  # fmt: skip
lgamma_p = unary("lgamma", "chlo.lgamma", lambda t, o, x: mul_p.bind(t, digamma_p.bind(x)), kinds="f")
digamma_p: Primitive = unary("digamma", "chlo.digamma", lambda t, o, x: mul_p.bind(t, _trigamma(x)), kinds="f")
polygamma_p: Primitive = nary(
    "polygamma", "chlo.polygamma", 2, kinds="f",
    derivatives=[no_derivative("polygamma", "m"), lambda t, o, m, x: mul_p.bind(t, polygamma_p.bind(add(m, 1), x))],
)  # fmt: skip


def _trigamma(x: Any) -> Any:
    aval = aval_of(x)
    one = constant(1, aval.dtype, aval.weak_type)
    return polygamma_p.bind(broadcast_in_dim_p.bind(one, shape=aval.shape, broadcast_dimensions=()), x)
