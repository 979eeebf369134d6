"""Convolutions of sparse signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.experimental.sparse.arrays import BCOO
from meshrt.experimental.sparse.coordinates import bcoo_update_layout

__all__ = ["bcoo_conv_general_dilated"]


@usual_promotion
def bcoo_conv_general_dilated(
    lhs: Any,
    rhs: Any,
    *,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> BCOO:
    """A convolution in one dimension, [1, 1, n] with [1, 1, m], of which at least one is sparse; the result is sparse
    and has an element for every pair of theirs. Arguments are those of `lax.conv_general_dilated`.

    Raises:
      UnsupportedError: strides, dilations, groups, several features or examples, more dimensions.

    >>> x, window = jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2))
    >>> m, w = (sparse.BCOO.fromdense(v, n_batch=2) for v in (x, window))
    >>> sparse.bcoo_conv_general_dilated(m, w, window_strides=(1,), padding="VALID").shape
    (1, 1, 3)
    """

    def dense(x: Any, y: Any) -> list[Any]:
        return [
            lax.conv_general_dilated(
                x, y, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count,
                batch_group_count, precision, preferred_element_type, out_sharding,
            )
        ]  # fmt: skip

    closed = trace_to_jaxpr(dense, [ShapedArray(x.shape, x.dtype) for x in (lhs, rhs)], "bcoo_conv_general_dilated")
    params = next(e.params for e in closed.eqns if e.primitive is lax.conv_general_dilated_p)
    if lhs.ndim != 3:
        raise errors.UnsupportedError(f"bcoo convolution in {lhs.ndim - 2} dimensions; only one is supported.")
    for name in ("window_strides", "lhs_dilation", "rhs_dilation"):
        if tuple(params[name]) != (1,):
            raise errors.UnsupportedError(f"bcoo convolution with {name}={params[name]}.")
    if (params["batch_group_count"], params["feature_group_count"]) != (1, 1):
        raise errors.UnsupportedError("bcoo convolution with non-unit group counts.")
    if lhs.shape[:2] != (1, 1) or rhs.shape[:2] != (1, 1):
        raise errors.UnsupportedError("bcoo convolution with leading dimensions other than (1, 1)")
    kind = next(x.indices.dtype for x in (lhs, rhs) if isinstance(x, BCOO))
    ((before, _),) = params["padding"]
    data, places = _pairs(_signal(lhs, kind), _signal(rhs, kind), int(before))
    out = closed.out_avals[0]
    size = out.shape[-1]
    inside = (places >= 0) & (places < size)
    data = jnp.where(inside, data, jnp.zeros((), data.dtype)).astype(out.dtype)
    places = jnp.where(inside, places, size)
    return BCOO((data[None, None], places[None, None, :, None]), shape=(1, 1, size))


def _signal(x: Any, kind: Any) -> tuple[Any, Any]:
    """Elements [nse] and their places [nse]; those outside are 0."""
    if not isinstance(x, BCOO):
        return x[0, 0], jnp.arange(x.shape[-1], dtype=kind)
    x = bcoo_update_layout(x, n_batch=2, n_dense=0, on_inefficient=None)
    data, places = x.data[0, 0], x.indices[0, 0, :, 0].astype(kind)
    return jnp.where(places < x.shape[-1], data, jnp.zeros((), data.dtype)), places


def _pairs(lhs: tuple[Any, Any], rhs: tuple[Any, Any], before: int) -> tuple[Any, Any]:
    dtype = dtypes.result_type(lhs[0], rhs[0])
    data = lhs[0].astype(dtype)[:, None] * rhs[0].astype(dtype)
    return data.ravel(), (lhs[1][:, None] - rhs[1] + before).ravel()
