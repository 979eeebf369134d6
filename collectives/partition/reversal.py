"""Reversals: pieces change hands with the mirrored device."""

from __future__ import annotations

import numpy as np

from propagation.attributes import integers
from propagation.program import Op

from ..emit import Ref
from ..layout import Dims
from .context import Context
from .intervals import lacking, windows
from .structure import rearrange


def reverse(ctx: Context, op: Op) -> None:
    """Pieces change hands with the mirrored device, of all dimensions at once, and then each is reversed: in this
    order, since the reversal becomes part of what follows, instead of a copy of the operand that is only sent.

    Where a dimension does not divide, mirrored pieces have their padding in front and are shifted by it; or a device
    fetches its mirrored stretch instead, if it lacks less of that.
    """
    value = op.operands[0]
    flipped = integers(op.attrs["dimensions"])
    shape = value.type.shape

    def keep(dims: Dims):
        return dims, dims

    def mirrored(dims: Dims) -> tuple[list[int], dict[int, int]]:
        """(dimensions whose pieces change hands, {dimension whose stretches are fetched: rows that a device lacks})."""
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

    def local(ref: Ref, before: Dims, after) -> Ref:
        swap, fetch = mirrored(before)
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

    def sends(dims: Dims) -> float:
        swap, fetch = mirrored(dims)
        share = float(bool(swap))
        for d, rows in fetch.items():
            share += rows / -(-shape[d] // ctx.atoms.product(dims[d]))
        return share * ctx.bits(value) * ctx.elements(shape, dims)

    rearrange(ctx, op, value, keep, keep, local, sends=sends)


def _stretches(size: int, piece: int, p: int) -> list[int]:
    """Where, in the operand, the stretches begin that the pieces of the result are reversed from."""
    return [size - (c + 1) * piece for c in range(p)]


PARTITION = {"stablehlo.reverse": reverse}
