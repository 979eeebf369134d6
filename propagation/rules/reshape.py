"""Operations that move dimensions: reshape, transpose, broadcast_in_dim, reverse."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from ..attributes import integers
from ..graph import Op
from ..model import OpRule
from .builder import NEED_REPLICATION, PASS_THROUGH, PERMUTATION, RuleBuilder, signature
from .options import RuleOptions


@signature("broadcast_dimensions")
def broadcast_in_dim(op: Op, options: RuleOptions) -> OpRule:
    """Copied dimensions pass through; new ones and expanded ones of size 1 have factors of their own."""
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    source = {out: dim for dim, out in enumerate(integers(op.attrs["broadcast_dimensions"]))}
    builder = RuleBuilder.of(op)
    for out, size in enumerate(outs):
        dim = source.get(out)
        if dim is not None and ins[dim] == 1 and size != 1:
            builder.add([dim], [None], 1)
            dim = None
        builder.add([dim], [out], size)
    return builder.build()


@signature("permutation")
def transpose(op: Op, options: RuleOptions) -> OpRule:
    """Dimensions pass through to where they go."""
    shape = op.results[0].type.shape
    builder = RuleBuilder.of(op)
    for out, dim in enumerate(integers(op.attrs["permutation"])):
        builder.add([dim], [out], shape[out])
    return builder.build()


@signature("dimensions")
def reverse(op: Op, options: RuleOptions) -> OpRule:
    """Reversed dimensions pass through, which exchanges their pieces between devices."""
    reversed_dims = integers(op.attrs["dimensions"])
    builder = RuleBuilder.of(op)
    shape = op.results[0].type.shape
    return builder.add_pointwise(shape, lambda d: PERMUTATION if d in reversed_dims else PASS_THROUGH).build()


def reshape(op: Op, options: RuleOptions) -> OpRule | None:
    """Greedy factorisation of both shapes at once: walks the dimensions of both sides, and takes as the next common
    factor the greatest common divisor of what is left of the current dimensions."""
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    if 0 in ins or 0 in outs or -1 in ins:
        return None
    return _Reshape(op, ins, outs, options.is_newest).run()


class _Reshape:
    """State of the factorisation. On each side `total` is the product of the dimensions entered so far, `done` that
    of the factors made; a dimension is left when they are equal. In the newest version a factor that only one side
    has must be whole, and dimensions without common divisor are tied by a permuted factor of the operand's size."""

    def __init__(self, op: Op, ins: Sequence[int], outs: Sequence[int], newest: bool):
        self.builder = RuleBuilder.of(op)
        self.shapes = (ins, outs)
        self.newest = newest
        self.position = [0, 0]
        self.total = [1, 1]
        self.done = [1, 1]

    def run(self) -> OpRule:
        while self._inside(0) or self._inside(1):
            if self._skip_units():
                continue
            for side in (0, 1):
                if self._inside(side) and self.total[side] == self.done[side]:
                    self.total[side] *= self.shapes[side][self.position[side]]
            self._step()
            for side in (0, 1):
                if self._inside(side) and self.total[side] == self.done[side]:
                    self.position[side] += 1
        return self.builder.build()

    def _inside(self, side: int) -> bool:
        return self.position[side] < len(self.shapes[side])

    def _skip_units(self) -> bool:
        """Gives dimensions of size 1 that come next a private factor; True if there were any."""
        for side in (0, 1):
            if self._inside(side) and self.total[side] == self.done[side]:
                if self.shapes[side][self.position[side]] == 1:
                    self._add_one(side, 1)
                    self.position[side] += 1
                    return True
        return False

    def _step(self) -> None:
        left = [self.total[s] // self.done[s] for s in (0, 1)]
        common = gcd(*left)
        if self.done[0] == self.done[1]:
            if common > 1:
                self._add_both(common)
            elif self.newest:
                self.builder.add([self.position[0]], [self.position[1]], left[0], PERMUTATION)
                self.done = [self.done[0] * left[0], self.done[1] * left[1]]
            else:
                self._add_one(0, left[0])
                self._add_one(1, left[1])
            return
        behind = 0 if self.done[0] < self.done[1] else 1
        ratio, rest = divmod(self.done[1 - behind], self.done[behind])
        if rest == 0 and left[behind] % ratio == 0:
            self._add_one(behind, ratio)
        elif left[behind] > common:
            self._add_one(behind, left[behind] // common)
        else:
            self._add_one(behind, left[behind])

    def _add_both(self, size: int) -> None:
        self.builder.add([self.position[0]], [self.position[1]], size)
        self.done[0] *= size
        self.done[1] *= size

    def _add_one(self, side: int, size: int) -> None:
        dims: list[int | None] = [None, None]
        dims[side] = self.position[side]
        kind = NEED_REPLICATION if self.newest else PASS_THROUGH
        self.builder.add(dims[:1], dims[1:], size, kind)
        self.done[side] *= size


RULES = {
    "stablehlo.broadcast_in_dim": broadcast_in_dim,
    "stablehlo.reshape": reshape,
    "stablehlo.reverse": reverse,
    "stablehlo.transpose": transpose,
}
