"""Sharding rules of custom partitioning as attributes of MLIR's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from meshrt.sharding.rules import ShardingRule

__all__ = ["sdy_sharding_rule_to_mlir"]


def _shape(kind: Any) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(kind).shape)


def sdy_sharding_rule_to_mlir(rule: ShardingRule, operand_types: Sequence[Any], result_types: Sequence[Any]) -> Any:
    """The `#sdy.op_sharding_rule` of a rule for operands and results of these types."""
    bound = rule.bind([_shape(t) for t in operand_types], [_shape(t) for t in result_types])
    return ir.Attribute.parse(f"#sdy.op_sharding_rule<{bound.to_text()}>")
