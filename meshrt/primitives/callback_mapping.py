"""How callbacks are called for the members of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.basic.shapes import broadcast_in_dim, move_dim
from meshrt.core.types import aval_of
from meshrt.primitives.control import scan
from meshrt.primitives.reshard import reshard

__all__: list[str] = []


def whole_along(x: Any, dim: int) -> Any:
    """`x` with the dimension `dim` on one device, if its type says otherwise."""
    sharding = aval_of(x).explicit
    if sharding is None:
        return x
    entries = list(sharding.spec.padded(aval_of(x).ndim))
    if entries[dim] is None:
        return x
    entries[dim] = None
    return reshard(x, sharding.update(spec=sharding.spec.update(partitions=entries)))


def one_by_one(
    bind: Callable[..., Sequence[Any]], args: Sequence[Any], dims: Sequence[Any], unroll: bool = False
) -> tuple[Any, Any]:
    """A loop over the mapped dimension."""
    mapped = [move_dim(a, d, 0) for a, d in zip(args, dims) if d is not None]

    def body(_: Any, elements: Sequence[Any]) -> tuple[Any, Any]:
        rest = iter(elements)
        return (), list(bind(*[a if d is None else next(rest) for a, d in zip(args, dims)]))

    _, outs = scan(body, (), mapped, unroll=unroll)
    return outs, [0] * len(outs)


def repeated(x: Any, size: int) -> Any:
    shape = aval_of(x).shape
    return broadcast_in_dim(x, (size, *shape), tuple(range(1, len(shape) + 1)))
