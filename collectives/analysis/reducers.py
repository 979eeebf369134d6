"""What the body of a reduction computes: the known operation that it is, and the neutral element of that."""

from __future__ import annotations

import math

from propagation.ops import REDUCTIONS
from propagation.program import Block, Op

__all__ = ["identity_literal", "is_identity", "reduction_kind", "reduction_kinds"]


def reduction_kind(block: Block) -> str | None:
    """The kind ("add", "max", ...) of a body that is one known operation on its two arguments; None for any other."""
    if len(block.args) != 2 or len(block.ops) != 2:
        return None
    op, end = block.ops
    if set(op.operands) != set(block.args) or list(end.operands) != list(op.results):
        return None
    found = REDUCTIONS.get(op.name)
    return None if found is None else found.kind


def reduction_kinds(block: Block) -> list[str] | None:
    """The kinds of the body of a reduction of several operands, each by one known operation; None for any other."""
    count = len(block.args) // 2
    kinds = []
    for i, v in enumerate(block.terminator.operands):
        op = v.owner
        if not isinstance(op, Op) or op.parent is not block or op.name not in REDUCTIONS:
            return None
        if sorted(map(id, op.operands)) != sorted(map(id, (block.args[i], block.args[count + i]))):
            return None
        kinds.append(REDUCTIONS[op.name].kind)
    return kinds


_SPECIAL = {"f16": ("0x7C00", "0xFC00"), "bf16": ("0x7F80", "0xFF80"), "f32": ("0x7F800000", "0xFF800000"),
            "f64": ("0x7FF0000000000000", "0xFFF0000000000000")}  # fmt: skip


def identity_literal(kind: str, dtype: str) -> str | None:
    """The neutral element of a reduction as an MLIR literal (0 for add, -inf for max of floats); None if there is
    none."""
    integer = dtype.lstrip("u")
    if dtype == "i1":
        return {"add": "false", "or": "false", "xor": "false", "max": "false"}.get(kind, "true")
    if integer.startswith("i"):
        width = int(integer[1:])
        unsigned = dtype.startswith("u")
        low = 0 if unsigned else -(1 << (width - 1))
        high = (1 << (width - (0 if unsigned else 1))) - 1
        ones = str(high) if unsigned else "-1"
        return {"add": "0", "or": "0", "xor": "0", "mul": "1", "max": str(low), "min": str(high), "and": ones}[kind]
    if dtype.startswith("complex"):
        return {"add": "(0.0, 0.0)", "mul": "(1.0, 0.0)"}.get(kind)
    if kind in ("add", "mul"):
        return "0.0" if kind == "add" else "1.0"
    if dtype not in _SPECIAL or kind not in ("max", "min"):
        return None
    return _SPECIAL[dtype][0 if kind == "min" else 1]


def is_identity(kind: str, dtype: str, number: complex | None) -> bool:
    """Whether a number (None: not known) is the neutral element of a reduction."""
    if number is None:
        return False
    if kind in ("add", "or", "xor"):
        return number == 0
    if kind == "mul":
        return number == 1
    literal = identity_literal(kind, dtype)
    if literal is None:
        return False
    if literal.startswith("0x"):
        return number == (math.inf if kind == "min" else -math.inf)
    return str(number).lower() == literal
