"""Derivatives of the scatter primitives.

Ties of scatter_min and scatter_max share the tangent evenly among the operand and all updates that attain the value.
Where several updates replace one element, the derivative follows the one that was written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.elementwise import (
    add_p,
    convert_element_type,
    div_p,
    eq_p,
    mul_p,
    neg_p,
    select_n_p,
)
from meshrt.primitives.gather import GatherScatterMode, gather_p
from meshrt.primitives.reshape import broadcasted_iota, full, reshape
from meshrt.transforms.tools import add_tangents, instantiate, is_undefined, zeros


def read_back(source: Any, indices: Any, updates: ShapedArray, params: dict[str, Any]) -> Any:
    """What `source` holds where a scatter with `params` writes its updates (zero where windows are dropped)."""
    from meshrt.primitives.scatter import window_sizes

    d, mode = params["dimension_numbers"], params["mode"]
    return gather_p.bind(
        source, indices, dimension_numbers=d.inverse(),
        slice_sizes=window_sizes(aval_of(source).shape, updates.shape, d),
        unique_indices=params["unique_indices"], indices_are_sorted=params["indices_are_sorted"], mode=mode,
        fill_value=0 if mode is GatherScatterMode.FILL_OR_DROP else None,
    )  # fmt: skip


def _known_aval(x: Any) -> ShapedArray:
    return x.aval if is_undefined(x) else aval_of(x)


def _linear_jvp(primitive: Primitive):
    """scatter_add and scatter_sub are linear in operand and updates together."""

    def jvp(primals, tangents, **params):
        operand, indices, updates = primals
        out = primitive.bind(operand, indices, updates, **params)
        t_operand, _, t_updates = tangents
        if t_updates is None:
            return out, t_operand
        return out, primitive.bind(instantiate(t_operand, operand), indices, t_updates, **params)

    return jvp


def _linear_transpose(sign: int):
    def transpose(ct, operand, indices, updates, **params):
        ct_updates = None
        if is_undefined(updates):
            ct_updates = read_back(ct, indices, updates.aval, params)
            ct_updates = neg_p.bind(ct_updates) if sign < 0 else ct_updates
        return [ct if is_undefined(operand) else None, None, ct_updates]

    return transpose


# ----------------------------------------------------------------------------------------------------------
# scatter (replace)


def _replace_jvp(primals, tangents, **params):
    from meshrt.primitives.scatter import scatter_add_p, scatter_p

    operand, indices, updates = primals
    t_operand, _, t_updates = tangents
    if t_operand is None and t_updates is None:
        return scatter_p.bind(operand, indices, updates, **params), None
    t_operand, t_updates = instantiate(t_operand, operand), instantiate(t_updates, updates)
    if params["unique_indices"]:
        out = scatter_p.bind(operand, indices, updates, **params)
        return out, scatter_p.bind(t_operand, indices, t_updates, **params)
    # Number the updates and scatter the numbers: they tell which update each element received. With all other updates
    # masked, an addition gives the same value, and it is linear.
    shape, aval = aval_of(operand).shape, aval_of(updates)
    count = np.dtype(np.uint32)
    ids = add_p.bind(reshape(broadcasted_iota(count, (aval.size,), 0), aval.shape), np.uint32(1))
    winners = scatter_p.bind(full(shape, 0, count), indices, ids, **params)
    untouched = eq_p.bind(winners, np.uint32(0))
    written = eq_p.bind(read_back(winners, indices, aval, params), ids)

    def apply(x, u):
        kept = select_n_p.bind(untouched, zeros(aval_of(x)), x)
        return scatter_add_p.bind(kept, indices, select_n_p.bind(written, zeros(aval_of(u)), u), **params)

    return apply(operand, updates), apply(t_operand, t_updates)


def _replace_transpose(ct, operand, indices, updates, **params):
    from meshrt.primitives.scatter import scatter_p

    if not params["unique_indices"]:
        raise errors.UnsupportedError(
            "the transpose of scatter needs unique_indices=True: with overlapping windows it is not linear"
        )
    aval = _known_aval(updates)
    ct_operand = ct_updates = None
    if is_undefined(operand):
        ct_operand = scatter_p.bind(ct, indices, zeros(ShapedArray(aval.shape, aval_of(ct).dtype)), **params)
    if is_undefined(updates):
        ct_updates = read_back(ct, indices, aval, params)
    return [ct_operand, None, ct_updates]


# ----------------------------------------------------------------------------------------------------------
# scatter_mul


def _mul_jvp(primals, tangents, **params):
    from meshrt.primitives.scatter import scatter_add_p, scatter_mul_p

    operand, indices, updates = primals
    t_operand, _, t_updates = tangents
    out = scatter_mul_p.bind(operand, indices, updates, **params)
    total = None if t_operand is None else scatter_mul_p.bind(t_operand, indices, updates, **params)
    if t_updates is not None:
        if not params["unique_indices"]:
            raise errors.UnsupportedError(
                "scatter_mul can be differentiated with respect to its updates only with unique_indices=True"
            )
        factor = read_back(operand, indices, aval_of(updates), params)
        base = zeros(aval_of(operand).strong())
        total = add_tangents(total, scatter_add_p.bind(base, indices, mul_p.bind(t_updates, factor), **params))
    return out, total


def _mul_transpose(ct, operand, indices, updates, **params):
    from meshrt.primitives.scatter import scatter_mul_p

    if is_undefined(updates):
        if not params["unique_indices"]:
            raise errors.UnsupportedError("the transpose of scatter_mul to its updates needs unique_indices=True")
        return [
            None,
            None,
            mul_p.bind(
                read_back(ct, indices, updates.aval, params),
                read_back(operand, indices, updates.aval, params),
            ),
        ]
    return [scatter_mul_p.bind(ct, indices, updates, **params), None, None]


# ----------------------------------------------------------------------------------------------------------
# scatter_min and scatter_max


def _extremum_jvp(primitive: Primitive):
    def jvp(primals, tangents, **params):
        from meshrt.primitives.scatter import scatter_add_p

        operand, indices, updates = primals
        t_operand, _, t_updates = tangents
        out = primitive.bind(operand, indices, updates, **params)
        if t_operand is None and t_updates is None:
            return out, None
        dtype = aval_of(operand).dtype

        def flag(a, b):
            return convert_element_type(eq_p.bind(a, b), dtype)

        operand_won = flag(operand, out)
        update_won = flag(updates, read_back(out, indices, aval_of(updates), params))
        winners = scatter_add_p.bind(operand_won, indices, update_won, **params)
        # An element that nobody attains (a NaN) has no winners and keeps the quotient 0 / 0.
        total = mul_p.bind(instantiate(t_operand, operand), operand_won)
        if t_updates is not None:
            total = scatter_add_p.bind(total, indices, mul_p.bind(t_updates, update_won), **params)
        return out, div_p.bind(total, winners)

    return jvp


def attach() -> None:
    """Gives the scatter primitives their derivative rules."""
    from meshrt.primitives import scatter as s

    s.scatter_p.jvp, s.scatter_p.transpose = _replace_jvp, _replace_transpose
    s.scatter_add_p.jvp, s.scatter_add_p.transpose = _linear_jvp(s.scatter_add_p), _linear_transpose(1)
    s.scatter_sub_p.jvp, s.scatter_sub_p.transpose = _linear_jvp(s.scatter_sub_p), _linear_transpose(-1)
    s.scatter_mul_p.jvp, s.scatter_mul_p.transpose = _mul_jvp, _mul_transpose
    s.scatter_min_p.jvp, s.scatter_max_p.jvp = _extremum_jvp(s.scatter_min_p), _extremum_jvp(s.scatter_max_p)
