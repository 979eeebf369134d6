"""What types say of Explicit axes, as shardings of the values that a lowering rule has written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshrt.core.jaxpr import Eqn, Var
from meshrt.sharding.mesh import AbstractMesh
from propagation.asm import Ref

if TYPE_CHECKING:
    from meshrt.lowering.context import LoweringContext

__all__ = ["CONSTANTS", "pinned"]

# They are copied to their uses, each of which has its own sharding.
CONSTANTS = frozenset({"stablehlo.constant"})
_SIZES = re.compile(r"tensor<((?:(?:\{[^}]*\}|[0-9]+)x)*)")  # symbolic ones in braces
_SIZE = re.compile(r"\{[^}]*\}x|[0-9]+x")


def pinned(ctx: LoweringContext, eqn: Eqn, outs: Sequence[Ref], start: int, region: AbstractMesh) -> list[Ref]:
    """Writes the shardings of an equation's types onto the operations after `start` that made its results.

    Results that no new operation made get a constraint, unless nothing changed or they are constants.
    """
    items = ctx.body.items
    pins: dict[int, dict[Ref, str]] = {}
    found: list[Ref] = []
    for v, ref in zip(eqn.outvars, outs):
        aval = v.aval
        if not aval.ndim or not isinstance(ref, Ref):
            found.append(ref)
            continue
        place = next((i for i in range(len(items) - 1, start - 1, -1) if ref in items[i][2]), None)
        if place is not None and items[place][0] == "sdy.sharding_constraint":
            found.append(ref)
            continue
        if place is not None and items[place][0] not in CONSTANTS and "sdy." not in items[place][6]:
            pins.setdefault(place, {})[ref] = ctx.module.pin_text(aval, region)
        elif (
            aval.explicit is not None if place is not None else
            any(a.aval.explicit is not aval.explicit for a in eqn.invars if type(a) is Var and a.aval.ndim)
        ):  # fmt: skip
            text = ctx.module.pin_text(aval, region)
            ref = ctx.op("sdy.sharding_constraint", [ref], aval, f"sharding = #sdy.sharding{text}")
        found.append(ref)
    for place, texts in pins.items():
        name, operands, results, attrs, regions, loc, other = items[place]
        per_value = ", ".join([texts.get(r) or _open_text(ctx, r, region) for r in results])
        text = f"sdy.sharding = #sdy.sharding_per_value<[{per_value}]>"
        items[place] = (name, operands, results, attrs, regions, loc, f"{text}, {other}" if other else text)
    return found


def _open_text(ctx: LoweringContext, ref: Ref, region: AbstractMesh) -> str:
    """The sharding that says nothing, of a value of a tensor type."""
    sizes = _SIZES.match(ref.type)
    rank = len(_SIZE.findall(sizes[1])) if sizes is not None else 0
    return f"<@{ctx.module.mesh_symbol(ctx.module.mesh or region)}, [{', '.join(['{?}'] * rank)}]>"
