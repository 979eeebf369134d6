"""Reversal of split dimensions: one permute with the mirrored device, and a local reversal.

reverse of f32[1024@x] over 8 devices: device 0 and device 7 exchange their pieces, 1 and 6, ... (one permute), and each
device reverses what it gets. Where the dimension does not divide, the padding of the last piece comes to lie in front
and is shifted out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from propagation.attributes import integers
from propagation.program import Op

from ..decide.candidate import Candidate, Sent
from ..halo.exchange import lacking, windows
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from .batch import rule_ahead
from .rearrange import rearranged


def reverse(ctx: Context, op: Op) -> Iterator[Candidate]:
    """One permute with the mirrored device, for all dimensions at once, then a local reversal: in this order, since the
    reversal is then fused into what follows, instead of being a copy that is only sent.

    Where a dimension does not divide, either the mirrored pieces are shifted by the padding, which lies in front of
    them; or each device fetches the positions that its piece of the result is made of (`windows`), if these are fewer.
    """
    value = op.operands[0]
    flipped = integers(op.attrs["dimensions"])
    shape = value.type.shape

    def keep(dims: Dims) -> tuple[Dims, Dims]:
        return dims, dims

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        swap, fetch = _mirrored(ctx, shape, flipped, before)
        zero = ctx.realiser.zero(ctx.region, (), ref.dtype)
        for d in fetch:
            piece, p = ref.shape[d], ctx.atoms.product(before[d])
            ref = windows(ctx, d, before[d], ref, shape[d], _stretches(shape[d], piece, p), piece, zero)
        mirror = np.arange(ctx.atoms.count)
        for d in swap:
            groups = ctx.atoms.groups(before[d])
            turned = np.empty_like(mirror)
            turned[groups] = groups[:, ::-1]
            mirror = turned[mirror]
        if swap:
            pairs = np.stack([np.arange(len(mirror)), mirror], axis=1)
            atoms = [a for d in swap for a in before[d]]
            ref = ctx.realiser.send(ctx.region, ref, pairs, atoms, op, "reversal", ctx.loc)
        ref = ctx.local_copy(op, [ref], [ref.shape])[0]
        for d in swap:
            piece, p = ref.shape[d], ctx.atoms.product(before[d])
            front = p * piece - shape[d]
            if front:
                starts = [front + c * piece for c in range(p)]
                ref = windows(ctx, d, before[d], ref, p * piece, starts, piece, zero)
        return ref

    def sends(dims: Dims) -> tuple[Sent, ...]:
        swap, fetch = _mirrored(ctx, shape, flipped, dims)
        share = float(bool(swap))
        for d, rows in fetch.items():
            share += rows / -(-shape[d] // ctx.atoms.product(dims[d]))
        size = share * ctx.itemsize(value) * ctx.elements(shape, dims)
        atoms = tuple([a for d in (*swap, *fetch) for a in dims[d]])
        return (Sent("collective_permute", atoms, size, bool(swap) + len(fetch)),) if size else ()

    return rearranged(ctx, op, value, keep, keep, local, sends=sends)


def _mirrored(
    ctx: Context, shape: Sequence[int], flipped: Sequence[int], dims: Dims
) -> tuple[list[int], dict[int, int]]:  # fmt: skip
    """(dimensions whose pieces are swapped, {dimension along which positions are fetched: how many at most})."""
    split = [d for d in flipped if dims[d]]
    swap = [d for d in split if not shape[d] % ctx.atoms.product(dims[d])]
    fetch = {}
    for d in split:
        if d not in swap:
            p = ctx.atoms.product(dims[d])
            piece = -(-shape[d] // p)
            rows = lacking(_stretches(shape[d], piece, p), [piece] * p, shape[d])
            if swap and min(piece, p * piece - shape[d]) < rows:
                swap.append(d)
            else:
                fetch[d] = rows
    return swap, fetch


def _stretches(size: int, piece: int, p: int) -> list[int]:
    """Where, in the operand, the positions begin that the device's piece of the result is reversed from."""
    return [size - (c + 1) * piece for c in range(p)]


AHEAD = {"stablehlo.reverse": rule_ahead}

CANDIDATES = {"stablehlo.reverse": reverse}
