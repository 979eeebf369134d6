"""Complete types: what a result's type says beside shape and dtype follows from the operands' types in one place.

A primitive's type rule (`infer`) knows shapes and dtypes. Varying axes, shardings and memory spaces obey the same
three rules for every primitive that does not say otherwise (its trait `typed`):

    a result varies over the Manual axes over which any operand does
    a result is sharded over Explicit axes as the factor rule of the operation says
    a result lies in the memory space in which all operands lie that have dimensions

The second one needs to lower operations, so it is handed in from above: `Completion.shardings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from meshrt import errors
from meshrt.core import source
from meshrt.core.spaces import DEVICE, Space
from meshrt.core.types import ShapedArray, aval_of

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = ["OUT_SHARDING", "Completion", "asked", "batched_asked", "complete", "declared", "moved_as", "undeclared"]

Shardings = Callable[["Primitive", Sequence[ShapedArray], dict[str, Any], Sequence[ShapedArray]], Sequence[Any]]


# A parameter of primitives whose users may say how the result is split. It stands among the parameters only where
# they do, and is complete: one entry for each dimension, of Explicit axes only.
OUT_SHARDING = "out_sharding"


class Completion:
    """What layers above hand in.

    `shardings(primitive, operand types, params, bare result types)` is the sharding of each result's type, or None; set
    by the layer that can lower operations (`meshrt.lowering`). `asked(out_sharding, ndim, function)` is the sharding
    that a user asks for as a NamedSharding for types, None if nothing is asked (`meshrt.sharding.typed`).
    `captured(aval)` is the type, with a sharding, of a value of outside where a program is traced
    (`meshrt.primitives.region`).
    """

    shardings: ClassVar[Shardings]
    asked: ClassVar[Callable[[Any, int, str], Any]]
    captured: ClassVar[Callable[[Any], Any]]
    # (mesh, ndim, unreduced, reduced) -> the sharding of a type that says only this (`meshrt.sharding.typed`).
    sums: ClassVar[Callable[[Any, int, frozenset[Any], frozenset[Any]], Any]]


def complete(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any], types: Sequence[ShapedArray]
) -> tuple[ShapedArray, ...]:
    """The types of the results of `primitive`, of which `types` are the bare ones."""
    vma = frozenset[str]().union(*[a.vma for a in avals])
    if OUT_SHARDING in params or any(a.explicit is not None for a in avals):
        shardings = Completion.shardings(primitive, avals, params, types)
    else:
        shardings = (None,) * len(types)
    space = _space(primitive, avals)
    return tuple(
        t if t.is_high else t.update(sharding=s, vma=vma, memory_space=space) for t, s in zip(types, shardings)
    )


def _space(primitive: Primitive, avals: Sequence[ShapedArray]) -> Space:
    """The memory space of the results. MemorySpaceError if arrays among the operands lie in several."""
    if primitive.space is not None:
        return primitive.space(avals)
    first: ShapedArray | None = None
    for a in avals:
        if not a.ndim:  # written into the operation, or sent along
            continue
        if first is None:
            first = a
        elif a.memory_space is not first.memory_space:
            raise errors.MemorySpaceError(
                f"memory_space of all inputs passed to `{primitive.name}` must be the same. Got one operand with type: "
                f"{first} and another operand with type: {a} at {source.capture()}. Move one of them, for example "
                f"with meshrt.device_put(x, meshrt.memory.{first.memory_space!s})"
            )
    return DEVICE if first is None else first.memory_space


def asked(out_sharding: Any, ndim: int, function: str) -> dict[str, Any]:
    """The parameters that say how the result of `function`, of `ndim` dimensions, is to be split; none if None."""
    if out_sharding is None:
        return {}
    wanted = Completion.asked(out_sharding, ndim, function)
    return {} if wanted is None else {OUT_SHARDING: wanted}


def batched_asked(params: dict[str, Any], x: Any, dim: int = 0, out: int = 0) -> dict[str, Any]:
    """The parameters that ask for a sharding, for operands with a mapped dimension: that of `x` is `dim`, that of the
    result is to be `out`. It stays split as it is."""
    if OUT_SHARDING not in params:
        return {}
    wanted, own = params[OUT_SHARDING], aval_of(x).explicit
    entry = None if own is None else own.spec.partitions[dim]
    kept = wanted.spec.partitions
    entries = (*kept[:out], entry, *kept[out:])
    return {OUT_SHARDING: wanted.update(spec=wanted.spec.update(partitions=entries))}


def declared(aval: ShapedArray, others: Iterable[Any]) -> dict[str, Any]:
    """The parameters that ask for the sharding of the type `aval`; none where no type has one, `others` included.

    For rules that know what the sharding of their result must be, as that of a cotangent.
    """
    known = next((a.explicit for a in (aval, *others) if a.explicit is not None), None)
    if known is None:
        return {}
    return {OUT_SHARDING: aval.explicit if aval.explicit is not None else known.replicated(aval.ndim)}


def moved_as(aval: ShapedArray, x: ShapedArray) -> dict[str, Any]:
    """`declared` for what only moves the elements of a value of type `x`: it stays the partial sum, or copy, it is."""
    params = declared(aval, [x])
    if params:
        wanted: Any = params[OUT_SHARDING]
        own: Any = x.explicit.spec if x.explicit is not None else None
        sums = (own.unreduced, own.reduced) if own is not None else (frozenset(), frozenset())
        if (wanted.spec.unreduced, wanted.spec.reduced) != sums:
            spec = wanted.spec.update(unreduced=sums[0], reduced=sums[1])
            params = {OUT_SHARDING: wanted.update(spec=spec)}
    return params


def undeclared(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters without the one that asks for a sharding."""
    return {k: v for k, v in params.items() if k != OUT_SHARDING} if OUT_SHARDING in params else params
