"""Where slices of memory may begin: what Mosaic has to be told of starts that are computed.

A vector is read from whole tiles. Along the last dimension a start has to be known to be a multiple of the lanes, along
the one before it, of elements narrower than a word, of the rows of a tile. What Mosaic cannot show it refuses (E2003);
what is surely not known is refused here, with the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from meshrt.experimental.kernels.mlir.walk import Walk

__all__ = ["check_starts", "known_multiple", "tile_rows"]

# Derived: a tile of a TPU's core has 8 rows of 128 lanes, of words.
_LANES, _ROWS, _WORD = 128, 8, 32
# Measured, by libtpu's compiler for v5e, v5p, v6e: memory of these widths whose rows fill tiles of 8 rows of words
# has such tiles; that of others, and of two bytes, has tiles of 8 rows.
_WHOLE_WORDS = (4, 8)


def known_multiple(value: Any) -> int | None:
    """What a number is surely a multiple of (0: of everything), as a compiler can see; None where it may see more."""
    total = 0
    for term, factor in _terms(value).items():
        known = 1 if term is None else _multiple_of_term(term)
        if known is None:
            return None
        total = math.gcd(total, factor * known)
    return total


def _terms(value: Any) -> dict[Any, int]:
    """A number as a sum of others times factors, and of a constant at None. What is added and subtracted again, as
    compilers see too, is not among them."""
    if not isinstance(value, ir.Value):
        return {None: int(value)}
    constant = _constant(value)
    if constant is not None:
        return {None: constant}
    op: Any = value.owner
    name = None if isinstance(op, ir.Block) else op.name
    if name == "arith.index_cast":
        return _terms(op.operands[0])
    if name in ("arith.addi", "arith.subi"):
        one, two = map(_terms, op.operands)
        sign = 1 if name == "arith.addi" else -1
        return {term: one.get(term, 0) + sign * two.get(term, 0) for term in {**one, **two}}
    if name == "arith.muli":
        for one, two in (op.operands, reversed(list(op.operands))):
            scale = _constant(one)
            if scale is not None:
                return {term: scale * factor for term, factor in _terms(two).items()}
    return {value: 1}


def _multiple_of_term(value: ir.Value) -> int | None:
    if isinstance(value.owner, ir.Block):
        return _of_argument(ir.BlockArgument(value))
    op: Any = value.owner
    rule = _RULES.get(op.name)
    return None if rule is None else rule(op)


def _is_computed(value: ir.Value) -> bool:
    """Whether a number is not known before the kernel runs; the others are folded, and may be any."""
    if isinstance(value.owner, ir.Block) or value.owner.name == "memref.load":
        return True
    return any(map(_is_computed, value.owner.operands))


def _of_argument(value: ir.BlockArgument) -> int | None:
    """That of a step of the grid, or of a loop's counter, is 1, where there are several."""
    op: Any = value.owner.owner.operation
    if op.name == "func.func":
        return 1
    if op.name != "scf.for" or value.arg_number:
        return None
    low, high, step = (_constant(x) for x in op.operands[:3])
    if low is None or high is None or step is None or high - low <= step:
        return None
    return math.gcd(low, step)


def _constant(value: ir.Value) -> int | None:
    op: Any = value.owner
    if isinstance(op, ir.Block) or op.name != "arith.constant":
        return None
    return int(ir.IntegerAttr(op.attributes["value"]).value)


def _product(op: Any) -> int | None:
    one, two = map(known_multiple, op.operands)
    return None if one is None or two is None else one * two


_RULES: dict[str, Any] = {
    "arith.muli": _product,
    "memref.load": lambda op: 1,
    "tpu.assume_multiple": lambda op: math.lcm(
        ir.IntegerAttr(op.attributes["multiple"]).value, known_multiple(op.operands[0]) or 1
    ),
}


def tile_rows(rows: int, bits: int) -> int:
    """The rows of a tile of memory with so many rows of elements of so many bits: at least those of a word."""
    packed = _WORD // bits
    if rows < _ROWS:
        return max(1 << (rows - 1).bit_length(), packed)
    return _ROWS * packed if bits in _WHOLE_WORDS and rows % (_ROWS * packed) == 0 else _ROWS


def check_starts(walk: Walk, starts: Sequence[Any], shape: Sequence[int], bits: int) -> None:
    """UnsupportedError for slices of memory of `shape`, of elements of so many bits, that surely begin no vector."""
    for d in range(max(len(shape) - 2, 0), len(shape)):
        is_last = d == len(shape) - 1
        if not isinstance(starts[d], ir.Value) or (bits == _WORD and not is_last) or not _is_computed(starts[d]):
            continue
        count = _LANES if is_last else tile_rows(shape[d], bits)
        known = known_multiple(starts[d])
        if known is not None and known % count:
            whose = "the last dimension" if is_last else f"rows of elements of {bits} bits"
            walk.refuse(
                f"a slice of dimension {d} of memory of shape {tuple(shape)} begins where the program computes, and "
                f"nothing says that this is a multiple of {count}, as it has to be of {whose}: say so by "
                f"pl.multiple_of(start, {count}), give the operand blocks, or load a larger slice and select"
            )
