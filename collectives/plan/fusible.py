"""What compilers compute where it is read, rather than write to memory: which operations, and which take too long for
that, as XLA's simplifier leaves them."""

from __future__ import annotations

import math

from propagation.ops import CONSTANTS, POINTWISE, REARRANGING, having

from ..cost import ITEM_BITS, item_bytes
from ..ir.attributes import String
from ..ir.program import LocalOp, LocalValue
from ..machine import dot_dimensions, ref_bytes

__all__ = [
    "FUSIBLE",
    "FUSING",
    "NARROW",
    "WIDENING",
    "bytes_in",
    "is_dear",
    "is_identity",
    "is_spread",
    "is_widened",
    "name_of",
]

_named = lambda *names: frozenset(f"stablehlo.{n}" for n in names)
# What takes no memory of its own when what reads it can compute it.
FUSIBLE = (POINTWISE | REARRANGING | CONSTANTS | having("joining")) - having("library") - _named("rng_bit_generator")
# What computes its operands while it reads them.
FUSING = FUSIBLE | _named("reduce", "dynamic_update_slice", "broadcast_in_dim", "iota")
# Too dear to be computed once for each of several readers.
_DEAR = _named(
    "atan2", "cbrt", "cosine", "divide", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic",
    "power", "remainder", "rsqrt", "sine", "sqrt", "tan", "tanh",
) | _named("concatenate", "gather", "reduce")  # fmt: skip
# Bytes of the floats in which XLA's compiler for CPUs multiplies narrower ones, and in which it adds these up over
# devices; those of one byte become f16 first, which it only multiplies as f32.
NARROW = frozenset(d for d, bits in ITEM_BITS.items() if bits <= 16 and d.startswith(("f", "bf")))
_MULTIPLIED, _SUMMED, _SUMMED_AS_F32 = 4.0, 2.0, frozenset(["bf16"])
_SUMMING = _named("all_reduce", "reduce_scatter")
_CONTRACTIONS = having("contraction")
WIDENING = _SUMMING | _CONTRACTIONS
_SPREAD = _named("broadcast_in_dim", "iota", "constant")


def name_of(item: LocalOp) -> str:
    """The operation as which an item runs: a contraction over dimensions of one element multiplies."""
    if item.name != "stablehlo.dot_general":
        return item.name
    lhs, contracted = item.operands[0], dot_dimensions(item)[2]
    return "stablehlo.multiply" if math.prod(lhs.shape[d] for d in contracted) == 1 else item.name


def is_identity(item: LocalOp) -> bool:
    """Whether an item gives its operand: a constraint on its layout, which is the order of its dimensions here."""
    if item.name != "stablehlo.custom_call":
        return False
    target = item.attribute("call_target_name")
    return isinstance(target, String) and target.value == "LayoutConstraint"


def is_spread(value: LocalValue) -> bool:
    """Whether all that a value is made of is smaller than it."""
    return value.item is not None and value.item.name in _SPREAD


def is_dear(item: LocalOp) -> bool:
    """Whether an item takes long enough that it is computed once for all its readers. A division by a value that is
    spread over the result is a multiplication by its reciprocal."""
    if item.name == "stablehlo.divide":
        return not is_spread(item.operands[1])
    return item.name in _DEAR and not _is_padding(item)


def _is_padding(item: LocalOp) -> bool:
    """Whether an item puts one number beside a value, which compilers make a padding."""
    if item.name != "stablehlo.concatenate" or len(item.operands) != 2:
        return False
    return any(_is_one_number(value) for value in item.operands)


def _is_one_number(value: LocalValue) -> bool:
    """Whether all elements of a value are a scalar's."""
    maker = value.item
    return maker is not None and maker.name == "stablehlo.broadcast_in_dim" and not maker.operands[0].shape


def bytes_in(item: LocalOp, value: LocalValue) -> float:
    """Bytes of a value as an item reads or gives it with XLA's compiler for CPUs: products and sums over devices of
    narrow floats are those of wider ones."""
    size = ref_bytes(value)
    if value.dtype not in NARROW:
        return size
    own, wide = item_bytes(value.dtype), 0.0
    if item.name in _SUMMING:
        wide = _MULTIPLIED if value.dtype in _SUMMED_AS_F32 else _SUMMED
    elif name_of(item) in _CONTRACTIONS:
        wide = _MULTIPLIED
    return size * max(own, wide) / own


def is_widened(item: LocalOp, value: LocalValue) -> bool:
    """Whether an item reads or gives a value as wider floats with XLA's compiler for CPUs."""
    return bytes_in(item, value) > ref_bytes(value)
