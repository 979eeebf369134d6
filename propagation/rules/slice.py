"""Slices, dynamic slices, pad, concatenate."""

from __future__ import annotations

from collections.abc import Container

from ..attributes import PADDING, integer, integers
from ..graph import Op, Value
from ..model import OpRule
from .builder import NEED_REPLICATION, PASS_THROUGH, PERMUTATION, RuleBuilder, signature
from .options import RuleOptions


def static_slice(op: Op, options: RuleOptions) -> OpRule:
    """Dimensions that change size pass through by the operand's size, which moves borders between devices."""
    return _resized(op, options, ())


@signature(*PADDING)
def pad(op: Op, options: RuleOptions) -> OpRule:
    """Like a slice. In the newest version padding that leaves the size as it was (low -1 and high 1: a shift) moves
    borders, too."""
    if not options.is_newest:
        return _resized(op, options, ())
    moved = {d for d, p in enumerate(zip(*[integers(op.attrs[n]) for n in PADDING])) if any(p)}
    return _resized(op, options, moved)


def _resized(op: Op, options: RuleOptions, moved: Container[int]) -> OpRule:
    """A rule for dimensions that change size, or whose elements move without that (`moved`)."""
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    builder = RuleBuilder.of(op)
    for dim, (n_in, n_out) in enumerate(zip(ins, outs)):
        same = n_in == n_out
        kind = PASS_THROUGH if same and dim not in moved else PERMUTATION
        builder.add([dim], [dim], n_in, kind, options.conservative and not same)
    return builder.build()


def dynamic_slice(op: Op, options: RuleOptions) -> OpRule:
    """Dimensions that are taken whole pass through; the others are gathered before."""
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    builder = RuleBuilder.of(op)
    for dim, (n_in, n_out) in enumerate(zip(ins, outs)):
        same = n_in == n_out
        builder.add([dim], [dim], n_in, PASS_THROUGH if same else NEED_REPLICATION, not same)
    return builder.build()


@signature(None)
def dynamic_update_slice(op: Op, options: RuleOptions) -> OpRule:
    """Operand and result correspond everywhere; the update only where it covers the whole dimension."""
    operand, update = op.operands[0].type.shape, op.operands[1].type.shape
    constant = all(_is_constant(v) for v in op.operands[2:])
    builder = RuleBuilder.of(op)
    for dim, (n, m) in enumerate(zip(operand, update)):
        if n == m:
            builder.add([dim, dim], [dim], n)
        elif options.version >= (0, 11, 2):
            builder.add([dim, None], [dim], n, PERMUTATION)
            builder.add([None, dim], [None], m, PERMUTATION)
        else:
            builder.add([dim, None], [dim], n)
            builder.add([None, dim], [None], m, PASS_THROUGH if constant else NEED_REPLICATION)
    return builder.build()


def _is_constant(value: Value) -> bool:
    return value.op is not None and value.op.name in ("stablehlo.constant", "sdy.constant")


@signature(None)
def concatenate(op: Op, options: RuleOptions) -> OpRule:
    """The concatenated dimension needs replication, unless the pieces are slices that were cut before."""
    dim = integer(op.attrs["dimension"])
    kind = PERMUTATION if _joins_slices(op) else NEED_REPLICATION
    builder = RuleBuilder.of(op)
    for d, size in enumerate(op.results[0].type.shape):
        if d != dim:
            builder.add_everywhere(d, size)
        elif not options.conservative:
            builder.add_everywhere(d, size, kind)
    return builder.build()


def _joins_slices(op: Op) -> bool:
    sources = [_through_slice(v) for v in op.operands]
    sliced = [s is not v for s, v in zip(sources, op.operands)]
    return all(sliced) or (any(sliced) and all(s is sources[0] for s in sources))


def _through_slice(value: Value) -> Value:
    return value.op.operands[0] if value.op is not None and value.op.name == "stablehlo.slice" else value


RULES = {
    "stablehlo.concatenate": concatenate,
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.pad": pad,
    "stablehlo.slice": static_slice,
}
