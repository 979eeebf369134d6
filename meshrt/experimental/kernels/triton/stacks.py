"""Loops over stacks of values, and scatters: each turn takes a part of a value and puts one back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import lax
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.trace import eval_jaxpr
from meshrt.core.types import aval_of
from meshrt.experimental.kernels.mlir import control
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, through
from meshrt.primitives import gather, scatter
from meshrt.primitives.control import scan_p
from meshrt.primitives.gather_scatter import GatherScatterMode, index_bounds, window_sizes

__all__ = ["RULES"]

_I32 = np.dtype(np.int32)


def _scan(walk: Walk, eqn: Eqn, *operands: Any) -> list[Any]:
    kept = eqn.params["num_consts"] + eqn.params["num_carry"]
    if len(operands) == kept and len(eqn.outvars) == eqn.params["num_carry"]:
        out: list[Any] = control.RULES[scan_p](walk, eqn, *operands)
        return out
    found: list[Any] = through(_over_stacks)(walk, eqn, *operands)
    return found


def _over_stacks(*operands: Any, jaxpr: Any, length: int, num_consts: int, num_carry: int, **p: Any) -> Any:
    """The loop over a counter, whose turns read and write the elements of stacks there."""
    consts, start = operands[:num_consts], operands[num_consts : num_consts + num_carry]
    stacks = operands[num_consts + num_carry :]
    made = [lax.full((length, *v.aval.shape), 0, v.aval.dtype) for v in jaxpr.outvars[num_carry:]]

    def turn(i: Any, now: Any) -> Any:
        carry, done = now
        at = lax.sub(np.int32(length - 1), i) if p.get("reverse") else i
        given = [lax.dynamic_index_in_dim(x, at, 0, keepdims=False) for x in stacks]
        outs = eval_jaxpr(jaxpr, (), [*consts, *carry, *given])
        put = [lax.dynamic_update_index_in_dim(x, y, at, 0) for x, y in zip(done, outs[num_carry:])]
        return tuple(outs[:num_carry]), tuple(put)

    carry, done = lax.fori_loop(np.int32(0), np.int32(length), turn, (tuple(start), tuple(made)))
    return [*carry, *done]


def _scatter(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Windows one after the other: each is read, combined with its update, written."""

    def scattered(operand: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, **_: Any) -> Any:
        d, shape, given = dimension_numbers, aval_of(operand).shape, aval_of(updates).shape
        sizes = window_sizes(shape, given, d)
        outer = [i for i in range(len(given)) if i not in d.update_window_dims]
        count = math.prod(given[i] for i in outer)
        rows = lax.transpose(updates, (*outer, *d.update_window_dims))
        rows = lax.reshape(rows, (count, *sizes))
        starts = _starts(indices, d, [given[i] for i in outer], count)
        bounds = dict(zip(d.scatter_dims_to_operand_dims, index_bounds(
            shape, sizes, d.scatter_dims_to_operand_dims, aval_of(indices).dtype)))  # fmt: skip

        def turn(i: Any, now: Any) -> Any:
            inside: Any = np.True_
            at = [np.int32(0)] * len(shape)
            for k, column in starts.items():
                at[k] = lax.dynamic_index_in_dim(column, i, 0, keepdims=False)
                if k not in bounds:
                    continue
                low, high = (np.asarray(n, aval_of(column).dtype)[()] for n in (0, bounds[k]))
                if mode is GatherScatterMode.CLIP:
                    at[k] = lax.clamp(low, at[k], high)
                inside = lax.bitwise_and(inside, lax.bitwise_and(lax.ge(at[k], low), lax.le(at[k], high)))
            at = [lax.convert_element_type(s, _I32) for s in at]
            there = lax.dynamic_slice(now, at, sizes)
            new = combine(there, lax.dynamic_index_in_dim(rows, i, 0, keepdims=False))
            return lax.dynamic_update_slice(now, lax.select_n(inside, there, new), at)

        return lax.fori_loop(np.int32(0), np.int32(count), turn, operand)

    return scattered


def _starts(indices: Any, d: Any, outer: list[int], count: int) -> dict[int, Any]:
    """Per dimension of the operand where windows begin, one after the other."""
    last = aval_of(indices).ndim - 1
    flat = lambda x: lax.reshape(x, (count,))
    found = {
        k: flat(lax.index_in_dim(indices, i, last, keepdims=False))
        for i, k in enumerate(d.scatter_dims_to_operand_dims)
    }
    for k, along in zip(d.operand_batching_dims, d.scatter_indices_batching_dims):
        found[k] = flat(lax.broadcasted_iota(_I32, outer, along))
    return found


RULES: dict[Primitive, Rule] = {
    scan_p: _scan,
    scatter.scatter_p: through(_scatter(lambda x, u: u)),
    gather.scatter_add_p: through(_scatter(lax.add)),
    scatter.scatter_sub_p: through(_scatter(lax.sub)),
    scatter.scatter_mul_p: through(_scatter(lax.mul)),
    scatter.scatter_min_p: through(_scatter(lax.min)),
    scatter.scatter_max_p: through(_scatter(lax.max)),
    scatter.scatter_and_p: through(_scatter(lax.bitwise_and)),
    scatter.scatter_or_p: through(_scatter(lax.bitwise_or)),
    scatter.scatter_xor_p: through(_scatter(lax.bitwise_xor)),
}
