"""Slices, dynamic slices, pad, concatenate."""

from __future__ import annotations

from ..attributes import integer
from .builder import NEED_REPLICATION, PASS_THROUGH, PERMUTATION, RuleBuilder, signature


def static_slice(op, options):
    """Dimensions that change size pass through by the operand's size, which moves borders between devices."""
    return _resized(op, options)


def pad(op, options):
    return _resized(op, options)


def _resized(op, options):
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    builder = RuleBuilder.of(op)
    for dim, (n_in, n_out) in enumerate(zip(ins, outs)):
        same = n_in == n_out
        builder.add([dim], [dim], n_in, PASS_THROUGH if same else PERMUTATION, options.conservative and not same)
    return builder.build()


def dynamic_slice(op, options):
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    builder = RuleBuilder.of(op)
    for dim, (n_in, n_out) in enumerate(zip(ins, outs)):
        same = n_in == n_out
        builder.add([dim], [dim], n_in, PASS_THROUGH if same else NEED_REPLICATION, not same)
    return builder.build()


@signature(None)
def dynamic_update_slice(op, options):
    """Operand and result correspond everywhere; the update only where it covers the whole dimension."""
    operand, update = op.operands[0].type.shape, op.operands[1].type.shape
    constant = all(_is_constant(v) for v in op.operands[2:])
    builder = RuleBuilder.of(op)
    for dim, (n, m) in enumerate(zip(operand, update)):
        if n == m:
            builder.add([dim, dim], [dim], n)
        elif options.is_newest:
            builder.add([dim, None], [dim], n, PERMUTATION)
            builder.add([None, dim], [None], m, PERMUTATION)
        else:
            builder.add([dim, None], [dim], n)
            builder.add([None, dim], [None], m, PASS_THROUGH if constant else NEED_REPLICATION)
    return builder.build()


def _is_constant(value) -> bool:
    return value.op is not None and value.op.name in ("stablehlo.constant", "sdy.constant")


@signature(None)
def concatenate(op, options):
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


def _joins_slices(op) -> bool:
    sources = [_through_slice(v) for v in op.operands]
    sliced = [s is not v for s, v in zip(sources, op.operands)]
    return all(sliced) or (any(sliced) and all(s is sources[0] for s in sources))


def _through_slice(value):
    return value.op.operands[0] if value.op is not None and value.op.name == "stablehlo.slice" else value


RULES = {
    "stablehlo.concatenate": concatenate,
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.pad": pad,
    "stablehlo.slice": static_slice,
}
