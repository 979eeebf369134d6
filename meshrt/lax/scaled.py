"""Products of matrices whose elements share scales by blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, reshape
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.composite import composite
from meshrt.primitives.contract import dot_general
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import mul_p

__all__ = ["scaled_dot"]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def scaled_dot(
    lhs: Any,
    rhs: Any,
    *,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    dimension_numbers: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`dot_general` of `lhs` and `rhs`, each times its scales; in bfloat16 unless a dtype is preferred.

    Scales have the operand's shape, but for contracted dimensions, where each is shared by a block of at least two
    elements. Compilers know it as the composite `xla.scaled_dot`. Without `dimension_numbers` it is the product of
    matrices, or of two batches of them.

    Raises:
      ArgumentTypeError: shapes do not fit each other.

    >>> lhs, rhs = jnp.ones((2, 32), jnp.float8_e4m3fn), jnp.ones((32, 3), jnp.float8_e4m3fn)
    >>> lax.scaled_dot(lhs, rhs, lhs_scale=jnp.ones((2, 1), jnp.float8_e8m0fnu), rhs_scale=jnp.ones((1, 3),
    ...     jnp.float8_e8m0fnu)).shape
    (2, 3)
    """
    x, y = aval_of(lhs), aval_of(rhs)
    if dimension_numbers is None:
        dimension_numbers = _matrix_product(x, y)
    (xc, yc), (xb, yb) = dimension_numbers
    for name, mine, other in (("batch", xb, yb), ("contracting", xc, yc)):
        if len(mine) != len(other) or any(x.shape[i] != y.shape[j] for i, j in zip(mine, other)):
            raise errors.ArgumentTypeError(
                f"scaled_dot needs {name} dimensions of equal sizes, but got {x.short()} and {y.short()} with "
                f"{name} dimensions {tuple(mine)} and {tuple(other)}"
            )
    scales = []
    for side, aval, scale, contracting in (("LHS", x, lhs_scale, xc), ("RHS", y, rhs_scale, yc)):
        if scale is None:
            ones = tuple(1 if i in contracting else n for i, n in enumerate(aval.shape))
            scale = broadcast_in_dim(_BFLOAT16.type(1), ones, ())
        else:
            _check_scale(side, aval, aval_of(scale), contracting)
        scales.append(scale)
    preferred = _BFLOAT16
    if preferred_element_type is not None:
        preferred = dtypes.check_user_dtype(preferred_element_type, "scaled_dot")

    def decomposition(lhs: Any, rhs: Any, lhs_scale: Any, rhs_scale: Any) -> Any:
        pairs = (lhs, lhs_scale), (rhs, rhs_scale)
        scaled = [mul_p.bind(convert_element_type(v, _BFLOAT16), _spread(s, aval_of(v).shape)) for v, s in pairs]
        return dot_general(scaled[0], scaled[1], dimension_numbers, preferred_element_type=preferred)

    return composite(decomposition, "xla.scaled_dot")(lhs, rhs, *scales)


def _matrix_product(x: ShapedArray, y: ShapedArray) -> Any:
    if x.ndim != y.ndim or x.ndim < 2:
        raise errors.ArgumentTypeError(
            f"scaled_dot of {x.short()} and {y.short()} needs dimension_numbers: without them it multiplies "
            "two matrices, or two batches of them"
        )
    batch = tuple(range(x.ndim - 2))
    return ((x.ndim - 1,), (y.ndim - 2,)), (batch, batch)


def _check_scale(side: str, x: ShapedArray, scale: ShapedArray, contracting: Sequence[int]) -> None:
    fits = x.ndim == scale.ndim and all(
        m and n % m == 0 and n // m >= 2 if i in contracting else m == n
        for i, (n, m) in enumerate(zip(x.shape, scale.shape))
    )
    if not fits:
        raise errors.ArgumentTypeError(
            f"{side} {x.short()} does not match scale {scale.short()}: contracting dimensions "
            f"{tuple(contracting)} must be divisible by the scale's, by 2 at least, and the others equal to them"
        )


def _spread(scale: Any, shape: Sequence[int]) -> Any:
    """Scales in bfloat16, each repeated over its block."""
    sizes = aval_of(scale).shape
    wide = [v for m, n in zip(sizes, shape) for v in (m, n // m if m else 1)]
    out = broadcast_in_dim(convert_element_type(scale, _BFLOAT16), wide, range(0, 2 * len(sizes), 2))
    return reshape(out, tuple(shape))
