"""memory_put: the same value in another memory, within a program.

    memory_put[kind="pinned_host"] a:f32[8,4] -> f32<host>[8,4]

Types say where values lie, so operations take arrays of one space only (`meshrt.core.completion`). Its transpose brings
the cotangent back to where the operand lies. On a CPU, whose memories are one, it computes nothing; for other platforms
it is the custom call by which XLA places buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.core.basic.linear import linear_jvp
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.spaces import Space, kind_of_space, space_of_kind
from meshrt.core.types import ShapedArray, aval_of

__all__ = ["in_space", "memory_put_p", "placement_call"]


def _lower(ctx: Any, eqn: Eqn, x: Any) -> Any:
    return placement_call(ctx, x, eqn.params["kind"]) if ctx.module.places_values else x


def placement_call(ctx: Any, x: Any, kind: str) -> Any:
    """The operation that tells XLA in which kind of memory a value is to lie."""
    return ctx.ops(
        "stablehlo.custom_call", [x], [x.type],
        'call_target_name = "annotate_device_placement", has_side_effect = true',
        discardable=f'mhlo.frontend_attributes = {{_xla_buffer_placement = "{kind}"}}',
    )[0]  # fmt: skip


def _transpose(ct: Any, x: Any, *, kind: str) -> list[Any]:
    return [memory_put_p.bind(ct, kind=kind_of_space(x.aval.memory_space))]


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    return memory_put_p.bind(args[0], **params), dims[0]


memory_put_p: Primitive = Primitive(
    "memory_put", lambda x, *, kind: x.update(memory_space=space_of_kind(kind)), lower=_lower,
    jvp=linear_jvp(lambda: memory_put_p), transpose=_transpose, batch=_batch, typed=True, finite=True,
)  # fmt: skip


def in_space(x: Any, space: Space) -> Any:
    """`x` in a memory space; itself if it lies there."""
    aval: ShapedArray = aval_of(x)
    return x if aval.memory_space is space else memory_put_p.bind(x, kind=kind_of_space(space))
