"""`debug.inspect_array_sharding` in a program: a mark on a value, which ends at propagation.

    _ = inspect_sharding[callback] x

It lowers to a custom call without results that only holds on to its operand. Once propagation has decided,
`meshrt.pipeline.inspections` reads the sharding, calls back, and takes the mark out: no compiler sees it. A program on
one device has no mark; it is called back when the program is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core.effects import DEBUG
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.runtime.array import Array
from meshrt.sharding.mesh import AbstractMesh
from propagation.asm import Ref

__all__: list[str] = []

TARGET = "meshrt.inspect_sharding"


class Inspection(NamedTuple):
    """A value that somebody asks the sharding of: its type, the mesh of the manual region around (or None)."""

    callback: Callable[[Any], Any]
    aval: ShapedArray
    manual: AbstractMesh | None


def _lower(ctx: LoweringContext, eqn: Eqn, x: Ref) -> Sequence[Ref]:
    module = ctx.module
    module.inspections.append(Inspection(eqn.params["callback"], eqn.invars[0].aval, ctx.manual))
    if module.mesh is None:
        return ()
    attrs = f'call_target_name = "{TARGET}", backend_config = "{len(module.inspections) - 1}", has_side_effect = true'
    return ctx.ops("stablehlo.custom_call", [x], [], attrs)


def _evaluate(x: Any, *, callback: Callable[[Any], Any]) -> list[Any]:
    if type(x) is not Array:
        raise errors.ArgumentTypeError(
            f"inspect_array_sharding takes Arrays, but got {x!r} of type {type(x).__name__}, which is on no device; "
            "put it on one with meshrt.device_put"
        )
    callback(x.sharding)
    return []


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    return inspect_sharding_p.bind(*primals, **params), []


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """The sharding of the whole value, the mapped dimension included."""
    return inspect_sharding_p.bind(*args, **params), []


inspect_sharding_p: Primitive = Primitive(
    "inspect_sharding", lambda x, *, callback: [], lower=_lower, jvp=_jvp,
    transpose=lambda cts, x, **_: [None], batch=_batch, effects=lambda x, *, callback: frozenset((DEBUG,)),
    impl=_evaluate, multiple_results=True, cache_types=False,
)  # fmt: skip
