"""Which operations can be removed when nothing uses their results, as MLIR sees it."""

from __future__ import annotations

import functools

from .graph import Op

__all__ = ["is_removable"]

_IMPURE = frozenset(
    [
        "func.call",
        "func.return",
        "sdy.return",
        "sdy.sharding_constraint",
        "sdy.sharding_group",
        "sdy.data_flow_edge",
        "sdy.func_data_flow_edge",
        "sdy.all_gather",
        "sdy.all_slice",
        "sdy.all_to_all",
        "sdy.collective_permute",
        "sdy.all_reduce",
        "sdy.reduce_scatter",
        "sdy.replicated_to_unreduced",
        "sdy.sharded_to_unreduced",
        "stablehlo.all_gather",
        "stablehlo.all_reduce",
        "stablehlo.all_to_all",
        "stablehlo.async_done",
        "stablehlo.collective_broadcast",
        "stablehlo.collective_permute",
        "stablehlo.composite",
        "stablehlo.cross-replica-sum",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.recv",
        "stablehlo.reduce_scatter",
        "stablehlo.return",
        "stablehlo.rng",
        "stablehlo.send",
        "stablehlo.create_token",
    ]
)
_KNOWN_DIALECTS = ("stablehlo.", "chlo.", "sdy.")


def is_removable(op: Op) -> bool:
    """Whether `op` and all that it contains is free of side effects."""
    if op.name == "stablehlo.custom_call":
        effect = op.attrs.get("has_side_effect")
        return effect is None or "true" not in str(effect)
    return _is_pure(op.name) and all(_is_pure_inside(inner) for block in op.regions for inner in block.ops)


@functools.cache
def _is_pure(name: str) -> bool:
    return name not in _IMPURE and name.startswith(_KNOWN_DIALECTS)


def _is_pure_inside(op: Op) -> bool:
    return op.name in ("stablehlo.return", "sdy.return") or is_removable(op)
