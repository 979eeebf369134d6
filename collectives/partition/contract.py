"""Contractions: by byte cost over all ways to assign mesh axes to batch, free and contracted dimensions."""

from __future__ import annotations

import functools

from propagation.attributes import dot_dims
from propagation.program import Op

from .context import Context
from .factors import PASS, REDUCE, Factors, choose


@functools.lru_cache(maxsize=4096)
def _dot_factors(dims, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> Factors:
    sizes: list[int] = []
    kinds: list[int] = []
    left, right, out = [-1] * len(lhs), [-1] * len(rhs), []

    def factor(size: int, kind: int) -> int:
        sizes.append(size)
        kinds.append(kind)
        return len(sizes) - 1

    for i, j in zip(dims.lhs_batch, dims.rhs_batch):
        left[i] = right[j] = factor(lhs[i], PASS)
        out.append(left[i])
    for i, j in zip(dims.lhs_contract, dims.rhs_contract):
        left[i] = right[j] = factor(lhs[i], REDUCE)
    for i, n in enumerate(lhs):
        if left[i] < 0:
            left[i] = factor(n, PASS)
            out.append(left[i])
    for j, n in enumerate(rhs):
        if right[j] < 0:
            right[j] = factor(n, PASS)
            out.append(right[j])
    return Factors(tuple(sizes), tuple(kinds), (tuple(left), tuple(right)), (tuple(out),))


def dot_general(ctx: Context, op: Op) -> None:
    """lhs[batch, m, k] x rhs[batch, k, n] -> [batch, m, n]; a split contraction leaves a partial sum."""
    a, b = op.operands
    result = op.results[0]
    dims = dot_dims(op.attrs["dot_dimension_numbers"])
    factors = _dot_factors(dims, a.type.shape, b.type.shape)
    choice = choose(ctx, factors, (a, b), (result,), 2 * ctx.byte_per_flop)
    operands = []
    for v, layout, contract in zip((a, b), choice.operands, (dims.lhs_contract, dims.rhs_contract)):
        operands.append(ctx.masked(ctx.get(v, layout), v.type.shape, layout, contract))
    out = choice.results[0]
    ref = ctx.local_copy(op, operands, [ctx.piece_shape(result, out)])[0]
    ctx.bind_partial(result, out, {choice.pending: ref})


PARTITION = {"stablehlo.dot_general": dot_general}
